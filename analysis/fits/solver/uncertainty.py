"""The uncertainty of a fit, by one of two methods.

The law of superposition is fitted to runs that usually branch off shared prefix runs. The branches
of one prefix run have an error in common, and its size is unknown. `fit_shared` alternates between
fitting by generalised least squares and estimating the ratio of shared to own noise from the
residuals; intervals follow from the linearised fit (`linearised`). The fit of Chinchilla's law is
repeated on rows that are drawn with replacement, all rows of a model together (`bootstrap`)."""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

from tst_study.analysis.checks import Floats
from tst_study.analysis.fits.solver.problem import Problem
from tst_study.analysis.fits.solver.solve import (
    GRADIENT_TOLERANCE,
    Fit,
    fit,
    gradient_measure,
    refit,
    search,
    undetermined,
)
from tst_study.analysis.statistics import CONFIDENCE, critical_t

LEAST_CLUSTERS = 6
"""Fewest models for which a bootstrap interval is given."""
_ROUNDS = 3
"""How many times the ratio of shared to own noise is estimated; more estimates would change it by
less than its uncertainty."""
_CERTIFYING = 8
"""Number of starts that are followed to the end once the noise is known; three of them must
agree."""


@dataclass(frozen=True)
class Noise:
    """The two parts of the residuals of a fit, as standard deviations in nats per token. Misfit of
    the form is included."""

    shared: float
    """Standard deviation of the part that all rows of a group have in common."""
    own: float
    """Standard deviation of the part that each row has by itself."""

    @property
    def ratio(self) -> float:
        """The shared variance over the own variance; 0 if the own variance is 0."""
        return (self.shared / self.own) ** 2 if self.own else 0.0


def fit_shared(
    problem: Problem, groups: NDArray[np.intp], starts: Floats, refine: int
) -> tuple[Fit, Noise]:
    """Fit losses (nats per token) by generalised least squares, with an error that the rows of a
    group share and an error of each row; return the fit and the sizes of both errors.

    groups: the group of each row, numbered from 0, shape (n,). refine: how many of the starts are
    followed to the end in a first fit, which has no shared errors. Raises `UserError` as `fit`
    does.
    """
    noise = Noise(0.0, 1.0)
    theta = search(problem, starts, refine)[0][0]
    for _ in range(_ROUNDS):
        noise = _noise(problem, theta, groups)
        problem = replace(problem, groups=groups, ratio=noise.ratio)
        theta = refit(problem, theta)
    return fit(problem, np.vstack([theta, starts]), _CERTIFYING), noise


def _noise(problem: Problem, theta: Floats, codes: NDArray[np.intp]) -> Noise:
    """Estimate both noises by a one-way analysis of variance of the residuals. Each fitted
    parameter costs one degree of freedom, between groups or within them, or partly in both,
    according to which differences determine it."""
    residuals = problem.model.loss(theta) - problem.observed
    sizes = np.bincount(codes)
    means = np.bincount(codes, residuals) / sizes
    between, within = degrees_of_freedom(problem.jacobian(theta), codes)
    own = ((residuals - means[codes]) ** 2).sum() / within
    shared = max(0.0, (sizes * means**2).sum() / between - own) / float(sizes.mean())
    return Noise(float(np.sqrt(shared)), float(np.sqrt(own)))


def degrees_of_freedom(jacobian: Floats, codes: NDArray[np.intp]) -> tuple[float, float]:
    """Return the degrees of freedom that the fit leaves between groups and within groups, each at
    least 1. The rows have one between groups for each group; all others are within groups. From
    either number the fit takes its share of the trace of the hat matrix."""
    basis = np.linalg.svd(jacobian, full_matrices=False)[0]
    sizes = np.bincount(codes)
    sums = np.stack([np.bincount(codes, column) for column in basis.T])
    charged = float((sums**2 / sizes).sum())
    between = len(sizes) - charged
    within = len(codes) - len(sizes) - (basis.shape[1] - charged)
    return max(1.0, between), max(1.0, within)


def linearised(fitted: Fit) -> tuple[Floats, float]:
    """Return a square root of the covariance of the fitted parameters, shape (p, p), from the
    derivative at the optimum, and half the width of a 95% t-interval in standard errors. If rows
    share errors, t has the degrees of freedom that the fit leaves between groups. Otherwise it has
    the number of rows less the number of parameters, but at least 1."""
    residuals, problem = fitted.residuals, fitted.problem
    jacobian = problem.jacobian(fitted.theta)
    freedom = max(1.0, len(residuals) - len(fitted.theta))
    variance = float(residuals @ residuals) / freedom
    if problem.groups is not None and problem.ratio > 0:
        freedom = degrees_of_freedom(jacobian, problem.groups)[0]
    _, values, directions = np.linalg.svd(jacobian, full_matrices=False)
    return directions.T * (np.sqrt(variance) / values), critical_t(freedom)


@dataclass(frozen=True)
class Bootstrap:
    """The refits to models drawn with replacement, without refits that did not converge. A model is
    a group of rows that are drawn together."""

    draws: pd.DataFrame
    """One row per refit that converged, one column per parameter. A cell is NaN if the rows drawn
    do not determine the parameter (`undetermined`)."""
    clusters: int
    """Number of different models to draw from."""

    def interval(self, values: Floats) -> tuple[float | None, float | None]:
        """Return the expanded 95% percentile interval of a number that was computed from each draw
        (`values`): it is widened as for a t-distribution with `clusters − 1` degrees of freedom
        (Hesterberg 2015, section 5.3). Return (None, None) if there are fewer than `LEAST_CLUSTERS`
        models, or if more than 5% of the values are not finite."""
        known = values[np.isfinite(values)]
        if self.clusters < LEAST_CLUSTERS or len(known) < max(1.0, CONFIDENCE * len(values)):
            return None, None
        critical = critical_t(self.clusters - 1)
        tail = float(special.ndtr(-critical * np.sqrt(self.clusters / (self.clusters - 1))))
        low, high = np.quantile(known, [tail, 1 - tail])
        return float(low), float(high)


def bootstrap(fitted: Fit, models: NDArray[np.intp], draws: int = 1000) -> Bootstrap:
    """Refit to models drawn with replacement, each with all its rows. Each refit starts from
    `fitted` and takes a few milliseconds. Nothing is drawn if there are too few models for an
    interval.

    models: the model of each row, numbered from 0, shape (n,). draws: number of refits.
    """
    random = np.random.default_rng(0)
    members = [np.flatnonzero(models == model) for model in range(models.max() + 1)]
    count = draws if len(members) >= LEAST_CLUSTERS else 0
    ends = []
    for drawn in random.integers(len(members), size=(count, len(members))):
        problem = fitted.problem.rows(np.concatenate([members[model] for model in drawn]))
        theta = refit(problem, fitted.theta)
        if gradient_measure(problem, theta) <= 10 * GRADIENT_TOLERANCE:
            unknown = undetermined(problem.residuals(theta), problem.jacobian(theta))
            ends.append(np.where(unknown, np.nan, theta))
    names = list(fitted.problem.model.parameters)
    return Bootstrap(pd.DataFrame(ends, columns=names, dtype=float), len(members))
