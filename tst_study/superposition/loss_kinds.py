"""Modes, poolings and losses of superposed steps. Imports without torch.

To add a loss, write its class here, its entry in `LOSSES` and its name in `BagLossKind`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from tst_study.superposition.weighting import WeightingOverSteps

if TYPE_CHECKING:
    from torch import Tensor

    from tst_study.superposition.losses import Bags

Mode: TypeAlias = Literal["full", "input_only", "output_only"]
Pooling: TypeAlias = Literal["mean", "max"]
BagLossKind: TypeAlias = Literal["mce", "sum_to_one", "binary_cross_entropy", "hinge"]

MODES: tuple[Mode, ...] = get_args(Mode)
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
BAG_LOSS_KINDS: tuple[BagLossKind, ...] = get_args(BagLossKind)

IGNORE = -100
"""The label that no loss counts; torch's own."""


@dataclass(frozen=True)
class BagLoss:
    """A loss of one set of logits against a bag; the fields of a subclass are its parameters.

    Called with `Bags`, it returns the mean loss of their positions, a scalar: in nats, except for
    the hinge loss.
    """

    takes_weights = False
    """Whether the s targets may have different weights."""
    in_one_pass = False
    """Whether `linear_bag_loss` can compute this loss together with the output head."""
    is_sharded = True
    """Whether the loss can be computed where the vocabulary is split over tensor ranks."""

    def __call__(self, bags: Bags) -> Tensor:
        raise NotImplementedError

    @property
    def name(self) -> str:
        names = {kind: name for name, kind in LOSSES.items()}
        return names.get(type(self), type(self).__name__)


@dataclass(frozen=True)
class MultiHot(BagLoss):
    """Multi-hot cross-entropy, the paper's: `sum_i g(i) CE_i / sum_i g(i)`, where CE_i is the mean
    of `logsumexp(z) - z[y_i]` over the valid positions of offset i.

    It is a cross-entropy, not a divergence: the entropy of the target, log s, is not subtracted,
    and the loss starts near log V whatever s is. With `label_smoothing` ε each target keeps 1 − ε
    of its weight, and the whole vocabulary shares ε, as in `F.cross_entropy`.
    """

    label_smoothing: float = 0.0
    takes_weights = True

    def __post_init__(self) -> None:
        if not 0.0 <= self.label_smoothing < 1.0:
            raise ValueError(f"label_smoothing = {self.label_smoothing} must lie in 0 … 1, below 1")

    @property
    def in_one_pass(self) -> bool:  # type: ignore[override]
        return not self.label_smoothing

    def __call__(self, bags: Bags) -> Tensor:
        loss = bags.mean(-bags.log_probabilities())
        if self.label_smoothing:
            loss = loss + self.label_smoothing * bags.mean_above_vocabulary()
        return loss


MULTI_HOT = MultiHot()


@dataclass(frozen=True)
class SumToOne(BagLoss):
    """`-log sum_{y in Y} P(y)`, Y being the set of valid targets.

    A token that the bag repeats counts once, so the sum is a probability and the loss not negative.
    """

    def __call__(self, bags: Bags) -> Tensor:
        members = bags.members()
        # An empty set has loss inf and gradient nan, which a weight of zero would not remove.
        keep = members.clone()
        keep[:, 0] |= ~members.any(dim=1)
        kept = bags.log_probabilities().masked_fill(~keep, float("-inf"))
        return bags.mean_of_positions(-kept.logsumexp(dim=1))


@dataclass(frozen=True)
class BinaryCrossEntropy(BagLoss):
    """`1/V sum_v softplus(-t_v z_v)`, t_v = +1 in the set of valid targets and -1 elsewhere."""

    def __call__(self, bags: Bags) -> Tensor:
        return bags.mean_of_positions(bags.one_vs_rest("binary_cross_entropy"))


@dataclass(frozen=True)
class Hinge(BagLoss):
    """`1/V sum_v max(0, 1 - t_v z_v)`, with t_v as in `BinaryCrossEntropy`."""

    def __call__(self, bags: Bags) -> Tensor:
        return bags.mean_of_positions(bags.one_vs_rest("hinge"))


LOSSES: dict[str, type[BagLoss]] = {
    "mce": MultiHot,
    "sum_to_one": SumToOne,
    "binary_cross_entropy": BinaryCrossEntropy,
    "hinge": Hinge,
}

LossSetting: TypeAlias = BagLossKind | Mapping[str, Any] | BagLoss
"""The name of a loss, a table of its name (`kind`) and parameters, or the loss itself."""


def loss_of(setting: LossSetting) -> BagLoss:
    """Return the loss that a setting names.

    Raises `ValueError`, which names the value and what would be accepted.
    """
    if isinstance(setting, BagLoss):
        return setting
    parameters = {} if isinstance(setting, str) else dict(setting)
    kind = setting if isinstance(setting, str) else parameters.pop("kind", None)
    if kind not in LOSSES:
        raise ValueError(f"loss kind {kind!r} is unknown: use one of {', '.join(LOSSES)}")
    known = asdict(LOSSES[kind]())
    for key, value in parameters.items():
        if key not in known or not isinstance(value, int | float):
            raise ValueError(
                f"loss kind {kind!r} has no parameter {key} = {value!r}: "
                + (f"use numbers for {', '.join(known)}" if known else "it has none")
            )
    # 1 and 1.0 are the same loss, which gives a run the same id.
    return LOSSES[kind](**{key: type(known[key])(value) for key, value in parameters.items()})


def check_loss_kind(setting: LossSetting, weighting: WeightingOverSteps = "uniform") -> None:
    """Refuse an unknown loss, and a weighting where the loss has no term per offset to weight.

    Raises `ValueError`, which names the value and what would be accepted.
    """
    loss = loss_of(setting)
    if not loss.takes_weights and weighting != "uniform":
        raise ValueError(
            f"loss kind {loss.name!r} sees the bag as a set and takes weighting 'uniform' only, "
            f"got {weighting!r}; use kind 'mce' for weighted offsets"
        )
