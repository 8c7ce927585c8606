"""Least squares where rows share errors of unknown size: runs forked from one shared prefix run,
points of one run. The ratio of shared to own noise is estimated from the residuals, alternating
with the fit."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tst_study.analysis.checks import Floats
from tst_study.analysis.fits.solver.problem import Problem
from tst_study.analysis.fits.solver.solve import Fit, fit, refit, search

_ROUNDS = 3
"""Estimates of the ratio; after these it moves by less than it is known."""
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
    """Fit the losses (nats per token) by generalised least squares, one error for each group.

    groups: the group of each row, from 0, shape (n,). Raises `UserError` as `fit` does.
    """
    noise = Noise(0.0, 1.0)
    theta = search(problem, starts, refine)[0][0]
    for _ in range(_ROUNDS):
        noise = _noise(problem, theta, groups)
        problem = replace(problem, groups=groups, ratio=noise.ratio)
        theta = refit(problem, theta)
    return fit(problem, np.vstack([theta, starts]), _CERTIFYING), noise


def _noise(problem: Problem, theta: Floats, codes: NDArray[np.intp]) -> Noise:
    """Estimate the noise by a one-way analysis of variance that charges every parameter where it is
    learnt."""
    residuals = problem.model.loss(theta) - problem.observed
    sizes = np.bincount(codes)
    means = np.bincount(codes, residuals) / sizes
    between, within = degrees_of_freedom(problem.jacobian(theta), codes)
    own = ((residuals - means[codes]) ** 2).sum() / within
    shared = max(0.0, (sizes * means**2).sum() / between - own) / float(sizes.mean())
    return Noise(float(np.sqrt(shared)), float(np.sqrt(own)))


def degrees_of_freedom(jacobian: Floats, codes: NDArray[np.intp]) -> tuple[float, float]:
    """Degrees of freedom that the fit leaves between groups and within them: their number less the
    trace of the hat matrix there, at least one each."""
    basis = np.linalg.svd(jacobian, full_matrices=False)[0]
    sizes = np.bincount(codes)
    sums = np.stack([np.bincount(codes, column) for column in basis.T])
    charged = float((sums**2 / sizes).sum())
    between = len(sizes) - charged
    within = len(codes) - len(sizes) - (basis.shape[1] - charged)
    return max(1.0, between), max(1.0, within)
