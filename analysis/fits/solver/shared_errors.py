"""Least squares where rows share errors of unknown size: runs forked from one shared prefix run,
points of one run. The ratio of shared to own noise is estimated from the residuals, in turns with
the fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tst_study.analysis.checks import Floats
from tst_study.analysis.fits.solver.problem import Formula, Problem
from tst_study.analysis.fits.solver.solve import (
    Fit,
    fit,
    gradient_measure,
    identified,
    refit,
)

_TURNS = 3
"""After which the ratio of the two errors moves by less than it is known."""
_CERTIFYING = 8
"""Starts followed to the end once the noise is known; three must agree."""


@dataclass(frozen=True)
class Noise:
    """Standard deviations, nats, of the residuals of a fit (misfit of the form included)."""

    shared: float
    """What all rows of a group have in common."""
    own: float
    """What each row has for itself."""

    @property
    def ratio(self) -> float:
        return (self.shared / self.own) ** 2 if self.own else 0.0


def fit_shared(
    model: Formula,
    observed: Floats,
    groups: Sequence[object] | np.ndarray,
    starts: Floats,
    *,
    refine: int = 16,
) -> tuple[Fit, Noise]:
    """Generalised least squares on the loss (nats); `groups`: a label per row.

    Raises `NotConvergedError` as `fit` does.
    """
    codes = np.unique(np.asarray(groups), return_inverse=True)[1]
    noise = Noise(0.0, 1.0)
    problem = Problem(model, observed, on="loss", groups=codes)
    theta = fit(problem, starts, refine=refine, strict=False).theta
    for _ in range(_TURNS):
        noise = _noise(problem, theta, codes)
        problem = replace(problem, ratio=noise.ratio)
        theta = refit(problem, theta)
    found = fit(problem, np.vstack([theta, starts]), refine=_CERTIFYING)
    return found, noise


def restored(
    model: Formula,
    observed: Floats,
    groups: Sequence[object],
    noise: Noise,
    known: Mapping[str, Any],
) -> Fit:
    """The fit that ended at known parameters (`theta`, `started` and `agreed` as `fit_shared` found
    them), without a search."""
    codes = np.unique(np.asarray(groups), return_inverse=True)[1]
    problem = Problem(model, observed, on="loss", groups=codes, ratio=noise.ratio)
    theta = np.array(known["theta"])
    ended = problem.value(theta), gradient_measure(problem, theta)
    starts = known["started"], known["agreed"]
    return Fit(problem, theta, *ended, *starts, identified(problem, theta), ())


def _noise(problem: Problem, theta: Floats, codes: np.ndarray) -> Noise:
    """One-way analysis of variance, every parameter charged where it is learnt."""
    residuals = problem.model.loss(theta) - problem.observed
    sizes = np.bincount(codes)
    means = np.bincount(codes, residuals) / sizes
    between, within = degrees_of_freedom(problem.jacobian(theta), codes)
    own = ((residuals - means[codes]) ** 2).sum() / within
    shared = max(0.0, (sizes * means**2).sum() / between - own) / float(sizes.mean())
    return Noise(float(np.sqrt(shared)), float(np.sqrt(own)))


def degrees_of_freedom(jacobian: Floats, codes: np.ndarray) -> tuple[float, float]:
    """Degrees of freedom that the fit leaves to the groups' means and to what differs within:
    number less the trace of the hat matrix there; at least one each."""
    basis = np.linalg.svd(jacobian, full_matrices=False)[0]
    sizes = np.bincount(codes)
    sums = np.stack([np.bincount(codes, column) for column in basis.T])
    charged = float((sums**2 / sizes).sum())
    between = len(sizes) - charged
    within = len(codes) - len(sizes) - (basis.shape[1] - charged)
    return max(1.0, between), max(1.0, within)
