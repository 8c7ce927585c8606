"""How well a fit is known: refits to models drawn anew."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

from tst_study.analysis.checks import Floats
from tst_study.analysis.fits.solver.problem import Problem
from tst_study.analysis.fits.solver.solve import GRADIENT_TOLERANCE, Fit
from tst_study.analysis.statistics import CONFIDENCE, critical_t

LEAST_CLUSTERS = 6
"""Of fewer, draws with replacement tell too little for an interval."""
_AT_ONCE = 30_000
"""Rows that are refitted together, of as many draws as hold them: a few megabytes each."""
_STEPS = 1000


@dataclass(frozen=True)
class Bootstrap:
    """Refits to resampled models. Draws that did not converge are left out."""

    draws: pd.DataFrame
    """One row per refit that converged, one column per parameter; NaN where the draw's rows do not
    determine it (`undetermined`)."""
    clusters: int
    """How many there are to draw from."""

    def interval(self, values: Floats) -> tuple[float | None, float | None]:
        """95% percentile interval of a number computed from each draw, as wide as t with one degree
        of freedom less than there are clusters asks (Hesterberg 2015, section 5.3). None on both
        sides where there are too few clusters, or where more draws than that leave the number
        undetermined."""
        known = values[np.isfinite(values)]
        if self.clusters < LEAST_CLUSTERS or len(known) < max(1.0, CONFIDENCE * len(values)):
            return None, None
        critical = critical_t(self.clusters - 1)
        tail = float(special.ndtr(-critical * np.sqrt(self.clusters / (self.clusters - 1))))
        low, high = np.quantile(known, [tail, 1 - tail])
        return float(low), float(high)


def bootstrap(found: Fit, draws: int = 1000) -> Bootstrap:
    """Refit to whole models (all rows of one training: the problem's `models`) drawn with
    replacement, or to rows where it names none. Each refit starts from `found`."""
    random = np.random.default_rng(0)
    problem = found.problem
    models = problem.models
    codes = np.arange(len(problem.observed)) if models is None else pd.factorize(models)[0]
    members = int(codes.max()) + 1
    kept = [np.empty((0, len(found.theta)))]
    for part in range(0, draws, few := max(1, _AT_ONCE // len(codes))):
        drawn = random.integers(members, size=(min(few, draws - part), members))
        counts = np.array([np.bincount(one, minlength=members) for one in drawn], dtype=float)
        kept.append(_refits(problem, found.theta, counts[:, codes]))
    table = pd.DataFrame(np.concatenate(kept), columns=list(problem.model.parameters))
    return Bootstrap(draws=table, clusters=members)


def _refits(problem: Problem, start: Floats, counts: Floats) -> Floats:
    """Refit rows that count so many times, shape (draws, n), all draws at once from one start, by
    Levenberg and Marquardt's method. Parameters, shape (converged draws, p); NaN where a draw does
    not determine one.

    Rows beyond Huber's delta do not bend the objective. They are added with the damping, by the
    parabola that touches their Huber loss from above, so that a damped step leads downhill.
    """
    theta, ends = np.tile(start, (len(counts), 1)), []
    residuals, damping = problem.residuals(theta), np.full(len(counts), 1e-3)
    for _ in range(_STEPS):
        jacobian = problem.jacobian(theta)
        done, open_ = _ended(problem, residuals, jacobian, counts)
        ends.append(np.where(open_, np.nan, theta)[done])
        theta, residuals, jacobian, counts, damping = (
            each[~done] for each in (theta, residuals, jacobian, counts, damping)
        )
        if not len(theta):
            break
        inside = np.abs(residuals) <= problem.delta
        touching = problem.delta / np.maximum(np.abs(residuals), 1e-300)
        bent = counts * np.where(inside, 1.0, np.minimum(damping[:, None], 1.0) * touching)
        curvature = np.swapaxes(jacobian, 1, 2) @ (bent[..., None] * jacobian)
        sizes = np.diagonal(curvature, axis1=1, axis2=2)
        damped = damping[:, None] * np.maximum(sizes, 1e-12 * sizes.max(axis=1, keepdims=True))
        slope = (counts * problem.slopes(residuals))[:, None, :] @ jacobian
        curvature = curvature + damped[..., None] * np.eye(len(start))
        moved = theta - np.linalg.solve(curvature, slope[:, 0, :, None])[..., 0]
        there = problem.residuals(moved)
        with np.errstate(all="ignore"):  # a step into overflow is not taken
            before, after = (
                (counts * special.huber(problem.delta, each)).sum(axis=1)
                for each in (residuals, there)
            )
        better = after < before
        theta, residuals = (
            np.where(better[:, None], new, old) for new, old in ((moved, theta), (there, residuals))
        )
        damping = np.where(better, damping / 4, np.minimum(damping * 4, 1e6))
    return np.concatenate(ends)


def _ended(
    problem: Problem, residuals: Floats, jacobian: Floats, counts: Floats
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which draws converged (`gradient_measure`), shape (draws,), and which parameters they leave
    open (`undetermined`), shape (draws, p)."""
    rows = counts.sum(axis=1, keepdims=True)
    effect = np.sqrt((counts[:, None, :] @ jacobian**2)[:, 0] / rows)
    size = np.sqrt((counts * residuals**2).sum(axis=1, keepdims=True) / rows)
    open_ = effect < np.maximum(1e-3 * size, 1e-9)
    slopes = problem.slopes(residuals)
    along = np.abs((counts * slopes)[:, None, :] @ jacobian)[:, 0] / rows
    length = effect * np.sqrt((counts * slopes**2).sum(axis=1, keepdims=True) / rows)
    small = open_ | (along <= 10 * GRADIENT_TOLERANCE * length)
    return small.all(axis=1) | (size[:, 0] < 1e-10), open_
