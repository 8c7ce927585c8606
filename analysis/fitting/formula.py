"""A model from a formula, differentiated as it is evaluated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.checks import Floats
from analysis.fitting import dual

Columns = Mapping[str, NDArray[Any]]
LossFormula = Callable[[Mapping[str, Any], Columns], Any]
"""Parameters by name and columns of shape (n,) to losses, in operations that `dual` knows."""


class Formula:
    """Loss = level of the row + formula(parameters, columns).

    `linear`: parameters in which the loss is linear when all others are held; a start's own values
    for them do not matter, for they are solved for. `levels`: by name, the rows that have it, shape
    (n,), as ones among zeros; each is a linear parameter of the model, before those of the formula,
    which is not slowed by them.
    """

    def __init__(
        self,
        parameters: tuple[str, ...],
        formula: LossFormula,
        columns: Columns,
        linear: tuple[str, ...] = (),
        levels: Mapping[str, Floats] | None = None,
    ) -> None:
        self.levels = levels or {}
        self.parameters = (*self.levels, *parameters)
        self.formula, self.linear = formula, linear
        self.columns = {name: np.asarray(values) for name, values in columns.items()}
        self._design = np.array([*self.levels.values()]).reshape(len(self.levels), len(self)).T

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def loss(self, theta: Floats) -> tuple[Floats, Floats]:
        """Nats per token, shape (n,), and its derivative, shape (n, p)."""
        own = len(self.levels)
        with np.errstate(all="ignore"):
            rest = self.formula(dual.parameters(self.parameters[own:], theta[own:]), self.columns)
            slope = np.broadcast_to(rest.slope, (len(theta) - own, len(self))).T
            return self._design @ theta[:own] + rest.value, np.hstack([self._design, slope])

    def log_loss(self, theta: Floats) -> tuple[Floats, Floats]:
        with np.errstate(all="ignore"):
            loss, slope = self.loss(theta)
            return np.log(loss), slope / loss[:, None]

    def rows(self, chosen: NDArray[np.intp] | NDArray[np.bool_]) -> Formula:
        columns = {name: values[chosen] for name, values in self.columns.items()}
        levels = {name: values[chosen] for name, values in self.levels.items()}
        own = self.parameters[len(levels) :]
        return Formula(own, self.formula, columns, self.linear, levels)

    def improved(self, theta: Floats, observed: Floats) -> Floats:
        """The start with its linear parameters solved for, by least squares on the loss."""
        own = [self.parameters.index(name) for name in (*self.levels, *self.linear)]
        if not own:
            return theta
        improved = theta.copy()
        improved[own] = 0.0
        loss, slope = self.loss(improved)
        if np.isfinite(slope[:, own]).all() and np.isfinite(loss).all():
            improved[own] = np.linalg.lstsq(slope[:, own], observed - loss, rcond=None)[0]
        return improved
