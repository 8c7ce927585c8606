"""Peak dense bfloat16 FLOP/s by device name, from the makers' data sheets (without sparsity).

A device that is not in the list gives None, and with it no MFU: a guess would be worse.
"""

from __future__ import annotations

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
    """FLOP/s that the device can reach at most, or None where the data sheet is not known here."""
    if dtype != "bfloat16":
        return None
    words = device_name.replace("-", " ").split()
    for name, peak in PEAK_BFLOAT16:
        parts = name.split()
        if any(words[i : i + len(parts)] == parts for i in range(len(words))):
            return peak
    return None
