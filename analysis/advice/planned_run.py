"""A planned run: what is known near it, which setting of superposition to advise, and the gain to
expect, with an interval that grows with the distance from the runs that the law was fitted to."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from tst_study.analysis import published
from tst_study.analysis.checks import Floats
from tst_study.analysis.fits.law.held_out import observed_gains
from tst_study.analysis.fits.law.law_answer import published_beside_law, recommend
from tst_study.analysis.fits.law.rows import TOKENS_PER_STEP, settings
from tst_study.analysis.fits.law.superposition_law import Law, published_law
from tst_study.analysis.fits.solver.uncertainty import Spread
from tst_study.analysis.statistics import critical_t
from tst_study.analysis.tables.columns import rows_of
from tst_study.cost.compute import count_parameters
from tst_study.text import big

NEAR = math.log(1.25)
"""Distance in log size and in log length within which a run counts as measured."""
FAR = math.log(10.0)
"""Distance beyond the published sizes or lengths from which the law is not asked."""
MUCH = math.log(4.0)
"""Distance beyond the fitted sizes or lengths from which a verdict is no more than "perhaps"."""
ALWAYS = (6, 0.3)
"""The null for the choice of (s, r): the paper's own setting at 270M, 600M and 3B."""
MIXTURE = (16, 0.25)
"""The one setting that was published for a mixture of experts."""
PLAIN, OUTPUT_ONLY = "s = 4, r = 0.25", "s = 4, r = 0.25, output only"
POWER_LAW = "s = 4, r = 0.25, power-law weights"
BETTER_BATCH = "twice the batch, √2 times the rate"
OWN_CORPUS = "books-bpe1024"
SPLITS = 2
"""Sizes, and lengths, that were left out in turn to learn the law's error per e-fold."""


@dataclass(frozen=True)
class Choice:
    """A setting of superposition."""

    bag_size: int
    step_ratio: float
    output_only: bool = False

    def __str__(self) -> str:
        only = ", output only" * self.output_only
        return f"s = {self.bag_size}, r = {self.step_ratio:g}{only}"

    @property
    def text(self) -> float:
        """Raw tokens per latent token: 1 + r(s − 1), or 1 with output only."""
        return 1.0 if self.output_only else 1 + self.step_ratio * (self.bag_size - 1)


@dataclass(frozen=True)
class Gain:
    """Nats per token at equal FLOPs with a 95% interval; None where nothing can be said."""

    nats: float | None
    low: float | None
    high: float | None
    source: str


@dataclass(frozen=True)
class PlannedRun:
    """A run that somebody plans, and everything that `advise` concludes about it."""

    params: float
    size: float
    """Active parameters."""
    tokens: float
    """Latent tokens, which are the tokens that a baseline reads."""
    text: float
    """Tokens of text that there are; infinite where not said."""

    @property
    def mixture(self) -> bool:
        return self.size < self.params

    @property
    def title(self) -> str:
        active = f" ({big(self.size)} active)" if self.mixture else ""
        return f"{big(self.params)}{active} parameters, {big(self.tokens)} tokens"

    @cached_property
    def beyond(self) -> dict[str, float]:
        """Distance beyond the law's sizes and lengths, in e-folds."""
        return beyond(published_law(), self.size, self.tokens)

    @cached_property
    def nearest(self) -> dict[str, Any]:
        """The nearest published run of this kind, with its distance `far` in e-folds."""
        known = published_runs()
        known = known[known["mixture"] == self.mixture]
        return next(rows_of(known.assign(far=self._far(known)).sort_values("far")))

    @cached_property
    def own(self) -> dict[str, dict[str, Any]]:
        """Arms of our campaigns at this size and length, by label; where an arm was run several
        times, the one with the most seeds."""
        rows = pd.DataFrame(published.evidence()["own"])
        near = (self._far(rows.assign(size=rows["params"])) <= NEAR) & ~self.mixture
        rows = rows[near & (rows["corpus"] == OWN_CORPUS)].sort_values("seeds")
        arms = {row["arm"]: row for row in rows_of(rows)}
        return arms if PLAIN in arms else {}

    def _far(self, rows: pd.DataFrame) -> pd.Series:
        """Distance of runs in e-folds: the larger of those in size and in length."""
        places = np.log(rows[["size", "tokens"]].to_numpy() / [self.size, self.tokens])
        return pd.Series(np.abs(places).max(axis=1), rows.index)

    @property
    def is_ours(self) -> bool:
        """Whether our campaigns measured the setting advised at this size and length."""
        return bool(self.own) and self.setting == self.first

    @cached_property
    def grade(self) -> str:
        """How good the evidence for the setting advised is, in words."""
        if self.is_ours:
            return "measured"
        if self.setting.output_only:
            return "no evidence"
        same = self._asked == (self.nearest["s"], self.nearest["r"])
        if self.nearest["far"] <= NEAR and same:
            return "measured"
        if not self.mixture and not any(self.beyond.values()):
            return "inside the law's fit"
        far = self.nearest["far"]
        if not self.mixture:  # sizes were checked up to 3B
            checked = math.log(
                published_runs()["size"].max() / published_law().rows["params"].max()
            )
            size = self.beyond["params"]
            far = max(size - checked, -size, abs(self.beyond["tokens"]))
        return "extrapolated" if far <= FAR else "no evidence"

    @property
    def word(self) -> str:
        """The first word of a verdict that expects a gain. An extrapolation is never a yes, and
        one of the dense models' law to a mixture, or by more than `MUCH`, is the weakest."""
        if self.grade != "extrapolated":
            return "Yes"
        much = max(map(abs, self.beyond.values())) > MUCH
        return "Perhaps" if self.mixture or much else "Probably"

    @cached_property
    def first(self) -> Choice:
        """The setting to advise where there is enough text."""
        if self.own:
            return Choice(4, 0.25, output_only=OUTPUT_ONLY in self.own)
        return Choice(*(MIXTURE if self.mixture else chosen()))

    @cached_property
    def setting(self) -> Choice:
        """The setting to advise: `first`, the law's best among those that the text allows, or
        output only where it allows none."""
        if self.text >= self.tokens * self.first.text:
            return self.first
        rows = settings(self.size, self.tokens, np.arange(2.0, 17.0), np.arange(10, 51) / 100)
        fits = rows[1 + rows["step_ratio"] * (rows["bag_size"] - 1) <= self.text / self.tokens]
        if fits.empty or self.own:
            return Choice(self.first.bag_size, self.first.step_ratio, output_only=True)
        best = fits.iloc[int(published_law().of_rows(fits).argmax())]
        return Choice(int(best["bag_size"]), float(best["step_ratio"]))

    @property
    def _asked(self) -> tuple[int, float]:
        return self.setting.bag_size, self.setting.step_ratio

    @cached_property
    def gain(self) -> Gain:
        """The gain to expect of the setting advised: the mean over seeds where our campaigns
        measured it, elsewhere that of one pair of runs."""
        if self.is_ours:
            return own_gain(self.own.get(OUTPUT_ONLY, self.own[PLAIN]))
        if self.grade == "no evidence":
            return Gain(None, None, None, "nobody has measured it at such a size")
        law, near = published_law(), self.nearest
        rows = settings(self.size, self.tokens, *self._asked)
        if self.grade == "measured":
            # Printed in two places that disagree, it is known no better than both together.
            pair = expected(law, rows, {"params": 0.0, "tokens": 0.0})[1][0]
            low, high = near["gain"] - pair, near["other"] + pair
            return Gain(near["gain"], low, high, f"{near['source']}, one seed")
        (gain,), (half,) = expected(law, rows, published.evidence()["error"])
        return Gain(gain, gain - half, gain + half, f"law of Tables 4–7, {self.grade}")


def own_gain(row: Mapping[str, Any]) -> Gain:
    """The gain of an arm of our campaigns, with the t-interval of its paired differences."""
    half = critical_t(row["seeds"] - 1) * row["deviation"] / math.sqrt(row["seeds"])
    source = f"our {row['source']}, {row['seeds']} seeds, paired t"
    return Gain(row["gain"], row["gain"] - half, row["gain"] + half, source)


def own_arm(label: str = PLAIN, corpus: str = OWN_CORPUS) -> dict[str, Any]:
    """An arm of our campaigns by its label, where it has the most seeds."""
    rows = published.evidence()["own"]
    alike = [row for row in rows if (row["arm"], row["corpus"]) == (label, corpus)]
    return max(alike, key=lambda row: int(row["seeds"]))


@functools.cache
def published_runs() -> pd.DataFrame:
    """Published pairs at Table 1's settings: label, size (active parameters), tokens, s, r, gain,
    other (a second printed value, or the same again), source, mixture."""
    law, columns = published_law(), ["label", "size", "tokens", "s", "r", "gain", "other", "source"]
    rows = law.rows.assign(gain=observed_gains(law.rows))
    cells = (rows["bag_size"] == ALWAYS[0]) & np.isclose(rows["step_ratio"], ALWAYS[1])
    pairs: list[tuple[Any, ...]] = []
    for row in rows_of(rows[cells & (rows["weighting"] == "uniform")]):
        place = f"{row['size']}, {big(row['tokens'])} tokens", row["params"], row["tokens"]
        source = f"the paper's Table {row['table']}"
        pairs.append((*place, *ALWAYS, row["gain"], row["gain"], source))
    beside = published_beside_law(law)
    for name, steps, setting, figure in (
        ("3B", 20_000, ALWAYS, "3a"),
        ("10B-A1B", 4 * 49_983, MIXTURE, "1"),
    ):
        row = next(rows_of(beside[beside["run"].str.startswith(name)]))
        size, tokens = count_parameters(published.model(name)).active, steps * TOKENS_PER_STEP
        ends = row["figures"], row["table_1"]
        source = f"the paper's Figure {figure}: {ends[0]:.3f}, Table 1: {ends[1]:.3f}"
        pairs.append((f"{name}, {big(tokens)} tokens", size, tokens, *setting, *ends, source))
    table = pd.DataFrame(pairs, columns=columns)
    return table.assign(mixture=table["label"].str.startswith("10B"))


@functools.cache
def chosen() -> tuple[int, float]:
    """The (s, r) to advise: (6, 0.3), unless the law chose better for the sizes and lengths that
    were left out (a paired t-test, 5%)."""
    saved = np.array([row["always"] - row["law"] for row in published.evidence()["left_out"]])
    error = saved.std(ddof=1) / math.sqrt(len(saved))
    if saved.mean() <= critical_t(len(saved) - 1) * error:
        return ALWAYS
    best = recommend(published_law(), *published_law().units)
    return best["s"], best["r"]


def beyond(law: Law, params: float, tokens: float) -> dict[str, float]:
    """Distance beyond the fitted sizes (`params`) and lengths (`tokens`) in e-folds: positive
    above, negative below, 0 inside them."""
    folds = {}
    for name, value in (("params", params), ("tokens", tokens)):
        low, high = law.rows[name].min(), law.rows[name].max()
        folds[name] = float(np.log(value / np.clip(value, low, high)))
    return folds


def pair_deviation(law: Law) -> float:
    """Standard deviation of the difference of two runs, nats, by their scatter about the law."""
    return math.sqrt(2 * (law.noise.shared**2 + law.noise.own**2))


def expected(law: Law, rows: pd.DataFrame, error: Mapping[str, float]) -> tuple[Floats, Floats]:
    """Gains of rows (`settings`) and half of their 95% intervals, nats, shapes (n,).

    The interval is for what one pair of runs would show. It adds three variances: that of the law's
    parameters, that of two runs about the law, and the law's relative `error` for each e-fold
    beyond its sizes (`params`) and lengths (`tokens`), as measured where these were left out.
    """
    gains = law.of_rows(rows)
    first = rows.iloc[0]
    far = beyond(law, float(first["params"]), float(first["tokens"]))
    misfit = gains * np.sqrt(sum((error[name] * far[name]) ** 2 for name in far))
    own = critical_t(Spread.of(law.fit).freedom) * pair_deviation(law)
    half: Floats = np.sqrt(law.errors(rows) ** 2 + own**2 + (critical_t(SPLITS) * misfit) ** 2)
    return gains, half
