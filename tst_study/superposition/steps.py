"""The two phases of a run: what each step reads and predicts. Imports without torch.

Steps count from 0: step t comes after t steps are done. The first `superposed_steps` of them read
bags, predict bags, or both, as `mode` says (paper, section 3); the others are ordinary next-token
training.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from tst_study.superposition.loss_kinds import (
    MULTI_HOT,
    BagLoss,
    LossSetting,
    Mode,
    Pooling,
    loss_of,
)
from tst_study.superposition.weighting import (
    Weighting,
    WeightingOverSteps,
    weight_rows,
    weighting_at,
)

if TYPE_CHECKING:
    from torch import Tensor

Phase = Literal["superposition", "recovery"]


@dataclass(frozen=True)
class Objective:
    """The inputs, targets and loss of a step."""

    name: str
    bag_size: int
    """Targets per latent position; 1 is next-token prediction."""
    stride: int
    """Raw tokens per latent position, whose embeddings become one vector."""
    loss: BagLoss = MULTI_HOT
    weighting: Weighting = "uniform"
    pooling: Pooling = "mean"
    """The way in which the vectors of a bag become one."""

    def fold(self, token_ids: Tensor) -> Tensor:
        """Split token ids (B, l·stride) into bags (B, l, stride)."""
        from tst_study.superposition.bags import bag_inputs

        return bag_inputs(token_ids, self.stride)

    def count_targets(self, labels: Tensor) -> Tensor:
        """Count the valid targets per offset, (s,). Summed over all micro-batches and data-parallel
        ranks they are the `valid_counts` by which partial losses add up to the step's exact mean.
        """
        from tst_study.superposition.bags import count_valid_targets

        return count_valid_targets(labels, self.bag_size, self.stride)


NEXT_TOKEN = Objective("next_token", bag_size=1, stride=1)


def superposed_steps(steps: int, bag_size: int, step_ratio: float, given: int | None = None) -> int:
    """The number of superposed steps: `given`, or the nearest to `step_ratio · steps`.

    Bags of one token are the baseline, which has none.
    """
    if bag_size == 1:
        return 0
    return round(step_ratio * steps) if given is None else given


@dataclass(frozen=True)
class Phases:
    """The two phases of a run. A baseline has no superposed steps."""

    steps: int
    """Number of steps of both phases together."""
    superposed_steps: int
    bag_size: int
    """Tokens per bag, s."""
    mode: Mode = "full"
    loss_kind: LossSetting = "mce"
    weighting: WeightingOverSteps = "uniform"
    pooling: Pooling = "mean"

    def phase(self, step: int) -> Phase:
        return "superposition" if step < self.superposed_steps else "recovery"

    def tokens_per_position(self, phase: Phase) -> int:
        """Raw tokens that one latent position reads: s where the input is bags, else 1."""
        bagged = phase == "superposition" and self.mode != "output_only"
        return self.bag_size if bagged else 1

    def tokens_read(self, done: int, positions: int) -> int:
        """Raw tokens that `done` steps of `positions` latent positions each have read."""
        more = self.tokens_per_position("superposition") - 1
        return positions * (done + more * min(done, self.superposed_steps))

    @property
    def step_ratio(self) -> float:
        """The actual r: superposed steps over all steps."""
        return self.superposed_steps / self.steps

    @property
    def data_multiplier(self) -> float:
        """Raw tokens read, over those that a baseline of as many steps reads: 1 + r(s − 1) with
        bags as input."""
        return self.tokens_read(self.steps, 1) / self.steps

    def objective(self, step: int) -> Objective:
        """Return what a step reads and predicts."""
        if self.phase(step) == "recovery":
            return NEXT_TOKEN
        return replace(self._superposed_objective(), weighting=self.weighting_at(step))

    def _superposed_objective(self) -> Objective:
        """Return what superposed steps read and predict, but for the weighting of targets."""
        stride = self.tokens_per_position("superposition")
        if self.mode == "input_only":
            # Bags in, the one next token out: the bag loss with all weight on the first offset.
            loss: BagLoss = MULTI_HOT
            name = "bag_first_token"
        else:
            loss = loss_of(self.loss_kind)
            name = f"bag_{loss.name}"
        return Objective(name, self.bag_size, stride, loss, pooling=self.pooling)

    @property
    def weighting_changes(self) -> bool:
        """True where the weights depend on the step."""
        return len(weight_rows(self.weighting)) > 1 and self.mode != "input_only"

    def weighting_at(self, step: int) -> Weighting:
        """The weights of the s targets in a superposed step."""
        if self.mode == "input_only":
            return "first_token"
        return weighting_at(self.weighting, step / self.superposed_steps)
