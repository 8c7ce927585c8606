"""How much repeated text is worth: the law of Muennighoff et al. 2023 (arXiv 2305.16264) at one
model size. `tst-study advise` uses the published constants; the study's figure of loss against
unique text (`paper_figures/study/data_constrained.py`) fits the constants to runs.

    L = E + B (D'/10⁶)^−β        D' = U + U R* (1 − exp(−R / R*))

A run that reads D tokens from a text of U tokens repeats the text R = D/U − 1 times, and is worth a
run over D' fresh tokens. R* is the constant that says how fast repetitions lose their worth.
"""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import scipy

from tst_study.analysis.checks import Floats
from tst_study.analysis.statistics import rmse
from tst_study.errors import UserError

PUBLISHED = 15.39
"""R* as Muennighoff et al. fitted it, to models of 7M to 8.7B parameters on C4."""
LEAST_LENGTHS = 4
"""Fewest distinct lengths of runs on fresh text: three determine E, B and β, a fourth tests the
fit."""


def worth(tokens: Floats, unique: Floats, constant: float) -> Floats:
    """Return the number of fresh tokens that are worth as much as `tokens` tokens read from a text
    of `unique` tokens. `constant` is R*; if it is infinite, repetitions are worth as much as fresh
    text."""
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
    R* (`fitted`), with the published R* (`published`), and with an infinite R* (`null`)."""

    def loss(self, tokens: Floats, unique: Floats, constant: float) -> Floats:
        """Return the loss, in nats per token, of runs that read `tokens` tokens from a text of
        `unique` tokens, if R* is `constant`."""
        data = worth(tokens, unique, constant)
        loss: Floats = self.floor + self.amplitude * (data / 1e6) ** -self.exponent
        return loss


def fit_repetition(runs: pd.DataFrame) -> Repetition:
    """Fit E, B and β to the runs on fresh text, then R* to the runs that repeat their text.

    runs: a row for each run, with the columns tokens (that it read), unique (tokens of its text)
    and loss (nats per token). Raises `UserError` for fewer than `LEAST_LENGTHS` lengths of runs on
    fresh text, and if no run repeats its text.
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
    fresh = scipy.optimize.least_squares(residuals, (0.8 * lowest, 1.0, 0.3), bounds=bounds)
    floor, amplitude, exponent = map(float, fresh.x)
    law = Repetition(floor, amplitude, exponent, np.inf, {})

    def error(constant: float) -> float:
        return rmse(law.loss(tokens[repeats], unique[repeats], constant) - losses[repeats])

    # The search is over the log of R*, from 0.02 to about 1,100 repetitions.
    minimum = scipy.optimize.minimize_scalar(
        lambda x: error(np.exp(x)), bounds=(-4, 7), method="bounded"
    )
    constant = float(np.exp(minimum.x))
    errors = {"fitted": error(constant), "published": error(PUBLISHED), "null": error(np.inf)}
    return replace(law, constant=constant, errors=errors)
