"""From one start to an optimum, in coordinates in which all parameters move the residuals alike."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
from scipy import optimize

from analysis.checks import Floats
from analysis.fitting.objectives import Huber, LeastAbsolute, LeastSquares
from analysis.fitting.problem import Problem

GRADIENT_TOLERANCE = 1e-5


def refit(problem: Problem, theta: Floats) -> tuple[Floats, float]:
    """From one start: parameters and their gradient measure (`Fit.gradient`)."""
    found = descend(problem, theta)
    return found, gradient_measure(problem, found)


def _axes(jacobian: Floats) -> Floats:
    """Directions (columns) along which a unit step moves the residuals by 1 (root mean square)."""
    size, vectors = np.linalg.eigh(jacobian.T @ jacobian / len(jacobian))
    floor = max(float(size.max()), 1e-300) * 1e-14
    axes: Floats = vectors / np.sqrt(np.maximum(size, floor))
    return axes


def gradient_measure(problem: Problem, theta: Floats) -> float:
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


def descend(problem: Problem, theta: Floats) -> Floats:
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

    # The solver asks for residuals and derivative of one point one after the other.
    @functools.lru_cache(maxsize=1)
    def both(at: bytes) -> tuple[Floats, Floats]:
        value, slope = problem.residuals(np.frombuffer(at))
        return (value, slope) if root is None else (value * root, slope * root[:, None])

    def residuals(at: Floats) -> Floats:
        return both(at.tobytes())[0]

    def jacobian(at: Floats) -> Floats:
        return both(at.tobytes())[1]

    try:
        done = optimize.least_squares(
            residuals,
            theta,
            jacobian,
            method="lm",
            max_nfev=200,
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
        if gradient_measure(problem, theta) < 0.1 * GRADIENT_TOLERANCE:
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
