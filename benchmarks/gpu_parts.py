"""The parts of `gpu.py`: what each runs, how much of the time it gets, what it leaves.

A part is a generator of (name, value): every value is on disk before the next one is computed, so
that a part that is stopped keeps what it had.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from tst_study.atomic_files import write_json

Results = Iterator[tuple[str, Any]]


@dataclass(frozen=True)
class Request:
    """What a part is asked for. `seconds`: it is stopped after them, and should mind them."""

    device: str
    small: bool
    work: Path
    seconds: float

    def read(self, part: str) -> dict[str, Any]:
        """What a part has left so far."""
        try:
            results: dict[str, Any] = json.loads((self.work / f"{part}.json").read_text())
        except FileNotFoundError:
            return {}
        return results

    def write(self, part: str, results: Mapping[str, Any]) -> None:
        write_json(self.work / f"{part}.json", results)


@dataclass(frozen=True)
class Part:
    function: str
    """`module:function`, imported in the part's own process only."""
    share: float
    """Most of the whole time that it may take; the shares need not add up to one."""
    least_share: float
    """With less than this left it is not begun."""
    environment: Mapping[str, str] = field(default_factory=dict)


PARTS: dict[str, Part] = {
    # In a process that sees no GPU, so that nothing of it can be computed there.
    "reference": Part(
        "benchmarks.gpu_correctness:reference", 0.20, 0.05, {"CUDA_VISIBLE_DEVICES": ""}
    ),
    "correctness": Part("benchmarks.gpu_correctness:correctness", 0.25, 0.05),
    "layouts": Part("benchmarks.gpu_layouts:layouts", 0.30, 0.10),
    "loss": Part("benchmarks.gpu_speed:loss", 0.10, 0.04),
    "steps-270m": Part("benchmarks.gpu_speed:steps_270m", 0.20, 0.06),
    "steps-600m": Part("benchmarks.gpu_speed:steps_600m", 0.20, 0.06),
    # Before the last of the steps: a pair that is cut short says nothing.
    "pair": Part("benchmarks.gpu_pair:pair", 0.35, 0.15),
    "steps-moe-1b": Part("benchmarks.gpu_speed:steps_moe_1b", 0.25, 0.06),
}


def run_part(name: str, request: Request) -> None:
    """Run one part here; its results are in `request.work` as they come."""
    module, _, function = PARTS[name].function.partition(":")
    part: Callable[[Request], Results] = getattr(import_module(module), function)
    results: dict[str, Any] = {}
    for key, value in part(request):
        results[key] = value
        request.write(name, results)
