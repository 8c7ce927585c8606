"""The problem that a fit solves: a law as a formula, the losses to explain, and the objective.

Derivatives are taken by the complex step (Squire & Trapp 1998, SIAM Review 40): exact to rounding,
for every formula that is analytic in its parameters and that numpy can evaluate at complex ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from tst_study.analysis.checks import Floats

Columns = Mapping[str, NDArray[Any]]
LossFormula = Callable[[Mapping[str, Any], Columns], Any]
"""A function from parameters by name and columns of shape (n,) to losses; analytic in the
parameters."""
_STEP = 1e-30


def derivative(of: Callable[[NDArray[Any]], NDArray[Any]], theta: Floats) -> Floats:
    """Return the derivative of a function at theta, shape (p,), by the complex step; shape (n, p).

    The function is called once, with an array of shape (p, p) whose row i has parameter i moved,
    and returns values of shape (p, n).
    """
    moved = theta + 1j * _STEP * np.eye(len(theta))
    slopes: Floats = of(moved).imag.T / _STEP
    return slopes


@dataclass(frozen=True)
class Formula:
    """Loss in nats per token as a formula of named parameters and of columns, one value per run."""

    parameters: tuple[str, ...]
    formula: LossFormula
    columns: Columns
    linear: tuple[str, ...] = ()
    """Parameters in which the loss is linear when all others are held; or, if all are named
    `log_…`, the logs of such parameters, which must be positive. `improved` replaces their values
    in a start by least squares."""

    def loss(self, theta: NDArray[Any]) -> NDArray[Any]:
        """Nats per token, shape (…, n), of parameters of shape (…, p)."""
        named = {name: theta[..., i, None] for i, name in enumerate(self.parameters)}
        with np.errstate(all="ignore"):
            loss: NDArray[Any] = self.formula(named, self.columns)
        return loss

    def held(self, values: Mapping[str, float]) -> Formula:
        """Return the law with some parameters held at given values."""
        free, linear = (
            tuple(name for name in names if name not in values)
            for names in (self.parameters, self.linear)
        )
        formula = self.formula
        return Formula(free, lambda p, c: formula({**values, **p}, c), self.columns, linear)

    def improved(self, theta: Floats, observed: Floats) -> Floats:
        """Return a start with its linear parameters solved for, by least squares on the loss; the
        start itself where there are none, or where losses or derivatives are not finite."""
        own = [self.parameters.index(name) for name in self.linear]
        improved = theta.copy()
        improved[own] = 0.0
        loss, slopes = self.loss(improved), derivative(self.loss, improved)[:, own]
        if not (own and np.isfinite(slopes).all() and np.isfinite(loss).all()):
            return theta
        if not self.linear[0].startswith("log_"):
            improved[own] = np.linalg.lstsq(slopes, observed - loss, rcond=None)[0]
            return improved
        scale = slopes.max(axis=0)
        solved, _ = optimize.nnls(slopes / scale, observed - (loss - slopes.sum(axis=1)))
        # A term that vanishes keeps a millionth of the loss, or nothing would bring it back.
        improved[own] = np.log(np.maximum(solved, 1e-6 * float(observed.mean())) / scale)
        return improved


HUBER = 1e-3
"""Hoffmann et al.'s delta of the Huber loss, on log L."""


@dataclass(frozen=True)
class Problem:
    """A law, the losses that it should explain (nats per token, shape (n,)) and what to minimise:
    the sum of Huber losses, r²/2 up to `delta` and delta (|r| − delta/2) beyond (Hoffmann et al.).

    Without a delta this is least squares; with one below all residuals, least absolute deviations
    times delta. With `groups` it is generalised least squares: rows of one group share an error.
    The errors of rows i, j have covariance ratio · [same group] + [i = j], up to a factor, so that
    an error that rows share, as runs forked from one shared prefix run do, is not counted as if
    each row had its own.
    """

    model: Formula
    observed: Floats
    delta: float = np.inf
    on: Literal["log", "loss"] = "log"
    """Scale of the residuals: log L or L."""
    groups: NDArray[np.intp] | None = None
    """Group of each row, from 0."""
    ratio: float = 0.0
    """Variance of the shared error over that of a row's own."""

    def whitened(self, values: Floats) -> Floats:
        """Multiply values (n,) or (n, p) by the inverse square root of the covariance."""
        if self.groups is None or not self.ratio:
            return values
        sizes = np.bincount(self.groups).astype(float)
        flat = values if values.ndim == 2 else values[:, None]
        means = np.stack([np.bincount(self.groups, column) / sizes for column in flat.T], axis=1)
        shrink = 1.0 - 1.0 / np.sqrt(1.0 + sizes * self.ratio)
        out: Floats = flat - (shrink[:, None] * means)[self.groups]
        return out.reshape(values.shape)

    def residuals(self, theta: Floats) -> Floats:
        """Predicted minus observed (log L or L), shape (n,); whitened where rows share errors."""
        with np.errstate(all="ignore"):
            seen = self._scale(self.model.loss(theta)) - self._scale(self.observed)
        return self.whitened(seen)

    def jacobian(self, theta: Floats) -> Floats:
        """Derivative of the residuals, shape (n, p)."""
        with np.errstate(all="ignore"):
            slopes = derivative(self.model.loss, theta)
            if self.on == "log":
                slopes = slopes / self.model.loss(theta)[:, None]
            return self.whitened(slopes)

    def value(self, theta: Floats) -> float:
        """The objective: a sum over rows, not a mean."""
        return float(special.huber(self.delta, self.residuals(theta)).sum())

    def slopes(self, residuals: Floats) -> Floats:
        """Derivative of each row's part of the objective by its residual."""
        return np.clip(residuals, -self.delta, self.delta)

    def rows(self, chosen: NDArray[np.intp] | NDArray[np.bool_]) -> Problem:
        """Return the problem of some of the rows, without groups: their errors count as
        independent."""
        columns = {name: values[chosen] for name, values in self.model.columns.items()}
        model = replace(self.model, columns=columns)
        return Problem(model, self.observed[chosen], self.delta, self.on)

    def _scale(self, losses: NDArray[Any]) -> NDArray[Any]:
        return np.log(losses) if self.on == "log" else losses
