"""Many starts, one optimum: scipy's least squares with its robust losses, convergence checked.

The optimiser's word is not trusted: the gradient is measured afresh, and several starts must end
in the same objective.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from tst_study.analysis.checks import Floats
from tst_study.analysis.fits.solver.problem import Formula, Problem
from tst_study.errors import UserError

GRADIENT_TOLERANCE = 1e-5
AGREEMENT = 1e-6
"""Relative difference of objectives below which two starts ended in the same optimum."""

_ALIKE = 1e-7
"""Singular value over the largest, of columns of equal length: below it, parameters slide along
each other without any change in the losses."""
_TAKES_PART = 0.1
"""Component of a parameter in such a direction."""


class NotConvergedError(UserError):
    """A fit that must not be used; the message says which check failed, with its numbers."""


@dataclass(frozen=True)
class Identified:
    """The parameters that the rows determine, by the derivative of the residuals at the optimum."""

    rank: int
    """Rank of the derivative, shape (n, p): p where everything is determined."""
    condition: float
    """Largest over smallest singular value of the derivative, its columns scaled to equal length
    and those without effect left out; infinite where the others do not have full rank."""
    undetermined: tuple[str, ...]
    """Parameters that have run away to where they change nothing (a term at its bound of zero, an
    exponent of a constant), and the `sliding` ones."""
    sliding: tuple[str, ...]
    """Parameters that can be changed together without any change in the losses."""


@dataclass(frozen=True)
class Fit:
    """A fit with the evidence for and against it."""

    problem: Problem
    theta: Floats
    objective: float
    gradient: float
    """Gradient by `gradient_measure`; 0 at an optimum."""
    started: int
    """Number of starts refined to the end."""
    agreed: int
    """Number of starts that ended in this objective."""
    identified: Identified
    failures: tuple[str, ...] = ()
    """Checks that failed, a sentence each."""

    @classmethod
    def at(cls, problem: Problem, theta: Floats, started: int, agreed: int) -> Fit:
        """Judge a problem's fit at given parameters."""
        ended = problem.value(theta), gradient_measure(problem, theta)
        return cls(problem, theta, *ended, started, agreed, identified(problem, theta))

    @property
    def values(self) -> dict[str, float]:
        return dict(zip(self.problem.model.parameters, map(float, self.theta), strict=True))

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    @property
    def residuals(self) -> Floats:
        """Predicted minus observed, shape (n,), as the objective sees them."""
        return self.problem.residuals(self.theta)


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


def fit(
    problem: Problem,
    starts: Floats | Sequence[Sequence[float]],
    *,
    refine: int = 16,
    strict: bool = True,
) -> Fit:
    """Fit from many starts, shape (starts, p).

    Each start is improved by solving for its linear parameters. Then `refine` of them, half of them
    the best and half drawn from the rest, are followed to the end, and at least three of these (or
    all, if fewer were given) must agree. Raises `NotConvergedError` where a check fails, unless
    `strict` is off: then `failures` holds the text. Parameters that slide along each other are such
    a failure; those that have run away to where they change nothing (a floor of zero) are named in
    `identified` and get no interval.
    """
    count, parameters = len(problem.observed), problem.model.parameters
    if count < len(parameters):
        raise UserError(
            f"{count} runs cannot determine the {len(parameters)} parameters of the law; give more "
            "runs, of more settings"
        )
    candidates = [
        problem.model.improved(np.asarray(start, dtype=float), problem.observed) for start in starts
    ]
    valued = np.array([problem.value(theta) for theta in candidates])
    order = np.argsort(np.where(np.isfinite(valued), valued, np.inf), kind="stable")
    order = order[np.isfinite(valued[order])]
    if order.size == 0:
        raise NotConvergedError(f"none of {len(candidates)} starts has a finite objective")
    best_half = order[: (refine + 1) // 2]
    rest = np.random.default_rng(0).permutation(order[best_half.size :])
    chosen = [candidates[place] for place in [*best_half, *rest[: refine - best_half.size]]]
    ends = [refit(problem, theta) for theta in chosen]
    values = np.array([problem.value(theta) for theta in ends])
    values = np.where(np.isfinite(values), values, np.inf)
    place = int(np.argmin(values))
    gap = np.where(np.isfinite(values), values - values[place], np.inf)
    # Below residuals of 1e-9 all is rounding.
    nothing = 0.5e-18 * len(problem.observed)
    agreed = int((gap <= AGREEMENT * values[place] + nothing).sum())
    fitted = Fit.at(problem, ends[place], len(ends), agreed)
    failures = tuple(_failures(fitted, values))
    if failures and strict:
        raise NotConvergedError("; ".join(failures))
    return replace(fitted, failures=failures)


def _failures(fitted: Fit, values: Floats) -> list[str]:
    failures = []
    if not fitted.gradient <= GRADIENT_TOLERANCE:
        failures.append(
            f"gradient {fitted.gradient:.2e} above {GRADIENT_TOLERANCE:g} at objective "
            f"{fitted.objective:.9g}"
        )
    if not np.isfinite(fitted.theta).all():
        failures.append("a parameter is not finite")
    elif fitted.identified.sliding:
        failures.append(
            f"these runs do not determine {', '.join(fitted.identified.sliding)}: they can be "
            "changed together without any change in the losses; hold one, or give runs that differ "
            "in what it stands for"
        )
    if fitted.agreed < min(3, fitted.started):
        others = ", ".join(f"{value:.9g}" for value in np.sort(values)[:4])
        failures.append(
            f"only {fitted.agreed} of {fitted.started} starts ended at objective "
            f"{fitted.objective:.9g} (the lowest were {others})"
        )
    return failures


def identified(problem: Problem, theta: Floats) -> Identified:
    """Find the rank, conditioning and undetermined parameters at `theta`, shape (p,)."""
    names = problem.model.parameters
    residuals, jacobian = problem.residuals(theta), problem.jacobian(theta)
    if not (np.isfinite(residuals).all() and np.isfinite(jacobian).all()):
        return Identified(0, float("inf"), names, names)
    live = ~undetermined(residuals, jacobian)
    size = np.linalg.norm(jacobian, axis=0)
    dead = tuple(name for name, lives in zip(names, live, strict=True) if not lives)
    if not live.any():
        return Identified(0, float("inf"), dead, ())
    _, values, directions = np.linalg.svd(jacobian[:, live] / size[live], full_matrices=False)
    alike = values < _ALIKE * values[0]
    part = np.abs(directions[alike]).max(axis=0, initial=0.0)
    alive = [name for name, lives in zip(names, live, strict=True) if lives]
    sliding = tuple(name for name, share in zip(alive, part, strict=True) if share > _TAKES_PART)
    condition = float("inf") if alike.any() else float(values[0] / values[-1])
    return Identified(int((~alike).sum()), condition, dead + sliding, sliding)


def undetermined(residuals: Floats, jacobian: Floats) -> NDArray[np.bool_]:
    """Find the parameters that no residual depends on, shape (p,): moving one by a unit (an e-fold
    of a coefficient) moves the residuals by less than a thousandth of their size. A term that
    vanished leaves its coefficient and its exponent in this state."""
    size = float(np.sqrt((residuals**2).mean()))
    effect: Floats = np.sqrt((jacobian**2).mean(axis=0))
    return effect < max(1e-3 * size, 1e-9)
