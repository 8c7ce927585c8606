"""The weights that the s tokens of the next bag have in the loss. The module does not import torch.

Weighted multi-hot cross-entropy is `sum_i g(i) CE_i / sum_i g(i)`. Here CE_i is the cross-entropy
of the token at the distance i = 1 … s from the end of the text that a position has read (paper,
Figure 9 and the appendix on weighted losses). The weights in this module are the g(i), not
normalised: `bag_loss` divides by their sum over the offsets that have a valid target.
"""

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

NamedWeighting: TypeAlias = Literal[
    "uniform", "power_law", "exponential", "first_token", "mutual_information"
]
Weighting: TypeAlias = NamedWeighting | Sequence[float]
"""A name, or the s weights g(1) … g(s) themselves."""
WeightingOverSteps: TypeAlias = Weighting | Sequence[Sequence[float]]
"""A weighting for all superposed steps; or several rows of s weights, which are spread evenly over
the superposed steps, with the weights of steps between two rows interpolated."""

NAMED_WEIGHTINGS: tuple[NamedWeighting, ...] = get_args(NamedWeighting)


def mutual_information_weights(
    bag_size: int, *, constant: float = 3.625, amplitude: float = 1.355, exponent: float = -1.246
) -> tuple[float, ...]:
    """Return the weights g(i) = constant + amplitude · i**exponent for i = 1 … bag_size.

    The defaults are the least-squares fit to the paper's Figure 10: the mutual information of two
    tokens of DCLM against their distance in tokens. (The figure states no unit, but only ratios of
    weights matter.) For another corpus, pass the three numbers of its own fit, and give the result
    to `bag_loss` as its weighting.
    """
    return tuple(constant + amplitude * i**exponent for i in range(1, bag_size + 1))


def offset_weights(weighting: Weighting, bag_size: int) -> tuple[float, ...]:
    """Return the weights g(1) … g(s) of the s tokens of a bag, not normalised.

    ==================== ==================================
    uniform              g(i) = 1 (the paper's default)
    power_law            g(i) = 1 / i
    exponential          g(i) = exp(-i)
    first_token          g(1) = 1, all other g(i) = 0
    mutual_information   g(i) = 3.625 + 1.355 · i**-1.246
    a sequence           its s numbers
    ==================== ==================================

    Raises `ValueError` for an unknown name, a bag size below 1, or a sequence that does not hold
    `bag_size` finite numbers >= 0 of which at least one is positive.
    """
    if bag_size < 1:
        raise ValueError(f"bag_size must be at least 1, got {bag_size}")
    distances = range(1, bag_size + 1)
    match weighting:
        case "uniform":
            return (1.0,) * bag_size
        case "power_law":
            return tuple(1.0 / i for i in distances)
        case "exponential":
            return tuple(math.exp(-i) for i in distances)
        case "first_token":
            return (1.0,) + (0.0,) * (bag_size - 1)
        case "mutual_information":
            return mutual_information_weights(bag_size)
        case str():
            raise ValueError(
                f"weighting {weighting!r} is unknown: use one of {', '.join(NAMED_WEIGHTINGS)} "
                f"or {bag_size} numbers"
            )
    try:
        weights = tuple(float(g) for g in weighting)
    except (TypeError, ValueError):
        raise ValueError(f"weighting {weighting!r} must be a name or {bag_size} numbers") from None
    if len(weights) != bag_size:
        raise ValueError(f"weighting has {len(weights)} numbers; bag_size {bag_size} needs as many")
    if not all(math.isfinite(g) and g >= 0.0 for g in weights) or not any(weights):
        raise ValueError(f"weighting {weights} must be finite, not negative and not all zero")
    return weights


def weight_rows(weighting: WeightingOverSteps) -> tuple[Sequence[float], ...]:
    """Return the row or rows of a weighting that is given in numbers; an empty tuple for a name."""
    if isinstance(weighting, str) or not isinstance(weighting, Sequence) or not weighting:
        return ()
    if isinstance(weighting[0], Sequence):
        return tuple(weighting)  # type: ignore[arg-type]  # all are rows if the first one is
    return (weighting,)  # type: ignore[return-value]


def weighting_at(weighting: WeightingOverSteps, progress: float) -> Weighting:
    """Return the weighting after a fraction `progress`, from 0 to 1, of the superposed steps.

    Several rows of weights are spread evenly over these steps, the first at their beginning and the
    last at their end. Between two rows, each weight is interpolated linearly. Any other weighting
    does not change.
    """
    rows = weight_rows(weighting)
    if len(rows) < 2:
        return rows[0] if rows else weighting  # type: ignore[return-value]
    place = progress * (len(rows) - 1)
    before = min(int(place), len(rows) - 2)
    share = place - before
    return tuple(
        (1 - share) * a + share * b for a, b in zip(rows[before], rows[before + 1], strict=True)
    )
