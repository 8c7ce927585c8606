"""A planned run: what is known near it, which setting of superposition to advise, and the gain to
expect. Where the gain comes from the law, its interval grows with the distance from the runs that
the law was fitted to."""

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
from tst_study.analysis.fits.law.law_answer import published_beside_law
from tst_study.analysis.fits.law.rows import settings
from tst_study.analysis.fits.law.superposition_law import Law, published_law
from tst_study.analysis.fits.scaling.repetition import PUBLISHED, worth
from tst_study.analysis.fits.solver.uncertainty import linearised
from tst_study.analysis.statistics import critical_t
from tst_study.analysis.tables.columns import rows_of
from tst_study.cost.compute import count_parameters
from tst_study.text import big

NEAR = math.log(1.25)
"""Largest difference in log size, and in log length, at which a measured run counts as having the
planned size and length."""
FAR = math.log(10.0)
"""Largest extrapolation, a factor of ten, in e-folds (factors of e); beyond it no gain is
predicted. For a dense run it is measured upwards from the largest published size, downwards from
the smallest size that the law was fitted to, and from the range of the fitted lengths. For a
mixture of experts it is measured from the nearest published mixture."""
SLIGHT = 0.05
"""Distance beyond the fitted sizes or lengths, in e-folds, up to which a run counts as inside."""
MUCH = math.log(4.0)
"""Distance beyond the fitted sizes or lengths, in e-folds, above which an extrapolated gain is
called no more than "perhaps"."""
ALWAYS = (6, 0.3)
"""The s and r of the paper's Table 1 at 270M, 600M and 3B. They are advised for a dense run with
enough text, unless our campaigns measured its size and length. At sizes and lengths left out of the
law's fit, the settings that the law would choose are not shown to be better
(`tests/analysis/test_advice.py`)."""
MIXTURE = (16, 0.25)
"""The s and r of the only setting that was published for a mixture of experts."""
PLAIN, OUTPUT_ONLY = "s = 4, r = 0.25", "s = 4, r = 0.25, output only"
POWER_LAW = "s = 4, r = 0.25, power-law weights"
"""Like `PLAIN` (the paper's method) and `OUTPUT_ONLY`, this is the label of an arm of our
campaigns, as `published.evidence()` has it."""
OWN_CORPUS = "books-bpe1024"
"""The corpus on which an arm of our campaigns must have been trained to count as evidence near a
planned run."""
SMALL = 1e7
"""Number of active parameters below which a dense run counts as small. Our campaigns are then its
only evidence. The cheaper test of a small run has the size and length of the run itself, and its
noise is taken from our runs. The screen then names our trainer before the reader's own."""
EPOCHS = 4.0
"""Number of epochs up to which Muennighoff et al. 2023 (arXiv 2305.16264) found, in ordinary
training, that repeated text is nearly as good as fresh text."""
MOST_EPOCHS = 1 + PUBLISHED
"""Most epochs that `advise` lets a run read: by the law of the same paper, each further one is
worth at most 0.37 times as much fresh text."""
REPEATED_DATA = (1487.7, 0.3526596)
"""B and β of the data term B D^−β (nats per token, D in tokens) of the same paper."""
SPLITS = 2
"""Number of sizes, and likewise of lengths, that were left out in turn to measure the law's error
per e-fold. This is also the number of degrees of freedom of that error."""


@dataclass(frozen=True)
class Choice:
    """A setting of superposition: s, r, and whether it is output only."""

    bag_size: int
    step_ratio: float
    output_only: bool = False
    """Whether the model, before the switch, predicts bags but reads single tokens."""

    def __str__(self) -> str:
        only = ", output only" * self.output_only
        return f"s = {self.bag_size}, r = {self.step_ratio:g}{only}"

    @property
    def text(self) -> float:
        """Raw tokens per latent token: 1 + r(s − 1), or 1 with output only."""
        return 1.0 if self.output_only else 1 + self.step_ratio * (self.bag_size - 1)


@dataclass(frozen=True)
class Gain:
    """A gain over the baseline at equal FLOPs, in nats per token, with the ends of its 95%
    interval. All three numbers are None if nothing can be said."""

    nats: float | None
    low: float | None
    high: float | None
    source: str
    """The origin of the number, or the reason why there is none."""


@dataclass(frozen=True)
class PlannedRun:
    """A run that somebody plans, with the evidence near it, the setting to advise, and its gain."""

    params: float
    size: float
    """Active parameters; equal to `params` for a dense model."""
    tokens: float
    """Latent tokens, which are the tokens that a baseline reads."""
    text: float
    """Tokens of text that are available; infinite if the user gave no number."""

    @property
    def mixture(self) -> bool:
        """Whether the model is a mixture of experts: one token uses only part of the parameters."""
        return self.size < self.params

    @property
    def title(self) -> str:
        """The run in words, such as `1B parameters, 20B tokens`."""
        active = f" ({big(self.size)} active)" if self.mixture else ""
        return f"{big(self.params)}{active} parameters, {big(self.tokens)} tokens"

    @cached_property
    def beyond(self) -> dict[str, float]:
        """Distance beyond the sizes (`params`) and lengths (`tokens`) that the law was fitted to,
        in e-folds: positive above them, negative below, 0 inside."""
        return beyond(published_law(), self.size, self.tokens)

    @cached_property
    def nearest(self) -> dict[str, Any]:
        """The nearest published run of the same kind, dense or mixture: a row of `published_runs`,
        with its distance `far` in e-folds."""
        known = published_runs()
        known = known[known["mixture"] == self.mixture]
        return next(rows_of(known.assign(far=self._far(known)).sort_values("far")))

    @cached_property
    def own(self) -> dict[str, dict[str, Any]]:
        """Arms of our campaigns on `OWN_CORPUS` within `NEAR` of this size and length: rows of the
        evidence, by label. Of several rows with one label the one with the most seeds is taken,
        and of several such rows that of the latest campaign. Empty for a mixture, and if neither
        `PLAIN` nor `OUTPUT_ONLY` was run near here."""
        rows = pd.DataFrame(published.evidence()["own"])
        near = (self._far(rows.assign(size=rows["params"])) <= NEAR) & ~self.mixture
        rows = rows[near & (rows["corpus"] == OWN_CORPUS)].sort_values("seeds", kind="stable")
        arms = {row["arm"]: row for row in rows_of(rows)}
        return arms if arms.keys() & {PLAIN, OUTPUT_ONLY} else {}

    def _far(self, rows: pd.DataFrame) -> pd.Series:
        """Distance of each row from this run, in e-folds: the largest of the distances in active
        parameters, in all parameters and in length."""
        here = [self.size, self.params, self.tokens]
        places = np.log(rows[["size", "params", "tokens"]].to_numpy() / here)
        return pd.Series(np.abs(places).max(axis=1), rows.index)

    @cached_property
    def nearest_own(self) -> dict[str, Any]:
        """The arm of our campaigns with output only on `OWN_CORPUS` that is nearest to this size
        and length: a row of the evidence. Of several as near, it is the one with the most seeds."""
        rows = pd.DataFrame(published.evidence()["own"])
        rows = rows[(rows["arm"] == OUTPUT_ONLY) & (rows["corpus"] == OWN_CORPUS)]
        rows = rows.assign(far=self._far(rows.assign(size=rows["params"])))
        return next(rows_of(rows.sort_values(["far", "seeds"], ascending=[True, False])))

    @property
    def is_ours(self) -> bool:
        """Whether our campaigns measured the advised setting at this size and length."""
        return bool(self.own) and self.setting == self.first

    @cached_property
    def grade(self) -> str:
        """The quality of the evidence for the advised setting.

        `measured`: our campaigns or the paper ran it within `NEAR` of this size and length. `inside
        the law's fit`: a dense run within the fitted sizes and lengths. `extrapolated`: no further
        than `FAR` away. `no evidence`: everything else, and every setting with output only that our
        campaigns did not measure."""
        if self.is_ours:
            return "measured"
        if self.setting.output_only:
            return "no evidence"
        same = self.setting == Choice(self.nearest["s"], self.nearest["r"])
        if self.nearest["far"] <= NEAR and same:
            return "measured"
        if not self.mixture and max(map(abs, self.beyond.values())) <= SLIGHT:
            return "inside the law's fit"
        far = self.nearest["far"]
        if not self.mixture:
            # The law was compared with the published 3B run, so upwards the distance in size is
            # counted from that run.
            checked = math.log(
                published_runs()["size"].max() / published_law().rows["params"].max()
            )
            size = self.beyond["params"]
            far = max(size - checked, -size, abs(self.beyond["tokens"]))
        return "extrapolated" if far <= FAR else "no evidence"

    @property
    def word(self) -> str:
        """The first word of a verdict that expects a gain: `Yes`; `Probably` for an extrapolation,
        for a mixture, and if text is repeated; `Perhaps` if text is read more than `EPOCHS` times,
        and for an extrapolation if the run is a mixture, to which the law of dense models is
        extrapolated, or lies further than `MUCH` beyond the fitted runs."""
        if self.raw > EPOCHS * self.text:
            return "Perhaps"
        if self.grade != "extrapolated":
            return "Probably" if self.mixture or self.raw > self.text else "Yes"
        much = max(map(abs, self.beyond.values())) > MUCH
        return "Perhaps" if self.mixture or much else "Probably"

    @cached_property
    def first(self) -> Choice:
        """The setting to advise if there is enough text for it."""
        if self.own or (self.size < SMALL and not self.mixture):
            return Choice(4, 0.25, output_only=OUTPUT_ONLY in self.own or not self.own)
        return Choice(*(MIXTURE if self.mixture else ALWAYS))

    @cached_property
    def setting(self) -> Choice:
        """The setting to advise: `first` if there is enough text for it. Otherwise it is the
        setting with the largest gain by the law after the cost of repeated text, which may be read
        up to `MOST_EPOCHS` times: `first` again, or if that is clearly less than the best, the best
        of s from 2 to 16 (for a mixture only that of `first`) and r from 0.1 to 0.5. If there is
        none, or if our campaigns measured this size and length, it is `OUTPUT_ONLY`, which reads no
        more text than a baseline."""
        first = self.first
        if self.text >= self.tokens * first.text:
            return first
        bags = np.array([first.bag_size]) if self.mixture else np.arange(2.0, 17.0)
        rows = settings(self.size, self.tokens, bags, np.arange(10, 51) / 100)
        rows["reads"] = self.tokens * (1 + rows["step_ratio"] * (rows["bag_size"] - 1))
        rows = rows[rows["reads"] <= MOST_EPOCHS * self.text]
        if rows.empty or self.own or first.output_only:
            return Choice(4, 0.25, output_only=True)
        left = published_law().of_rows(rows) - [self.repetition(read)[2] for read in rows["reads"]]
        is_first = np.isclose(rows["step_ratio"], first.step_ratio)
        is_first &= rows["bag_size"] == first.bag_size
        if left[is_first].max(initial=-math.inf) >= left.max() - pair_deviation(published_law()):
            return first
        best = rows.iloc[int(left.argmax())]
        return Choice(int(best["bag_size"]), float(best["step_ratio"]))

    @property
    def raw(self) -> float:
        """Tokens of text that the superposed run reads, repeated ones included."""
        return self.setting.text * self.tokens

    def repetition(self, read: float) -> tuple[float, float, float]:
        """Return the cost of repeating the text until `read` tokens have been read, by the law of
        repetition for ordinary training. The three numbers: the epochs; the fresh tokens that these
        epochs are worth, as a share of `read`; and how much higher the loss is than after `read`
        fresh tokens (nats per token)."""
        factor, exponent = REPEATED_DATA
        fresh = float(worth(np.array(read), np.array(self.text), PUBLISHED))
        return read / self.text, fresh / read, factor * (fresh**-exponent - read**-exponent)

    def lost(self, setting: Choice) -> float:
        """Return how much higher the loss of a superposed run is, relative to the baseline's,
        because it repeats more text: nats per token, by the law of repetition."""
        return self.repetition(setting.text * self.tokens)[2] - self.repetition(self.tokens)[2]

    @cached_property
    def gain(self) -> Gain:
        """The gain to expect of the advised setting, `lost` taken off, without numbers if the grade
        is `no evidence`. The interval is for the mean over seeds if our campaigns measured the
        gain, else for one pair of runs."""
        if self.is_ours:
            return own_gain(self.own.get(OUTPUT_ONLY) or self.own[PLAIN])
        if self.grade == "no evidence":
            return Gain(None, None, None, "nothing is published near this size and length")
        law, near, lost = published_law(), self.nearest, self.lost(self.setting)
        rows = settings(self.size, self.tokens, self.setting.bag_size, self.setting.step_ratio)
        less = f", less {lost:.3f} for repeated text" if self.raw > self.text else ""
        if self.grade == "measured":
            # If the paper has the gain in two places that disagree, the interval spans both.
            pair = expected(law, rows, {"params": 0.0, "tokens": 0.0})[1][0]
            ends = near["gain"] - lost, near["other"] - lost
            source = f"{near['source']}, one seed{less}"
            return Gain(ends[0], min(ends) - pair, max(ends) + pair, source)
        (gain,), (half,) = expected(law, rows, published.evidence()["error"])
        gain, source = gain - lost, f"law of Tables 4–7, {self.grade}{less}"
        return Gain(gain, gain - half, gain + half, source)


def own_gain(row: Mapping[str, Any]) -> Gain:
    """Return the mean gain of an arm of our campaigns, from a row of the evidence, with the 95%
    t-interval of its paired differences."""
    half = critical_t(row["seeds"] - 1) * row["deviation"] / math.sqrt(row["seeds"])
    source = f"our {row['source']}, {row['seeds']} seeds, this arm alone"
    return Gain(row["gain"], row["gain"] - half, row["gain"] + half, source)


def own_arm(label: str = PLAIN, corpus: str = OWN_CORPUS) -> dict[str, Any]:
    """Return the row of the evidence for an arm of our campaigns, found by label and corpus; of
    several rows the one with the most seeds, and of several such rows the last."""
    rows = published.evidence()["own"]
    alike = [row for row in rows if (row["arm"], row["corpus"]) == (label, corpus)]
    return max(reversed(alike), key=lambda row: int(row["seeds"]))


@functools.cache
def published_runs() -> pd.DataFrame:
    """Return the published gains (nats per token) at the settings of Table 1, a row for each size
    and length.

    Columns: label, size (active parameters), params (all), tokens (latent), s, r, gain, other
    (Table 1's value if `gain` was read from a figure, else `gain` again), source, mixture."""
    law, columns = published_law(), ["label", "size", "params", "tokens"]
    columns += ["s", "r", "gain", "other", "source"]
    rows = law.rows.assign(gain=observed_gains(law.rows))
    cells = (rows["bag_size"] == ALWAYS[0]) & np.isclose(rows["step_ratio"], ALWAYS[1])
    pairs: list[tuple[Any, ...]] = []
    for row in rows_of(rows[cells & (rows["weighting"] == "uniform")]):
        place = f"{row['size']}, {big(row['tokens'])} tokens", *[row["params"]] * 2, row["tokens"]
        source = f"the paper's Table {row['table']}"
        pairs.append((*place, *ALWAYS, row["gain"], row["gain"], source))
    for row, figure in zip(rows_of(published_beside_law(law)), ("3a", "1"), strict=True):
        count, tokens = count_parameters(published.model(row["run"])), row["tokens"]
        active = f", {big(count.active)} active" if count.active < count.total else ""
        place = f"{row['run']}{active}, {big(tokens)} tokens", count.active, count.total, tokens
        ends = row["figures"], row["table_1"]
        source = f"the paper's Figure {figure}: {ends[0]:.3f}, Table 1: {ends[1]:.3f}"
        # The mixture's baseline is longer than its superposed run (`published_beside_law`).
        source += ", brought to equal length by Chinchilla's data term" if active else ""
        pairs.append((*place, row["bag_size"], row["step_ratio"], *ends, source))
    table = pd.DataFrame(pairs, columns=columns)
    return table.assign(mixture=table["label"].str.startswith("10B"))


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


def expected(law: Law, rows: pd.DataFrame, error: Mapping[str, float]) -> tuple[Floats, Floats]:
    """Return gains and half the widths of their 95% intervals, nats per token, shapes (n,), for
    rows (`settings`) that are all of one size and length.

    The interval is for what one pair of runs would show. It adds three errors in quadrature: the
    error of the law's parameters, the scatter of two runs about the law, and the error of
    extrapolation. The last is the distance beyond the law's sizes (`params`) and lengths (`tokens`)
    times `error`, the law's relative error for each e-fold, which was measured on sizes and lengths
    that were left out of the fit.
    """
    gains = law.of_rows(rows)
    first = rows.iloc[0]
    far = beyond(law, float(first["params"]), float(first["tokens"]))
    misfit = gains * np.sqrt(sum((error[name] * far[name]) ** 2 for name in far))
    own = linearised(law.fit)[1] * pair_deviation(law)
    half: Floats = np.sqrt(law.errors(rows) ** 2 + own**2 + (critical_t(SPLITS) * misfit) ** 2)
    return gains, half
