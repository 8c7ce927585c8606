"""The statistics of a paired comparison: interval, smallest detectable effect, verdict.

A seed decides initial weights and data order in both arms, so the difference within a seed is
freer of noise than the difference of two means (Student's paired t).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import optimize, stats

Verdict = Literal["better", "worse", "no difference shown", "one seed: no claim"]

CONFIDENCE = 0.95
POWER = 0.80


@dataclass(frozen=True)
class Paired:
    """Mean of paired differences with its uncertainty; None where one seed allows no statement."""

    seeds: int
    mean: float
    deviation: float | None
    """Standard deviation of the differences over seeds."""
    low: float | None
    high: float | None
    p_value: float | None
    """Two-sided, of no difference."""
    smallest_detectable: float | None
    """Mean difference that this many seeds would show with 80% power, at this deviation."""
    verdict: Verdict


def paired(differences: Sequence[float]) -> Paired:
    """Differences (baseline − superposed, one per seed): positive is better.

    Raises ValueError for none at all.
    """
    count = len(differences)
    if count == 0:
        raise ValueError("no paired differences")
    mean = float(np.mean(differences))
    if count == 1:
        return Paired(1, mean, None, None, None, None, None, "one seed: no claim")
    deviation = float(np.std(differences, ddof=1))
    error = deviation / math.sqrt(count)
    half = float(stats.t.ppf(0.5 + CONFIDENCE / 2, count - 1)) * error
    low, high = mean - half, mean + half
    if error > 0:
        p_value = float(2 * stats.t.sf(abs(mean) / error, count - 1))
    else:
        p_value = 0.0 if mean else 1.0
    verdict: Verdict = "no difference shown"
    if low > 0:
        verdict = "better"
    elif high < 0:
        verdict = "worse"
    detectable = detectable_in_errors(count) * error
    return Paired(count, mean, deviation, low, high, p_value, detectable, verdict)


@functools.cache
def detectable_in_errors(count: int) -> float:
    """Smallest detectable effect over the standard error of the mean: two-sided 5%, power 80%.

    The non-centrality at which the non-central t exceeds the critical value in 80% of studies.
    """
    freedom = count - 1
    critical = float(stats.t.ppf(0.5 + CONFIDENCE / 2, freedom))

    def short_of_power(effect: float) -> float:
        return float(stats.nct.sf(critical, freedom, effect)) - POWER

    # The answer lies above half the critical value and, at one degree of freedom, below 4 of it.
    return float(optimize.brentq(short_of_power, 0.5 * critical, 5.0 * critical))


def mean_interval(values: Sequence[float]) -> tuple[float, float, float] | None:
    """Mean and its 95% t-interval over seeds, or None for fewer than two values."""
    if len(values) < 2:
        return None
    mean = float(np.mean(values))
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    half = float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(values) - 1)) * error
    return mean, mean - half, mean + half


def holm(p_values: Iterable[float]) -> list[float]:
    """p-values adjusted for their number (Holm's step-down), in the order given."""
    values = list(p_values)
    order = sorted(range(len(values)), key=values.__getitem__)
    adjusted = [0.0] * len(values)
    running = 0.0
    for rank, index in enumerate(order):
        running = max(running, min(1.0, (len(values) - rank) * values[index]))
        adjusted[index] = running
    return adjusted
