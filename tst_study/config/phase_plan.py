"""Which steps are superposed, every counter and the learning rate: pure functions of the step.

A step costs the same FLOPs in both phases: it always runs `sequences · sequence_length` latent
positions. What differs is how much text those positions read (paper, section 3). The learning rate
follows one schedule over both phases: the switch does not touch it.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

from tst_study.config.schema import Config, Schedule

Phase = Literal["superposition", "recovery"]


@dataclass(frozen=True)
class PhasePlan:
    """Steps are counted from 0; a counter at step t says what has been done before step t.

    A baseline is a plan without superposed steps: recovery from its first step on.
    """

    steps: int
    superposed_steps: int
    bag_size: int
    """Tokens per bag, s."""
    bags_as_input: bool
    """False for output-only superposition, which reads no more text than a baseline."""
    sequences: int
    """Sequences per step, over all ranks."""
    sequence_length: int
    """Latent positions per sequence, L."""

    def phase(self, step: int) -> Phase:
        return "superposition" if step < self.superposed_steps else "recovery"

    def tokens_per_position(self, phase: Phase) -> int:
        """Raw tokens that one latent position reads: s under bags of inputs, else 1."""
        return self.bag_size if phase == "superposition" and self.bags_as_input else 1

    def tokens_per_sequence(self, phase: Phase) -> int:
        return self.sequence_length * self.tokens_per_position(phase)

    def latent_tokens(self, step: int) -> int:
        return step * self.sequences * self.sequence_length

    def raw_tokens(self, step: int) -> int:
        superposed = min(step, self.superposed_steps)
        per_step = self.sequences * self.tokens_per_sequence("superposition")
        return superposed * per_step + self.latent_tokens(step - superposed)

    def counters(self, done: int) -> dict[str, Any]:
        """What a row of a run's logs says after `done` steps, whatever it measures."""
        return {
            "step": done,
            "phase": self.phase(done - 1),
            "raw_tokens": self.raw_tokens(done),
            "latent_tokens": self.latent_tokens(done),
        }

    @property
    def step_ratio(self) -> float:
        """r, as the rounded number of steps makes it."""
        return self.superposed_steps / self.steps

    @property
    def data_multiplier(self) -> float:
        """Text read over the text of a baseline of as many steps: 1 + r(s − 1)."""
        return self.raw_tokens(self.steps) / self.latent_tokens(self.steps)


def plan_phases(config: Config) -> PhasePlan:
    """The plan of a resolved config: always from the final number of steps, never an earlier one.

    A bag size of one, or no superposed step, is the baseline: the same plan, hence the same run.
    """
    superposition, steps = config.superposition, config.schedule.steps
    superposed = superposed_steps(
        steps, superposition.bag_size, superposition.step_ratio, superposition.steps
    )
    return PhasePlan(
        steps=steps,
        superposed_steps=superposed,
        bag_size=superposition.bag_size if superposed else 1,
        bags_as_input=superposition.mode != "output_only",
        sequences=config.batch.sequences,
        sequence_length=config.batch.sequence_length,
    )


def superposed_steps(steps: int, bag_size: int, step_ratio: float, given: int | None) -> int:
    """Of `steps`: those given outright, else the ratio's, to the nearest; none for bags of one."""
    if bag_size == 1:
        return 0
    return round(step_ratio * steps) if given is None else given


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
