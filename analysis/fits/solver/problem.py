"""What a fit solves: a law, the losses it is to explain, and what is minimised."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import special

from analysis.checks import Floats
from analysis.fits.solver.formula import Formula, derivative

Scale = Literal["log", "loss"]


@dataclass(frozen=True)
class Huber:
    """Sum of Huber losses: r²/2 up to `delta`, delta (|r| − delta/2) beyond (Hoffmann et al.).

    A delta below all residuals makes it least absolute deviations, times delta.
    """

    delta: float = 1e-3
    on: Scale = "log"

    def whitened(self, values: Floats) -> Floats:
        return values

    def of_rows(self, chosen: NDArray[Any]) -> Huber:
        return self


@dataclass(frozen=True)
class LeastSquares:
    """Sum of r²/2; with `groups`, generalised: rows of one group share an error.

    The errors of rows i, j have covariance ratio · [same group] + [i = j], up to a factor. What
    neighbouring cells share (runs that forked from one trunk) then counts once, not once a cell.
    """

    on: Scale = "log"
    groups: tuple[int, ...] | None = None
    """Group of each row."""
    ratio: float = 0.0
    """Variance of the shared error over that of a row's own."""
    delta = np.inf

    def whitened(self, values: Floats) -> Floats:
        """Values (n,) or (n, p) times the inverse square root of the covariance."""
        if self.groups is None or self.ratio == 0.0:
            return values
        groups = np.asarray(self.groups)
        sizes = np.bincount(groups).astype(float)
        flat = values if values.ndim == 2 else values[:, None]
        means = np.stack([np.bincount(groups, column) / sizes for column in flat.T], axis=1)
        shrink = 1.0 - 1.0 / np.sqrt(1.0 + sizes * self.ratio)
        out: Floats = flat - (shrink[:, None] * means)[groups]
        return out.reshape(values.shape)

    def of_rows(self, chosen: NDArray[Any]) -> LeastSquares:
        if self.groups is None:
            return self
        kept = np.asarray(self.groups)[chosen]
        codes = np.unique(kept, return_inverse=True)[1]
        return replace(self, groups=tuple(map(int, codes)))


Objective: TypeAlias = Huber | LeastSquares


@dataclass(frozen=True)
class Problem:
    """A law, the losses it is to explain (nats per token, shape (n,)) and what to minimise."""

    model: Formula
    observed: Floats
    objective: Objective
    models: NDArray[np.intp] | None = None
    """Which training each row is of, as whole numbers; None: every row is one of its own."""

    def residuals(self, theta: Floats) -> Floats:
        """Predicted minus observed (log L or L), shape (n,); whitened where rows share errors."""
        with np.errstate(all="ignore"):
            seen = self._scaled(theta) - self._scale(self.observed)
        return self.objective.whitened(seen)

    def jacobian(self, theta: Floats) -> Floats:
        """Derivative of the residuals, shape (n, p)."""
        with np.errstate(all="ignore"):
            return self.objective.whitened(derivative(self._scaled, theta))

    def value(self, theta: Floats) -> float:
        """The objective: a sum over rows, not a mean."""
        return float(special.huber(self.objective.delta, self.residuals(theta)).sum())

    def slopes(self, residuals: Floats) -> Floats:
        """Derivative of each row's part of the objective by its residual."""
        return np.clip(residuals, -self.objective.delta, self.objective.delta)

    def rows(self, chosen: NDArray[np.intp] | NDArray[np.bool_]) -> Problem:
        models = None if self.models is None else self.models[chosen]
        objective = self.objective.of_rows(chosen)
        return Problem(self.model.rows(chosen), self.observed[chosen], objective, models)

    def _scale(self, losses: NDArray[Any]) -> NDArray[Any]:
        return np.log(losses) if self.objective.on == "log" else losses

    def _scaled(self, theta: NDArray[Any]) -> NDArray[Any]:
        return self._scale(self.model.loss(theta))
