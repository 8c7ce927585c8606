"""Scaling laws of the field as models to fit: loss in nats per token, N in parameters, D in tokens.

Chinchilla: Hoffmann et al. 2022 (arXiv 2203.15556). Repetition: Muennighoff et al. 2023 (arXiv
2305.16264). Over-training: Gadre et al. 2024 (arXiv 2403.08540).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from analysis.fitting import LogSumExp
from analysis.fitting.objectives import Floats


def power_law(size: ArrayLike) -> LogSumExp:
    """E + A x^−α with parameters log_E, log_A, alpha; x > 0, shape (n,)."""
    logs = np.log(np.asarray(size, dtype=float))
    return LogSumExp(
        ("log_E", "log_A", "alpha"), [{"log_E": np.ones_like(logs)}, {"log_A": 1.0, "alpha": -logs}]
    )


def chinchilla(params: ArrayLike, tokens: ArrayLike, *, tied: bool = False) -> LogSumExp:
    """E + A N^−α + B D^−β; with `tied`, β = α. Parameters log_E, log_A, log_B, alpha(, beta)."""
    size = -np.log(np.asarray(params, dtype=float))
    data = -np.log(np.asarray(tokens, dtype=float))
    exponents = ("alpha",) if tied else ("alpha", "beta")
    return LogSumExp(
        ("log_E", "log_A", "log_B", *exponents),
        [{"log_E": 1.0}, {"log_A": 1.0, "alpha": size}, {"log_B": 1.0, exponents[-1]: data}],
    )


def over_training(params: ArrayLike, tokens_per_parameter: ArrayLike) -> LogSumExp:
    """E + a N^c + b (√6 · M N)^c with M = D / N; parameters log_E, log_a, log_b, c (negative)."""
    size = np.log(np.asarray(params, dtype=float))
    data = size + np.log(np.asarray(tokens_per_parameter, dtype=float)) + 0.5 * math.log(6.0)
    return LogSumExp(
        ("log_E", "log_a", "log_b", "c"),
        [{"log_E": 1.0}, {"log_a": 1.0, "c": size}, {"log_b": 1.0, "c": data}],
    )


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

    def loss(self, params: ArrayLike, tokens: ArrayLike) -> Floats:
        size, data = np.asarray(params, dtype=float), np.asarray(tokens, dtype=float)
        value: Floats = (
            math.exp(self.log_E)
            + np.exp(self.log_A - self.alpha * np.log(size))
            + np.exp(self.log_B - self.beta * np.log(data))
        )
        return value

    def optimal_params(self, tokens: ArrayLike) -> Floats:
        """Compute-optimal model size for so many tokens (C = 6 N D): αA N^−α = βB D^−β."""
        data = np.asarray(tokens, dtype=float)
        ratio = self.log_A - self.log_B + math.log(self.alpha / self.beta)
        size: Floats = np.exp((ratio + self.beta * np.log(data)) / self.alpha)
        return size


class Repetition:
    """Loss with repeated tokens and excess parameters, both worth less and less.

    D' = U_D (1 + R_D* (1 − exp(−R_D / R_D*))) with R_D repetitions of U_D unique tokens; N' alike,
    from U_N, the compute-optimal size for U_D. Parameters log_RD and log_RN (of R_D*, R_N*); the
    base law is given. (arXiv 2305.16264, section 3 and appendix A.)
    """

    parameters = ("log_RD", "log_RN")

    def __init__(
        self, base: Base, params: ArrayLike, tokens: ArrayLike, unique_tokens: ArrayLike
    ) -> None:
        """Shapes (n,); `tokens` are those seen, repeats counted."""
        self.base = base
        size, seen = np.asarray(params, dtype=float), np.asarray(tokens, dtype=float)
        self.unique: Floats = np.minimum(np.asarray(unique_tokens, dtype=float), seen)
        self.repetitions: Floats = seen / self.unique - 1.0
        self.used: Floats = np.minimum(size, base.optimal_params(self.unique))
        self.excess: Floats = size / self.used - 1.0

    def __len__(self) -> int:
        return len(self.unique)

    def log_loss(self, theta: Floats) -> tuple[Floats, Floats]:
        data, data_slope = _worth(self.repetitions, float(theta[0]))
        size, size_slope = _worth(self.excess, float(theta[1]))
        from_size = np.exp(self.base.log_A - self.base.alpha * np.log(self.used * size))
        from_data = np.exp(self.base.log_B - self.base.beta * np.log(self.unique * data))
        loss = math.exp(self.base.log_E) + from_size + from_data
        slopes = np.stack(
            [
                -self.base.beta * from_data * data_slope / data,
                -self.base.alpha * from_size * size_slope / size,
            ],
            axis=1,
        )
        return np.log(loss), slopes / loss[:, None]

    def rows(self, chosen: NDArray[np.intp] | NDArray[np.bool_]) -> Repetition:
        other = object.__new__(Repetition)
        other.base = self.base
        for name in ("unique", "repetitions", "used", "excess"):
            setattr(other, name, getattr(self, name)[chosen])
        return other

    def improved(self, theta: Floats, observed: Floats) -> Floats:
        return theta


def _worth(repetitions: Floats, log_scale: float) -> tuple[Floats, Floats]:
    """1 + R* (1 − exp(−R / R*)), and its derivative by log R*."""
    # Beyond e^±30 the law has reached its limit, and the optimiser may try anything.
    scale = math.exp(min(max(log_scale, -30.0), 30.0))
    decay = np.exp(-repetitions / scale)
    gained = -scale * np.expm1(-repetitions / scale)
    return 1.0 + gained, gained - repetitions * decay
