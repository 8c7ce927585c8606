"""Intervals of gains: paired differences whose variances are moderated within a family.

A contrast's gain is the mean of its paired differences over the seeds that both arms have. Its
variance is that of its own differences, averaged with the family's typical variance, which counts
for at most a third as much (empirical Bayes: Smyth, 2004); Bonferroni's allowance makes a family's
intervals hold together. This is the method `moderated-1`. `benchmarks/verdict_coverage.py`
simulates it and shows why the family counts for no more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy import optimize, special

FEWEST_SEEDS = 3
"""Two seeds allow no claim: at one degree of freedom the interval is wider than any effect."""
FAMILY_SHARE = 1 / 3
"""The most that the family's degrees of freedom may be, relative to a contrast's own; in a family
of n contrasts (n − 2)/n of that. With more, the 95% intervals of a family whose arms differ tenfold
in spread hold together in less than 93% of cases."""
UNPAIRED = "unpaired "
"""The beginning of the label of a run without a seed."""


@dataclass(frozen=True)
class Difference:
    """The difference between two arms, before any interval."""

    gain: float
    """Nats; positive where the arm has the lower loss."""
    seeds: int
    """Pairs; of unpaired runs, those of the smaller arm."""
    variance: float
    """Variance of one paired difference; the gain's own variance is this divided by `size`."""
    freedom: float
    """Degrees of freedom of `variance`."""
    size: float
    """The number of pairs; of unpaired arms, the harmonic mean of their numbers of runs."""
    unpaired: bool = False

    @property
    def varies(self) -> bool:
        """Whether the differences of the seeds scatter by more than a billionth of the gain; less
        is rounding, and tells nothing of noise."""
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
    """Summarise differences (against − arm, nats), one for each seed."""
    values = np.asarray(differences, dtype=float)
    count = len(values)
    mean = float(values.mean()) if count else math.nan
    variance = float(values.var(ddof=1)) if count > 1 else math.nan
    return Difference(mean, count, variance, count - 1, count)


def difference(losses: pd.Series, against: pd.Series) -> Difference:
    """Summarise the difference between the losses of two arms, both by seed.

    Where the arms share no seed, and both have runs without seeds (`UNPAIRED`), these are compared
    as two samples of unequal variance (Welch, 1947).
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
    """Return a family's differences; those that allow an interval (`claims`) have moderated
    variances and degrees of freedom.

    Fewer than three such differences say nothing of a typical variance, and stay as they are.
    """
    claiming = [contrast for contrast in family if contrast.claims]
    count = len(claiming)
    if count < 3:
        return list(family)
    variances, freedoms = zip(*((own.variance, own.freedom) for own in claiming), strict=True)
    typical, strength = _prior(variances, freedoms)
    results = []
    for contrast in family:
        if contrast.claims:
            own = contrast.freedom
            prior = min(strength, FAMILY_SHARE * own * (count - 2) / count)
            variance = (prior * typical + own * contrast.variance) / (prior + own)
            contrast = replace(contrast, variance=variance, freedom=prior + own)
        results.append(contrast)
    return results


def _prior(variances: Sequence[float], freedoms: Sequence[float]) -> tuple[float, float]:
    """Return a family's typical variance, and how many degrees of freedom it is worth to another
    member: the more alike the true variances are, the more; infinite where they do not differ.

    The logs of sample variances scatter as their degrees of freedom make them; what they scatter
    beyond that is how far the true variances differ (Smyth, 2004, section 6.2).
    """
    half = np.asarray(freedoms) / 2
    logs = np.log(variances) - special.digamma(half) + np.log(half)
    scatter = float(logs.var(ddof=1) - special.polygamma(1, half).mean())
    if scatter < 1e-4:
        return math.exp(logs.mean()), math.inf

    def excess(log_half: float) -> float:
        return float(special.polygamma(1, math.exp(log_half))) - scatter

    prior = math.exp(optimize.brentq(excess, -20.0, 20.0))
    return math.exp(logs.mean() + special.digamma(prior) - math.log(prior)), 2 * prior
