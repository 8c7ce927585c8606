"""The learning rate as a pure function of the step; the switch between phases does not touch it."""

import math

from tst_study.config import Schedule


def learning_rate_factor(schedule: Schedule, step: int) -> float:
    """Learning rate of step `step` (from 0) over the peak learning rate.

    Warm-up rises linearly and reaches 1 at its last step; the decay ends at `final_ratio` after
    the last step, so that the last step still moves the weights.
    """
    if step < schedule.warmup_steps:
        return (step + 1) / schedule.warmup_steps
    length = schedule.decay_steps
    start = schedule.steps - length
    if length == 0 or step < start:
        return 1.0
    progress = (step - start) / length
    if schedule.kind == "cosine":
        shape = 0.5 * (1.0 + math.cos(math.pi * progress))
    elif schedule.decay_shape == "sqrt":
        shape = 1.0 - math.sqrt(progress)
    else:
        shape = 1.0 - progress
    return schedule.final_ratio + (1.0 - schedule.final_ratio) * shape


def is_annealed(schedule: Schedule, step: int) -> bool:
    """Whether the decay is over after `step` steps: only then are losses compared (invariant 5)."""
    return schedule.decay_steps > 0 and step >= schedule.steps
