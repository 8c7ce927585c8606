"""The differences between arms from which `decide` makes intervals, and the method `moderated-1`.

A contrast is the comparison of two arms, and a family is a set of contrasts whose intervals are to
hold together. The gain of a contrast is the mean of its paired differences over the seeds that both
arms have. With few seeds the variance of these differences is known badly. The method therefore
averages it with the typical variance of the family, which counts for at most a third as much
(empirical Bayes: Smyth, 2004). `benchmarks/verdict_coverage.py` simulates the method and shows why
the family counts for no more.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy import special

from tst_study.analysis.checks import Floats
from tst_study.analysis.statistics import critical_t

FEWEST_SEEDS = 3
"""Fewest seeds with which an interval is given. With two there is one degree of freedom, and the
interval would be wider than any effect."""
FEW: dict[int, Literal["one seed: no claim", "two seeds: no claim"]]
FEW = {1: "one seed: no claim", 2: "two seeds: no claim"}
"""The verdicts on fewer seeds."""
FAMILY_SHARE = 1 / 3
"""The family's typical variance counts for at most this many degrees of freedom for each one that a
contrast has itself. In a family of n contrasts the limit is (n − 2)/n of that. With a higher limit,
the 95% intervals of a family whose arms differ tenfold in spread would hold together in less than
93% of cases, the lowest in the table of `docs/research/coverage.md`."""
QUIET, APART = 0.01, 0.1
"""A contrast says nothing about the family's typical variance if its deviation is below `APART`
times the median and lower than that of any in a family of equal ones with probability 1 − `QUIET`.
With a baseline and one arm at a twentieth of the others' deviation, the intervals of the others
would be too narrow, and the family would hold together in 92% of cases."""
WIDER = 3.0
"""No interval is more than this many times as wide as the contrast's own t-interval. With a lower
limit, quiet contrasts would be missed where every other one is ten times as noisy."""
UNPAIRED = "unpaired "
"""The beginning of the label (`decide.block`) of a run without a seed."""


@dataclass(frozen=True)
class Difference:
    """The difference between two arms, before any interval."""

    gain: float
    """Nats; positive if the arm has the lower loss, NaN if there are no runs to compare."""
    seeds: int
    """Number of pairs; for unpaired arms, number of runs of the smaller one."""
    variance: float
    """Variance of one paired difference, NaN if `seeds` is below two; the variance of the gain is
    this divided by `size`."""
    freedom: float
    """Degrees of freedom of `variance`."""
    size: float
    """The number of pairs; for unpaired arms, the harmonic mean of their numbers of runs."""
    unpaired: bool = False

    @property
    def varies(self) -> bool:
        """Whether the differences scatter over the seeds by more than a billionth of the gain. Less
        is rounding, and says nothing about noise."""
        scale = max(abs(self.gain), 1e-300)
        return self.seeds > 1 and math.sqrt(self.variance) > 1e-9 * scale

    @property
    def claims(self) -> bool:
        """Whether an interval can be given."""
        return self.seeds >= FEWEST_SEEDS and self.varies

    @property
    def error(self) -> float:
        """Standard error of the gain."""
        return math.sqrt(self.variance / self.size)


def paired_difference(differences: Sequence[float]) -> Difference:
    """Summarise paired differences, one for each seed: the loss of the comparison arm minus that of
    the arm, in nats."""
    values = np.asarray(differences, dtype=float)
    count = len(values)
    mean = float(values.mean()) if count else math.nan
    variance = float(values.var(ddof=1)) if count > 1 else math.nan
    return Difference(mean, count, variance, count - 1, count)


def difference(losses: pd.Series, against: pd.Series) -> Difference:
    """Summarise the difference between the losses of two arms, both indexed by `decide.block`.

    If the arms share no seed, and both have runs without seeds (`UNPAIRED`), these runs are
    compared as two samples of unequal variance.
    """
    both = losses.index.intersection(against.index)
    arms = losses, against
    samples = [arm[arm.index.str.startswith(UNPAIRED)].to_numpy(float) for arm in arms]
    if len(both) or not all(len(sample) for sample in samples):
        return paired_difference((against[both] - losses[both]).tolist())
    few = min(map(len, samples))
    gain = float(samples[1].mean() - samples[0].mean())
    if few < 2:
        return Difference(gain, few, math.nan, 0, 1, unpaired=True)
    variances = np.array([sample.var(ddof=1) for sample in samples])
    variance, freedom, size = map(float, two_samples(variances, np.array([*map(len, samples)])))
    return Difference(gain, few, variance, freedom, size, unpaired=True)


def two_samples(variances: Floats, counts: Any) -> tuple[Floats, Floats, Floats]:
    """Return `variance`, `freedom` and `size` of the difference between the means of two samples
    (Welch, 1947). `variances`, `counts`: those of both samples, shape (…, 2)."""
    parts = variances / counts
    total, spread = parts.sum(axis=-1), (parts**2 / (counts - 1)).sum(axis=-1)
    size = 2 / (1 / counts).sum(axis=-1) + 0 * total
    with np.errstate(invalid="ignore"):
        freedom = np.where(spread > 0, total**2 / spread, 2 * counts.min(axis=-1) - 2)
    return total * size, freedom, size


def moderated(family: Sequence[Difference], comparisons: int) -> list[Difference]:
    """Return a family's differences, with moderated variances and degrees of freedom for those that
    allow an interval (`claims`), whose intervals allow for `comparisons`."""
    claiming = [contrast for contrast in family if contrast.claims]
    if not claiming:
        return list(family)
    own = np.array([[one.variance, one.freedom, one.size] for one in claiming]).T
    found = zip(*shared(own[0], own[1], own[2], comparisons), strict=True)
    results = []
    for contrast in family:
        if contrast.claims:
            variance, freedom = map(float, next(found))
            contrast = replace(contrast, variance=variance, freedom=freedom)
        results.append(contrast)
    return results


def shared(
    variance: Floats, freedom: Floats, size: Floats, comparisons: int
) -> tuple[Floats, Floats]:
    """Return the moderated variances and degrees of freedom of families, each of shape
    (…, contrasts).

    The more alike the true variances of a family are, the more degrees of freedom its typical
    variance is worth as an estimate of each, and infinitely many if they show no difference. To
    judge this, the logs of the sample variances are used. They scatter even if the true variances
    are equal, by an amount that follows from their degrees of freedom. Any further scatter shows
    how far the true variances differ (Smyth, 2004, section 6.2). Contrasts that are far quieter
    than the others (`QUIET`) are not looked at, unless fewer than three would be left. One or two
    contrasts say nothing about a typical variance, and stay as they are.

    No interval becomes wider than the widest of the family's own, nor than `WIDER` times its own.
    """
    if variance.shape[-1] < 3:
        return variance, freedom
    middle = np.median(variance, axis=-1, keepdims=True)
    chance = special.chdtr(freedom, freedom * variance / middle)
    quiet = (variance < APART**2 * middle) & (chance < QUIET / variance.shape[-1])
    few = (~quiet).sum(axis=-1, keepdims=True) < 3
    over: dict[str, Any] = {"axis": -1, "keepdims": True, "where": ~quiet | few}
    half = freedom / 2
    logs = np.log(variance) - special.digamma(half) + np.log(half)
    expected = special.polygamma(1, half).mean(**over)
    scatter = logs.var(ddof=1, **over) - expected
    count = np.sum(over["where"], axis=-1, keepdims=True)
    prior = _inverse_trigamma(np.maximum(scatter, 1e-4))
    alike = scatter < 1e-4
    shift = np.where(alike, 0.0, special.digamma(prior) - np.log(prior))
    typical = np.exp(logs.mean(**over) + shift)
    strength = np.where(alike, np.inf, 2 * prior)
    added = np.minimum(strength, FAMILY_SHARE * freedom * (count - 2) / count)
    pooled = (added * typical + freedom * variance) / (added + freedom)
    own = critical_t(freedom, comparisons) * np.sqrt(variance / size)
    wide = critical_t(freedom + added, comparisons) * np.sqrt(pooled / size)
    limit = np.minimum(WIDER * own, own.max(axis=-1, keepdims=True))
    return pooled * np.minimum(1.0, limit / wide) ** 2, freedom + added


def _inverse_trigamma(values: Floats) -> Floats:
    """Return the numbers whose trigamma is `values`, by Newton's method on its reciprocal, which
    comes closer from one side in every step (Smyth, 2004, appendix)."""
    found = 0.5 + 1 / values
    for _ in range(20):
        trigamma = special.polygamma(1, found)
        found = found + trigamma * (1 - trigamma / values) / special.polygamma(2, found)
    return found
