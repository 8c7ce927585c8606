"""A small valid configuration that tests change key by key."""

from typing import Any

from tst_study.config import schema as config
from tst_study.config.schema import Config

EXAMPLE: dict[str, Any] = {
    "model": {"preset": "laptop-64"},
    "superposition": {"bag_size": 4, "step_ratio": 0.2},
    "data": {"corpora": [{"path": "prepared/books"}]},
    "batch": {"sequences": 16, "sequence_length": 64},
    "optimizer": {"learning_rate": 2e-3},
    "schedule": {"steps": 100, "warmup_steps": 5},
}


def example(*overrides: str) -> Config:
    """`EXAMPLE` with overrides such as `superposition.bag_size=1`."""
    values = {key: dict(section) for key, section in EXAMPLE.items()}
    for override in overrides:
        config.apply_override(values, override)
    return config.from_dict(values)
