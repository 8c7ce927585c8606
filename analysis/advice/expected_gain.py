"""The gain to expect where the law of superposition, or a run nearby, says something about it, with
an interval that grows with the distance from the runs that were measured."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tst_study.analysis.checks import Floats
from tst_study.analysis.fits.law.held_out import copied, observed_gains
from tst_study.analysis.fits.law.superposition_law import DATA_EXPONENT, Law, published_law
from tst_study.analysis.fits.solver.uncertainty import linearised
from tst_study.analysis.statistics import critical_t

SLIGHT = 0.05
"""Distance beyond the fitted sizes or lengths, in e-folds, up to which a run counts as inside."""
SPLITS = 2
"""Number of sizes, and likewise of lengths, that were left out in turn to measure the law's error
per e-fold. This is also the number of degrees of freedom of that error."""


@dataclass(frozen=True)
class Gain:
    """A gain over the baseline at equal FLOPs, in nats per token, with the ends of its 95%
    interval. All three numbers are None if nothing can be said."""

    nats: float | None
    low: float | None
    high: float | None
    source: str
    """The origin of the number, or the reason why there is none."""

    def less(self, few: float, many: float) -> "Gain":
        """Return the gain after a loss of `few` to `many` nats: the middle and the high end lose
        the few, the low end the many."""
        if self.nats is None or self.low is None or self.high is None:
            return self
        return Gain(self.nats - few, self.low - max(few, many), self.high - few, self.source)


def own_gain(row: Mapping[str, Any]) -> Gain:
    """Return the mean gain of an arm of our campaigns, from a row of the evidence, with the 95%
    t-interval of its paired differences."""
    half = critical_t(row["seeds"] - 1) * row["deviation"] / math.sqrt(row["seeds"])
    source = f"our {row['source']}, {row['seeds']} seeds, this arm alone"
    return Gain(row["gain"], row["gain"] - half, row["gain"] + half, source)


def beyond(law: Law, params: float, tokens: float) -> dict[str, float]:
    """Return the distance beyond the sizes (`params`) and lengths (`tokens`) that a law was fitted
    to, in e-folds: positive above them, negative below, 0 inside."""
    folds = {}
    for name, value in (("params", params), ("tokens", tokens)):
        low, high = law.rows[name].min(), law.rows[name].max()
        folds[name] = float(np.log(value / np.clip(value, low, high)))
    return folds


def pair_deviation(law: Law) -> float:
    """Return the standard deviation of the difference of two runs, nats per token, by the scatter
    of the fitted runs about the law."""
    return math.sqrt(2 * (law.noise.shared**2 + law.noise.own**2))


@functools.cache
def _known() -> tuple[pd.DataFrame, pd.Series]:
    rows = published_law().rows
    return rows[rows["bag_size"] > 1], observed_gains(rows)


def nearest_gain(rows: pd.DataFrame, *, scaled: bool = False) -> Floats:
    """Return, for rows (`settings`) of one size and length, the gains of the nearest published
    runs of Tables 4–7. `scaled`: multiplied by (D'/D)^−`DATA_EXPONENT`, where D' is the length of
    the rows and D that of these runs: the simplest prediction, which needs no law."""
    known, gains = _known()
    uniform = rows.assign(weighting="uniform")
    found = copied(known, gains[known.index], uniform, DATA_EXPONENT if scaled else 0.0)
    return found.to_numpy(float)


def expected(
    law: Law, rows: pd.DataFrame, near: Floats, error: Mapping[str, float]
) -> tuple[Floats, Floats, Floats]:
    """Return gains, and the ends of their 95% intervals, nats per token, shapes (n,), for rows
    (`settings`) that are all of one size and length. `near`: the gains of the nearest fitted runs.

    The interval is for what one pair of runs would show. It adds three errors in quadrature: the
    error of the law's parameters, the scatter of two runs about the law, and the error of
    extrapolation. The last is the distance beyond the law's sizes (`params`) and lengths (`tokens`)
    times `error`, the law's relative error for each e-fold, which was measured on sizes and lengths
    that were left out of the fit.

    Runs shorter than all fitted ones are promised no more than the nearest of these gained. The
    published gains grow as runs get shorter; our own, and some of others, shrink. So the interval
    reaches from the nearest gain, decreased by the power of the length by which the law would
    increase it, up to the value of the law.
    """
    gains, first = law.of_rows(rows), rows.iloc[0]
    far = beyond(law, float(first["params"]), float(first["tokens"]))
    is_shorter = far["tokens"] < -SLIGHT
    counted = ["params"] if is_shorter else list(far)
    misfit = np.abs(gains) * math.hypot(*(error[name] * far[name] for name in counted))
    own = linearised(law.fit)[1] * pair_deviation(law)
    half: Floats = np.sqrt(law.errors(rows) ** 2 + own**2 + (critical_t(SPLITS) * misfit) ** 2)
    if not is_shorter:
        return gains, gains - half, gains + half
    fallen = near * math.exp(DATA_EXPONENT * far["tokens"])
    low: Floats = np.minimum(np.minimum(near, fallen), gains) - half
    high: Floats = np.maximum(gains, near) + half
    return near, low, high
