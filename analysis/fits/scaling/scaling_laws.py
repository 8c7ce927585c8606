"""Scaling laws of the field as models to fit: loss in nats per token, N in parameters, D in tokens.

Chinchilla: Hoffmann et al. 2022 (arXiv 2203.15556).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from analysis.fits.solver.formula import Columns, Formula


def power_law(size: ArrayLike) -> Formula:
    """E + A x^−α with parameters log_E, log_A, alpha; x > 0, shape (n,)."""
    return Formula(
        ("log_E", "log_A", "alpha"),
        lambda p, c: np.exp(p["log_E"]) + np.exp(p["log_A"] - p["alpha"] * c["x"]),
        {"x": np.log(np.asarray(size, dtype=float))},
        ("log_E", "log_A"),
    )


def chinchilla(params: ArrayLike, tokens: ArrayLike, *, tied: bool = False) -> Formula:
    """E + A N^−α + B D^−β; with `tied`, β = α. Parameters log_E, log_A, log_B, alpha(, beta)."""
    exponents = ("alpha",) if tied else ("alpha", "beta")

    def loss(p: Mapping[str, Any], c: Columns) -> Any:
        of_size = np.exp(p["log_A"] - p["alpha"] * c["size"])
        return np.exp(p["log_E"]) + of_size + np.exp(p["log_B"] - p[exponents[-1]] * c["data"])

    columns = {"size": np.log(np.asarray(params, dtype=float))}
    columns["data"] = np.log(np.asarray(tokens, dtype=float))
    coefficients = ("log_E", "log_A", "log_B")
    return Formula((*coefficients, *exponents), loss, columns, coefficients)


@dataclass(frozen=True)
class Base:
    """A fitted Chinchilla law, to build others on."""

    log_E: float  # noqa: N815
    log_A: float  # noqa: N815
    log_B: float  # noqa: N815
    alpha: float
    beta: float

    @classmethod
    def of(cls, values: Mapping[str, float]) -> Base:
        """From the values of a fit of `chinchilla`, tied or not."""
        beta = values.get("beta", values["alpha"])
        return cls(values["log_E"], values["log_A"], values["log_B"], values["alpha"], beta)

    def loss(self, params: Any, tokens: Any) -> Any:
        """Of numbers or arrays, complex ones too."""
        return (
            math.exp(self.log_E)
            + np.exp(self.log_A - self.alpha * np.log(params))
            + np.exp(self.log_B - self.beta * np.log(tokens))
        )
