"""Simultaneous intervals for differences between arms, from a loss for each arm and seed.

Two linear models (loss ~ arm, or loss ~ arm + seed) by two ideas of the noise (one variance for all
arms, or a variance for each). A variance for each arm comes from the squared residuals by their
expectation (MINQUE; Rao, 1971), which is Grubbs' estimator (1948) where every arm has every seed,
and the sample variance where seeds are no blocks. A contrast's degrees of freedom are
Satterthwaite's; the family's joint quantile is that of the multivariate t with the contrasts' own
correlations (Hasler and Hothorn, 2008). `benchmarks/verdict_coverage.py` simulates all four.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from scipy import optimize, special, stats
from scipy.stats import qmc

LEVEL = 0.95
_FLOOR = 0.1
"""Of the mean variance: no arm's variance is taken to be smaller. An estimate from residuals can be
negative."""


@dataclass(frozen=True)
class Design:
    """Which arm and seed every loss belongs to, and which arms are held against which.

    arm, seed: integers from 0, one for each loss; contrasts: (contrasts, arms), rows sum to zero.
    """

    arm: np.ndarray
    seed: np.ndarray
    contrasts: np.ndarray
    blocks: bool
    """Whether the model has an effect for each seed, common to all arms."""
    own: bool
    """Whether each arm has a variance of its own. Of two arms with blocks only the difference's
    variance is known: that is the paired t-test either way."""

    @functools.cached_property
    def _weights(self) -> np.ndarray:
        """(contrasts, losses): what every loss weighs in every estimate."""
        return np.asarray(self._padded @ np.linalg.pinv(self._columns))

    @functools.cached_property
    def _padded(self) -> np.ndarray:
        more = self._columns.shape[1] - self.contrasts.shape[1]
        return np.pad(self.contrasts.astype(float), ((0, 0), (0, more)))

    @functools.cached_property
    def _columns(self) -> np.ndarray:
        columns = [self.arm[:, None] == np.arange(self.contrasts.shape[1])]
        if self.blocks:
            columns.append(self.seed[:, None] == np.unique(self.seed))
        return np.hstack(columns).astype(float)

    @functools.cached_property
    def _residual(self) -> np.ndarray:
        """The projection of losses onto their residuals."""
        return np.asarray(np.eye(len(self.arm)) - self._columns @ np.linalg.pinv(self._columns))

    @functools.cached_property
    def _group(self) -> np.ndarray:
        """(groups, losses): which losses have a variance in common."""
        group = self.arm if self._told_apart else np.zeros_like(self.arm)
        return np.asarray(group == np.arange(group.max() + 1)[:, None], dtype=float)

    @property
    def _told_apart(self) -> bool:
        return self.own and not (self.blocks and self.contrasts.shape[1] == 2)

    @property
    def estimable(self) -> bool:
        """Whether the losses tell every contrast, with a degree of freedom left for its error."""
        told = np.allclose(self._weights @ self._columns, self._padded, atol=1e-8)
        used = self._group @ np.square(self._residual).sum(1) > 1e-8
        return bool(told and used.all())

    def estimates(
        self, losses: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Of data sets (…, losses): estimates, standard errors, degrees of freedom (…, contrasts)
        and correlations of the estimates (…, contrasts, contrasts)."""
        group, residual = self._group, self._residual
        squares = (losses @ residual) ** 2
        shares = group @ residual**2 @ group.T
        inverse = np.linalg.pinv(shares)
        variances = squares @ group.T @ inverse.T
        common = squares.sum(-1, keepdims=True) / np.trace(residual)
        variances = np.maximum(variances, _FLOOR * common)
        covariance = np.einsum("cu,...u,du->...cd", self._weights, variances @ group, self._weights)
        squared = np.einsum("...cc->...c", covariance)
        # The variance's estimate is a quadratic form of the losses; its own variance gives the df.
        forms = (self._weights**2 @ group.T @ inverse) @ group
        spread = np.stack([group @ ((residual * form) @ residual) ** 2 @ group.T for form in forms])
        if self._told_apart:
            # The square of an estimated variance is too large in the mean, by 1 + 2 / df. Half of
            # that is taken off: with all of it, three arms at four seeds cover too little.
            of_groups = shares.sum(1)
            spread = spread * (1 - np.diag(1 / (of_groups + 1)))
        freedom = squared**2 / np.einsum("...g,cgh,...h->...c", variances, spread, variances)
        error = np.sqrt(squared)
        correlation = covariance / (error[..., :, None] * error[..., None, :])
        return losses @ self._weights.T, error, freedom, correlation


def exceeded(size: float, correlation: np.ndarray, freedom: float) -> float:
    """The chance that the largest |t| of a family without differences exceeds `size`."""
    if len(correlation) == 1:
        return float(2 * stats.t.sf(size, freedom))
    # The common estimate of the variance is integrated exactly: |z| / chi > size.
    largest = _largest(correlation.astype(float).tobytes(), len(correlation))
    return float(special.chdtr(freedom, freedom * (largest / max(size, 1e-9)) ** 2).mean())


@functools.lru_cache(maxsize=64)
def _largest(correlation: bytes, count: int) -> np.ndarray:
    """The law of a family's largest |z|, as so many quantiles."""
    values, vectors = np.linalg.eigh(np.frombuffer(correlation).reshape(count, count))
    uniform = qmc.Sobol(count, seed=0).random_base2(15)
    drawn = special.ndtri(uniform) @ (vectors * np.sqrt(np.maximum(values, 0))).T
    return np.asarray(np.sort(np.abs(drawn).max(axis=1)).reshape(-1, 32).mean(axis=1))


def critical(correlation: np.ndarray, freedom: float, level: float = LEVEL) -> float:
    """Half the width, in standard errors, of intervals that hold together at this level."""
    least = float(stats.t.isf((1 - level) / 2, freedom))
    most = float(stats.t.isf((1 - level) / 2 / len(correlation), freedom))
    if len(correlation) == 1 or most - least < 1e-9:
        return least

    def over(size: float) -> float:
        return exceeded(size, correlation, freedom) - (1 - level)

    if over(least) <= 0:
        return least
    if over(most) >= 0:
        return most
    return float(optimize.brentq(over, least, most, xtol=1e-4))


def varies(values: np.ndarray) -> bool:
    """Whether these are of several seeds: values that agree to nine digits are one run's, recorded
    again under other seeds."""
    return len(values) > 1 and bool(np.ptp(values) > 1e-9 * np.abs(values).max())
