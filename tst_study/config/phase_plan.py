"""The phases, token counts and learning rate of a run, as pure functions of the step.

Superposition costs the same model FLOPs in both phases: the model always runs on `sequences ·
sequence_length` latent positions, one vector each. The phases differ in how much text these
positions read: with bags as input each reads s tokens, otherwise one (paper, section 3). The first
steps of a rival are smaller and cost less (`Reads`). So whatever a step costs is a function of the
step, and a total is their sum (`PhasePlan.total`). The learning rate follows one schedule over both
phases, on which the switch between them has no effect.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple

from tst_study.config.schema import Config, LabelSmoothing, Schedule, SuperposedPhase
from tst_study.superposition.loss_kinds import MultiHot
from tst_study.superposition.steps import NEXT_TOKEN, Objective, Phase, Phases, superposed_steps


class Reads(NamedTuple):
    """The text that a step reads, over all ranks: a part of the text of one whole step.

    A whole step has `PhasePlan.sequences` sequences of `PhasePlan.sequence_length` latent
    positions. Whole steps are numbered from 0, and follow each other in the order of the text. All
    steps of a run are whole, except the first ones of a run with a warm-up.
    """

    whole_step: int
    first_sequence: int
    sequences: int
    first_position: int
    """In each of these sequences, the first latent position."""
    length: int
    """Latent positions of each sequence."""

    @property
    def positions(self) -> int:
        """Latent positions of the step."""
        return self.sequences * self.length


@dataclass(frozen=True, kw_only=True)
class PhasePlan(Phases):
    """The phases of a run and the size of its steps. Together they say how much text the run reads.

    Steps are numbered from 0, so before step t, t steps have been done.
    """

    sequences: int
    """Sequences per whole step, over all ranks."""
    sequence_length: int
    """Latent positions per sequence of a whole step, L."""
    label_smoothing: LabelSmoothing | None = None
    """Smoothing of the targets in some next-token steps; None if there is none."""
    small: tuple[tuple[int, tuple[int, int]], ...] = ()
    """The stages of small steps, with which the run begins: of each stage the number of steps, and
    the numbers of parts into which they divide the sequences of a whole step, and the positions of
    each sequence. A step reads one part, and a stage all parts of some whole steps."""

    @property
    def small_steps(self) -> int:
        """The number of small steps, which are the first ones."""
        return sum(steps for steps, _ in self.small)

    def reads(self, step: int) -> Reads:
        """Return the text that a step reads. The small steps read all parts of a whole step, one
        after another, before they go on to the next whole step."""
        first, parts = 0, (1, 1)  # the first whole step of the stage, and its parts
        for steps, parts in (*self.small, (self.steps, (1, 1))):
            if step < steps:
                break
            step, first = step - steps, first + steps // math.prod(parts)
        whole, part = divmod(step, math.prod(parts))
        sequences, length = self.sequences // parts[0], self.sequence_length // parts[1]
        of_sequences, of_positions = divmod(part, parts[1])
        whole += first
        return Reads(whole, of_sequences * sequences, sequences, of_positions * length, length)

    @property
    def stages(self) -> tuple[int, ...]:
        """The first step of each stage. All steps of a stage read and cost the same."""
        small = accumulate(steps for steps, _ in self.small)
        return tuple(sorted({0, *small, self.superposed_steps}))

    def total(self, done: int, of_step: Callable[[int], int]) -> int:
        """Sum `of_step` over the first `done` steps. It must have one value in each stage."""
        ends = [*self.stages[1:], max(done, self.stages[-1])]
        return sum(
            of_step(first) * (min(done, end) - first)
            for first, end in zip(self.stages, ends, strict=True)
            if first < done
        )

    def tokens_per_sequence(self, phase: Phase) -> int:
        """Return the raw tokens that one sequence of a whole step reads."""
        return self.sequence_length * self.tokens_per_position(phase)

    def latent_tokens(self, step: int) -> int:
        """Return how many latent positions the first `step` steps have run, over all ranks."""
        return self.total(step, lambda step: self.reads(step).positions)

    def raw_tokens(self, step: int) -> int:
        """Return how many raw tokens the first `step` steps have read, over all ranks."""
        return self.total(
            step,
            lambda step: self.reads(step).positions * self.tokens_per_position(self.phase(step)),
        )

    def objective(self, step: int) -> Objective:
        """Return what step `step` (numbered from 0) reads and predicts. It is the objective of the
        step's phase, with smoothed targets in the next-token steps that `label_smoothing`
        covers."""
        smoothing = self.label_smoothing
        objective = super().objective(step)
        if objective is NEXT_TOKEN and smoothing is not None and smoothing.covers(step):
            smoothed = MultiHot(label_smoothing=smoothing.epsilon)
            return replace(objective, name="smoothed_token", loss=smoothed)
        return objective

    def counters(self, done: int) -> dict[str, Any]:
        """Return the counters that a row of a run's logs has after `done` steps; the phase is that
        of the last of these steps."""
        return {
            "step": done,
            "phase": self.phase(max(done, 1) - 1),
            "raw_tokens": self.raw_tokens(done),
            "latent_tokens": self.latent_tokens(done),
        }

    def record(self) -> dict[str, Any]:
        """Return the plan as `run.json` holds it."""
        names = ["steps", "superposed_steps", "bag_size", "sequences", "sequence_length"]
        names += ["step_ratio", "data_multiplier"]
        values = {name: getattr(self, name) for name in names}
        return values | {"bags_as_input": self.mode != "output_only"}


def plan_phases(config: Config) -> PhasePlan:
    """Return the plan of a config for all `schedule.steps`, even if `schedule.stop_after` ends the
    run earlier.

    A config with a bag size of one or without superposed steps gets the plan of a baseline; its
    other settings of superposition are ignored.
    """
    chosen, steps = config.superposition, config.schedule.steps
    superposed = superposed_steps(steps, chosen.bag_size, chosen.step_ratio, chosen.steps)
    if not superposed:
        chosen = SuperposedPhase()
    small = tuple(
        (count, (parts, 1) if rival.divided == "sequences" else (1, parts))
        for rival in config.rivals.values()
        for count, parts in rival.stages(steps)
    )
    return PhasePlan(
        steps=steps,
        superposed_steps=superposed,
        bag_size=chosen.bag_size,
        mode=chosen.mode,
        loss_kind=chosen.loss,
        weighting=chosen.weighting,
        sequences=config.batch.sequences,
        sequence_length=config.batch.sequence_length,
        label_smoothing=config.label_smoothing,
        small=small,
    )


def learning_rate(config: Config, step: int) -> float:
    """Return the learning rate of step `step`, numbered from 0."""
    return config.optimizer.learning_rate * learning_rate_factor(config.schedule, step)


def learning_rate_factor(schedule: Schedule, step: int) -> float:
    """Return the learning rate of step `step` (numbered from 0), divided by the peak rate.

    The warm-up rises linearly and reaches 1 in its last step. The decay would reach `final_ratio`
    one step after the last, so that the last step still moves the weights.
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
    """Return whether the decay of the learning rate is over after `step` steps; always False for a
    schedule without a decay.

    The analysis compares final losses of annealed weights only.
    """
    return schedule.decay_steps > 0 and step >= schedule.steps
