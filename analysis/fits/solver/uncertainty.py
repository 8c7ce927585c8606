"""How well a fit is known. Where rows share errors of unknown size (runs forked from one shared
prefix run), the fit is by generalised least squares and its errors follow from the linearised fit;
elsewhere they come from refits to models drawn with replacement. The ratio of shared to own noise
is estimated from the residuals, alternating with the fit."""

from __future__ import annotations

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
"""How often the ratio of shared to own noise is estimated; further estimates would change it by
less than its own uncertainty."""
_CERTIFYING = 8
"""Number of starts followed to the end once the noise is known; three must agree."""


@dataclass(frozen=True)
class Noise:
    """Standard deviations of a fit's residuals, nats per token; misfit of the form is included."""

    shared: float
    """Standard deviation of what all rows of a group have in common."""
    own: float
    """Standard deviation of what each row has for itself."""

    @property
    def ratio(self) -> float:
        """Shared variance over own variance."""
        return (self.shared / self.own) ** 2 if self.own else 0.0


def fit_shared(
    problem: Problem, groups: NDArray[np.intp], starts: Floats, refine: int
) -> tuple[Fit, Noise]:
    """Fit the losses (nats per token) by generalised least squares, with an error that the rows of
    each group share beside each row's own; return the fit and both noises.

    groups: the group of each row, from 0, shape (n,). refine: how many of the starts are followed
    to the end for a first fit, without shared errors. Raises `UserError` as `fit` does.
    """
    noise = Noise(0.0, 1.0)
    theta = search(problem, starts, refine)[0][0]
    for _ in range(_ROUNDS):
        noise = _noise(problem, theta, groups)
        problem = replace(problem, groups=groups, ratio=noise.ratio)
        theta = refit(problem, theta)
    return fit(problem, np.vstack([theta, starts]), _CERTIFYING), noise


def _noise(problem: Problem, theta: Floats, codes: NDArray[np.intp]) -> Noise:
    """Estimate both noises by a one-way analysis of variance of the residuals, in which each fitted
    parameter costs degrees of freedom between or within groups, according to where it is learnt."""
    residuals = problem.model.loss(theta) - problem.observed
    sizes = np.bincount(codes)
    means = np.bincount(codes, residuals) / sizes
    between, within = degrees_of_freedom(problem.jacobian(theta), codes)
    own = ((residuals - means[codes]) ** 2).sum() / within
    shared = max(0.0, (sizes * means**2).sum() / between - own) / float(sizes.mean())
    return Noise(float(np.sqrt(shared)), float(np.sqrt(own)))


def degrees_of_freedom(jacobian: Floats, codes: NDArray[np.intp]) -> tuple[float, float]:
    """Return the degrees of freedom that the fit leaves between groups and within them: those of
    the rows less the part of the hat matrix's trace that lies there, at least one each."""
    basis = np.linalg.svd(jacobian, full_matrices=False)[0]
    sizes = np.bincount(codes)
    sums = np.stack([np.bincount(codes, column) for column in basis.T])
    charged = float((sums**2 / sizes).sum())
    between = len(sizes) - charged
    within = len(codes) - len(sizes) - (basis.shape[1] - charged)
    return max(1.0, between), max(1.0, within)


def linearised(fitted: Fit) -> tuple[Floats, float]:
    """Return a square root of the covariance of a fit's parameters, shape (p, p), by the derivative
    at the optimum, and half the width of a 95% t-interval in standard errors. Its degrees of
    freedom are those between groups where rows share errors, else those over all rows."""
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
    """Refits to resampled models. Draws that did not converge are left out."""

    draws: pd.DataFrame
    """One row per refit that converged, one column per parameter; NaN where the draw's rows do not
    determine it (`undetermined`)."""
    clusters: int
    """Number of models to draw from."""

    def interval(self, values: Floats) -> tuple[float | None, float | None]:
        """Return the expanded 95% percentile interval of a number that was computed from each draw,
        widened as for a t-distribution with `clusters − 1` degrees of freedom (Hesterberg 2015,
        section 5.3). Return (None, None) if there are fewer than `LEAST_CLUSTERS` models, or if
        over 5% of the draws leave the number undetermined."""
        known = values[np.isfinite(values)]
        if self.clusters < LEAST_CLUSTERS or len(known) < max(1.0, CONFIDENCE * len(values)):
            return None, None
        critical = critical_t(self.clusters - 1)
        tail = float(special.ndtr(-critical * np.sqrt(self.clusters / (self.clusters - 1))))
        low, high = np.quantile(known, [tail, 1 - tail])
        return float(low), float(high)


def bootstrap(fitted: Fit, models: NDArray[np.intp], draws: int = 1000) -> Bootstrap:
    """Refit to whole models drawn with replacement. Each refit starts from `fitted` and takes a few
    milliseconds. Nothing is drawn where there are too few models for an interval.

    models: index of each row's model, counted from 0, shape (n,).
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
