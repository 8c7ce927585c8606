"""The statistics of a paired comparison: interval, smallest detectable effect, verdict.

A seed decides initial weights and data order in both arms, so the difference within a seed is
freer of noise than the difference of two means (Student's paired t). Where several settings are
held against one baseline, the intervals of all of them hold together with 95% (Bonferroni), so
that the best of them may be picked; a verdict is whether that interval excludes zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

from tst_study.errors import UserError
from tst_study.statistics import critical_t, smallest_detectable

Verdict = Literal["better", "worse", "no difference shown", "one seed: no claim"]
_COPIES = 1e-9
"""Differences that agree to nine digits are one run's, recorded again under other seeds."""


@dataclass(frozen=True)
class Paired:
    """Mean of paired differences with its uncertainty; None where one seed allows no statement."""

    seeds: int
    comparisons: int
    """Settings that the interval and the verdict allow for."""
    mean: float
    deviation: float | None
    """Standard deviation of the differences over seeds."""
    low: float | None
    high: float | None
    p_adjusted: float | None
    """Two-sided, of no difference, times the number of comparisons."""
    smallest_detectable: float | None
    """Mean difference that this many seeds would show with 80% power, at this deviation."""
    verdict: Verdict


def paired(differences: Sequence[float], comparisons: int = 1) -> Paired:
    """Differences (baseline − superposed, one per seed): positive is better.

    `comparisons`: how many settings the question is about. Raises `UserError` for no differences
    and for one that is not finite.
    """
    values = np.asarray(differences, dtype=float)
    if not len(values) or not np.isfinite(values).all():
        raise UserError(f"differences {list(differences)}: one finite number per seed is needed")
    count, mean = len(values), float(values.mean())
    interval = mean_interval(values, comparisons)
    if interval is None:
        none = (None, None, None, None, None)
        return Paired(count, comparisons, mean, *none, "one seed: no claim")
    _, low, high = interval
    deviation = float(values.std(ddof=1))
    p_value = float(2 * stats.t.sf(abs(mean) / (deviation / math.sqrt(count)), count - 1))
    verdict: Verdict = "better" if low > 0 else "worse" if high < 0 else "no difference shown"
    return Paired(
        seeds=count,
        comparisons=comparisons,
        mean=mean,
        deviation=deviation,
        low=low,
        high=high,
        p_adjusted=min(1.0, comparisons * p_value),
        smallest_detectable=(smallest_detectable(count, comparisons) or math.nan) * deviation,
        verdict=verdict,
    )


def mean_interval(
    values: Sequence[float] | np.ndarray, comparisons: int = 1
) -> tuple[float, float, float] | None:
    """Mean and its 95% t-interval over seeds (of all `comparisons` together), or None for fewer
    than two values, or values that are copies of one."""
    if len(values) < 2 or np.ptp(values) <= _COPIES * np.abs(values).max():
        return None
    mean = float(np.mean(values))
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    half = critical_t(len(values) - 1, comparisons) * error
    return mean, mean - half, mean + half
