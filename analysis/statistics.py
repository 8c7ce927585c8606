"""Root mean squares, t-intervals, and the power of a paired t-test with few seeds."""

import functools
import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, special

CONFIDENCE = 0.95
POWER = 0.80


@functools.cache
def smallest_detectable(pairs: int, comparisons: int = 1) -> float | None:
    """Return the mean difference that a two-sided t-test shows in 80% of studies.

    It is in deviations of a pair's difference, at 5% for all `comparisons` together (Bonferroni);
    None for fewer than two pairs."""
    if pairs < 2:
        return None
    return detectable(critical_t(pairs - 1, comparisons), pairs - 1) / math.sqrt(pairs)


@functools.cache
def detectable(critical: float, freedom: float) -> float:
    """The effect, in standard errors, that exceeds so many of them in 80% of studies.

    The non-centrality at which the non-central t exceeds the critical value that often: seeds are
    too few for its normal approximation.
    """

    def short_of_power(effect: float) -> float:
        return 1 - float(special.nctdtr(freedom, effect, critical)) - POWER

    # The answer lies above half the critical value and, at one degree of freedom, below 4 of it.
    return float(optimize.brentq(short_of_power, 0.5 * critical, 5.0 * critical))


def critical_t(freedom: float, comparisons: int = 1) -> float:
    """Half the width, in standard errors, of intervals that hold all of `comparisons` truths
    together with 95%."""
    return -float(special.stdtrit(freedom, (1 - CONFIDENCE) / 2 / comparisons))


def rmse(errors: ArrayLike) -> float:
    """Root mean square; NaN if any error is."""
    return float(np.sqrt(np.mean(np.asarray(errors, dtype=float) ** 2)))
