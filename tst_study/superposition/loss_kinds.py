"""What superposed steps can be, by name: modes and losses over a bag. Imports without torch.

A new loss is a name here, its kernel and a line of `SET_LOSSES` in `losses.py`.
"""

from typing import Literal, TypeAlias, get_args

from tst_study.superposition.weighting import WeightingOverSteps

Mode: TypeAlias = Literal["full", "input_only", "output_only"]
BagLossKind: TypeAlias = Literal["mce", "sum_to_one", "binary_cross_entropy", "hinge"]

MODES: tuple[Mode, ...] = get_args(Mode)
BAG_LOSS_KINDS: tuple[BagLossKind, ...] = get_args(BagLossKind)

LINEAR_KINDS: tuple[BagLossKind, ...] = ("mce",)
"""Sums over offsets of log-probabilities: the offsets can be weighted, and output head and loss be
one pass. The other kinds see the bag as a set of tokens."""

IGNORE = -100
"""The label that no loss counts; torch's own."""


def check_loss_kind(kind: str, weighting: WeightingOverSteps = "uniform") -> None:
    """Refuse an unknown kind, and a weighting where the loss has no term per offset to weight.

    Raises `ValueError`, which names the value and what would be accepted.
    """
    if kind not in BAG_LOSS_KINDS:
        raise ValueError(f"loss kind {kind!r} is unknown: use one of {', '.join(BAG_LOSS_KINDS)}")
    if kind not in LINEAR_KINDS and weighting != "uniform":
        raise ValueError(
            f"loss kind {kind!r} sees the bag as a set and takes weighting 'uniform' only, "
            f"got {weighting!r}; use kind 'mce' for weighted offsets"
        )
