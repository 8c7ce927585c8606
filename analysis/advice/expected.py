"""Gains that the law expects, with an interval that grows with the distance from its runs."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from tst_study.analysis.checks import Floats
from tst_study.analysis.fits.law.superposition_law import Law
from tst_study.analysis.fits.solver.shared_errors import Spread
from tst_study.analysis.statistics import critical_t

ALWAYS = (6, 0.3)
"""The null for the choice of s and r: the paper's own setting at 270M, 600M and 3B."""
SPLITS = 2
"""Left-out sizes, and left-out lengths, that the error per e-fold is known from."""


def beyond(law: Law, params: float, tokens: float) -> dict[str, float]:
    """Distance beyond the fitted sizes and lengths in e-folds, above (positive) or below; 0 inside
    them."""
    found = {}
    for name, value in (("params", params), ("tokens", tokens)):
        low, high = law.rows[name].min(), law.rows[name].max()
        found[name] = float(np.log(value / np.clip(value, low, high)))
    return found


def pair_deviation(law: Law) -> float:
    """Standard deviation of the difference of two runs, nats, by their scatter about the law."""
    return math.sqrt(2 * (law.noise.shared**2 + law.noise.own**2))


def expected(law: Law, rows: pd.DataFrame, error: Mapping[str, float]) -> tuple[Floats, Floats]:
    """Gains of rows (`settings`) and half of their 95% intervals, nats.

    The interval is for what one pair of runs would show. It adds three variances: that of the law's
    parameters, that of two runs about the law, and the law's relative `error` for each e-fold
    beyond its sizes (`params`) and lengths (`tokens`), as it was where these were left out.
    """
    gains = law.of_rows(rows)
    first = rows.iloc[0]
    far = beyond(law, float(first["params"]), float(first["tokens"]))
    misfit = gains * np.sqrt(sum((error[name] * far[name]) ** 2 for name in far))
    own = critical_t(Spread.of(law.fit).freedom) * pair_deviation(law)
    half: Floats = np.sqrt(law.errors(rows) ** 2 + own**2 + (critical_t(SPLITS) * misfit) ** 2)
    return gains, half
