"""Many starts, one optimum: solved in rescaled coordinates, and convergence checked, not believed.

An optimiser's word is not taken: the gradient is measured afresh in coordinates in which all
parameters move the residuals alike, and several starts must end in the same objective.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from analysis.fitting.models import Model
from analysis.fitting.objectives import Floats, Huber, LeastAbsolute, LeastSquares, Objective
from tst_study.errors import UserError

GRADIENT_TOLERANCE = 1e-5
AGREEMENT = 1e-6
"""Relative difference of objectives below which two starts ended in the same optimum."""


class NotConvergedError(UserError):
    """A fit that may not be used; the message says which check failed, with its numbers."""


@dataclass(frozen=True)
class Problem:
    """A model, the losses it is to explain (nats per token, shape (n,)) and what to minimise."""

    model: Model
    observed: Floats
    objective: Objective
    weights: Floats | None = None
    """Of rows; whole numbers in a bootstrap."""

    def residuals(self, theta: Floats) -> tuple[Floats, Floats]:
        """Predicted minus observed (log L or L), and its derivative, shapes (n,) and (n, p);
        whitened where rows share errors."""
        value, jacobian = self.model.log_loss(theta)
        if self.objective.on == "log":
            value = value - np.log(self.observed)
        else:
            loss = np.exp(value)
            value, jacobian = loss - self.observed, loss[:, None] * jacobian
        if isinstance(self.objective, LeastSquares):
            return self.objective.whitened(value), self.objective.whitened(jacobian)
        return value, jacobian

    def value(self, theta: Floats) -> float:
        """The objective: a sum over rows, not a mean."""
        return float(self._weigh(self.objective.losses(self.residuals(theta)[0])).sum())

    def value_and_gradient(self, theta: Floats) -> tuple[float, Floats]:
        residuals, jacobian = self.residuals(theta)
        slopes = self._weigh(self.objective.slopes(residuals))
        return float(self._weigh(self.objective.losses(residuals)).sum()), slopes @ jacobian

    def rows(self, chosen: NDArray[np.intp] | NDArray[np.bool_]) -> Problem:
        objective = self.objective
        if isinstance(objective, LeastSquares):
            objective = objective.of_rows(chosen)
        weights = None if self.weights is None else self.weights[chosen]
        return Problem(self.model.rows(chosen), self.observed[chosen], objective, weights)

    def _weigh(self, values: Floats) -> Floats:
        return values if self.weights is None else values * self.weights


@dataclass(frozen=True)
class Fit:
    """A fit and everything that speaks for or against it."""

    problem: Problem
    theta: Floats
    objective: float
    gradient: float
    """Norm of the gradient over its largest possible norm; 0 at an optimum."""
    started: int
    """Starts refined to the end."""
    agreed: int
    """Starts that ended in this objective."""
    failures: tuple[str, ...]

    @property
    def values(self) -> dict[str, float]:
        return dict(zip(self.problem.model.parameters, map(float, self.theta), strict=True))

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    @property
    def residuals(self) -> Floats:
        """Predicted minus observed, shape (n,), as the objective sees them."""
        return self.problem.residuals(self.theta)[0]


def grid_of_starts(model: Model, grid: Mapping[str, Sequence[float]]) -> Floats:
    """All combinations, shape (starts, p). A parameter that is not named starts at 0."""
    lists = [grid.get(name, (0.0,)) for name in model.parameters]
    return np.array(list(itertools.product(*lists)), dtype=float)


def fit(
    problem: Problem,
    starts: Floats | Sequence[Sequence[float]],
    *,
    refine: int = 16,
    seed: int = 0,
    strict: bool = True,
) -> Fit:
    """Fit from many starts, shape (starts, p).

    All starts are improved by what the model can solve directly and valued; `refine` of them, half
    the best and half drawn from the rest, are followed to the end. Of these at least three (or
    all, if fewer were given) must agree. Raises `NotConvergedError` where a check fails, unless
    `strict` is off: then `failures` holds the text.
    """
    _refuse_bad(problem)
    candidates = [
        problem.model.improved(np.asarray(start, dtype=float), problem.observed) for start in starts
    ]
    with np.errstate(all="ignore"):
        valued = np.array([problem.value(theta) for theta in candidates])
    order = np.argsort(np.where(np.isfinite(valued), valued, np.inf), kind="stable")
    order = order[np.isfinite(valued[order])]
    if order.size == 0:
        raise NotConvergedError(f"none of {len(candidates)} starts has a finite objective")
    best_half = order[: (refine + 1) // 2]
    rest = np.random.default_rng(seed).permutation(order[best_half.size :])
    chosen = [candidates[place] for place in [*best_half, *rest[: refine - best_half.size]]]
    ends = [_descend(problem, theta) for theta in chosen]
    with np.errstate(all="ignore"):
        values = np.array([problem.value(theta) for theta in ends])
    values = np.where(np.isfinite(values), values, np.inf)
    place = int(np.argmin(values))
    gap = np.where(np.isfinite(values), values - values[place], np.inf)
    # Below residuals of 1e-9 all is rounding.
    nothing = float(problem.objective.losses(np.full(len(problem.observed), 1e-9)).sum())
    agreed = int((gap <= AGREEMENT * values[place] + nothing).sum())
    found = Fit(problem, ends[place], float(values[place]), 0.0, len(ends), agreed, ())
    found = replace(found, gradient=_gradient(problem, found.theta))
    failures = tuple(_failures(found, values))
    if failures and strict:
        raise NotConvergedError("; ".join(failures))
    return replace(found, failures=failures)


def refit(problem: Problem, theta: Floats) -> tuple[Floats, float]:
    """From one start: parameters and their gradient measure (`Fit.gradient`)."""
    found = _descend(problem, theta)
    return found, _gradient(problem, found)


def _refuse_bad(problem: Problem) -> None:
    count, parameters = len(problem.observed), len(problem.model.parameters)
    if len(problem.model) != count:
        raise ValueError(f"model of {len(problem.model)} rows, {count} observations")
    if not np.isfinite(problem.observed).all() or (problem.observed <= 0).any():
        raise UserError("a loss is missing, infinite or not positive; leave that run out")
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
    if found.agreed < min(3, found.started):
        others = ", ".join(f"{value:.9g}" for value in np.sort(values)[:4])
        failures.append(
            f"only {found.agreed} of {found.started} starts ended at objective "
            f"{found.objective:.9g} (the lowest were {others})"
        )
    return failures


def _shown(found: Fit) -> str:
    return ", ".join(f"{name} {value:.5g}" for name, value in found.values.items())


def _axes(jacobian: Floats) -> Floats:
    """Directions (columns) along which a unit step moves the residuals by 1 (root mean square)."""
    size, vectors = np.linalg.eigh(jacobian.T @ jacobian / len(jacobian))
    floor = max(float(size.max()), 1e-300) * 1e-14
    axes: Floats = vectors / np.sqrt(np.maximum(size, floor))
    return axes


def _gradient(problem: Problem, theta: Floats) -> float:
    if isinstance(problem.objective, LeastAbsolute):
        # No gradient where residuals are 0: what a linear programme could still gain instead.
        return _programme(problem, theta, 1.0)[1]
    with np.errstate(all="ignore"):
        residuals, jacobian = problem.residuals(theta)
    if not (np.isfinite(residuals).all() and np.isfinite(jacobian).all()):
        return float("inf")
    if np.abs(residuals).mean() < 1e-10:
        return 0.0
    slopes = problem.objective.slopes(residuals)
    if problem.weights is not None:
        slopes = slopes * problem.weights
    gradient = slopes @ jacobian @ _axes(jacobian)
    return float(np.linalg.norm(gradient) / np.abs(slopes).sum())


def _descend(problem: Problem, theta: Floats) -> Floats:
    objective = problem.objective
    with np.errstate(all="ignore"):
        if isinstance(objective, LeastSquares):
            return _least_squares(problem, theta)
        if isinstance(objective, Huber):
            return _quasi_newton(problem, theta)
        spread = float(np.median(np.abs(problem.residuals(theta)[0])))
        for delta in (spread, 0.1 * spread, 0.01 * spread):
            smooth = replace(problem, objective=Huber(max(delta, 1e-12), objective.on))
            theta = _quasi_newton(smooth, theta)
        return _linear_programmes(problem, theta)


def _least_squares(problem: Problem, theta: Floats) -> Floats:
    root = None if problem.weights is None else np.sqrt(problem.weights)

    def residuals(at: Floats) -> Floats:
        value = problem.residuals(at)[0]
        return value if root is None else value * root

    def jacobian(at: Floats) -> Floats:
        value = problem.residuals(at)[1]
        return value if root is None else value * root[:, None]

    try:
        done = optimize.least_squares(
            residuals,
            theta,
            jacobian,
            method="lm",
            max_nfev=500,
            ftol=1e-15,
            xtol=1e-15,
            gtol=1e-15,
        )
    except ValueError:  # a step into overflow: a start from which there is no way
        return theta
    found: Floats = done.x
    return found


def _quasi_newton(problem: Problem, theta: Floats) -> Floats:
    """L-BFGS in coordinates of equal effect; begun anew where the coordinates have turned."""
    for _ in range(8):
        value, _slope = problem.value_and_gradient(theta)
        if not np.isfinite(value) or value <= 0:
            break
        origin, axes = theta, _axes(problem.residuals(theta)[1])
        typical = float(np.abs(problem.residuals(theta)[0]).mean())
        axes, scale = axes * typical, 1.0 / value

        def scaled(
            z: Floats, origin: Floats = origin, axes: Floats = axes, scale: float = scale
        ) -> tuple[float, Floats]:
            value, gradient = problem.value_and_gradient(origin + axes @ z)
            if not np.isfinite(value):
                return 1e30, np.zeros_like(z)
            return scale * value, scale * (gradient @ axes)

        done = optimize.minimize(
            scaled,
            np.zeros_like(theta),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 400, "maxcor": 20, "ftol": 1e-15, "gtol": 1e-9},
        )
        theta = origin + axes @ done.x
        if _gradient(problem, theta) < 0.1 * GRADIENT_TOLERANCE:
            break
    return theta


def _linear_programmes(problem: Problem, theta: Floats) -> Floats:
    """Least absolute residuals by linear programmes within a trust region."""
    radius, value = 4.0, problem.value(theta)
    for _ in range(60):
        step, gain = _programme(problem, theta, radius)
        if gain < 1e-12 or radius < 1e-9:
            break
        there = problem.value(theta + step)
        if np.isfinite(there) and there < value:
            if value - there > 0.75 * gain * value:
                radius *= 2.0
            theta, value = theta + step, there
        else:
            radius *= 0.25
    return theta


def _programme(problem: Problem, theta: Floats, radius: float) -> tuple[Floats, float]:
    """The step of at most `radius` mean residuals that a linear model likes best, and by which
    share of the objective it would fall: 0 certifies an optimum."""
    residuals, jacobian = problem.residuals(theta)
    typical = float(np.abs(residuals).mean())
    if typical < 1e-10:
        return np.zeros_like(theta), 0.0
    axes = _axes(jacobian) * typical
    moved = jacobian @ axes
    count, parameters = moved.shape
    weights = np.ones(count) if problem.weights is None else problem.weights
    identity = np.eye(count)
    done = optimize.linprog(
        np.concatenate([np.zeros(parameters), weights]),
        A_ub=np.block([[moved, -identity], [-moved, -identity]]),
        b_ub=np.concatenate([-residuals, residuals]),
        bounds=[(-radius, radius)] * parameters + [(0, None)] * count,
        method="highs",
    )
    if done.x is None:
        return np.zeros_like(theta), float("inf")
    value = float((weights * np.abs(residuals)).sum())
    return axes @ done.x[:parameters], max(0.0, (value - float(done.fun or 0.0)) / value)
