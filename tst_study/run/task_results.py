"""What was measured on a trained model: a row of `evals.jsonl` that names a task.

Held-out loss by domain, checks of word order and context, and downstream tasks. The loss by which
methods are compared is none of these: it is what training itself evaluates.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict


@with_config(ConfigDict(extra="forbid"))
class TaskResult(TypedDict):
    """Counters say what the checkpoint had seen. Of one step, task and data the last row wins."""

    segment: int
    step: int
    phase: Literal["superposition", "recovery"]
    raw_tokens: int
    latent_tokens: int
    flops: int
    annealed: bool
    task: str
    """`held_out`, `loss_by_position`, …, or a downstream task by its lm-eval name."""
    data: str
    """What it was measured on: name and fingerprint. Only equal ones may be compared."""
    metrics: dict[str, float | None]
    """By name; `…_stderr` beside each that has a standard error. Accuracies are fractions."""
    samples: int
    """Independent units behind the standard errors: documents, sequences or questions."""
    details: dict[str, Any]
    """Versions, settings, and values by position or by sequence."""
    seconds: float
