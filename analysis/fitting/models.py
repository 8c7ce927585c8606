"""What is fitted: a loss as a function of parameters, bound to the rows it is to explain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize

from analysis.checks import Floats


class Model(Protocol):
    """A positive loss (nats per token) for n rows and p parameters."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the p parameters, in order."""

    def __len__(self) -> int:
        """n."""

    def log_loss(self, theta: Floats) -> tuple[Floats, Floats]:
        """log of the loss, shape (n,), and its derivative, shape (n, p)."""

    def rows(self, chosen: NDArray[np.intp] | NDArray[np.bool_]) -> Model:
        """The same model bound to some of the rows."""

    def improved(self, theta: Floats, observed: Floats) -> Floats:
        """A start from which the solver has less to do; `theta` itself where none is known."""


class LogSumExp:
    """Loss = Σ_k exp(Z_k · θ): sums of power laws, as every scaling law of the field is one.

    The Chinchilla law, E + A N^−α + B D^−β, has θ = (log E, log A, log B, α, β) and the terms
    (1, 0, 0, 0, 0), (0, 1, 0, −log N, 0) and (0, 0, 1, 0, −log D). Tied exponents share a column.
    log of the sum is computed without overflow; its gradient is the softmax-weighted mean of Z.
    """

    def __init__(self, parameters: Sequence[str], terms: Sequence[Mapping[str, ArrayLike]]) -> None:
        """`terms`: for every summand, what each parameter is multiplied with (a number, or one
        per row); parameters that are not named are multiplied with 0."""
        self.parameters = tuple(parameters)
        given = [np.asarray(value, dtype=float) for term in terms for value in term.values()]
        count = max(value.size for value in given)
        self.design: Floats = np.zeros((len(terms), count, len(self.parameters)))
        """Z, shape (K, n, p)."""
        for place, term in enumerate(terms):
            for name, value in term.items():
                self.design[place, :, self.parameters.index(name)] = value

    def __len__(self) -> int:
        return int(self.design.shape[1])

    def log_loss(self, theta: Floats) -> tuple[Floats, Floats]:
        logs = self.design @ theta
        largest = logs.max(axis=0)
        parts = np.exp(logs - largest)
        total = parts.sum(axis=0)
        parts /= total
        return largest + np.log(total), np.einsum("kn,knp->np", parts, self.design)

    def rows(self, chosen: NDArray[np.intp] | NDArray[np.bool_]) -> LogSumExp:
        other = object.__new__(LogSumExp)
        other.parameters = self.parameters
        other.design = self.design[:, chosen]
        return other

    def improved(self, theta: Floats, observed: Floats) -> Floats:
        """The separable part solved: for the exponents of `theta`, the coefficients of all terms
        that have one (a parameter that is multiplied with 1 there and with 0 elsewhere) by
        non-negative least squares on the loss."""
        own = self._coefficients()
        if own is None:
            return theta
        without = theta.copy()
        without[own] = 0.0
        columns = np.exp(np.clip(self.design @ without, -700, 700)).T
        scale = columns.max(axis=0)
        weights, _ = optimize.nnls(columns / scale, observed)
        improved = theta.copy()
        # A term that vanishes keeps a millionth of the loss, or nothing would bring it back.
        floor = 1e-6 * float(observed.mean())
        improved[own] = np.log(np.maximum(weights, floor) / scale)
        return improved

    def _coefficients(self) -> list[int] | None:
        found = []
        for place in range(len(self.design)):
            for column in range(len(self.parameters)):
                others = np.delete(self.design[:, :, column], place, axis=0)
                if (self.design[place, :, column] == 1).all() and not others.any():
                    found.append(column)
                    break
            else:
                return None
        return found


class Fixed:
    """A model with some parameters held at given values."""

    def __init__(self, model: Model, held: Mapping[str, float]) -> None:
        unknown = sorted(set(held) - set(model.parameters))
        if unknown:
            raise ValueError(f"no parameter {unknown[0]!r}; there are {model.parameters}")
        self.model, self.held = model, dict(held)
        self.parameters = tuple(name for name in model.parameters if name not in held)
        self._free = np.array([model.parameters.index(name) for name in self.parameters])
        self._template: Floats = np.array([held.get(name, 0.0) for name in model.parameters])

    def __len__(self) -> int:
        return len(self.model)

    def whole(self, theta: Floats) -> Floats:
        """All parameters, the held ones among them."""
        full = self._template.copy()
        full[self._free] = theta
        return full

    def log_loss(self, theta: Floats) -> tuple[Floats, Floats]:
        value, jacobian = self.model.log_loss(self.whole(theta))
        return value, jacobian[:, self._free]

    def rows(self, chosen: NDArray[np.intp] | NDArray[np.bool_]) -> Fixed:
        return Fixed(self.model.rows(chosen), self.held)

    def improved(self, theta: Floats, observed: Floats) -> Floats:
        improved: Floats = self.model.improved(self.whole(theta), observed)[self._free]
        return improved
