"""What a fit solves: a law as a formula, the losses it is to explain, and what is minimised.

Derivatives are taken by the complex step (Squire & Trapp 1998, SIAM Review 40): exact to rounding,
for every formula in operations that numpy has for complex numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from tst_study.analysis.checks import Floats

Columns = Mapping[str, NDArray[Any]]
LossFormula = Callable[[Mapping[str, Any], Columns], Any]
"""Parameters by name and columns of shape (n,) to losses; analytic in the parameters."""
SlopesFormula = Callable[[Mapping[str, Any], Columns], Mapping[str, Any]]
_STEP = 1e-30


def derivative(of: Callable[[NDArray[Any]], NDArray[Any]], theta: Floats) -> Floats:
    """Differentiate a function from parameters, shape (…, p), to values, shape (…, n), by the
    complex step; shape (…, n, p)."""
    if not theta.shape[-1]:
        return np.zeros((*of(theta).shape, 0))
    moved = theta[..., None, :] + 1j * _STEP * np.eye(theta.shape[-1])
    slopes: Floats = np.swapaxes(of(moved).imag, -1, -2) / _STEP
    return slopes


class Formula:
    """Loss = level of the row + formula(parameters, columns), nats per token.

    `linear`: parameters that the loss is linear in when all others are held, or, named `log_…`, the
    logs of such parameters, which must be positive. A start is solved for these, so that its own
    values of them do not matter. `levels`: by name, the rows that have it, shape (n,), as ones
    among zeros; each is a linear parameter of the model, before those of the formula. `slopes`: the
    formula's derivative by each parameter, by name, where it is worth writing down: the complex
    step takes ten times as long.
    """

    def __init__(
        self,
        parameters: tuple[str, ...],
        formula: LossFormula,
        columns: Columns,
        linear: tuple[str, ...] = (),
        levels: Mapping[str, Floats] | None = None,
        slopes: SlopesFormula | None = None,
    ) -> None:
        self.levels, self.slopes = levels or {}, slopes
        self.parameters = (*self.levels, *parameters)
        self.formula, self.linear = formula, linear
        self.columns = {name: np.asarray(values) for name, values in columns.items()}
        self._design = np.array([*self.levels.values()]).reshape(len(self.levels), len(self))

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def loss(self, theta: NDArray[Any]) -> NDArray[Any]:
        """Nats per token, shape (…, n), of parameters of shape (…, p)."""
        own = len(self.levels)
        with np.errstate(all="ignore"):
            formula = self.formula(self._named(theta), self.columns)
            loss: NDArray[Any] = theta[..., :own] @ self._design + formula
        return loss

    def derivative(self, theta: Floats) -> Floats:
        """Derivative of the loss, shape (…, n, p)."""
        if self.slopes is None or self.levels:
            return derivative(self.loss, theta)
        found = self.slopes(self._named(theta), self.columns)
        shape = (*theta.shape[:-1], len(self))
        each = [np.broadcast_to(found[name], shape) for name in self._free]
        return np.stack(each, axis=-1)

    def _named(self, theta: NDArray[Any]) -> dict[str, NDArray[Any]]:
        own = len(self.levels)
        return {name: theta[..., own + i, None] for i, name in enumerate(self._free)}

    def rows(self, chosen: NDArray[np.intp] | NDArray[np.bool_]) -> Formula:
        """The same law of some of the rows."""
        columns = {name: values[chosen] for name, values in self.columns.items()}
        levels = {name: values[chosen] for name, values in self.levels.items()}
        return Formula(self._free, self.formula, columns, self.linear, levels, self.slopes)

    def held(self, values: Mapping[str, float]) -> Formula:
        """The law with some parameters of its formula held at given values."""
        unknown = sorted(set(values) - set(self._free))
        if unknown:
            raise ValueError(f"no parameter {unknown[0]!r}; there are {self._free}")
        free, linear = (
            tuple(name for name in names if name not in values)
            for names in (self._free, self.linear)
        )
        formula, slopes = self.formula, self.slopes
        return Formula(
            free,
            lambda p, c: formula({**values, **p}, c),
            self.columns,
            linear,
            self.levels,
            slopes and (lambda p, c: slopes({**values, **p}, c)),
        )

    @property
    def _free(self) -> tuple[str, ...]:
        return self.parameters[len(self.levels) :]

    def improved(self, theta: Floats, observed: Floats) -> Floats:
        """The start with its linear parameters solved for, by least squares on the loss."""
        own = [self.parameters.index(name) for name in (*self.levels, *self.linear)]
        logs = any(name.startswith("log_") for name in self.linear)
        improved = theta.copy()
        improved[own] = 0.0
        loss, slopes = self.loss(improved), self.derivative(improved)[:, own]
        if not (own and np.isfinite(slopes).all() and np.isfinite(loss).all()):
            return theta
        if not logs:
            improved[own] = np.linalg.lstsq(slopes, observed - loss, rcond=None)[0]
            return improved
        scale = slopes.max(axis=0)
        found, _ = optimize.nnls(slopes / scale, observed - (loss - slopes.sum(axis=1)))
        # A term that vanishes keeps a millionth of the loss, or nothing would bring it back.
        improved[own] = np.log(np.maximum(found, 1e-6 * float(observed.mean())) / scale)
        return improved


Scale = Literal["log", "loss"]


HUBER = 1e-3
"""Hoffmann et al.'s delta, on log L."""


@dataclass(frozen=True)
class Problem:
    """A law, the losses it is to explain (nats per token, shape (n,)) and what to minimise: the sum
    of Huber losses, r²/2 up to `delta`, delta (|r| − delta/2) beyond (Hoffmann et al.).

    Without a delta least squares; with one below all residuals least absolute deviations, times
    delta. With `groups`, generalised: rows of one group share an error. The errors of rows i, j
    have covariance ratio · [same group] + [i = j], up to a factor. What neighbouring cells share
    (runs that forked from one shared prefix run) then counts once, not once a cell.
    """

    model: Formula
    observed: Floats
    delta: float = np.inf
    on: Scale = "log"
    models: NDArray[np.intp] | None = None
    """Which training each row is of, as whole numbers; None: every row is one of its own."""
    groups: NDArray[np.intp] | None = None
    """Group of each row, from 0."""
    ratio: float = 0.0
    """Variance of the shared error over that of a row's own."""

    def whitened(self, values: Floats) -> Floats:
        """Values (n,) or (n, p) times the inverse square root of the covariance."""
        if self.groups is None or self.ratio == 0.0:
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
        """Derivative of the residuals, shape (n, p); (…, n, p) where no rows share errors."""
        with np.errstate(all="ignore"):
            slopes = self.model.derivative(theta)
            if self.on == "log":
                slopes = slopes / self.model.loss(theta)[..., None]
            return self.whitened(slopes)

    def value(self, theta: Floats) -> float:
        """The objective: a sum over rows, not a mean."""
        return float(special.huber(self.delta, self.residuals(theta)).sum())

    def slopes(self, residuals: Floats) -> Floats:
        """Derivative of each row's part of the objective by its residual."""
        return np.clip(residuals, -self.delta, self.delta)

    def rows(self, chosen: NDArray[np.intp] | NDArray[np.bool_]) -> Problem:
        """The same of some rows, which share no errors."""
        models = None if self.models is None else self.models[chosen]
        own = self.model.rows(chosen), self.observed[chosen]
        return Problem(*own, self.delta, self.on, models)

    def _scale(self, losses: NDArray[Any]) -> NDArray[Any]:
        return np.log(losses) if self.on == "log" else losses
