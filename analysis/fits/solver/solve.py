"""The search for the optimum of a `Problem`: scipy's least squares, with the Huber loss if the
problem has a delta, from many starts.

The optimiser's own report of convergence is not trusted. The gradient is measured afresh, and
several starts must end at the same objective.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from tst_study.analysis.checks import Floats
from tst_study.analysis.fits.solver.problem import Formula, Problem
from tst_study.errors import UserError

GRADIENT_TOLERANCE = 1e-5
"""Largest `gradient_measure` at which a fit counts as converged."""
AGREEMENT = 1e-6
"""Relative difference of objectives up to which two starts count as having found the same
optimum."""

_RANK_TOLERANCE = 1e-7
"""A singular value of the Jacobian (with normalised columns) counts as zero if it is below this
share of the largest one. The parameters that take part in its direction are then collinear."""
_TAKES_PART = 0.1
"""A parameter takes part in such a direction, which is a unit vector, if the absolute value of its
component is larger than this."""


@dataclass(frozen=True)
class Fit:
    """A fit, and how many starts agree on it."""

    problem: Problem
    theta: Floats
    """The fitted parameters, shape (p,)."""
    started: int
    """Number of starts that were followed to the end."""
    agreed: int
    """Number of those that ended at the objective of this fit."""

    @property
    def values(self) -> dict[str, float]:
        """The fitted parameters by name."""
        return dict(zip(self.problem.model.parameters, map(float, self.theta), strict=True))

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    @property
    def objective(self) -> float:
        """The value that was minimised, at the optimum."""
        return self.problem.value(self.theta)

    @property
    def residuals(self) -> Floats:
        """Predicted minus observed (log L or L, as in the objective), shape (n,), whitened if rows
        share errors."""
        return self.problem.residuals(self.theta)

    @property
    def undetermined(self) -> list[str]:
        """Parameters without an effect at the optimum, such as the exponent of a term whose
        coefficient was fitted to zero."""
        dead = undetermined(self.residuals, self.problem.jacobian(self.theta))
        return [name for name, gone in zip(self.values, dead, strict=True) if gone]


def refit(problem: Problem, theta: Floats) -> Floats:
    """Return the parameters where the optimiser ends from one start, converged or not."""
    robust = np.isfinite(problem.delta)
    # Steps in unscaled parameters find the way from afar; steps in parameters scaled by the
    # derivatives find the end of a narrow valley.
    for scale in (1.0, "jac"):
        try:
            theta = scipy.optimize.least_squares(
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
    """Return how far from zero the gradient of the objective is, as a number from 0 to 1.

    Each parameter has an angle: the one between its column of the Jacobian and the derivative of
    the objective by the residuals. The result is the largest absolute cosine of these angles, as
    in MINPACK's `gtol`. Parameters without an effect do not count. The result is 0 if all residuals
    are 0 up to rounding, and infinite if residuals or derivatives are not finite."""
    residuals, jacobian = problem.residuals(theta), problem.jacobian(theta)
    if not (np.isfinite(residuals).all() and np.isfinite(jacobian).all()):
        return float("inf")
    if np.abs(residuals).mean() < 1e-10:
        return 0.0
    slopes, live = problem.slopes(residuals), jacobian[:, ~undetermined(residuals, jacobian)]
    size = np.linalg.norm(live, axis=0) * np.linalg.norm(slopes)
    return float((np.abs(slopes @ live) / size).max(initial=0.0))


def grid_of_starts(model: Formula, grid: Mapping[str, Sequence[float]]) -> Floats:
    """Return all combinations of the values in a grid as starts, shape (starts, p). A parameter
    that the grid does not name starts at 0."""
    lists = [grid.get(name, (0.0,)) for name in model.parameters]
    return np.array(list(itertools.product(*lists)), dtype=float)


def search(problem: Problem, starts: Floats, refine: int) -> tuple[Floats, Floats]:
    """Follow `refine` of the starts, shape (starts, p), to the end, or all if there are fewer.
    Return the parameters where they end, shape (followed, p), and the objectives there, best first.

    All starts are first improved by solving for their linear parameters. Half of the starts
    to follow are those that are best after that, and half are drawn from the rest. Raises
    `UserError` for fewer runs than parameters.
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
    """Fit from many starts, shape (starts, p), of which `refine` are followed to the end
    (`search`).

    Raises `UserError` for fewer runs than parameters, if the gradient does not vanish, if too few
    of the starts that were followed agree, and if parameters are collinear. At least three starts
    must agree, or all of them if fewer were followed. Parameters without an effect at the optimum
    do not make the fit fail; `Fit.undetermined` names them.
    """
    ends, values = search(problem, starts, refine)
    # Residuals below 1e-9 are rounding.
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
    """Find the collinear parameters: those that can be changed together without any change in the
    losses."""
    jacobian = problem.jacobian(theta)
    live = ~undetermined(problem.residuals(theta), jacobian)
    names = np.array(problem.model.parameters)[live]
    scaled = jacobian[:, live] / np.linalg.norm(jacobian[:, live], axis=0)
    _, values, directions = np.linalg.svd(scaled, full_matrices=False)
    part = np.abs(directions[values < _RANK_TOLERANCE * values[0]]).max(axis=0, initial=0.0)
    return [str(name) for name in names[part > _TAKES_PART]]


def undetermined(residuals: Floats, jacobian: Floats) -> NDArray[np.bool_]:
    """Find the parameters that have next to no effect on the residuals; return a mask, shape (p,).

    Moving such a parameter by 1, which is an e-fold for the log of a coefficient, moves the
    residuals by less than a thousandth of their size, or by less than 1e-9. If a term vanished,
    both its coefficient and its exponent are in this state."""
    size = float(np.sqrt((residuals**2).mean()))
    effect: Floats = np.sqrt((jacobian**2).mean(axis=0))
    return effect < max(1e-3 * size, 1e-9)
