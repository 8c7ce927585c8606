"""A model from a formula, differentiated as it is evaluated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.fitting import dual
from analysis.fitting.objectives import Floats

Columns = Mapping[str, NDArray[Any]]
LossFormula = Callable[[Mapping[str, Any], Columns], Any]
"""Parameters by name and columns of shape (n,) to losses, in operations that `dual` knows."""


class Formula:
    """Loss = formula(parameters, columns).

    `linear`: parameters in which the loss is linear when all others are held; a start's own values
    for them do not matter, for they are solved for.
    """

    def __init__(
        self,
        parameters: tuple[str, ...],
        formula: LossFormula,
        columns: Columns,
        linear: tuple[str, ...] = (),
    ) -> None:
        self.parameters, self.formula, self.linear = parameters, formula, linear
        self.columns = {name: np.asarray(values) for name, values in columns.items()}

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def loss(self, theta: Floats) -> Floats:
        """Shape (n,), nats per token."""
        with np.errstate(all="ignore"):
            value: Floats = self.formula(
                dict(zip(self.parameters, theta, strict=True)), self.columns
            )
        return value

    def log_loss(self, theta: Floats) -> tuple[Floats, Floats]:
        with np.errstate(all="ignore"):
            loss = self.formula(dual.parameters(self.parameters, theta), self.columns)
            return np.log(loss.value), (loss.slope / loss.value).T

    def rows(self, chosen: NDArray[np.intp] | NDArray[np.bool_]) -> Formula:
        columns = {name: values[chosen] for name, values in self.columns.items()}
        return Formula(self.parameters, self.formula, columns, self.linear)

    def improved(self, theta: Floats, observed: Floats) -> Floats:
        """The start with its linear parameters solved for, by least squares on the loss."""
        own = [self.parameters.index(name) for name in self.linear]
        if not own:
            return theta
        improved = theta.copy()
        improved[own] = 0.0
        with np.errstate(all="ignore"):
            loss = self.formula(dual.parameters(self.parameters, improved), self.columns)
        slopes = np.broadcast_to(loss.slope, (len(theta), len(self)))[own]
        if np.isfinite(slopes).all() and np.isfinite(loss.value).all():
            improved[own] = np.linalg.lstsq(slopes.T, observed - loss.value, rcond=None)[0]
        return improved
