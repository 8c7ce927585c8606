"""Speed and memory on a GPU: the bag loss, whole steps beside plain PyTorch's, a pair of runs."""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import bag_loss
from benchmarks.measuring import device_name
from benchmarks.steps import Compiler, PackageSteps, Step, plain_step, step_config
from tst_study.config.phase_plan import plan_phases
from tst_study.config.schema import Config, from_dict
from tst_study.cost.compute import count_flops, count_parameters
from tst_study.cost.devices import peak_flops
from tst_study.cost.memory import estimate_memory
from tst_study.data.preparation.prepare import prepare
from tst_study.data.preparation.request import bundled_books
from tst_study.model.model import superposition_objective
from tst_study.parallel.process_groups import process_groups
from tst_study.record import reader as run_record
from tst_study.superposition.method import NEXT_TOKEN
from tst_study.train import train

Results = Iterator[tuple[str, Any]]
LENGTH = 2048  # of the paper's dense family
MOST_SEQUENCES = 8
WARM_UP, REPEATS = 3, 10
MODEL_34M = {
    "layers": 8,
    "hidden_size": 512,
    "attention_heads": 8,
    "key_value_heads": 8,
    "head_size": 64,
    "feed_forward_size": 1408,
    "vocabulary_size": 8192,
}


def loss(request: argparse.Namespace) -> Results:
    """Head and loss, forward and backward, at a small and a large vocabulary."""
    sizes = [(8192, 1024, 32_768, 8), (8192, 4096, 128_256, 8)]
    dtype = "float32" if request.device == "cpu" else "bfloat16"
    for size in [(64, 16, 256, 4)] if request.small else sizes:
        repeats = 3 if request.small else 20
        yield "x".join(map(str, size)), bag_loss.measure(size, repeats, request.device, dtype)


def steps_270m(request: argparse.Namespace) -> Results:
    return _steps("laptop-64" if request.small else "270m", 6, request)


def steps_600m(request: argparse.Namespace) -> Results:
    return _steps("laptop-64" if request.small else "600m", 8, request)


def steps_moe_1b(request: argparse.Namespace) -> Results:
    return _steps("laptop-moe" if request.small else "moe-1b", 8, request)


def _steps(preset: str, bag_size: int, request: argparse.Namespace) -> Results:
    """Both phases on one model and plain PyTorch, eager, then with compiled layers.

    One after the other, each alone in memory, so that peaks are its own.
    """
    began = time.monotonic()
    compilers: tuple[Compiler | None, ...] = (None, "eager" if request.small else "inductor")
    for compiler in compilers:
        for who in ("package",) if "moe" in preset else ("package", "plain"):
            key = f"{who}, compiled" if compiler else who
            if time.monotonic() - began > 0.8 * request.budget:
                yield key, {"failure": "no time was left"}
            else:
                yield key, _fitting(who, preset, bag_size, compiler, request)


def _fitting(
    who: str, preset: str, bag_size: int, compiler: Compiler | None, request: argparse.Namespace
) -> dict[str, Any]:
    """`_measure` with the largest power of two of sequences that fits; a failure as text."""
    sequences, length = (2, 16) if request.small else (MOST_SEQUENCES, LENGTH)
    while True:
        config = step_config(
            {"preset": preset},
            sequences,
            length,
            dtype="bfloat16",
            device=request.device,
            bag_size=bag_size,
            step_ratio=0.5,
        )
        try:
            return _measure(who, config, compiler, request)
        except Exception as error:  # of the compiler, too: the others must still be measured
            if sequences == 1 or not isinstance(error, torch.OutOfMemoryError):
                return {"failure": f"{type(error).__name__}: {error}"[:2000]}
        finally:
            torch.compiler.reset()
            gc.collect()
            if request.device == "cuda":
                torch.cuda.empty_cache()
        sequences //= 2


def _measure(
    who: str, config: Config, compiler: Compiler | None, request: argparse.Namespace
) -> dict[str, Any]:
    with process_groups(config) as ranks:
        if who == "plain":
            steps = {"phase 2": plain_step(config, ranks.device, compiler)}
        else:
            package = PackageSteps(config, ranks.device, compiler)
            objective = superposition_objective(config.superposition)
            steps = {"phase 1": package.step(objective), "phase 2": package.step(NEXT_TOKEN)}
        return {
            "sequences": config.batch.sequences,
            "parameters": count_parameters(config.model).total,
            **{phase: _speed(step, phase, config, request) for phase, step in steps.items()},
        }


def _speed(step: Step, phase: str, config: Config, request: argparse.Namespace) -> dict[str, Any]:
    on_gpu = request.device == "cuda"
    seconds = []
    for number in range(WARM_UP + (2 if request.small else REPEATS)):
        if on_gpu and number == 1:
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        value = float(step())  # which waits for the device
        seconds.append(time.perf_counter() - began)
    median = statistics.median(seconds[WARM_UP:])
    positions = config.batch.positions
    peak = peak_flops(device_name(request.device), config.numerics.dtype)
    read = "superposition" if phase == "phase 1" else "recovery"
    return {
        "first_step_seconds": seconds[0],
        "step_seconds": median,
        "latent_tokens_per_second": positions / median,
        "raw_tokens_per_second": positions * plan_phases(config).tokens_per_position(read) / median,
        "mfu": count_flops(config).per_step / median / peak if peak else None,
        "peak_memory": torch.cuda.max_memory_allocated() if on_gpu else None,
        "planned_memory": estimate_memory(config, on_gpu=on_gpu).total,
        "loss": value,
    }


def pair(request: argparse.Namespace) -> Results:
    """Baseline and s = 4, r = 0.2 at equal FLOPs on the bundled books, through the package's own
    loop. The text is long enough for the superposed arm to read no token twice."""
    corpus = books(request)
    held_out_losses = []
    for arm, setting in (("baseline", {}), ("superposition", {"bag_size": 4, "step_ratio": 0.2})):
        folder = request.work / "runs" / arm
        state = train(_config(arm, setting, str(corpus), request), folder, progress=False)
        record = run_record.read(folder)
        last, held_out = record.metrics[-1], record.evals[-1]
        counters = ("flops", "raw_tokens", "latent_tokens", "epochs", "training_seconds", "mfu")
        quality = ("nats_per_token", "standard_error", "annealed")
        held_out_losses.append(held_out["nats_per_token"])
        yield (
            arm,
            {
                "state": state,
                **{key: last[key] for key in counters},
                **{key: held_out[key] for key in quality},
                "losses": [[row["step"], row["loss"]] for row in record.metrics],
            },
        )
    baseline, superposed = held_out_losses
    # One seed each: the difference has no interval, so that neither arm is said to have won.
    yield "verdict", {"gain": baseline - superposed, "interval": None}


def books(request: argparse.Namespace) -> Path:
    """The folder of the books prepared for the pair."""
    tokenizer, size = ("bytes", 60_000) if request.small else ("bpe:8192", 40_000_000)
    wanted = bundled_books(1 if request.small else None)
    folder: Path = request.work / "books"
    prepare(replace(wanted, tokenizer=tokenizer, limit_bytes=size), folder, progress=False)
    return folder


def _config(arm: str, setting: Any, corpus: str, request: argparse.Namespace) -> Config:
    sequences, length, steps = (4, 32, 12) if request.small else (16, 256, 2000)
    return from_dict(
        {
            "study": "gpu",
            "name": arm,
            "role": arm,
            "model": {"preset": "laptop-64"} if request.small else MODEL_34M,
            "superposition": setting,
            "data": {
                "corpora": [{"path": corpus}],
                "validation_tokens": 2_000 if request.small else 200_000,
            },
            "batch": {"sequences": sequences, "sequence_length": length},
            "optimizer": {"learning_rate": 1e-3},
            "schedule": {"steps": steps, "warmup_steps": steps // 20},
            "numerics": {"dtype": "float32" if request.small else "bfloat16"},
            "execution": {"device": request.device, "log_every": max(1, steps // 100)},
        }
    )
