"""Scaling laws of the field as models to fit: loss in nats per token, N in parameters, D in tokens.

Chinchilla: Hoffmann et al. 2022 (arXiv 2203.15556). Repetition: Muennighoff et al. 2023 (arXiv
2305.16264).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from analysis.checks import Floats
from analysis.fitting.formula import Columns, Formula


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

    def optimal_params(self, tokens: ArrayLike) -> Floats:
        """Compute-optimal model size for so many tokens (C = 6 N D): αA N^−α = βB D^−β."""
        data = np.asarray(tokens, dtype=float)
        ratio = self.log_A - self.log_B + math.log(self.alpha / self.beta)
        size: Floats = np.exp((ratio + self.beta * np.log(data)) / self.alpha)
        return size


def repetition(
    base: Base, params: ArrayLike, tokens: ArrayLike, unique_tokens: ArrayLike
) -> Formula:
    """Loss with repeated tokens and excess parameters, both worth less and less.

    D' = U_D (1 + R_D* (1 − exp(−R_D / R_D*))) with R_D repetitions of U_D unique tokens; N' alike,
    from U_N, the compute-optimal size for U_D. Parameters log_RD and log_RN (of R_D*, R_N*); the
    base law is given; `tokens` are those seen, repeats counted. (arXiv 2305.16264, section 3 and
    appendix A.)
    """
    size, seen = np.asarray(params, dtype=float), np.asarray(tokens, dtype=float)
    unique: Floats = np.minimum(np.asarray(unique_tokens, dtype=float), seen)
    used: Floats = np.minimum(size, base.optimal_params(unique))

    def loss(p: Mapping[str, Any], c: Columns) -> Any:
        data = c["unique"] * worth(c["repeats"], np.exp(p["log_RD"]))
        return base.loss(c["used"] * worth(c["excess"], np.exp(p["log_RN"])), data)

    columns = {"unique": unique, "repeats": seen / unique - 1.0}
    columns |= {"used": used, "excess": size / used - 1.0}
    return Formula(("log_RD", "log_RN"), loss, columns)


def worth(repeats: Floats, scale: Any) -> Any:
    """1 + R* (1 − exp(−R / R*)): what so many repetitions are worth, over what is repeated."""
    return 1.0 - scale * np.expm1(-repeats / scale)
