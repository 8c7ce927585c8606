"""A run that is planned, what is known near it, and which setting of superposition to advise."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd

from tst_study.analysis import published
from tst_study.analysis.advice.expected import ALWAYS, beyond, expected
from tst_study.analysis.fits.law.held_out import observed_gains
from tst_study.analysis.fits.law.law_answer import published_beside_law, recommend
from tst_study.analysis.fits.law.rows import TOKENS_PER_STEP, settings
from tst_study.analysis.fits.law.superposition_law import published_law
from tst_study.analysis.statistics import critical_t
from tst_study.analysis.tables.columns import rows_of
from tst_study.text import big

NEAR = math.log(1.25)
"""Distance in size and in length within which a run counts as this one's own."""
FAR = math.log(10.0)
"""Distance beyond the published sizes or lengths from which the law is not asked."""
MIXTURE = (16, 0.25)
"""The one setting that was published for a mixture of experts."""
PLAIN, OUTPUT_ONLY = "s = 4, r = 0.25", "s = 4, r = 0.25, output only"
BETTER_BATCH = "twice the batch, √2 times the rate"
OWN_CORPUS = "books-bpe1024"


@dataclass(frozen=True)
class Choice:
    bag_size: int
    step_ratio: float
    output_only: bool = False

    def __str__(self) -> str:
        only = ", output only" * self.output_only
        return f"s = {self.bag_size}, r = {self.step_ratio:g}{only}"

    @property
    def text(self) -> float:
        """Raw tokens over latent ones: 1 + r(s − 1), 1 under output only."""
        return 1.0 if self.output_only else 1 + self.step_ratio * (self.bag_size - 1)


@dataclass(frozen=True)
class Gain:
    """Nats at equal FLOPs with a 95% interval; None where nothing can be said."""

    nats: float | None
    low: float | None
    high: float | None
    source: str


@dataclass(frozen=True)
class PlannedRun:
    params: float
    size: float
    """Active parameters."""
    tokens: float
    """Latent, which are the tokens that a baseline reads."""
    text: float
    """Tokens of text that there are; infinite where not said."""

    @property
    def mixture(self) -> bool:
        return self.size < self.params

    @property
    def title(self) -> str:
        of = f" ({big(self.size)} active)" if self.mixture else ""
        return f"{big(self.params)}{of} parameters, {big(self.tokens)} tokens"

    @cached_property
    def beyond(self) -> dict[str, float]:
        """Distance beyond the law's runs, in e-folds (`beyond`)."""
        return beyond(published_law(), self.size, self.tokens)

    @cached_property
    def nearest(self) -> dict[str, Any]:
        """The nearest published run of this kind, with its distance `far` in e-folds."""
        known = published_runs()
        known = known[known["mixture"] == self.mixture]
        return next(rows_of(known.assign(far=self._far(known)).sort_values("far")))

    @cached_property
    def own(self) -> dict[str, dict[str, Any]]:
        """Arms of our campaigns at this size and length, by name; of several the most seeds."""
        rows = pd.DataFrame(published.evidence()["own"])
        near = (self._far(rows.assign(size=rows["params"])) <= NEAR) & ~self.mixture
        rows = rows[near & (rows["corpus"] == OWN_CORPUS)].sort_values("seeds")
        found = {row["arm"]: row for row in rows_of(rows)}
        return found if PLAIN in found else {}

    def _far(self, rows: pd.DataFrame) -> pd.Series:
        """Distance of runs in e-folds: the larger of those in size and in length."""
        places = np.log(rows[["size", "tokens"]].to_numpy() / [self.size, self.tokens])
        return pd.Series(np.abs(places).max(axis=1), rows.index)

    @cached_property
    def grade(self) -> str:
        near = self.nearest["far"] <= NEAR and self._asked == (self.nearest["s"], self.nearest["r"])
        if self.own or near:
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

    @cached_property
    def first(self) -> Choice:
        """The setting to advise where there is text enough."""
        if self.own:
            return Choice(4, 0.25, output_only=OUTPUT_ONLY in self.own)
        return Choice(*(MIXTURE if self.mixture else chosen()))

    @cached_property
    def setting(self) -> Choice:
        """The setting to advise: the law's best that the text allows where `first` needs more of
        it, and output only where it allows none."""
        if self.text >= self.tokens * self.first.text:
            return self.first
        rows = settings(self.size, self.tokens, np.arange(2.0, 17.0), np.arange(5, 51) / 100)
        fits = rows[1 + rows["step_ratio"] * (rows["bag_size"] - 1) <= self.text / self.tokens]
        if fits.empty:
            return Choice(self.first.bag_size, self.first.step_ratio, output_only=True)
        best = fits.iloc[int(published_law().of_rows(fits).argmax())]
        return Choice(int(best["bag_size"]), float(best["step_ratio"]))

    @property
    def _asked(self) -> tuple[int, float]:
        return self.setting.bag_size, self.setting.step_ratio

    @cached_property
    def gain(self) -> Gain:
        """The gain that one pair of runs at the setting advised should show. Where our campaigns
        were, it is their mean over seeds."""
        if self.own and self.setting == self.first:
            return own_gain(self.own.get(OUTPUT_ONLY, self.own[PLAIN]))
        if self.setting.output_only or self.grade == "no evidence":
            return Gain(None, None, None, "nobody has measured it at such a size")
        law, near = published_law(), self.nearest
        rows = settings(self.size, self.tokens, *self._asked)
        (gain,), (half,) = expected(law, rows, published.evidence()["error"])
        if self.grade == "measured":
            # Printed in two places that disagree, it is known no better than both together.
            pair = expected(law, rows, {"params": 0.0, "tokens": 0.0})[1][0]
            low, high = near["gain"] - pair, near["other"] + pair
            return Gain(near["gain"], low, high, f"{near['source']}, one seed")
        return Gain(gain, gain - half, gain + half, f"law of Tables 4–7, {self.grade}")


def own_gain(row: dict[str, Any]) -> Gain:
    """The gain of an arm of our campaigns, with the t-interval of its paired differences."""
    half = critical_t(row["seeds"] - 1) * row["deviation"] / math.sqrt(row["seeds"])
    source = f"our {row['source']}, {row['seeds']} seeds, paired t"
    return Gain(row["gain"], row["gain"] - half, row["gain"] + half, source)


def own_arm(name: Literal["plain", "output only", "better batch"]) -> dict[str, Any]:
    """An arm of our campaigns, where it has the most seeds."""
    label = {"plain": PLAIN, "output only": OUTPUT_ONLY, "better batch": BETTER_BATCH}[name]
    rows = [row for row in published.evidence()["own"] if row["arm"] == label]
    return max(rows, key=lambda row: int(row["seeds"]))


@functools.cache
def published_runs() -> pd.DataFrame:
    """Published pairs at Table 1's settings: label, size (active parameters), tokens, s, r, gain,
    other (a second printed value, else the same), source, mixture."""
    law, columns = published_law(), ["label", "size", "tokens", "s", "r", "gain", "other", "source"]
    rows = law.rows.assign(gain=observed_gains(law.rows))
    cells = (rows["bag_size"] == ALWAYS[0]) & np.isclose(rows["step_ratio"], ALWAYS[1])
    found: list[tuple[Any, ...]] = []
    for row in rows_of(rows[cells & (rows["weighting"] == "uniform")]):
        place = f"{row['size']}, {big(row['tokens'])} tokens", row["params"], row["tokens"]
        found.append(
            (*place, *ALWAYS, row["gain"], row["gain"], f"the paper's Table {row['table']}")
        )
    beside = published_beside_law(law)
    names = {"3B": (3.56e9, 20_000, ALWAYS, "3a"), "10B-A1B": (1.43e9, 4 * 49_983, MIXTURE, "1")}
    for name, (size, steps, printed, figure) in names.items():
        row = next(rows_of(beside[beside["run"].str.startswith(name)]))
        ends, tokens = (row["figures"], row["table_1"]), steps * float(TOKENS_PER_STEP)
        source = f"the paper's Figure {figure}: {ends[0]:.3f}, Table 1: {ends[1]:.3f}"
        found.append((f"{name}, {big(tokens)} tokens", size, tokens, *printed, *ends, source))
    table = pd.DataFrame(found, columns=columns)
    return table.assign(mixture=table["label"].str.startswith("10B"))


@functools.cache
def chosen() -> tuple[int, float]:
    """The setting to advise: (6, 0.3), unless the law chose better for the sizes and lengths that
    were left out (a paired t-test, 5%)."""
    left = [one for one in published.evidence()["left_out"] if "s =" not in one["left_out"]]
    saved = np.array([one["always"] - one["law"] for one in left])
    error = saved.std(ddof=1) / math.sqrt(len(saved))
    if saved.mean() <= critical_t(len(saved) - 1) * error:
        return ALWAYS
    best = recommend(published_law(), *published_law().units)
    return best["s"], best["r"]
