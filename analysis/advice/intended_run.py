"""A planned run: what is known near it, which setting of superposition to advise, and the gain to
expect. One table, `REGIMES`, says how sure an answer is, for the screen and for the pages."""

import functools
import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tst_study.analysis import published
from tst_study.analysis.advice.expected_gain import (
    SLIGHT,
    Gain,
    beyond,
    expected,
    nearest_gain,
    own_gain,
    pair_deviation,
)
from tst_study.analysis.fits.law.held_out import observed_gains
from tst_study.analysis.fits.law.law_answer import CHINCHILLA, published_beside_law
from tst_study.analysis.fits.law.rows import settings
from tst_study.analysis.fits.law.superposition_law import DATA_EXPONENT, MOST_RATIO, published_law
from tst_study.analysis.fits.scaling.repetition import PUBLISHED, worth
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
MUCH = math.log(4.0)
"""Distance beyond the fitted sizes or lengths, in e-folds, above which an extrapolated gain is
called no more than "perhaps"; and the largest distance at which a result of grade A of others makes
a "nobody knows" a "perhaps"."""
ALWAYS = (6, 0.3)
"""The s and r of the paper's Table 1 at 270M, 600M and 3B. They are advised for a dense run with
enough text, unless our campaigns measured its size and length. At sizes and lengths left out of the
law's fit, the settings that the law would choose are not shown to be better
(`tests/analysis/test_advice.py`)."""
MOST = (16, MOST_RATIO)
"""The largest s and r for which the law of superposition is used."""
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
only evidence, the run is its own pilot, and the pilot's noise is taken from our runs."""
EPOCHS = 4.0
"""Number of epochs up to which Muennighoff et al. 2023 (arXiv 2305.16264) found, in ordinary
training, that repeated text is nearly as good as fresh text."""
MOST_EPOCHS = 1 + PUBLISHED
"""Most epochs that `advise` lets a run read: by the law of the same paper, each further one is
worth at most 0.37 times as much fresh text."""
REPEATED_DATA = (1487.7, 0.3526596)
"""B and β of the data term B D^−β (nats per token, D in tokens) of the same paper."""
LONGER = 1.05
"""A gain is worth having if it is larger than what a baseline would gain from 5% more steps. The
superposed run may take so much more wall-clock time as well."""
OWN_DATA = (0.603, 0.439)
"""B and β of a data term B (D / 10⁶)^−β, fitted to the baselines of our first campaign with 232k
parameters on fresh text (`fit_repetition`)."""
OWN_REPEATED = 1.16
"""R* fitted to the baselines of our first campaign, one of whose texts was read 6.1 times: there
repeated text was worth far less than in the same paper, where R* is `PUBLISHED`."""


_REGIMES = pd.read_csv(Path(__file__).parent / "regimes.csv")
REGIMES: dict[str, Any] = {str(row.name): row for row in _REGIMES.itertuples()}
"""The rule behind every first word: the rows of `regimes.csv` by name, the kind of evidence that
there is about a planned run. `word` is the first word of an answer that expects a gain which its
interval confirms. `where` says for a page which runs belong here, as `IntendedRun.regime` does in
numbers, and `evidence` what the answer rests on. The page `docs/should_i_use_it.md` prints this
table. Where the interval includes zero, or text is read more than `EPOCHS` times, the word is never
more than "Perhaps"; where text is repeated at all, never more than "Probably"."""


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
        """Raw tokens per position of the model: 1 + r(s − 1), or 1 with output only."""
        return 1.0 if self.output_only else 1 + self.step_ratio * (self.bag_size - 1)


@dataclass(frozen=True)
class IntendedRun:
    """A run that somebody plans, with the evidence near it, the setting to advise, and its gain."""

    params: float
    size: float
    """Active parameters; equal to `params` for a dense model."""
    tokens: float
    """Positions of the model over all steps, which are the tokens that a baseline reads."""
    text: float = math.inf
    """Tokens of text that are available; infinite if the user gave no number."""
    chosen: Choice | None = None
    """The setting, if it is given and not to be chosen here."""

    @property
    def mixture(self) -> bool:
        """Whether the model is a mixture of experts: one token uses only part of the parameters."""
        return self.size < self.params

    @property
    def small(self) -> bool:
        """Whether the run is a dense one below `SMALL`."""
        return self.size < SMALL and not self.mixture

    @property
    def title(self) -> str:
        """The run in words, such as `1B parameters, 20B tokens`."""
        active = f" ({big(self.size)} active)" if self.mixture else ""
        return f"{big(self.params)}{active} parameters, {big(self.tokens)} tokens"

    @property
    def data_term(self) -> float:
        """What a baseline of this length still loses for want of text, nats per token: the data
        term of Chinchilla's law or, below `SMALL`, where that law says nothing, of `OWN_DATA`."""
        if self.small:
            factor, exponent = OWN_DATA
            return float(factor * (self.tokens / 1e6) ** -exponent)
        return float(CHINCHILLA.terms(0.0, np.log(self.tokens))[2])

    def worth_of_steps(self, share: float) -> float:
        """Return how much lower the loss of a baseline of this length would be with `share` times
        as many steps, nats per token, by the data term."""
        return self.data_term - replace(self, tokens=share * self.tokens).data_term

    @cached_property
    def beyond(self) -> dict[str, float]:
        """Distance beyond the sizes (`params`) and lengths (`tokens`) that the law was fitted to,
        in e-folds: positive above them, negative below, 0 inside."""
        return beyond(published_law(), self.size, self.tokens)

    @cached_property
    def nearest(self) -> dict[str, Any]:
        """The nearest published run of the same kind, dense or mixture: a row of `published_runs`,
        with its distance `far` in e-folds; of several as far, the nearest in size."""
        known = published_runs()
        known = known[known["mixture"] == self.mixture]
        known = known.assign(far=self.far(known), off=np.abs(np.log(known["size"] / self.size)))
        return next(rows_of(known.sort_values(["far", "off"])))

    @cached_property
    def ours(self) -> dict[str, Any]:
        """The arm of our campaigns on `OWN_CORPUS` that says most about this run: a row of
        `own_rows`, with its distance `far` in e-folds. It is the nearest of the given setting, if
        there is any; `OUTPUT_ONLY` or else, without a given setting, `PLAIN` within `NEAR` of this
        size and length; and otherwise the nearest with output only."""
        rows = own_rows(OWN_CORPUS)
        rows = rows.assign(far=self.far(rows))
        known = rows[rows["arm"] == str(self.chosen)]
        if known.empty:
            known = rows[rows["arm"] == OUTPUT_ONLY]
            plain = rows[(rows["arm"] == PLAIN) & (rows["far"] <= NEAR)]
            if self.chosen is None and known["far"].min() > NEAR and not plain.empty:
                known = plain
        return list(rows_of(known[known["far"] <= max(NEAR, known["far"].min())]))[-1]

    @property
    def is_ours(self) -> bool:
        """Whether our campaigns measured a dense run of this size and length, with the given
        setting if there is one."""
        is_given = self.chosen is None or self.ours["arm"] == str(self.chosen)
        return is_given and not self.mixture and bool(self.ours["far"] <= NEAR)

    def far(self, rows: pd.DataFrame) -> pd.Series:
        """Distance of each row from this run, in e-folds: the largest of the distances in active
        parameters, in all parameters and in length. A row with the column `until` stands for all
        lengths from `tokens` to `until`."""
        lengths = np.clip(self.tokens, rows["tokens"], rows.get("until", rows["tokens"]))
        places = np.log(
            [rows["size"] / self.size, rows["params"] / self.params, lengths / self.tokens]
        )
        return pd.Series(np.abs(places).max(axis=0), rows.index)

    @cached_property
    def others(self) -> list[dict[str, Any]]:
        """Results of others (`published.others`) of grade A or B near this run, best grade and
        nearest size first: within 4 times in active parameters and, where the length is known, in
        length."""
        rows = published.others()
        rows = rows.assign(off=np.abs(np.log(rows["params"] / self.size)))
        rows = rows[rows["grade"].isin(["A", "B"]) & (rows["off"] <= MUCH) & ~self.mixture]
        rows = rows[~(np.abs(np.log(rows["tokens"] / self.tokens)) > MUCH)]
        return list(rows_of(rows.sort_values(["grade", "off"], kind="stable")))

    @cached_property
    def regime(self) -> str:
        """The name of the evidence for the advised setting, a key of `REGIMES`."""
        if self.is_ours and self.setting == self.first:
            tuned = {"": "untuned", "batch and rate": "tuned"}.get(
                self.ours["tuned"], "partly tuned"
            )
            low, high = own_gain(self.ours).low or 0, own_gain(self.ours).high or 0
            is_none = high < self.worth_of_steps(LONGER)
            return f"ours, {tuned if low > 0 else 'no gain' if is_none else 'not shown'}"
        if self.setting.output_only and self.setting != self.first:
            return "too little text"
        known = self._known
        if known == "nobody" and any(row["grade"] == "A" for row in self.others):
            return "others"
        return known

    @property
    def is_in_law(self) -> bool:
        """Whether the law of superposition can be used for the setting: not for output only."""
        is_larger = self.setting.bag_size > MOST[0] or self.setting.step_ratio > MOST[1]
        return not (self.setting.output_only or is_larger)

    @property
    def _known(self) -> str:
        near = self.nearest["far"]
        if not self.is_in_law:
            return "nobody"
        if self.mixture:
            same = self.setting == Choice(self.nearest["s"], self.nearest["r"])
            if near <= NEAR and same:
                return "published mixture"
            return "another mixture" if near <= FAR else "nobody"
        if near <= NEAR and self.setting == Choice(self.nearest["s"], self.nearest["r"]):
            return "published"
        # The law was compared with the published 3B run, so upwards the distance in size is
        # counted from that run.
        largest = published_runs()["size"].max() / published_law().rows["params"].max()
        size, length = self.beyond["params"], self.beyond["tokens"]
        if max(size - math.log(largest), -size, abs(length)) > FAR:
            return "nobody"
        if length < -SLIGHT:
            return "shorter"
        most = max(abs(size), length)
        return "between" if most <= SLIGHT else "beyond" if most <= MUCH else "far beyond"

    @property
    def word(self) -> str:
        """The first word of the answer: that of the regime, or a weaker one, as `REGIMES` says."""
        word: str = REGIMES[self.regime].word
        if word in ("Yes", "Probably"):
            if (self.gain.low or 0) <= 0 or self.raw > EPOCHS * self.text:
                return "Perhaps"
            if self.raw > self.text:
                return "Probably"
        return word

    @property
    def usual(self) -> Choice:
        """The setting of the paper's Table 1 for a model of this kind."""
        return Choice(*(MIXTURE if self.mixture else ALWAYS))

    @cached_property
    def first(self) -> Choice:
        """The setting to advise if there is enough text for it."""
        if self.chosen:
            return self.chosen
        if self.is_ours or self.small:
            return Choice(4, 0.25, output_only=self.ours["arm"] == OUTPUT_ONLY)
        return self.usual

    @cached_property
    def setting(self) -> Choice:
        """The setting to advise: `first` if there is enough text for it. Otherwise it is the
        setting with the largest gain by the law after the cost of repeated text, which may be read
        up to `MOST_EPOCHS` times: `first` again, or if that is clearly less than the best, the best
        of s from 2 (for a mixture only that of `first`) and r from 0.1 to `MOST`. If there is
        none, or if our campaigns measured this size and length, it is `OUTPUT_ONLY`, which reads no
        more text than a baseline."""
        first = self.first
        if self.text >= self.tokens * first.text or self.chosen:
            return first
        bags = np.array([first.bag_size]) if self.mixture else np.arange(2.0, MOST[0] + 1)
        rows = settings(self.size, self.tokens, bags, np.linspace(0.1, MOST[1], 41).round(2))
        rows["reads"] = self.tokens * (1 + rows["step_ratio"] * (rows["bag_size"] - 1))
        rows = rows[rows["reads"] <= MOST_EPOCHS * self.text]
        if rows.empty or self.is_ours or first.output_only:
            return Choice(4, 0.25, output_only=True)
        lost = [self.repetition(read) for read in rows["reads"]]
        left = published_law().of_rows(rows) - lost
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

    def repetition(self, read: float, constant: float = PUBLISHED) -> float:
        """Return how much higher the loss is if the text is repeated until `read` tokens have been
        read than after as many fresh tokens, nats per token, by the law of repetition for ordinary
        training, with R* = `constant`."""
        factor, exponent = REPEATED_DATA
        fresh = float(worth(np.array(read), np.array(self.text), constant))
        return float(factor * (fresh**-exponent - read**-exponent))

    def lost(self, setting: Choice) -> tuple[float, float]:
        """Return how much higher the loss of a superposed run is, relative to the baseline's,
        because it repeats more text: nats per token, with the published R* and with ours."""
        ends = setting.text * self.tokens, self.tokens
        few, few_of_baseline = (self.repetition(read) for read in ends)
        many, many_of_baseline = (self.repetition(read, OWN_REPEATED) for read in ends)
        return few - few_of_baseline, many - many_of_baseline

    @cached_property
    def gain(self) -> Gain:
        """The gain to expect of the advised setting, after the cost of repeated text, without
        numbers where nobody knows. The interval is for the mean over seeds if our campaigns
        measured the gain, else for one pair of runs."""
        evidence = REGIMES[self.regime].evidence
        if self.regime.startswith("ours"):
            return own_gain(self.ours)
        if self.regime in ("nobody", "others", "too little text"):
            return Gain(None, None, None, evidence)
        if self.regime.startswith("published"):
            gain = self._published_gain
        else:
            rows = settings(self.size, self.tokens, self.setting.bag_size, self.setting.step_ratio)
            error, law = published.evidence()["error"], published_law()
            (gain_,), (low,), (high,) = expected(law, rows, nearest_gain(rows), error)
            gain = Gain(float(gain_), float(low), float(high), evidence)
        return gain.less(*self.lost(self.setting)) if self.raw > self.text else gain

    @property
    def _published_gain(self) -> Gain:
        """The gain of the nearest published run. If the paper has it in two places that disagree,
        the interval spans both. In a mixture longer than the published one, it is decreased by the
        power of the length of Chinchilla's data term."""
        row, law = self.nearest, published_law()
        place = settings(self.size, self.tokens, self.setting.bag_size, self.setting.step_ratio)
        (_,), (low,), (high,) = expected(law, place, np.zeros(1), {"params": 0.0, "tokens": 0.0})
        longer = max(1.0, self.tokens / row["tokens"]) if self.mixture else 1.0
        ends = [row[name] * longer**-DATA_EXPONENT for name in ("gain", "other")]
        half = float(high - low) / 2
        return Gain(ends[0], min(ends) - half, max(row["gain"], row["other"]) + half, row["source"])

    def with_steps(self, share: float) -> "IntendedRun":
        """Return the run with this share of the steps, and the setting that is advised here."""
        return replace(self, tokens=share * self.tokens, chosen=self.setting)


@functools.cache
def own_rows(corpus: str) -> pd.DataFrame:
    """Return the rows of the evidence for our campaigns on a corpus, those over the better of
    several batches last, of these those with the most seeds, and of these the latest. `size` is
    `params` again, and `batch` says whether several batches were tried."""
    rows = pd.DataFrame(published.evidence()["own"])
    rows = rows.assign(size=rows["params"], batch=rows["tuned"].str.contains("batch"))
    rows = rows[rows["corpus"] == corpus]
    return rows.sort_values(["batch", "seeds"], kind="stable")


def own_arm(label: str = PLAIN, corpus: str = OWN_CORPUS) -> dict[str, Any]:
    """Return the last row of `own_rows` for an arm of this label."""
    rows = own_rows(corpus)
    return list(rows_of(rows[rows["arm"] == label]))[-1]


@functools.cache
def published_runs() -> pd.DataFrame:
    """Return the published gains (nats per token) at the settings of Table 1, a row for each size
    and length.

    Columns: label, size (active parameters), params (all), tokens (latent), until (the mixture's
    baseline is longer than its superposed run: its length; else `tokens`), s, r, gain, other (Table
    1's value if `gain` was read from a figure, else `gain` again), source, mixture."""
    law, columns = published_law(), ["label", "size", "params", "tokens"]
    columns += ["s", "r", "gain", "other", "source"]
    rows = law.rows.assign(gain=observed_gains(law.rows))
    cells = (rows["bag_size"] == ALWAYS[0]) & np.isclose(rows["step_ratio"], ALWAYS[1])
    pairs: list[tuple[Any, ...]] = []
    for row in rows_of(rows[cells & (rows["weighting"] == "uniform")]):
        place = f"{row['size']}, {big(row['tokens'])} tokens", *[row["params"]] * 2, row["tokens"]
        source = f"the paper's Table {row['table']}"
        pairs.append((*place, *ALWAYS, row["gain"], row["gain"], source))
    for row, figure in zip(rows_of(published_beside_law()), ("3a", "1"), strict=True):
        count, tokens = count_parameters(published.model(row["run"])), row["tokens"]
        active = f", {big(count.active)} active" if count.active < count.total else ""
        place = f"{row['run']}{active}, {big(tokens)} tokens", count.active, count.total, tokens
        ends = row["figures"], row["table_1"]
        source = f"the paper's Figure {figure}: {ends[0]:.3f}, Table 1: {ends[1]:.3f}"
        # The mixture's baseline is longer than its superposed run (`published_beside_law`).
        source += ", brought to equal length by Chinchilla's data term" if active else ""
        pairs.append((*place, row["bag_size"], row["step_ratio"], *ends, source))
    table = pd.DataFrame(pairs, columns=columns)
    mixture = table["label"].str.startswith("10B")
    until = table["tokens"].where(~mixture, 125_000 * 2.0**23)
    return table.assign(mixture=mixture, until=until)
