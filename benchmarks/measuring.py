"""Time several candidates side by side, so that a busy machine slows all of them alike. Also
describe the machine and the code of a measurement. The benchmarks of speed use this module."""

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tst_study.record.launch_facts import launch_facts


def measured(
    candidates: Mapping[str, Callable[[], Any]], repeats: int, device: str
) -> dict[str, dict[str, Any]]:
    """Time every candidate `repeats` times, and return a row of results for each.

    The candidates alternate in their order, A-B-A-B. `milliseconds` is the median time of a call;
    `seconds` are all times, one for each repeat. `over` compares the candidate with each of the
    others: its time divided by the other's within a repeat, as the first quartile, the median and
    the third quartile over the repeats. Both met the same load within a repeat, so this median of
    ratios varies less than a ratio of medians. `extra_mebibytes` is the most by which memory rises
    during a call, in MiB; None where the system does not tell.

    `device`: where the candidates compute; on "cuda" a call ends when the GPU's work is done.
    """

    def done(call: Callable[[], Any]) -> None:
        call()
        if device == "cuda":
            torch.cuda.synchronize()

    risen = {name: _memory_risen(partial(done, call), device) for name, call in candidates.items()}
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, call in candidates.items():
            start = time.perf_counter()
            done(call)
            times[name].append(time.perf_counter() - start)
    return {
        name: {
            "milliseconds": 1e3 * statistics.median(own),
            "seconds": own,
            "over": {
                other: statistics.quantiles(
                    [a / b for a, b in zip(own, theirs, strict=True)], method="inclusive"
                )
                for other, theirs in times.items()
                if other != name
            },
            "extra_mebibytes": risen[name],
        }
        for name, own in times.items()
    }


def _memory_risen(call: Callable[[], Any], device: str) -> float | None:
    """Return how many MiB the peak of memory during a call lies above the level before it; None
    where the system does not tell. Two other calls come first, in which libraries allocate what
    they allocate only once."""
    for _ in range(2):
        call()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    try:
        Path("/proc/self/clear_refs").write_text("5")  # Linux: forgets the earlier peak
    except OSError:
        return None
    start = _resident_kibibytes("VmRSS")
    call()
    return max(0.0, (_resident_kibibytes("VmHWM") - start) / 2**10)


def _resident_kibibytes(field: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith(field)))


def machine_facts(device: str = "cpu") -> dict[str, Any]:
    """Return what a record of measurements keeps about this machine, its software and the code.
    `device`: "cpu" or "cuda"."""
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
    """Return the name of the GPU, or "cpu"."""
    return torch.cuda.get_device_name() if device == "cuda" else "cpu"


def ceiling(device: str, size: int) -> dict[str, Any]:
    """Measure what this machine can do at best: FLOP/s of one product of random bfloat16 matrices,
    (size, size) each, bytes per second of a large copy, read and written, and on a GPU what
    nvidia-smi says of clocks, power and temperature right after."""
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    source = torch.empty(size * size * 8, device=device)  # 2 GiB for 8,192
    target = torch.empty_like(source)
    rows = measured({"product": lambda: a @ b, "copy": lambda: target.copy_(source)}, 20, device)
    seconds = {name: row["milliseconds"] / 1e3 for name, row in rows.items()}
    return {
        "flops_per_second": 2 * size**3 / seconds["product"],
        "bytes_per_second": 2 * source.numel() * source.element_size() / seconds["copy"],
        "clocks": _clocks() if device == "cuda" else None,
    }


def _clocks() -> str | None:
    asked = "clocks.sm,clocks.max.sm,clocks.mem,power.draw,temperature.gpu"
    command = ["nvidia-smi", f"--query-gpu={asked}", "--format=csv"]
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout
    return None
