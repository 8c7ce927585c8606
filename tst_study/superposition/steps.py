"""The two phases of a run: what each step reads and predicts. This module can be imported without
torch.

Steps are numbered from 0: when step t begins, t steps are done. The first `superposed_steps` steps
read bags, predict bags, or both, as `mode` says (paper, section 3). The others are ordinary
next-token training, and their phase is called recovery.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tst_study.superposition.loss_kinds import MULTI_HOT, BagLoss, LossSetting, Mode, loss_of
from tst_study.superposition.weighting import Weighting, WeightingOverSteps, weighting_at

if TYPE_CHECKING:
    from torch import Tensor

Phase = Literal["superposition", "recovery"]


@dataclass(frozen=True)
class Objective:
    """The inputs, targets and loss of a step."""

    name: str
    """The name of the loss in logs, such as `next_token` or `bag_mce`."""
    bag_size: int
    """Targets per latent position, s, of which some may have weight zero; 1 is next-token
    prediction."""
    stride: int
    """Raw tokens that a latent position reads; their embeddings become one vector."""
    loss: BagLoss = MULTI_HOT
    weighting: Weighting = "uniform"

    def fold(self, token_ids: Tensor) -> Tensor:
        """Split token ids (B, l·stride) into bags (B, l, stride)."""
        from tst_study.superposition.bags import bag_inputs

        return bag_inputs(token_ids, self.stride)

    def count_targets(self, labels: Tensor, documents: Tensor | None = None) -> Tensor:
        """Count the valid targets at each offset, (s,). The sum of these counts over all
        micro-batches and data-parallel ranks is the `valid_counts` of `bag_loss`. With it, the
        losses of all micro-batches on all these ranks add up to the exact mean of the step.
        `documents`: what the loss is given.
        """
        from tst_study.superposition.bags import count_valid_targets

        return count_valid_targets(labels, self.bag_size, self.stride, documents)


NEXT_TOKEN = Objective("next_token", bag_size=1, stride=1)
"""Ordinary next-token prediction."""


def superposed_steps(steps: int, bag_size: int, step_ratio: float, given: int | None = None) -> int:
    """The number of superposed steps: `given`, or else `step_ratio · steps` rounded to the nearest
    whole number.

    Bags of one token are the baseline, which has no superposed steps.
    """
    if bag_size == 1:
        return 0
    return round(step_ratio * steps) if given is None else given


def steps_of_budget(
    bag_size: int,
    *,
    superposed: float,
    recovery: float,
    per_step: float,
    unit: Literal["tokens", "seconds", "flops"] = "tokens",
    mode: Mode = "full",
) -> dict[str, int]:
    """Return `superposed_steps` and `steps` for a budget of each phase:
    `Superposition(4, **steps_of_budget(4, superposed=3e9, recovery=1e9, per_step=2**20))`.

    A superposed step takes as many seconds and FLOPs as an ordinary one, and reads s times as many
    tokens (as many under `output_only`).

    Args:
        superposed, recovery: what each phase may take, in `unit`.
        per_step: what an ordinary step takes, such as its tokens.

    Raises ValueError for numbers that are negative or give no step.
    """
    reads = bag_size if unit == "tokens" and mode != "output_only" else 1
    if bag_size < 1 or not (per_step > 0 and superposed >= 0 and recovery >= 0):
        raise ValueError(
            f"superposed = {superposed}, recovery = {recovery} and per_step = {per_step} must be "
            f"positive, and bag_size = {bag_size} at least 1"
        )
    first = round(superposed / (per_step * reads))
    steps = first + round(recovery / per_step)
    if not steps:
        raise ValueError(f"per_step = {per_step} is more than the budget of both phases")
    return {"superposed_steps": first, "steps": steps}


@dataclass(frozen=True)
class Phases:
    """The two phases of a run. A baseline has no superposed steps."""

    steps: int
    """Number of steps in both phases together."""
    superposed_steps: int
    bag_size: int
    """Tokens per bag, s."""
    mode: Mode = "full"
    loss_kind: LossSetting = "mce"
    weighting: WeightingOverSteps = "uniform"

    def phase(self, step: int) -> Phase:
        """The phase of step `step`, counted from 0."""
        return "superposition" if step < self.superposed_steps else "recovery"

    def tokens_per_position(self, phase: Phase) -> int:
        """Raw tokens that one latent position reads: s if the input is bags, else 1."""
        bagged = phase == "superposition" and self.mode != "output_only"
        return self.bag_size if bagged else 1

    def tokens_read(self, done: int, positions: int) -> int:
        """Raw tokens that the first `done` steps have read, with `positions` latent positions in
        each step."""
        more = self.tokens_per_position("superposition") - 1
        return positions * (done + more * min(done, self.superposed_steps))

    @property
    def step_ratio(self) -> float:
        """The actual r: the number of superposed steps divided by that of all steps."""
        return self.superposed_steps / self.steps

    @property
    def data_multiplier(self) -> float:
        """Raw tokens read in all steps, as a multiple of what a baseline reads in as many steps:
        1 + r(s − 1) if the input is bags, else 1."""
        return self.tokens_read(self.steps, 1) / self.steps

    def objective(self, step: int) -> Objective:
        """Return what a step reads and predicts, and its loss."""
        if self.phase(step) == "recovery":
            return NEXT_TOKEN
        stride, weighting = self.tokens_per_position("superposition"), self.weighting_at(step)
        loss = loss_of(self.loss_kind)
        name = f"bag_{loss.name}"
        if self.mode == "input_only":
            # Bags in, the next token out: `mce` with all weight on the first offset.
            loss, name = MULTI_HOT, "bag_first_token"
        return Objective(name, self.bag_size, stride, loss, weighting)

    def weighting_at(self, step: int) -> Weighting:
        """The weighting of the s targets in superposed step `step`."""
        if self.mode == "input_only":
            return "first_token"
        return weighting_at(self.weighting, step / self.superposed_steps)
