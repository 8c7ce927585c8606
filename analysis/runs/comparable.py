"""What makes two runs comparable: everything of their identity but what a comparison varies.

Both functions read the resolved config and the data fingerprints of `run.json`.
"""

from __future__ import annotations

from tst_study.run.identity import digest
from tst_study.run.identity_form import SEEDS, identity_form
from tst_study.run_record import RunHeader

VARIED = (
    *SEEDS,
    "superposition",
    "label_smoothing",
    "optimizer.learning_rate",
    "data.validation",
)
"""Held-out text is left out on purpose: runs evaluated on different text belong together and are
then refused by name, which says more than finding no partner."""


def training_group(header: RunHeader) -> str:
    """Key (12 hex digits) of runs that differ at most in superposition, seeds and learning rate."""
    return digest(identity_form(header["config"], header["data"], VARIED))[:12]


def training_group_of_any_length(header: RunHeader) -> str:
    """Like `training_group`, whatever the number of steps and of warm-up steps."""
    varied = (*VARIED, "schedule.steps", "schedule.warmup_steps")
    return digest(identity_form(header["config"], header["data"], varied))[:12]
