"""Phases, counters and the learning rate of a run, as pure functions of the step.

A step costs the same model FLOPs in both phases: it always runs `sequences · sequence_length`
latent positions. The phases differ in how much text those positions read (paper, section 3). The
learning rate follows one schedule over both phases, which the switch does not touch.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from tst_study.config.schema import Config, LabelSmoothing, Schedule
from tst_study.superposition.loss_kinds import MultiHot
from tst_study.superposition.steps import NEXT_TOKEN, Objective, Phase, Phases, superposed_steps


@dataclass(frozen=True, kw_only=True)
class PhasePlan(Phases):
    """The phases of one of our runs, with its batch: what a step costs and reads.

    Steps are counted from 0; a counter at step t counts what steps 0 … t - 1 have done.
    """

    sequences: int
    """Sequences per step, over all ranks."""
    sequence_length: int
    """Latent positions per sequence, L."""
    label_smoothing: LabelSmoothing | None = None

    def tokens_per_sequence(self, phase: Phase) -> int:
        return self.sequence_length * self.tokens_per_position(phase)

    def latent_tokens(self, step: int) -> int:
        return step * self.sequences * self.sequence_length

    def raw_tokens(self, step: int) -> int:
        return self.tokens_read(step, self.sequences * self.sequence_length)

    def objective(self, step: int) -> Objective:
        """Return the objective of step `step`, counted from 0: bags, next tokens, or next tokens
        with smoothed labels."""
        smoothing = self.label_smoothing
        objective = super().objective(step)
        if objective is NEXT_TOKEN and smoothing is not None and smoothing.covers(step):
            smoothed = MultiHot(label_smoothing=smoothing.epsilon)
            return replace(objective, name="smoothed_token", loss=smoothed)
        return objective

    def counters(self, done: int) -> dict[str, Any]:
        """Return the counters that every row of a run's logs has after `done` steps."""
        return {
            "step": done,
            "phase": self.phase(done - 1),
            "raw_tokens": self.raw_tokens(done),
            "latent_tokens": self.latent_tokens(done),
        }

    def record(self) -> dict[str, Any]:
        """Return the plan as `run.json` holds it."""
        names = ("steps", "superposed_steps", "bag_size", "sequences", "sequence_length")
        sums = {"step_ratio": self.step_ratio, "data_multiplier": self.data_multiplier}
        bags_as_input = self.mode != "output_only"
        return (
            {name: getattr(self, name) for name in names} | sums | {"bags_as_input": bags_as_input}
        )


def plan_phases(config: Config) -> PhasePlan:
    """Return the plan of a config, for all `schedule.steps`, even if `schedule.stop_after` ends the
    run before.

    Every config with a bag size of one, or without superposed steps, gets the baseline's plan,
    whatever its other settings of superposition say.
    """
    chosen, steps = config.superposition, config.schedule.steps
    superposed = superposed_steps(steps, chosen.bag_size, chosen.step_ratio, chosen.steps)
    plan = PhasePlan(
        steps,
        superposed_steps=0,
        bag_size=1,
        sequences=config.batch.sequences,
        sequence_length=config.batch.sequence_length,
        label_smoothing=config.label_smoothing,
    )
    if not superposed:
        return plan
    return replace(
        plan,
        superposed_steps=superposed,
        bag_size=chosen.bag_size,
        mode=chosen.mode,
        loss_kind=chosen.loss,
        weighting=chosen.weighting,
        pooling=chosen.pooling,
    )


def learning_rate(config: Config, step: int) -> float:
    """Return the learning rate of step `step`, counted from 0."""
    return config.optimizer.learning_rate * learning_rate_factor(config.schedule, step)


def learning_rate_factor(schedule: Schedule, step: int) -> float:
    """Return the learning rate of step `step` (from 0) over the peak learning rate.

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
    else:
        shape = 1.0 - progress
    return schedule.final_ratio + (1.0 - schedule.final_ratio) * shape


def is_annealed(schedule: Schedule, step: int) -> bool:
    """Return whether the decay is over after `step` steps; always False for a schedule without one.

    Methods are compared by losses of annealed weights alone.
    """
    return schedule.decay_steps > 0 and step >= schedule.steps
