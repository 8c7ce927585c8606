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
from typing import Literal

import numpy as np
import pandas as pd
import scipy
from scipy import special

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
93% of cases."""
QUIET, APART = 0.01, 0.1
"""A contrast is judged alone, without the family, if its deviation is below `APART` times the
family's median and lower than that of any in a family of equal ones with probability 1 − `QUIET`.
With a baseline and one arm at a twentieth of the others' deviation, the family would otherwise hold
together in 92% of cases."""
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
    compared as two samples of unequal variance (Welch, 1947).
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
    parts = [float(sample.var(ddof=1)) / len(sample) for sample in samples]
    total = sum(parts)
    spread = sum(part**2 / (len(sample) - 1) for part, sample in zip(parts, samples, strict=True))
    size = 2 / sum(1 / len(sample) for sample in samples)
    freedom = total**2 / spread if spread else 2 * few - 2
    return Difference(gain, few, total * size, freedom, size, unpaired=True)


def moderated(family: Sequence[Difference]) -> list[Difference]:
    """Return a family's differences, with moderated variances and degrees of freedom for those that
    allow an interval (`claims`).

    If fewer than three do, they say nothing about a typical variance, and all stay as they are. So
    does a contrast that is far quieter than the others (`quiet`): it is a family of its own.
    """
    apart = quiet(family)
    claiming = [c for c, alone in zip(family, apart, strict=True) if c.claims and not alone]
    count = len(claiming)
    if count < 3:
        return list(family)
    variances, freedoms = zip(*((own.variance, own.freedom) for own in claiming), strict=True)
    typical, strength = _prior(variances, freedoms)
    results = []
    for contrast, alone in zip(family, apart, strict=True):
        if contrast.claims and not alone:
            own = contrast.freedom
            prior = min(strength, FAMILY_SHARE * own * (count - 2) / count)
            variance = (prior * typical + own * contrast.variance) / (prior + own)
            contrast = replace(contrast, variance=variance, freedom=prior + own)
        results.append(contrast)
    return results


def quiet(family: Sequence[Difference]) -> list[bool]:
    """Return for each contrast of a family whether it is far quieter than the others (`QUIET`)."""
    claiming = [contrast for contrast in family if contrast.claims]
    if len(claiming) < 3:
        return [False] * len(family)
    typical = float(np.median([contrast.variance for contrast in claiming]))
    return [
        contrast.claims
        and contrast.variance < APART**2 * typical
        and float(special.chdtr(contrast.freedom, contrast.freedom * contrast.variance / typical))
        < QUIET / len(claiming)
        for contrast in family
    ]


def _prior(variances: Sequence[float], freedoms: Sequence[float]) -> tuple[float, float]:
    """Return a family's typical variance, and the degrees of freedom that it is worth as an
    estimate of a member's variance.

    The more alike the members' true variances are, the more degrees of freedom it is worth, and
    infinitely many if they show no difference. To judge this, the logs of the sample variances are
    used. They scatter even if the true variances are equal, by an amount that follows from their
    degrees of freedom. Any further scatter shows how far the true variances differ (Smyth, 2004,
    section 6.2).
    """
    half = np.asarray(freedoms) / 2
    logs = np.log(variances) - special.digamma(half) + np.log(half)
    scatter = float(logs.var(ddof=1) - special.polygamma(1, half).mean())
    if scatter < 1e-4:
        return math.exp(logs.mean()), math.inf

    def excess(log_half: float) -> float:
        return float(special.polygamma(1, math.exp(log_half))) - scatter

    prior = math.exp(scipy.optimize.brentq(excess, -20.0, 20.0))
    return math.exp(logs.mean() + special.digamma(prior) - math.log(prior)), 2 * prior
