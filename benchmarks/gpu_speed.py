"""The parts of `benchmarks/gpu.py` that measure speed and memory on a GPU, and train there.

They measure whole training steps beside those of plain PyTorch, the head with its loss, attention,
and the saving and loading of a checkpoint, and train a baseline and two superposed arms. Each part
is a public function that takes the options of `gpu.py` as `request`. With `request.small`
everything is tiny, so that the code can be tried without a GPU.
"""

import argparse
import gc
import json
import math
import shutil
import statistics
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import DeviceType
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import profile

from benchmarks import speed
from benchmarks.measuring import ceiling, measured
from benchmarks.steps import PackageSteps, Step, step_config
from tst_study.analysis.tables.archive import add_to_archive
from tst_study.analysis.tables.source import read_tables
from tst_study.checkpoints.checkpoint import Checkpoints
from tst_study.checkpoints.places import checkpoint_place
from tst_study.config.presets import dense
from tst_study.config.schema import Config, from_dict, to_dict
from tst_study.data.preparation.generated_language import LanguageParameters, generate
from tst_study.model.layers import ATTENTION
from tst_study.parallel.process_groups import process_groups
from tst_study.record import reader as run_record
from tst_study.train import train

Results = Iterator[tuple[str, Any]]
"""The results of a part, as pairs of name and value."""
LENGTH = 2048
"""Tokens per sequence, as `experiments/studies/scales.py` assumes for the paper's dense models."""
MODELS: dict[str, dict[str, Any]] = {
    "270m": {"preset": "270m"},
    "600m": {"preset": "600m"},
    "moe-10b": {"preset": "moe-10b-a1b", "layers": 4},
}
"""Models whose steps are timed. `moe-10b` has the widths of the paper's largest model, but only
four of its layers."""
MODEL_34M = dense(8, 512, 8, 8, 1408, vocabulary_size=8192)
"""The model that `runs` trains: 34 million weights."""
ARMS: dict[str, dict[str, Any]] = {
    "baseline": {},
    "output-only": {"bag_size": 4, "step_ratio": 0.2, "mode": "output_only"},
    "both-sides": {"bag_size": 4, "step_ratio": 0.2},
}
"""The arms of `runs`: their names, and the section `superposition` of their configs. The first two
are the pair that is trained first."""
RUN_SHAPE = 128, 512
"""The batch of these runs: sequences per step, and latent tokens per sequence."""
LEAST_STEPS = 150
"""If there is time for fewer steps of each arm (10 million tokens), no run is begun."""
READ = 1.61
"""Raw tokens of text to generate for each latent token of a run. The arms read at most 1.6 of them:
1 + 0.2 · (4 − 1)."""
TOKENS_A_MINUTE = 14_000_000
"""Latent tokens of a run for which text is generated, for each of the minutes of all parts. In nine
minutes a run gets one: an H200 would need twice its usual MFU to train on more."""


def steps(request: argparse.Namespace) -> Results:
    """Time the compiled steps of one model, which the part's name (`steps-270m`) gives: a baseline
    step and a superposed step of the package, and, except for the mixture of experts, a step of
    plain PyTorch. The three alternate.

    Yields what the machine can do at best (`ceiling`), a row for each step, and the kernels in
    which a superposed step spends its time. The steps are of 8 sequences, or of 4, 2 or 1 if more
    do not fit in memory.
    """
    name, small = request.part.removeprefix("steps-"), request.small
    tiny = "laptop-moe" if name == "moe-10b" else "laptop-64"
    who = ("package",) if name == "moe-10b" else ("package", "plain")
    best = ceiling(request.device, 64 if small else 8192)
    yield "ceiling", best
    for sequences in (2,) if small else (8, 4, 2, 1):
        config = step_config(
            {"preset": tiny} if small else MODELS[name],
            sequences,
            16 if small else LENGTH,
            dtype="bfloat16",
            device=request.device,
            bag_size=8,
        )
        compiler = "eager" if small else "inductor"
        try:
            with speed.candidates_of(config, who, compiler) as candidates:
                for row_name, row in speed.steps(config, candidates, 2 if small else 20).items():
                    row["mfu_of_product"] = row["flops_per_second"] / best["flops_per_second"]
                    yield row_name, row
                yield "kernels", _kernels(candidates["superposed"][0])
            return
        except torch.OutOfMemoryError:
            yield "did not fit", f"{sequences} sequences"
            torch.compiler.reset()
            gc.collect()
            torch.cuda.empty_cache()
    raise RuntimeError(f"not even a step of one sequence of {LENGTH} tokens fits")


def _kernels(step: Step) -> list[dict[str, Any]]:
    """Return the twenty kernels with most GPU time in one step. On a CPU the list is empty."""
    with profile() as found:
        step()
    rows = sorted(found.key_averages(), key=lambda row: -row.self_device_time_total)
    return [
        {"name": row.key, "calls": row.count, "milliseconds": row.self_device_time_total / 1e3}
        for row in rows
        if row.device_type == DeviceType.CUDA and not row.is_user_annotation
    ][:20]


def kernels(request: argparse.Namespace) -> Results:
    """Measure the head with its loss, forward and backward, for a small and for a large vocabulary;
    then causal attention, forward and backward, by each of torch's kernels."""
    small = request.small
    dtype = "float32" if request.device == "cpu" else "bfloat16"
    for size in ("64x16x256x4",) if small else ("8192x1024x32768x8", "8192x4096x128256x8"):
        yield size, speed.losses(size, 3 if small else 20, request.device, dtype)
    for heads, width in ((2, 16),) if small else ((16, 64), (16, 128)):
        shape = 1 if small else 8, heads, 16 if small else LENGTH, width
        inputs = [
            torch.randn(shape, device=request.device, dtype=torch.bfloat16).requires_grad_()
            for _ in range(3)
        ]
        ways = {}
        for name, backend in ATTENTION.items():
            with suppress(RuntimeError):  # not every kernel is on every device
                _attend(inputs, backend)
                ways[name] = partial(_attend, inputs, backend)
        yield f"attention {heads}x{width}", measured(ways, 3 if small else 20, request.device)


def _attend(inputs: list[Tensor], backend: SDPBackend) -> None:
    with sdpa_kernel(backend):
        mixed = F.scaled_dot_product_attention(*inputs, is_causal=True)
    torch.autograd.grad(mixed.sum(), inputs)


def saving(request: argparse.Namespace) -> Results:
    """Measure how long it takes to save and to load the 600M model with its optimizer."""
    config = step_config(
        {"preset": "laptop-64"} if request.small else MODELS["600m"],
        *(2, 16) if request.small else (4, LENGTH),
        dtype="bfloat16",
        device=request.device,
    )
    with process_groups(config) as ranks:
        made = PackageSteps(config, ranks.device)
        checkpoints = Checkpoints(request.work / "saved", keep=1)
        began = time.perf_counter()
        checkpoints.save(1, made.model, made.optimizer, {})
        saved = time.perf_counter()
        yield "save seconds", saved - began
        checkpoints.load_last(made.model, made.optimizer)
        yield "load seconds", time.perf_counter() - saved


def corpus(request: argparse.Namespace) -> Results:
    """Generate the text for `runs`, enough that no run reads any of it twice."""
    small = request.small
    tokens = 300_000 if small else int(READ * TOKENS_A_MINUTE * request.minutes)
    words = 256 if small else MODEL_34M["vocabulary_size"]
    language = LanguageParameters(words=words, classes=64, topics=16)
    began = time.perf_counter()
    generate(request.work / "corpus", tokens, 2_000 if small else 300_000, language, piece=16_384)
    yield "tokens", tokens
    yield "seconds", time.perf_counter() - began


def runs(request: argparse.Namespace) -> Results:
    """Train a baseline and an output-only run at 34M weights on equally many tokens, as many as the
    time allows, and add them to the archive `request.archive`. The folder of a run that did not
    end, with its losses until then, stays beside the archive.

    A rehearsal comes first: a run, and a copy of it that is resumed half-way. The result `resumed`
    says whether the losses of the two are equal to the bit. The second, whose kernels are compiled
    already, shows how long a run takes beside its steps.
    """
    count = 12 if request.small else 60
    whole, stopped = (request.work / "rehearsal" / name for name in ("whole", "stopped"))
    config = _arm("baseline", 0, count, request).executed(checkpoint_every=count // 2, log_every=1)
    train(config, whole, progress=False)
    shutil.copytree(whole, stopped)  # without its last checkpoint it resumes from its first
    shutil.rmtree(checkpoint_place(stopped, count))
    began = time.monotonic()
    train(config, stopped, progress=False)
    seconds = time.monotonic() - began
    records = [run_record.read(folder) for folder in (whole, stopped)]
    losses = [[row["loss"] for row in record.metrics] for record in records]
    apart = max(abs(a - b) for a, b in zip(*losses, strict=False))  # one may have diverged
    same = losses[0] == losses[1]
    yield "resumed", {"same bits": same, "largest difference of a loss": apart}
    seen = [row["step_seconds"] for row in records[0].metrics]
    step = statistics.median(seen[len(seen) // 2 :])
    around = max(0.0, seconds - step * (count - count // 2))
    yield "seconds beside its steps", around
    yield "step seconds", step
    # A tenth for what varies; and the superposed arm compiles a loss of its own.
    left = max(0.0, (request.ends - time.monotonic()) / 2 - 1.5 * around)
    most = request.minutes * TOKENS_A_MINUTE // math.prod(RUN_SHAPE)
    steps = count if request.small else int(min(left / (1.1 * step), most))
    yield "steps", steps
    if steps < min(count, LEAST_STEPS):
        yield "not begun", f"{left:.0f} s are left for each run, for steps of {step:.3f} s"
        return
    yield from _trained([(arm, 0) for arm in list(ARMS)[:2]], steps, request)


def more_runs(request: argparse.Namespace) -> Results:
    """Go on from `runs`, if its pair ended, while there is time: the third arm, then all arms with
    further seeds."""
    path = request.work / "runs.json"
    pair = json.loads(path.read_text()) if path.exists() else {}
    ended = [pair[f"{arm}-0"]["seconds"] for arm in list(ARMS)[:2] if f"{arm}-0" in pair]
    if len(ended) < 2:
        yield "not begun", "the pair did not end"
        return
    arms = [(list(ARMS)[2], 0), *((arm, seed) for seed in range(1, 100) for arm in ARMS)]
    affordable = max(0, int((request.ends - time.monotonic()) / (1.1 * max(ended))))
    yield from _trained(arms[: 1 if request.small else affordable], pair["steps"], request)


def _trained(arms: Iterable[tuple[str, int]], steps: int, request: argparse.Namespace) -> Results:
    for arm, seed in arms:
        folder = request.archive.with_name(f"{request.archive.name}-at-work") / f"{arm}-{seed}"
        began = time.monotonic()
        state = train(_arm(arm, seed, steps, request), folder, progress=False)
        add_to_archive(request.archive, read_tables(folder.parent))
        record = run_record.read(folder)
        shutil.rmtree(folder.parent)
        last, held_out = record.metrics[-1], (record.evals or [{}])[-1]
        counters = ("flops", "raw_tokens", "latent_tokens", "epochs", "training_seconds", "mfu")
        quality = ("nats_per_token", "standard_error", "annealed")
        found = {key: last[key] for key in counters} | {key: held_out.get(key) for key in quality}
        yield folder.name, {"state": state, "seconds": time.monotonic() - began} | found


def _arm(arm: str, seed: int, steps: int, request: argparse.Namespace) -> Config:
    small = request.small
    sequences, length = (4, 32) if small else RUN_SHAPE
    config = step_config(
        {"preset": "laptop-64", "vocabulary_size": 257} if small else MODEL_34M,
        sequences,
        length,
        dtype="float32" if small else "bfloat16",
        device=request.device,
    )
    text = str(request.work / "corpus")
    return from_dict(
        {
            **to_dict(config),
            "superposition": ARMS[arm],
            "name": arm,
            "role": "baseline" if arm == "baseline" else "superposition",
            "seed": seed,
            "data": {"corpora": [{"path": text}], "validation_tokens": 1_500 if small else 262_144},
            "schedule": {"steps": steps, "warmup_steps": max(1, steps // 20)},
        }
    )
