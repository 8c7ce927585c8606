"""Time several candidates side by side, so that a busy machine slows all of them alike; and where
and with what a measurement was made."""

from __future__ import annotations

import os
import platform
import random
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from tst_study.record.launch_facts import launch_facts

TIMING_VARIABLES = (
    "OMP_NUM_THREADS",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
)


def interleaved_seconds(
    candidates: Mapping[str, Callable[[], Any]],
    repeats: int,
    *,
    warm_up: int = 3,
    seconds: float = float("inf"),
) -> dict[str, list[float]]:
    """Seconds per call of each candidate: each once per repeat, in a new order every time.

    A candidate that works on a GPU waits for it itself.
    Stops early, at the end of a repeat, once `seconds` have passed; one repeat is always made.
    """
    began = time.perf_counter()
    order = random.Random(0)
    for call in candidates.values():
        for _ in range(warm_up):
            call()
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name in order.sample(list(candidates), len(candidates)):
            start = time.perf_counter()
            candidates[name]()
            times[name].append(time.perf_counter() - start)
        if time.perf_counter() - began > seconds:
            break
    return times


def medians(times: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in times.items()}


def median_ratio(times: Mapping[str, list[float]], candidate: str, reference: str) -> float:
    """Median over the repeats of candidate over reference within one repeat.

    Within a repeat both met the same load, so this moves less than a ratio of medians.
    """
    pairs = zip(times[candidate], times[reference], strict=True)
    return statistics.median(mine / other for mine, other in pairs)


def machine_facts(device: str = "cpu") -> dict[str, Any]:
    """For a record. `device`: "cpu" or "cuda"."""
    facts = launch_facts()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device_name(device),
        "driver": _driver() if device == "cuda" else None,
        "device_memory": _device_memory() if device == "cuda" else None,
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load": list(os.getloadavg()),
        "code": facts["code"],
        "python": facts["python"],
        "versions": {**facts["versions"], "cuda": torch.version.cuda},
        "environment": {name: os.environ[name] for name in TIMING_VARIABLES if name in os.environ},
    }


def device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "cpu"


def _device_memory() -> int:
    return torch.cuda.get_device_properties(0).total_memory


def _driver() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.splitlines()[0].strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
