"""Two ranks, each with a GPU: layouts that share the work, against one rank; killed and resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.gpu_correctness import Check, made
from benchmarks.gpu_pair import SMALL, books, config_of_arm
from benchmarks.gpu_parts import Request, Results
from tst_study import run_record
from tst_study.checkpoints.places import checkpoint_steps
from tst_study.config import Config, apply_override, from_dict, to_dict, to_toml

ROOT = Path(__file__).resolve().parent.parent
RANKS = 2
TOLERANCE = 1e-3
"""Of the losses of a dozen steps in float32, of which each adds to the differences before it."""
EXPERTS = (
    'model.experts={"count"=4, "per_token"=2, "feed_forward_size"=32}',
    'execution.expert_products="sequential"',  # GPUs have grouped ones in bfloat16 alone
)
TENSOR = ("execution.parallel.tensor=2", "execution.parallel.sequence_parallel=true")
LAYOUTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "tensor and sequence": ((), TENSOR),
    "data, overlapped": (
        (),
        (
            'execution.parallel.optimizer="distributed"',
            "execution.parallel.overlap_gradients=true",
            "execution.parallel.overlap_weights=true",
            "execution.micro_batch=1",
        ),
    ),
    "pipeline": ((), ("execution.parallel.pipeline=2", "execution.micro_batch=1")),
    "experts": (EXPERTS, ("execution.parallel.expert=2",)),
}
"""By name: of the model, and of the layout."""


def layouts(request: Request) -> Results:
    """Checks of the losses of each layout, and of a run that was killed."""
    if request.device == "cuda" and torch.cuda.device_count() < RANKS:
        yield "left out", "NCCL lets no two ranks share a GPU, and there is one here"
        return
    corpus = str(books(request, SMALL))
    checks: list[Check] = []
    for name in list(LAYOUTS)[: 1 if request.small else None]:
        checks += made(name, lambda name=name: [_like_one_rank(name, corpus, request)])
        yield "checks", [asdict(check) for check in checks]
    checks += made("killed and resumed", lambda: [_killed_and_resumed(corpus, request)])
    yield "checks", [asdict(check) for check in checks]


def _like_one_rank(name: str, corpus: str, request: Request) -> Check:
    model, layout = LAYOUTS[name]
    folder = request.work / "layouts" / name.replace(", ", "-").replace(" ", "-")
    _train(_config(corpus, request, *model), folder / "alone", ranks=1)
    _train(_config(corpus, request, *model, *layout), folder / "shared", ranks=RANKS)
    return _same(name, folder / "shared", folder / "alone")


def _killed_and_resumed(corpus: str, request: Request) -> Check:
    folder = request.work / "layouts" / "killed"
    config = _config(corpus, request, *TENSOR, "execution.checkpoint_every=1")
    process = _start(config, folder / "killed", RANKS)
    while process.poll() is None and not checkpoint_steps(folder / "killed"):
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    _train(config, folder / "killed", RANKS)
    _train(config, folder / "unbroken", RANKS)
    return _same("killed and resumed", folder / "killed", folder / "unbroken")


def _same(name: str, one: Path, other: Path) -> Check:
    pairs = zip(run_record.read(one).metrics, run_record.read(other).metrics, strict=True)
    errors = {f"loss of step {a['step']}": abs(a["loss"] / b["loss"] - 1) for a, b in pairs}  # type: ignore[operator]
    worst, error = max(errors.items(), key=lambda item: item[1])
    return Check(name, error, TOLERANCE, worst, error <= TOLERANCE)


def _config(corpus: str, request: Request, *overrides: str) -> Config:
    values = to_dict(config_of_arm("superposition", corpus, SMALL, request.device))
    for override in overrides:
        apply_override(values, override)
    return from_dict(values)


def _start(config: Config, folder: Path, ranks: int) -> subprocess.Popen[bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "asked.toml").write_text(to_toml(config))
    command = [sys.executable, "-m", "tst_study", "train", str(folder / "asked.toml")]
    command += ["--folder", str(folder), "--processes", str(ranks)]
    return subprocess.Popen(command, cwd=ROOT, start_new_session=True, stderr=subprocess.PIPE)


def _train(config: Config, folder: Path, ranks: int) -> None:
    process = _start(config, folder, ranks)
    _, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(errors.decode(errors="replace").strip().splitlines()[-1])
