"""What is minimised: residuals of log L or of L under one of three losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from analysis.checks import Floats

Scale = Literal["log", "loss"]


@dataclass(frozen=True)
class Huber:
    """Sum of Huber losses: r²/2 up to `delta`, delta (|r| − delta/2) beyond (Hoffmann et al.)."""

    delta: float = 1e-3
    on: Scale = "log"

    def losses(self, residuals: Floats) -> Floats:
        size = np.abs(residuals)
        return np.where(size <= self.delta, 0.5 * size**2, self.delta * (size - 0.5 * self.delta))

    def slopes(self, residuals: Floats) -> Floats:
        return np.clip(residuals, -self.delta, self.delta)


@dataclass(frozen=True)
class LeastAbsolute:
    """Sum of |r|: the limit of a small Huber `delta`, robust and without a scale to choose."""

    on: Scale = "log"

    def losses(self, residuals: Floats) -> Floats:
        return np.abs(residuals)

    def slopes(self, residuals: Floats) -> Floats:
        return np.sign(residuals)


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

    def losses(self, residuals: Floats) -> Floats:
        return 0.5 * residuals**2

    def slopes(self, residuals: Floats) -> Floats:
        return residuals

    def whitened(self, values: Floats) -> Floats:
        """Values (n,) or (n, p) times the inverse square root of the covariance."""
        if self.groups is None or self.ratio == 0.0:
            return values
        groups = np.asarray(self.groups)
        sizes = np.bincount(groups).astype(float)
        flat = values if values.ndim == 2 else values[:, None]
        means = np.stack(
            [np.bincount(groups, flat[:, column]) / sizes for column in range(flat.shape[1])],
            axis=1,
        )
        shrink = 1.0 - 1.0 / np.sqrt(1.0 + sizes * self.ratio)
        out: Floats = flat - (shrink[:, None] * means)[groups]
        return out.reshape(values.shape)

    def of_rows(self, chosen: NDArray[np.intp] | NDArray[np.bool_]) -> LeastSquares:
        if self.groups is None:
            return self
        kept = np.asarray(self.groups)[chosen]
        codes = np.unique(kept, return_inverse=True)[1]
        return LeastSquares(self.on, tuple(map(int, codes)), self.ratio)


Objective: TypeAlias = Huber | LeastAbsolute | LeastSquares
