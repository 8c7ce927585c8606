"""The parts of `benchmarks/gpu.py` that measure speed and memory on a GPU, and train there.

They measure the head with its loss, whole training steps beside those of plain PyTorch, and the
saving and loading of a checkpoint; with the time that is left they train a baseline and two
superposed arms. Each part is a public function that takes the options of `gpu.py` as `request`.
With `request.small` everything is tiny, so that the code can be tried without a GPU.
"""

import argparse
import gc
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import profile

from benchmarks import speed
from benchmarks.measuring import measured
from benchmarks.steps import Compiler, PackageSteps, attention_of, step_config
from tst_study.analysis.tables.archive import add_to_archive
from tst_study.analysis.tables.source import read_tables
from tst_study.checkpoints.checkpoint import Checkpoints
from tst_study.checkpoints.places import checkpoint_place
from tst_study.config.phase_plan import plan_phases
from tst_study.config.presets import dense
from tst_study.config.schema import Config, from_dict, to_dict
from tst_study.data.preparation.generated_language import LanguageParameters, generate
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
    "power-law": {"bag_size": 4, "step_ratio": 0.2, "weighting": "power_law"},
}
"""The arms of `runs`: their names, and the section `superposition` of their configs."""
RUN_TOKENS = 500_000_000
"""Latent tokens on which each run trains if there is time for all of them. With fewer, noise may
hide the difference between two arms."""
LEAST_SHARE = 0.2
"""If there is time for less than this share of `RUN_TOKENS`, no run is begun."""
RUN_SHAPE = 128, 512
"""The batch of these runs: sequences per step, and latent tokens per sequence."""
READ = 1.7
"""Raw tokens of text to generate for each latent token of a run. The arms read at most 1.6 of them:
1 + 0.2 · (4 − 1)."""


def loss(request: argparse.Namespace) -> Results:
    """Measure the head with its loss, forward and backward, for a small and for a large
    vocabulary."""
    sizes = ("8192x1024x32768x8", "8192x4096x128256x8")
    dtype = "float32" if request.device == "cpu" else "bfloat16"
    for size in ("64x16x256x4",) if request.small else sizes:
        yield size, speed.losses(size, 3 if request.small else 20, request.device, dtype)


def steps(request: argparse.Namespace) -> Results:
    """Time the steps of one model, which the part's name (`steps-270m`) gives: a baseline step and
    a superposed step of the package, and, except for the mixture of experts, a step of plain
    PyTorch. All are timed with compiled layers, then without.

    The package's model and plain PyTorch's are never in memory together, so that each peak of
    memory belongs to one of them. The row of the compiled superposed step also names where the
    GPU's time goes (`_kernels`).
    """
    name = request.part.removeprefix("steps-")
    compilers: tuple[Compiler | None, ...] = ("eager" if request.small else "inductor", None)
    for compiler in compilers:
        for who in ("package",) if name == "moe-10b" else ("package", "plain"):
            for candidate, row in _fitting(who, name, compiler, request).items():
                yield f"{candidate}, compiled" if compiler else candidate, row


def _fitting(
    who: str, name: str, compiler: Compiler | None, request: argparse.Namespace
) -> speed.Rows:
    """Measure steps of 8 sequences, or of 4, 2 or 1 if more do not fit in memory.

    A failure is not raised, but returned as text in the row `who`. Lack of memory counts as a
    failure only if even one sequence does not fit; any other error ends the measurement at once.
    """
    tiny = "laptop-moe" if name == "moe-10b" else "laptop-64"
    for sequences in (2,) if request.small else (8, 4, 2, 1):
        config = step_config(
            {"preset": tiny} if request.small else MODELS[name],
            sequences,
            16 if request.small else LENGTH,
            dtype="bfloat16",
            device=request.device,
            bag_size=8,
        )
        try:
            rows = speed.steps(config, (who,), compiler, 2 if request.small else 10)
            if who == "package" and compiler:
                rows["superposed"]["kernels"] = _kernels(config, compiler)
            return rows
        except Exception as error:  # also the compiler's: the rest must still be measured
            failure = f"{type(error).__name__}: {error}"[:2000]
            if not isinstance(error, torch.OutOfMemoryError):
                break
        finally:
            torch.compiler.reset()
            gc.collect()
            if request.device == "cuda":
                torch.cuda.empty_cache()
    return {who: {"failure": failure}}


def _kernels(config: Config, compiler: Compiler) -> list[dict[str, Any]]:
    """Return the twenty kernels with most GPU time in one superposed step, after two steps that are
    not profiled. On a CPU the list is empty."""
    with process_groups(config) as ranks, attention_of(config, ranks.device):
        step = PackageSteps(config, ranks.device, compiler).step(plan_phases(config).objective(0))
        for _ in range(2):
            step()
        with profile() as found:
            step()
        rows = sorted(found.key_averages(), key=lambda row: -row.self_device_time_total)
        kernels = [
            {"name": row.key, "calls": row.count, "milliseconds": row.self_device_time_total / 1e3}
            for row in rows
            if row.device_type == DeviceType.CUDA and not row.is_user_annotation
        ]
        return kernels[:20]


def saving(request: argparse.Namespace) -> Results:
    """Measure how long it takes to save and to load the 600M model with its optimizer; then check
    that a resumed run repeats one that was not interrupted.

    The check trains the model of `runs` for 12 steps, and resumes a copy of that run from its
    checkpoint after step 6. The result `resumed` says whether the training losses of the two are
    equal to the bit, and gives the largest difference between them.
    """
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
    whole, resumed = (request.work / "resumed" / name for name in ("whole", "stopped"))
    corpus = _language(request.work / "sentences", 300_000, request)
    config = _arm("baseline", 0, corpus, 12, request).executed(checkpoint_every=6, log_every=1)
    began = time.perf_counter()
    train(config, whole, progress=False)
    yield "run seconds", time.perf_counter() - began
    shutil.copytree(whole, resumed)  # without its last checkpoint it resumes from its first
    shutil.rmtree(checkpoint_place(resumed, 12))
    train(config, resumed, progress=False)
    records = [run_record.read(folder) for folder in (whole, resumed)]
    losses = [[row["loss"] for row in record.metrics] for record in records]
    apart = max(abs(a - b) for a, b in zip(*losses, strict=True))
    yield "evaluation seconds", records[0].evals[-1]["seconds"]
    yield "resumed", {"same bits": apart == 0.0, "largest difference of a loss": apart}


def corpus(request: argparse.Namespace) -> Results:
    """Generate the text for `runs`, enough that no run reads any of it twice. `gpu.py` calls this
    on the CPU while other parts use the GPU."""
    tokens = 300_000 if request.small else int(READ * RUN_TOKENS)
    began = time.perf_counter()
    _language(request.work / "corpus", tokens, request)
    yield "tokens", tokens
    yield "seconds", time.perf_counter() - began


def _language(folder: Path, tokens: int, request: argparse.Namespace) -> Path:
    if not folder.exists():
        words = 256 if request.small else MODEL_34M["vocabulary_size"]
        language = LanguageParameters(words=words, classes=64, topics=16)
        generate(folder, tokens, min(tokens // 10, 500_000), language)
    return folder


def runs(request: argparse.Namespace) -> Results:
    """Train the three `ARMS` at 34M weights, with as many seeds as there is time for. The runs are
    kept in `request.runs`, as run folders and as an archive.

    If there is no time for `RUN_TOKENS` in one run of each arm, all runs are shortened alike so
    that one seed fits; below `LEAST_SHARE` no run is begun. Another seed is begun only if its runs
    are expected to end in time.
    """
    text = request.work / "corpus"
    seconds_left = request.ends - time.monotonic()
    arm_seconds = _seconds_of_an_arm(request)
    share = min(1.0, seconds_left / (len(ARMS) * arm_seconds))
    if share < LEAST_SHARE:
        yield "not begun", f"{len(ARMS)} arms would take {len(ARMS) * arm_seconds:.0f} s"
        return
    steps, seed = 12 if request.small else int(share * _steps_of_an_arm()), 0
    arm_seconds *= share
    while seed == 0 or time.monotonic() + len(ARMS) * arm_seconds < request.ends:
        for arm in ARMS:
            folder = request.runs / f"{arm}-{seed}"
            config = _arm(arm, seed, text, steps, request)
            began = time.monotonic()
            state = train(config, folder, progress=False)
            arm_seconds = max(arm_seconds, time.monotonic() - began)
            record = run_record.read(folder)
            last, held_out = record.metrics[-1], record.evals[-1]
            counters = ("flops", "raw_tokens", "latent_tokens", "epochs", "training_seconds", "mfu")
            quality = ("nats_per_token", "standard_error", "annealed")
            yield (
                folder.name,
                {"state": state}
                | {key: last[key] for key in counters}
                | {key: held_out[key] for key in quality},
            )
        seed += 1
        add_to_archive(request.runs / "archive", read_tables(request.runs))
    yield "seeds", seed


def _steps_of_an_arm() -> int:
    return RUN_TOKENS // (RUN_SHAPE[0] * RUN_SHAPE[1])


def _seconds_of_an_arm(request: argparse.Namespace) -> float:
    """Estimate the seconds that one run of `RUN_TOKENS` takes: the time of its steps, from a few
    compiled baseline steps, and a quarter more for set-up and evaluation."""
    config = _arm("baseline", 0, Path("synthetic"), _steps_of_an_arm(), request)
    with process_groups(config) as ranks, attention_of(config, ranks.device):
        made = PackageSteps(config, ranks.device, "eager" if request.small else "inductor")
        row = measured({"step": made.step()}, 10, request.device)["step"]
    torch.compiler.reset()
    if request.small:  # so long that `runs` trains one seed only
        return (request.ends - time.monotonic()) / len(ARMS)
    return 1.25e-3 * row["milliseconds"] * _steps_of_an_arm()


def _arm(arm: str, seed: int, text: Path, steps: int, request: argparse.Namespace) -> Config:
    small = request.small
    sequences, length = (4, 32) if small else RUN_SHAPE
    config = step_config(
        {"preset": "laptop-64", "vocabulary_size": 257} if small else MODEL_34M,
        sequences,
        length,
        dtype="float32" if small else "bfloat16",
        device=request.device,
    )
    held_out = 2_000 if small else 400_000
    return from_dict(
        {
            **to_dict(config),
            "superposition": ARMS[arm],
            "name": arm,
            "role": "baseline" if arm == "baseline" else "superposition",
            "seed": seed,
            "data": {"corpora": [{"path": str(text)}], "validation_tokens": held_out},
            "schedule": {"steps": steps, "warmup_steps": max(1, steps // 20)},
        }
    )
