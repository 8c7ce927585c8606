"""The worth of repeated text: the law of Muennighoff et al. 2023 (arXiv 2305.16264) at one size.

L = E + B (D'/10⁶)^−β, where D' = U + U R* (1 − exp(−R / R*)) is the number of fresh tokens that a
run of D tokens over U unique ones is worth; R = D/U − 1 counts the repetitions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy import optimize

from tst_study.analysis.checks import Floats
from tst_study.errors import UserError

PUBLISHED = 15.39
"""R* of Muennighoff et al., fitted to models of 7M to 8.7B parameters on C4."""
LEAST_LENGTHS = 4
"""Fewest distinct lengths of fresh text: three determine E, B and β, the fourth tests the fit."""


def worth(tokens: Floats, unique: Floats, constant: float) -> Floats:
    """Return the number of fresh tokens that are worth as much as `tokens` read from `unique` ones.
    `constant` is R*; an infinite one discounts nothing."""
    fresh = np.minimum(unique, tokens)
    repetitions = tokens / fresh - 1
    if np.isinf(constant):
        return np.asarray(tokens, dtype=float)
    equivalent: Floats = fresh * (1 - constant * np.expm1(-repetitions / constant))
    return equivalent


@dataclass(frozen=True)
class Repetition:
    """The law fitted to baselines of one size."""

    floor: float
    """E, nats per token."""
    amplitude: float
    """B, nats per token at a million fresh tokens."""
    exponent: float
    """β."""
    constant: float
    """R*, a number of repetitions, from the runs that repeat their text."""
    errors: dict[str, float]
    """Root mean square errors on the runs that repeat their text, nats per token: with the fitted
    R* (`fitted`), with the published one (`published`), and without a discount (`null`)."""

    def loss(self, tokens: Floats, unique: Floats, constant: float) -> Floats:
        """Return the loss of runs for an R*, nats per token."""
        data = worth(tokens, unique, constant)
        loss: Floats = self.floor + self.amplitude * (data / 1e6) ** -self.exponent
        return loss


def fit_repetition(runs: pd.DataFrame) -> Repetition:
    """Fit E, B and β to the runs whose text is fresh, then R* to those that repeat it.

    Columns: tokens, unique (both in tokens) and loss (nats), a row for each run. Raises `UserError`
    where there are too few lengths of fresh text, or no repeated one.
    """
    tokens, unique, losses = (runs[name].to_numpy(float) for name in ("tokens", "unique", "loss"))
    repeats = tokens > unique
    lengths = len(np.unique(tokens[~repeats]))
    if lengths < LEAST_LENGTHS or not repeats.any():
        raise UserError(
            f"{lengths} lengths of fresh text and {int(repeats.sum())} runs with repeated text: "
            f"the fit needs at least {LEAST_LENGTHS} and 1"
        )

    def residuals(theta: Floats) -> Floats:
        values: Floats = theta[0] + theta[1] * (tokens / 1e6) ** -theta[2] - losses
        return values[~repeats]

    lowest = float(losses.min())
    bounds = ([0.0, 0.0, 0.0], [lowest, np.inf, 3.0])
    fresh = optimize.least_squares(residuals, (0.8 * lowest, 1.0, 0.3), bounds=bounds)
    floor, amplitude, exponent = map(float, fresh.x)
    law = Repetition(floor, amplitude, exponent, np.inf, {})

    def error(constant: float) -> float:
        gaps = law.loss(tokens[repeats], unique[repeats], constant) - losses[repeats]
        return float(np.sqrt((gaps**2).mean()))

    # R* from 0.02 to about 1,100 repetitions, searched by its logarithm.
    minimum = optimize.minimize_scalar(lambda x: error(np.exp(x)), bounds=(-4, 7), method="bounded")
    constant = float(np.exp(minimum.x))
    errors = {"fitted": error(constant), "published": error(PUBLISHED), "null": error(np.inf)}
    return replace(law, constant=constant, errors=errors)
