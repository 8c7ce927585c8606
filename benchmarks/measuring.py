"""Time several candidates side by side, so that a busy machine slows all of them alike, and
describe the machine and the code of a measurement."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from tst_study.record.launch_facts import launch_facts


def measured(
    candidates: Mapping[str, Callable[[], Any]], repeats: int, device: str
) -> dict[str, dict[str, Any]]:
    """Return for each candidate the median milliseconds of a call, its ratio over every other
    candidate, and the MiB by which a call raises memory (None where that is not known).

    A ratio is the median of the ratios within a repeat, where both candidates met the same load; it
    varies less than a ratio of medians.
    """

    def done(call: Callable[[], Any]) -> None:
        call()
        if device == "cuda":
            torch.cuda.synchronize()

    calls = {name: (lambda call=call: done(call)) for name, call in candidates.items()}
    risen = {name: _memory_risen(call, device) for name, call in calls.items()}
    times = interleaved_seconds(calls, repeats)
    return {
        name: {
            "milliseconds": 1e3 * statistics.median(own),
            "over": {
                other: statistics.median(a / b for a, b in zip(own, theirs, strict=True))
                for other, theirs in times.items()
                if other != name
            },
            "extra_mebibytes": risen[name],
        }
        for name, own in times.items()
    }


def interleaved_seconds(
    calls: Mapping[str, Callable[[], Any]], repeats: int
) -> dict[str, list[float]]:
    """Return the seconds of each call, made once per repeat, in a new order every time."""
    order = random.Random(0)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name in order.sample(list(calls), len(calls)):
            start = time.perf_counter()
            calls[name]()
            times[name].append(time.perf_counter() - start)
    return times


def _memory_risen(call: Callable[[], Any], device: str) -> float | None:
    """Measure the MiB by which a call raises memory, after two calls for what libraries allocate
    only once."""
    for _ in range(2):
        call()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    try:
        Path("/proc/self/clear_refs").write_text("5")  # Linux: peak resident size := current
    except OSError:
        return None
    start = _resident_kibibytes("VmRSS")
    call()
    return max(0.0, (_resident_kibibytes("VmHWM") - start) / 2**10)


def _resident_kibibytes(field: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith(field)))


def machine_facts(device: str = "cpu") -> dict[str, Any]:
    """Return the facts about this machine that a record keeps. `device`: "cpu" or "cuda"."""
    facts = launch_facts()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device_name(device),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "load": list(os.getloadavg()),
        "code": facts["code"],
        "python": facts["python"],
        "versions": {**facts["versions"], "cuda": torch.version.cuda},
    }


def device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "cpu"
