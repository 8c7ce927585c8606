"""What computes: the cores of this process, and the peak of each kind of GPU."""

from __future__ import annotations

import os

# Dense, from the makers' data sheets (without sparsity).
PEAK_BFLOAT16: tuple[tuple[str, float], ...] = (
    # More specific names first: the first one contained in the device's name counts.
    ("GB300", 2.5e15),
    ("GB200", 2.5e15),
    ("B300", 2.25e15),
    ("B200", 2.25e15),
    ("H200", 989e12),
    ("H100 NVL", 835e12),
    ("H100 PCIe", 756e12),
    ("H100", 989e12),
    ("H800", 989e12),
    ("A100", 312e12),
    ("A800", 312e12),
    ("L40S", 362e12),
    ("L4", 121e12),
    ("A10G", 70e12),
)


def peak_flops(device_name: str, dtype: str) -> float | None:
    """FLOP/s that the device can reach at most, or None where the data sheet is not known here:
    no MFU is better than a guessed one."""
    if dtype != "bfloat16":
        return None
    words = device_name.replace("-", " ").split()
    for name, peak in PEAK_BFLOAT16:
        parts = name.split()
        if any(words[i : i + len(parts)] == parts for i in range(len(words))):
            return peak
    return None


def cores() -> int:
    """Cores that this process may use (not those of the node that a job has a part of)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
