"""What the paper trained: shapes behind its labels, batches, learning rates, GPUs."""

from __future__ import annotations

from tst_study.config.presets import expand_preset
from tst_study.config.schema import Model
from tst_study.cost.compute import count_parameters, flops_per_position

PRESET = {"270M": "270m", "600M": "600m", "3B": "3b", "10B-A1B": "moe-10b-a1b"}
LEARNING_RATE = {"270M": 2e-3, "600M": 1e-3, "3B": 2e-4, "10B-A1B": 3e-4}
"""Peak."""
GPUS = {"270M": 8, "600M": 8, "3B": 64, "10B-A1B": 64}


def batch(size: str) -> tuple[int, int]:
    """(sequences, length), latent positions. The lengths are not stated: 2,048 is that of SmolLM2,
    whose shapes the dense models have, 8,192 makes 8M tokens of 1,024 sequences."""
    return 1024, 8192 if size == "10B-A1B" else 2048


def model(size: str) -> Model:
    """The shape behind one of the paper's labels."""
    return Model(**expand_preset({"preset": PRESET[size]}))


def step_flops(size: str) -> int:
    """Model FLOPs of one step of the paper's runs."""
    sequences, length = batch(size)
    return sequences * length * flops_per_position(model(size), length)


PARAMS = {size: float(count_parameters(model(size)).total) for size in PRESET}
"""Numbers of parameters by the paper's labels, counted from the shapes."""
