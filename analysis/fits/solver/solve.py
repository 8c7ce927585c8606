"""Many starts, one optimum: scipy's least squares with its robust losses, convergence checked.

The optimiser's word is not trusted: the gradient is measured afresh, and several starts must end
in the same objective.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from tst_study.analysis.checks import Floats
from tst_study.analysis.fits.solver.problem import Formula, Problem
from tst_study.errors import UserError

GRADIENT_TOLERANCE = 1e-5
AGREEMENT = 1e-6
"""Relative difference of objectives below which two starts ended in the same optimum."""

_RANK_TOLERANCE = 1e-7
"""Singular values of the Jacobian with normalised columns that are below this share of the largest
count as zero: parameters in their directions are collinear."""
_TAKES_PART = 0.1
"""A parameter takes part in such a direction if its component is larger than this."""


@dataclass(frozen=True)
class Fit:
    """A fit with the evidence for it."""

    problem: Problem
    theta: Floats
    started: int
    """Number of starts refined to the end."""
    agreed: int
    """Number of starts that ended in this objective."""

    @property
    def values(self) -> dict[str, float]:
        return dict(zip(self.problem.model.parameters, map(float, self.theta), strict=True))

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    @property
    def objective(self) -> float:
        return self.problem.value(self.theta)

    @property
    def residuals(self) -> Floats:
        """Predicted minus observed, shape (n,), as the objective sees them."""
        return self.problem.residuals(self.theta)

    @property
    def undetermined(self) -> list[str]:
        """Parameters without an effect at the optimum, such as the exponent of a term whose
        coefficient was fitted to zero."""
        dead = undetermined(self.residuals, self.problem.jacobian(self.theta))
        return [name for name, gone in zip(self.values, dead, strict=True) if gone]


def refit(problem: Problem, theta: Floats) -> Floats:
    """Return the parameters at the optimum that one start leads to."""
    robust = np.isfinite(problem.delta)
    # Steps of equal size find the way from afar; steps scaled by the derivative find the end of a
    # narrow valley.
    for scale in (1.0, "jac"):
        try:
            theta = optimize.least_squares(
                problem.residuals,
                theta,
                problem.jacobian,
                method="trf" if robust else "lm",
                loss="huber" if robust else "linear",
                f_scale=problem.delta if robust else 1.0,
                x_scale=scale,
                max_nfev=500,
                ftol=1e-13,
                xtol=1e-13,
                gtol=1e-13,
            ).x
        except ValueError:  # a step into overflow: this start leads nowhere
            break
        if gradient_measure(problem, theta) <= GRADIENT_TOLERANCE:
            break
    return theta


def gradient_measure(problem: Problem, theta: Floats) -> float:
    """Largest cosine of the angle between a parameter's effect on the residuals and the slopes of
    the objective by the residuals (MINPACK's `gtol`). Parameters without effect do not count."""
    residuals, jacobian = problem.residuals(theta), problem.jacobian(theta)
    if not (np.isfinite(residuals).all() and np.isfinite(jacobian).all()):
        return float("inf")
    if np.abs(residuals).mean() < 1e-10:
        return 0.0
    slopes, live = problem.slopes(residuals), jacobian[:, ~undetermined(residuals, jacobian)]
    size = np.linalg.norm(live, axis=0) * np.linalg.norm(slopes)
    return float((np.abs(slopes @ live) / size).max(initial=0.0))


def grid_of_starts(model: Formula, grid: Mapping[str, Sequence[float]]) -> Floats:
    """Return all combinations, shape (starts, p). A parameter that is not named starts at 0."""
    lists = [grid.get(name, (0.0,)) for name in model.parameters]
    return np.array(list(itertools.product(*lists)), dtype=float)


def search(problem: Problem, starts: Floats, refine: int) -> tuple[Floats, Floats]:
    """Follow some starts, shape (starts, p), to the end: parameters, shape (refine, p), and
    objectives, best first.

    Each start is improved by solving for its linear parameters. Half of those followed are then the
    best, half are drawn from the rest. Raises `UserError` for fewer runs than parameters.
    """
    count, parameters = len(problem.observed), problem.model.parameters
    if count < len(parameters):
        raise UserError(
            f"{count} runs cannot determine the {len(parameters)} parameters of the law; give more "
            "runs, of more settings"
        )
    improved = [problem.model.improved(start, problem.observed) for start in starts]
    order = np.argsort([problem.value(theta) for theta in improved], kind="stable")
    best, rest = np.split(order, [(refine + 1) // 2])
    drawn = np.random.default_rng(0).permutation(rest)[: refine - len(best)]
    ends = np.array([refit(problem, improved[place]) for place in (*best, *drawn)])
    values = np.nan_to_num([problem.value(theta) for theta in ends], nan=np.inf, posinf=np.inf)
    order = np.argsort(values, kind="stable")
    return ends[order], values[order]


def fit(problem: Problem, starts: Floats, refine: int = 16) -> Fit:
    """Fit from many starts, shape (starts, p), of which `refine` are followed to the end.

    Raises `UserError` unless the gradient vanishes, three of these (or all, if fewer were given)
    agree, and no parameters are collinear. Parameters without an effect at the optimum are named in
    `undetermined` and get no interval.
    """
    ends, values = search(problem, starts, refine)
    # Below residuals of 1e-9 all is rounding.
    nothing = 0.5e-18 * len(problem.observed)
    agreed = int((values <= (1 + AGREEMENT) * values[0] + nothing).sum())
    gradient, failures = gradient_measure(problem, ends[0]), []
    if not gradient <= GRADIENT_TOLERANCE:
        failures.append(
            f"gradient {gradient:.2e} above {GRADIENT_TOLERANCE:g} at objective {values[0]:.9g}"
        )
    elif names := _sliding(problem, ends[0]):
        failures.append(
            f"these runs do not determine {', '.join(names)}: they can be changed together without "
            "any change in the losses; hold one, or give runs that differ in what it stands for"
        )
    if agreed < min(3, len(ends)):
        others = ", ".join(f"{value:.9g}" for value in values[:4])
        failures.append(
            f"only {agreed} of {len(ends)} starts ended at objective {values[0]:.9g} (the lowest "
            f"were {others})"
        )
    if failures:
        raise UserError("; ".join(failures))
    return Fit(problem, ends[0], len(ends), agreed)


def _sliding(problem: Problem, theta: Floats) -> list[str]:
    """Find the parameters that can be changed together without any change in the losses."""
    jacobian = problem.jacobian(theta)
    live = ~undetermined(problem.residuals(theta), jacobian)
    names = np.array(problem.model.parameters)[live]
    scaled = jacobian[:, live] / np.linalg.norm(jacobian[:, live], axis=0)
    _, values, directions = np.linalg.svd(scaled, full_matrices=False)
    part = np.abs(directions[values < _RANK_TOLERANCE * values[0]]).max(axis=0, initial=0.0)
    return [str(name) for name in names[part > _TAKES_PART]]


def undetermined(residuals: Floats, jacobian: Floats) -> NDArray[np.bool_]:
    """Find the parameters that no residual depends on, shape (p,): moving one by a unit (an e-fold
    of a coefficient) moves the residuals by less than a thousandth of their size. A term that
    vanished leaves its coefficient and its exponent in this state."""
    size = float(np.sqrt((residuals**2).mean()))
    effect: Floats = np.sqrt((jacobian**2).mean(axis=0))
    return effect < max(1e-3 * size, 1e-9)
