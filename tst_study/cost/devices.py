"""Peak rates of GPUs from the makers' data sheets, and the MFU that published trainings reached.

MFU is model FLOPs utilisation: the share of a device's peak FLOP/s that a training reaches. For a
device that is not listed, neither MFU nor hours are estimated, because a guess would be worse than
no number. Only the choice of a layout, and the estimates of its memory and traffic, then assume an
H100 (`device_or_usual`).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """A GPU with the rates of its data sheet, and the size of its usual node."""

    name: str
    peak: float
    """bfloat16 FLOP/s for dense matrices, that is, without structured sparsity."""
    memory: float
    """Bytes."""
    bandwidth: float
    """Bytes per second to and from its memory."""
    link: float
    """Bytes per second that it can send to the other GPUs of its node."""
    per_node: int = 8
    """GPUs of one node."""
    like: str = ""
    """The device of the same generation whose published MFUs are used if this one has none."""


NETWORK = 50e9
"""Bytes per second that a GPU can send to other nodes. One port of 400 Gbit/s is assumed for each
GPU, whatever the device."""


DEVICES = (
    # `device_named` takes the first device whose words all occur in the given name, so more
    # specific names come first.
    Device("GB300", 2.5e15, 288e9, 8e12, 900e9, per_node=4, like="B200"),
    Device("GB200", 2.5e15, 186e9, 8e12, 900e9, per_node=4, like="B200"),
    Device("B300", 2.25e15, 288e9, 8e12, 900e9, like="B200"),
    Device("B200", 2.25e15, 180e9, 8e12, 900e9),
    Device("H200 NVL", 835e12, 141e9, 4.8e12, 450e9, like="H100"),
    Device("H200", 989e12, 141e9, 4.8e12, 450e9, like="H100"),
    Device("H100 NVL", 835e12, 94e9, 3.9e12, 300e9, like="H100"),
    Device("H100 PCIe", 756e12, 80e9, 2e12, 300e9, like="H100"),
    Device("H100", 989e12, 80e9, 3.35e12, 450e9),
    Device("H800 PCIe", 756e12, 80e9, 2e12, 200e9, like="H100"),
    Device("H800", 989e12, 80e9, 3.35e12, 200e9, like="H100"),
    Device("A100 40GB", 312e12, 40e9, 1.555e12, 300e9, like="A100"),
    Device("A100", 312e12, 80e9, 2e12, 300e9),
    Device("A800", 312e12, 80e9, 2e12, 200e9, like="A100"),
    Device("L40S", 362e12, 48e9, 864e9, 32e9),
    Device("L4", 121e12, 24e9, 300e9, 32e9),
    Device("A10G", 70e12, 24e9, 600e9, 32e9),
    # GeForce cards reach these peaks with accumulation in float32 (half of those in float16).
    Device("RTX 5090", 209.5e12, 32e9, 1.792e12, 64e9, per_node=1),
    Device("RTX 4090", 165.2e12, 24e9, 1.008e12, 32e9, per_node=1),
    Device("RTX 3090", 71e12, 24e9, 936e9, 32e9, per_node=1),
)


@dataclass(frozen=True)
class PublishedMfu:
    """The lowest and the highest MFU of published trainings in bfloat16, as fractions of the peak.
    FLOPs are counted as in `compute.py`."""

    low: float
    high: float
    source: str


OLMO = "OLMo-core 1.2's README (1B, 7B, 13B)"
TORCHTITAN = "torchtitan's performance pages (Llama 3 8B)"
BRIDGE = "Megatron-Bridge's performance summary 25.11"

PUBLISHED_MFU = {
    ("A100", "dense"): PublishedMfu(0.55, 0.55, TORCHTITAN),
    ("H100", "dense"): PublishedMfu(
        0.31, 0.48, f"{TORCHTITAN}, {OLMO}, nanotron (Llama 3.2 1B, SmolLM3 3B)"
    ),
    ("H100", "mixture"): PublishedMfu(
        0.15, 0.34, f"{BRIDGE} (GPT-OSS 120B), NeMo AutoModel's (Qwen3 30B-A3B)"
    ),
    ("B200", "dense"): PublishedMfu(0.24, 0.45, "the paper's Table 1 (270M, 600M, 3B)"),
    ("B200", "mixture"): PublishedMfu(
        0.10, 0.18, f"{BRIDGE} (GPT-OSS 120B), the paper's Table 1 (10B-A1B)"
    ),
    ("GB200", "mixture"): PublishedMfu(
        0.20, 0.31, f"{BRIDGE} (GPT-OSS 120B, Qwen3 235B-A22B, DeepSeek V3)"
    ),
    ("GB300", "mixture"): PublishedMfu(
        0.23, 0.38, f"{BRIDGE} (GPT-OSS 120B, Qwen3 235B-A22B, DeepSeek V3)"
    ),
}
"""Published MFUs by device and kind of model. Except for the paper's, all mixtures of experts were
measured with routing that was forced to be even."""


def device_named(name: str) -> Device | None:
    """Find a device by the name that its driver reports, such as `NVIDIA H100 80GB HBM3`, or by its
    name in `DEVICES`, in upper or lower case; None if it is not listed."""
    words = set(name.upper().replace("-", " ").split())
    if words & {"LAPTOP", "D", "TI", "MIG"}:  # other cards than those they name, or a part of one
        return None
    named = (device for device in DEVICES if words.issuperset(device.name.upper().split()))
    return next(named, None)


def device_or_usual(name: str | None) -> Device:
    """Find a device as `device_named` does; return an H100 if it is not listed or has no name."""
    device = device_named(name or "") or device_named("H100")
    assert device is not None
    return device


def peak_flops(device_name: str, dtype: str) -> float | None:
    """Return the peak FLOP/s of a device in bfloat16; None for a device that is not listed, and for
    every other `dtype`."""
    device = device_named(device_name) if dtype == "bfloat16" else None
    return device.peak if device else None


def published_mfu(device: Device, *, experts: bool) -> PublishedMfu | None:
    """Return the published MFUs on this device, or else on the device that it is `like`; None if
    there are none for this kind of model (`experts`: a mixture of experts)."""
    kind = "mixture" if experts else "dense"
    own = PUBLISHED_MFU.get((device.name, kind))
    return own or PUBLISHED_MFU.get((device.like, kind))
