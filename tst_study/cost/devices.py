"""What GPUs can do at most, by device name, from the makers' data sheets (without sparsity).

A device that is not listed gives None, and with it no MFU and no hours: a guess would be worse.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    name: str
    peak: float
    """Dense bfloat16 FLOP/s."""
    memory: float
    """Bytes."""
    bandwidth: float
    """Of its memory, bytes/s."""
    link: float
    """To the other GPUs of a node, bytes/s each way: NVLink, or PCIe where there is none."""
    attention: float
    """Share of the peak that a fused attention kernel reaches at a head size of 128, forward and
    backward: not from a data sheet (`docs/gpu.md`)."""


DEVICES = (
    # More specific names first: the first one contained in the device's name counts.
    Device("GB300", 2.5e15, 288e9, 8.0e12, 9e11, 0.25),
    Device("GB200", 2.5e15, 186e9, 8.0e12, 9e11, 0.25),
    Device("B300", 2.25e15, 288e9, 8.0e12, 9e11, 0.25),
    Device("B200", 2.25e15, 180e9, 8.0e12, 9e11, 0.25),
    Device("H200", 989e12, 141e9, 4.8e12, 4.5e11, 0.4),
    Device("H100 NVL", 835e12, 94e9, 3.9e12, 3e11, 0.4),
    Device("H100 PCIe", 756e12, 80e9, 2.0e12, 6.4e10, 0.4),
    Device("H100", 989e12, 80e9, 3.35e12, 4.5e11, 0.4),
    Device("H800", 989e12, 80e9, 3.35e12, 2e11, 0.4),
    Device("A100", 312e12, 80e9, 2.04e12, 3e11, 0.55),
    Device("A800", 312e12, 80e9, 2.04e12, 2e11, 0.55),
    Device("L40S", 362e12, 48e9, 8.64e11, 3.2e10, 0.4),
    Device("L4", 121e12, 24e9, 3.0e11, 3.2e10, 0.4),
    Device("A10G", 70e12, 24e9, 6.0e11, 3.2e10, 0.5),
)

PROCESSOR = Device("processor", 1e11, 0.0, 2e10, 5e9, 0.5)
"""Some core of a server: enough to tell a good layout over processors from a bad one."""


def device_named(name: str) -> Device | None:
    """`NVIDIA H100 80GB HBM3` -> H100; None where the data sheet is not known here."""
    words = name.replace("-", " ").split()
    for device in DEVICES:
        parts = device.name.split()
        if any(words[i : i + len(parts)] == parts for i in range(len(words))):
            return device
    return None


def peak_flops(device_name: str, dtype: str) -> float | None:
    """FLOP/s that the device can reach at most, or None where the data sheet is not known here."""
    device = device_named(device_name) if dtype == "bfloat16" else None
    return device.peak if device else None
