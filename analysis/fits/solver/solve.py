"""Many starts, one optimum: scipy's least squares with its robust losses, convergence checked.

An optimiser's word is not taken: the gradient is measured afresh, and several starts must end in
the same objective.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from tst_study.analysis.checks import Floats, numbers
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
    """A fit that may not be used; the message says which check failed, with its numbers."""


@dataclass(frozen=True)
class Identified:
    """What the derivative of the residuals says at the parameters found."""

    rank: int
    """Of the derivative, shape (n, p): p where everything is determined."""
    condition: float
    """Largest over smallest singular value of its columns at equal length, those without effect
    left out; infinite where the others do not have full rank."""
    undetermined: tuple[str, ...]
    """Parameters that have run away to where they change nothing (a term at its bound of zero, an
    exponent of what does not vary), and `sliding` ones."""
    sliding: tuple[str, ...]
    """Parameters that can be changed together without any change in the losses."""


@dataclass(frozen=True)
class Fit:
    """A fit and everything that speaks for or against it."""

    problem: Problem
    theta: Floats
    objective: float
    gradient: float
    """As `gradient_measure` says; 0 at an optimum."""
    started: int
    """Starts refined to the end."""
    agreed: int
    """Starts that ended in this objective."""
    identified: Identified
    """Rank, conditioning, and which parameters these rows leave open."""
    failures: tuple[str, ...]

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
    """Parameters at the optimum that is reached from one start."""
    robust = np.isfinite(problem.delta)
    # Equal steps find the way from afar, those scaled by the derivative the end of a narrow valley.
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
        except ValueError:  # a step into overflow: a start from which there is no way
            break
        if gradient_measure(problem, theta) <= GRADIENT_TOLERANCE:
            break
    return theta


def gradient_measure(problem: Problem, theta: Floats) -> float:
    """Largest cosine of the angle between a parameter's effect on the residuals and the slopes of
    the objective by these (MINPACK's `gtol`). A term that has vanished points nowhere."""
    residuals, jacobian = problem.residuals(theta), problem.jacobian(theta)
    if not (np.isfinite(residuals).all() and np.isfinite(jacobian).all()):
        return float("inf")
    if np.abs(residuals).mean() < 1e-10:
        return 0.0
    slopes, live = problem.slopes(residuals), jacobian[:, ~undetermined(residuals, jacobian)]
    size = np.linalg.norm(live, axis=0) * np.linalg.norm(slopes)
    return float((np.abs(slopes @ live) / size).max(initial=0.0))


def grid_of_starts(model: Formula, grid: Mapping[str, Sequence[float]]) -> Floats:
    """All combinations, shape (starts, p). A parameter that is not named starts at 0."""
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

    All starts are improved by what the model can solve directly and valued; `refine` of them, half
    the best and half drawn from the rest, are followed to the end. Of these at least three (or
    all, if fewer were given) must agree. Raises `NotConvergedError` where a check fails, unless
    `strict` is off: then `failures` holds the text. Parameters that slide along each other are such
    a failure; those that have run away to where they change nothing (a floor of zero) are named in
    `identified` and get no interval.
    """
    _refuse_bad(problem)
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
    theta = ends[place]
    found = Fit(
        problem,
        theta,
        float(values[place]),
        gradient_measure(problem, theta),
        len(ends),
        agreed,
        identified(problem, theta),
        (),
    )
    failures = tuple(_failures(found, values))
    if failures and strict:
        raise NotConvergedError("; ".join(failures))
    return replace(found, failures=failures)


def _refuse_bad(problem: Problem) -> None:
    count, parameters = len(problem.observed), len(problem.model.parameters)
    if len(problem.model) != count:
        raise ValueError(f"model of {len(problem.model)} rows, {count} observations")
    numbers(problem.observed, "loss", above=0)
    if count < parameters:
        raise UserError(
            f"{count} runs cannot identify {parameters} parameters "
            f"({', '.join(problem.model.parameters)}); give more runs or a simpler law"
        )


def _failures(found: Fit, values: Floats) -> list[str]:
    failures = []
    if not found.gradient <= GRADIENT_TOLERANCE:
        failures.append(
            f"gradient {found.gradient:.2e} above {GRADIENT_TOLERANCE:g} at objective "
            f"{found.objective:.9g} ({_shown(found)})"
        )
    if not np.isfinite(found.theta).all():
        failures.append(f"a parameter is not finite ({_shown(found)})")
    elif found.identified.sliding:
        failures.append(
            f"these runs do not determine {', '.join(found.identified.sliding)}: they can be "
            "changed together without any change in the losses; hold one, or give runs that differ "
            "in what it stands for"
        )
    if found.agreed < min(3, found.started):
        others = ", ".join(f"{value:.9g}" for value in np.sort(values)[:4])
        failures.append(
            f"only {found.agreed} of {found.started} starts ended at objective "
            f"{found.objective:.9g} (the lowest were {others})"
        )
    return failures


def _shown(found: Fit) -> str:
    """The last ten: levels, of which there may be hundreds, stand before what a law is about."""
    shown = [f"{name} {value:.5g}" for name, value in found.values.items()]
    return ", ".join(["…"] * (len(shown) > 10) + shown[-10:])


def identified(problem: Problem, theta: Floats) -> Identified:
    """Rank, conditioning and undetermined parameters at `theta`, shape (p,)."""
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
    left = [name for name, lives in zip(names, live, strict=True) if lives]
    sliding = tuple(name for name, share in zip(left, part, strict=True) if share > _TAKES_PART)
    condition = float("inf") if alike.any() else float(values[0] / values[-1])
    return Identified(int((~alike).sum()), condition, dead + sliding, sliding)


def undetermined(residuals: Floats, jacobian: Floats) -> NDArray[np.bool_]:
    """Which parameters no residual depends on, shape (p,): to move one by a unit (an
    e-fold of a coefficient) moves residuals by less than a thousandth of their size. A term that
    vanished leaves its coefficient and its exponent so, wherever the descent happened to stop."""
    size = float(np.sqrt((residuals**2).mean()))
    effect: Floats = np.sqrt((jacobian**2).mean(axis=0))
    return effect < max(1e-3 * size, 1e-9)
