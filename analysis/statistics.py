"""Statistics that several analyses share: t-intervals, the power of a paired t-test with few seeds,
and root mean squares."""

import functools
import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

CONFIDENCE = 0.95
"""Probability with which an interval is to hold the true value. For a family of intervals, it is
the probability that all of them do."""
POWER = 0.80
"""Probability with which a test is to detect an effect."""


@functools.cache
def smallest_detectable(pairs: int, comparisons: int = 1) -> float | None:
    """Return the true mean difference that a two-sided paired t-test detects in 80% of studies. Its
    level is 5% for `comparisons` tests together. Its unit is the standard deviation of the pairs'
    differences. Returns None for fewer than two pairs."""
    if pairs < 2:
        return None
    return detectable(critical_t(pairs - 1, comparisons), pairs - 1) / math.sqrt(pairs)


def detectable(critical: float, freedom: float) -> float:
    """Return the true effect, in standard errors, whose t statistic exceeds `critical` in 80% of
    studies.

    It is the non-centrality parameter at which a non-central t with `freedom` degrees of freedom
    exceeds the critical value that often. Seeds are too few for the normal approximation.
    """
    return float(special.nctdtrinc(freedom, 1 - POWER, critical))


def deviation_at_most(deviation: float, freedom: int) -> float:
    """Return the upper end, with a probability of 80%, of the standard deviation that was estimated
    with so many degrees of freedom. Seeds that are planned for the estimate itself are too few in
    half of all studies."""
    return deviation * math.sqrt(freedom / float(special.chdtri(freedom, POWER)))


def critical_t(freedom: Any, comparisons: int = 1) -> Any:
    """Return half the width, in standard errors, of each of `comparisons` t-intervals. With a
    probability of at least 95%, all of them hold their true values (Bonferroni). `freedom` is a
    number or an array."""
    return -special.stdtrit(freedom, (1 - CONFIDENCE) / 2 / comparisons)


def rmse(errors: ArrayLike) -> float:
    """Return the root mean square; NaN if any error is NaN."""
    return float(np.sqrt(np.mean(np.asarray(errors, dtype=float) ** 2)))
