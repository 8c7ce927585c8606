"""The problem that a fit solves: a law as a formula, the losses to explain, and the objective.

Derivatives are taken by the complex step (Squire & Trapp 1998, SIAM Review 40). They are exact up
to rounding for every formula that is analytic in its parameters and that numpy can evaluate at
complex ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy import special

from tst_study.analysis.checks import Floats

Columns = Mapping[str, NDArray[Any]]
"""Columns by name, each of shape (n,) for n runs."""
LossFormula = Callable[[Mapping[str, Any], Columns], Any]
"""A function from parameters by name and columns of shape (n,) to losses. It must be analytic in
the parameters."""
_STEP = 1e-30


def derivative(of: Callable[[NDArray[Any]], NDArray[Any]], theta: Floats) -> Floats:
    """Return the derivative, shape (n, p), of a function that has p parameters and n values. It is
    taken at theta, shape (p,), by the complex step.

    The function is called once, with an array of shape (p, p) in whose row i parameter i is moved,
    and must return values of shape (p, n).
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
    """Parameters in which the loss is linear if all others are held fixed. If they are all named
    `log_…`, they are the logs of such parameters, which must be positive. In a starting point of
    the fit, `improved` replaces their values by those of linear least squares."""

    def loss(self, theta: NDArray[Any]) -> NDArray[Any]:
        """Return the losses in nats per token, shape (…, n), for parameters of shape (…, p)."""
        named = {name: theta[..., i, None] for i, name in enumerate(self.parameters)}
        with np.errstate(all="ignore"):
            loss: NDArray[Any] = self.formula(named, self.columns)
        return loss

    def held(self, values: Mapping[str, float]) -> Formula:
        """Return the formula with some parameters held at given values, as a formula of the
        others."""
        free, linear = (
            tuple(name for name in names if name not in values)
            for names in (self.parameters, self.linear)
        )
        formula = self.formula
        return Formula(free, lambda p, c: formula({**values, **p}, c), self.columns, linear)

    def improved(self, theta: Floats, observed: Floats) -> Floats:
        """Return a starting point of the fit, `theta`, with its linear parameters replaced by the
        solution of least squares on the loss. Return `theta` itself if there are no linear
        parameters, or if losses or derivatives are not finite."""
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
        solved, _ = scipy.optimize.nnls(slopes / scale, observed - (loss - slopes.sum(axis=1)))
        # A term whose coefficient comes out as 0 keeps a millionth of the loss. At a log of minus
        # infinity it could never come back.
        improved[own] = np.log(np.maximum(solved, 1e-6 * float(observed.mean())) / scale)
        return improved


HUBER = 1e-3
"""Delta of the Huber loss on log L, as Hoffmann et al. chose it."""


@dataclass(frozen=True)
class Problem:
    """A law, the losses that it should explain (nats per token, shape (n,)), and what to minimise.

    The objective is the sum of the Huber losses of the residuals r: r²/2 up to `delta`, and delta
    (|r| − delta/2) beyond. With an infinite delta this is least squares; with a delta below all
    residuals it is least absolute deviations, times delta.

    With `groups` it is generalised least squares, in which the rows of a group share an error: the
    covariance of the errors of rows i and j is ratio · [same group] + [i = j], up to a factor. The
    runs that branch off one shared prefix run are such a group. Without groups, the error that they
    share would count as if each run had drawn it anew.
    """

    model: Formula
    observed: Floats
    delta: float = np.inf
    on: Literal["log", "loss"] = "log"
    """Whether residuals are differences of log L or of L."""
    groups: NDArray[np.intp] | None = None
    """Group of each row, numbered from 0, shape (n,)."""
    ratio: float = 0.0
    """Variance of the error that a group shares over the variance of a row's own error."""

    def whitened(self, values: Floats) -> Floats:
        """Multiply values, shape (n,) or (n, p), by the inverse square root of the covariance of
        the errors."""
        if self.groups is None or not self.ratio:
            return values
        sizes = np.bincount(self.groups).astype(float)
        flat = values if values.ndim == 2 else values[:, None]
        means = np.stack([np.bincount(self.groups, column) / sizes for column in flat.T], axis=1)
        shrink = 1.0 - 1.0 / np.sqrt(1.0 + sizes * self.ratio)
        out: Floats = flat - (shrink[:, None] * means)[self.groups]
        return out.reshape(values.shape)

    def residuals(self, theta: Floats) -> Floats:
        """Return predicted minus observed (log L or L), shape (n,), whitened if rows share
        errors."""
        with np.errstate(all="ignore"):
            seen = self._scale(self.model.loss(theta)) - self._scale(self.observed)
        return self.whitened(seen)

    def jacobian(self, theta: Floats) -> Floats:
        """Return the derivative of the residuals by the parameters, shape (n, p)."""
        with np.errstate(all="ignore"):
            slopes = derivative(self.model.loss, theta)
            if self.on == "log":
                slopes = slopes / self.model.loss(theta)[:, None]
            return self.whitened(slopes)

    def value(self, theta: Floats) -> float:
        """Return the objective, which is a sum over rows, not a mean."""
        return float(special.huber(self.delta, self.residuals(theta)).sum())

    def slopes(self, residuals: Floats) -> Floats:
        """Return the derivative of each row's part of the objective by its residual, shape (n,)."""
        return np.clip(residuals, -self.delta, self.delta)

    def rows(self, chosen: NDArray[np.intp] | NDArray[np.bool_]) -> Problem:
        """Return the problem of some of the rows (indices or a mask), without groups: their errors
        count as independent."""
        columns = {name: values[chosen] for name, values in self.model.columns.items()}
        model = replace(self.model, columns=columns)
        return Problem(model, self.observed[chosen], self.delta, self.on)

    def _scale(self, losses: NDArray[Any]) -> NDArray[Any]:
        return np.log(losses) if self.on == "log" else losses
