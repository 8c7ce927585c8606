"""Speed and memory of the bag loss and of whole steps, ours beside plain PyTorch's."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from benchmarks import bag_loss
from benchmarks.gpu_parts import Request, Results
from benchmarks.machine import device_name
from benchmarks.steps import Compiler, PackageSteps, Step, plain_step, step_config
from tst_study.config import Config
from tst_study.configuration.phase_plan import plan_phases
from tst_study.cost.compute import count_flops, count_parameters
from tst_study.cost.devices import peak_flops
from tst_study.cost.memory import estimate_memory
from tst_study.megatron.model import superposition_objective
from tst_study.megatron.process_groups import process_groups
from tst_study.superposition.method import NEXT_TOKEN

LENGTH = 2048  # of the paper's dense family
MOST_SEQUENCES = 8
WARM_UP, REPEATS = 3, 10


def loss(request: Request) -> Results:
    """Forward and backward of every loss on logits of a small and of a large vocabulary."""
    dtype = torch.float32 if request.device == "cpu" else torch.bfloat16
    shapes = [(64, 256)] if request.small else [(8192, 32_768), (8192, 128_256)]
    for positions, vocabulary in shapes:
        logits = torch.randn(1, positions, vocabulary, device=request.device, dtype=dtype)
        repeats = 3 if request.small else 20
        results = bag_loss.measure(logits.requires_grad_(), [1, 4, 8, 16], repeats)
        yield f"{positions} x {vocabulary}", [asdict(result) for result in results]


def steps_270m(request: Request) -> Results:
    return _steps("laptop-64" if request.small else "270m", 6, request)


def steps_600m(request: Request) -> Results:
    return _steps("laptop-64" if request.small else "600m", 8, request)


def steps_moe_1b(request: Request) -> Results:
    return _steps("laptop-moe" if request.small else "moe-1b", 8, request)


def _steps(preset: str, bag_size: int, request: Request) -> Results:
    """Both phases on one model and plain PyTorch, eager, then with compiled layers.

    One after the other, each alone in memory, so that peaks are its own.
    """
    began = time.monotonic()
    yield "shape", {"preset": preset, "bag_size": bag_size}
    compilers: tuple[Compiler | None, ...] = (None, "eager" if request.small else "inductor")
    for compiler in compilers:
        for who in ("package", "plain"):
            key = f"{who}, compiled" if compiler else who
            if time.monotonic() - began > 0.8 * request.seconds:
                yield key, {"failure": "no time was left"}
                continue
            yield key, _fitting(who, preset, bag_size, compiler, request)


def _fitting(
    who: str, preset: str, bag_size: int, compiler: Compiler | None, request: Request
) -> dict[str, Any]:
    """`_measure` with the largest power of two of sequences that fits; a failure as text."""
    sequences = 2 if request.small else MOST_SEQUENCES
    while True:
        config = step_config(
            {"preset": preset},
            sequences,
            16 if request.small else LENGTH,
            dtype="bfloat16",
            device=request.device,
            bag_size=bag_size,
            step_ratio=0.5,
        )
        if who == "plain" and config.model.experts is not None:
            return {"failure": "a mixture of experts has no plain counterpart"}
        try:
            if sequences == 1 or _may_fit(config, request.device):
                return _measure(who, config, compiler, request)
        except torch.OutOfMemoryError as error:
            if sequences == 1:
                return {"failure": _first_lines(error)}
        except Exception as error:  # of the compiler, above all: the others must still be measured
            return {"failure": _first_lines(error)}
        finally:
            _free_memory(request.device)
        sequences //= 2


def _may_fit(config: Config, device: str) -> bool:
    if device == "cpu":
        return True
    return (
        1.2 * estimate_memory(config, on_gpu=True).total
        < torch.cuda.get_device_properties(0).total_memory
    )


def _measure(
    who: str, config: Config, compiler: Compiler | None, request: Request
) -> dict[str, Any]:
    with process_groups(config) as ranks:
        if who == "plain":
            steps = {"phase 2": plain_step(config, ranks.device, compiler)}
        else:
            package = PackageSteps(config, ranks.device, compiler)
            objective = superposition_objective(config.superposition)
            steps = {"phase 1": package.step(objective), "phase 2": package.step(NEXT_TOKEN)}
        return {
            "compiler": compiler,
            "sequences": config.batch.sequences,
            "sequence_length": config.batch.sequence_length,
            "parameters": count_parameters(config.model).total,
            **{phase: _speed(step, phase, config, request) for phase, step in steps.items()},
        }


def _speed(step: Step, phase: str, config: Config, request: Request) -> dict[str, Any]:
    on_gpu = request.device == "cuda"
    synchronize: Callable[[], None] = torch.cuda.synchronize if on_gpu else lambda: None
    began = time.perf_counter()
    step()
    synchronize()
    first = time.perf_counter() - began
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    for _ in range(WARM_UP - 1):
        step()
    seconds = []
    for _ in range(2 if request.small else REPEATS):
        synchronize()
        began = time.perf_counter()
        value = step()
        synchronize()
        seconds.append(time.perf_counter() - began)
    median = statistics.median(seconds)
    positions = config.batch.positions
    peak = peak_flops(device_name(request.device), config.numerics.dtype)
    stride = plan_phases(config).tokens_per_position(
        "superposition" if phase == "phase 1" else "recovery"
    )
    return {
        "first_step_seconds": first,
        "step_seconds": median,
        "latent_tokens_per_second": positions / median,
        "raw_tokens_per_second": positions * stride / median,
        "mfu": count_flops(config).per_step / median / peak if peak else None,
        "peak_memory": torch.cuda.max_memory_allocated() if on_gpu else None,
        "loss": float(value),
    }


def _free_memory(device: str) -> None:
    torch.compiler.reset()
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def _first_lines(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:2000]
