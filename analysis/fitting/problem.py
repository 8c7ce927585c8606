"""What a fit solves: a model, the losses it is to explain, and what to minimise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.checks import Floats
from analysis.fitting.models import Model
from analysis.fitting.objectives import LeastSquares, Objective


@dataclass(frozen=True)
class Problem:
    """A model, the losses it is to explain (nats per token, shape (n,)) and what to minimise."""

    model: Model
    observed: Floats
    objective: Objective
    weights: Floats | None = None
    """How often a bootstrap drew each row."""
    models: NDArray[np.intp] | None = None
    """Which training each row is of, as whole numbers; None: every row is one of its own."""

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
        models = None if self.models is None else self.models[chosen]
        return Problem(self.model.rows(chosen), self.observed[chosen], objective, weights, models)

    def _weigh(self, values: Floats) -> Floats:
        return values if self.weights is None else values * self.weights
