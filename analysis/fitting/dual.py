"""Forward-mode derivatives: numbers that carry their gradient through numpy's arithmetic.

A formula written for arrays (+ − * / **, exp, expm1, log, sqrt) is differentiated as it is
evaluated, by the chain rule, to rounding; there is no derivative by hand to get wrong.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from analysis.checks import Floats


class Dual(NDArrayOperatorsMixin):
    """A value, shape (n,) or (), and its derivatives by p parameters, shape (p, n) or (p, 1)."""

    def __init__(self, value: Any, slope: Floats) -> None:
        self.value, self.slope = value, slope

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Dual:
        if method != "__call__" or options:
            raise TypeError(f"no derivative known of {ufunc.__name__}.{method}")
        values = [part.value if isinstance(part, Dual) else part for part in inputs]
        result = ufunc(*values)
        slope: Any = 0.0
        for place, part in enumerate(inputs):
            if isinstance(part, Dual):
                slope = slope + _partial(ufunc, place, values, result) * part.slope
        return Dual(result, slope)


def _partial(ufunc: np.ufunc, place: int, values: list[Any], result: Any) -> Any:
    """Derivative of `ufunc` by its argument at `place`."""
    first, last = values[0], values[-1]
    rules: dict[str, Any] = {
        "add": lambda: 1.0,
        "subtract": lambda: -1.0 if place else 1.0,
        "multiply": lambda: values[1 - place],
        "divide": lambda: -result / last if place else 1.0 / last,
        "power": lambda: np.log(first) * result if place else last * result / first,
        "negative": lambda: -1.0,
        "exp": lambda: result,
        "expm1": lambda: result + 1.0,
        "log": lambda: 1.0 / first,
        "sqrt": lambda: 0.5 / result,
    }
    if ufunc.__name__ not in rules:
        raise TypeError(f"no derivative known of {ufunc.__name__}")
    return rules[ufunc.__name__]()


def parameters(names: tuple[str, ...], theta: Floats) -> dict[str, Dual]:
    """Parameters by name, each with derivative 1 by itself."""
    unit = np.eye(len(names))
    return {name: Dual(theta[i], unit[i][:, None]) for i, name in enumerate(names)}
