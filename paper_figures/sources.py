"""The runs that items are made from, and groups of runs that may be compared.

Runs are read once, when an item first asks for them. Where an item shows one group of several, it
is chosen by what was run, never by how well it did.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

import pandas as pd

from tst_study.analysis import published
from tst_study.analysis.published import TASKS
from tst_study.analysis.summary import Summary, summarise
from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.tables.source import Folders, read_tables, roots
from tst_study.analysis.verdict.comparison import SAME
from tst_study.analysis.wording import span
from tst_study.config.superposition_setting import SuperpositionSetting
from tst_study.paper_figures.answers import answers
from tst_study.text import big

METRICS = ("acc", "acc_norm")
"""Metrics of lm-evaluation-harness; of a task that reports both, the last one counts. The paper
does not say which of them it prints."""
COLUMNS = ["folder", "task", "accuracy"]


class Sources:
    """The given runs and what is derived from them. Published numbers are in
    `analysis.published`."""

    def __init__(self, runs: Folders | None) -> None:
        self.folders = roots(runs or ())

    @functools.cached_property
    def summary(self) -> Summary:
        """Summary of the runs; of an empty table where no folder was named."""
        return summarise(read_tables(self.folders))

    @functools.cached_property
    def answers(self) -> pd.DataFrame:
        """The study's questions and settings with their answers."""
        return answers(self.summary)

    @property
    def runs(self) -> pd.DataFrame:
        return self.summary.tables.runs

    @functools.cached_property
    def groups(self) -> list[Group]:
        """The compared settings by comparison group, learning rate and held-out text, sorted by
        these keys."""
        table = self.summary.comparison.table
        return [Group(self.summary, rows) for _, rows in table.groupby(list(SAME), sort=True)]

    @functools.cached_property
    def accuracies(self) -> pd.DataFrame:
        """Accuracies that `tst-study evaluate` wrote for the last step of finished runs, as
        fractions: one for each run and task. Like the paper's, they are zero-shot and on all
        questions of a task; evaluations with a limit do not count."""
        tables = self.summary.tables
        done = tables.runs[tables.runs["state"] == "done"][["folder", "steps"]]
        table = tables.evaluations[tables.evaluations["task"].isin(TASKS)]
        table = table.astype({"folder": str}).merge(done, on="folder")
        details = pd.DataFrame(list(table["details"].map(json.loads)), columns=["shots", "limit"])
        whole = (details["shots"] == 0) & details["limit"].isna()
        table = table[whole & table["metric"].isin(METRICS) & (table["step"] == table["steps"])]
        table = table.sort_values(["folder", "task", "metric"], kind="stable")
        table = table.drop_duplicates(["folder", "task"], keep="last")
        return table.rename(columns={"value": "accuracy"})[COLUMNS].reset_index(drop=True)


TOLERANCE = 0.1
"""Relative difference in parameters up to which a model counts as the paper's. Grouped-query
attention, which the paper does not tell apart, makes one smaller by a twentieth."""


@dataclass(frozen=True, eq=False)
class Group:
    """Some settings that share comparison group, learning rate and held-out text, and their
    runs."""

    summary: Summary
    rows: pd.DataFrame
    """Rows of `Comparison.table`, one per setting."""

    @functools.cached_property
    def members(self) -> pd.DataFrame:
        """Rows of the run table with the group and a learning rate of the settings: runs of other
        settings, unfinished runs and other held-out texts are among them."""
        runs = self.summary.tables.runs
        same = runs["group"].isin(self.rows["group"])
        return runs[same & runs["learning_rate"].isin(self.rows["learning_rate"])]

    @functools.cached_property
    def pairs(self) -> pd.DataFrame:
        """Rows of the comparison's pairs, one for each of these settings and seed."""
        key = [*SAME, "setting"]
        return self.summary.comparison.pairs.merge(self.rows[key], on=key)

    @functools.cached_property
    def baselines(self) -> pd.DataFrame:
        """Rows of the pairs, one for each baseline run."""
        return self.pairs.drop_duplicates("baseline_folder")

    @property
    def level(self) -> float:
        """Mean final loss of the paired baselines. The loss of a setting is shown as this level
        less its paired gain: where it has fewer seeds, its own mean would also reflect which
        seeds these are."""
        return float(self.baselines["baseline"].mean())

    @property
    def folders(self) -> tuple[str, ...]:
        """Run folders of the settings, baselines included."""
        both = pd.concat([self.pairs["baseline_folder"], self.pairs["superposed_folder"]])
        return tuple(sorted(set(both.astype(str))))

    @property
    def weight(self) -> tuple[int, ...]:
        """Sort key by which the largest of several groups is chosen: number of settings, then
        natural before generated text, then steps, then seeds summed over the settings."""
        seeds = int(self.rows["seeds"].sum())
        return self.rows["setting"].nunique(), not self.is_generated, self.steps, seeds

    @property
    def steps(self) -> int:
        return int(self.members["steps"].iloc[0])

    @property
    def is_generated(self) -> bool:
        """Whether its text was generated to show the mechanism; natural text need not gain what
        such a text gains."""
        return bool(self.members["optimal_nats_per_token"].notna().any())

    @property
    def seeds(self) -> str:
        return span(self.rows["seeds"], "seed")

    @property
    def model(self) -> str:
        """Model and text in words: `363k parameters, books-bpe1024`."""
        first = self.members.iloc[0]
        return f"{big(first['parameters'])} parameters, {first['corpus']}"

    @property
    def scale(self) -> str:
        """The runs in words: `363k parameters, books-bpe1024, 10,000 steps, 3 seeds`; also
        the learning rate where several were compared, and the study where several are loaded."""
        made = " (made to show the mechanism)" if self.is_generated else ""
        runs = self.summary.tables.runs
        own = sorted(set(runs["study"][runs["folder"].isin(self.folders)]))
        study = f", {' and '.join(own)}" if runs["study"].nunique() > 1 else ""
        return f"{self.model}{made}, {self.steps:,} steps{self.rate}, {self.seeds}{study}"

    @property
    def rate(self) -> str:
        """`, learning rate 0.002` where several were compared, otherwise empty."""
        table = self.summary.comparison.table
        rates = set(table["learning_rate"][table["group"].isin(self.rows["group"])])
        own = set(self.rows["learning_rate"])
        return f", learning rate {min(own):g}" if own < rates and len(own) == 1 else ""

    def only(self, rows: pd.DataFrame) -> Group:
        return replace(self, rows=rows.reset_index(drop=True))

    def plain(self, *free: str, weighting: str = "uniform") -> Group:
        """Return the group of those settings that are the paper's method with this weighting of
        the bag, whatever they have in the columns `free`."""
        keep = [
            SuperpositionSetting.of_row(row).is_plain_but(*free, "weighting")
            and ("weighting" in free or row["weighting"] == weighting)
            for row in rows_of(self.rows)
        ]
        return self.only(self.rows.loc[keep])

    def representative(self) -> Group:
        """Return the group of one plain setting: of those with most seeds, the middle one by s and
        r. Without a plain setting the group is empty."""
        rows = self.plain().rows
        most = rows[rows["seeds"] == rows["seeds"].max()].sort_values(["bag_size", "step_ratio"])
        middle = (len(most) - 1) // 2
        return self.only(most[middle : middle + 1])

    def with_baseline(self) -> pd.DataFrame:
        """Return a row for the baseline, then one for each setting; `loss` is `level`, less the
        gain in a setting's row."""
        base = {"bag_size": 1, "step_ratio": 0.0, "superposed_steps": 0, "data_multiplier": 1.0}
        base |= {"loss": self.level, "seeds": len(self.baselines)}
        own = self.rows.assign(loss=self.level - self.rows["gain"])
        return pd.concat([pd.DataFrame([base]), own], ignore_index=True)


def folders_of(groups: Iterable[Group]) -> tuple[str, ...]:
    return tuple(sorted({folder for group in groups for folder in group.folders}))


def is_at_scale(runs: pd.DataFrame, size: str, steps: int) -> pd.Series:
    """Return a mask of the runs that have so many steps and, to within `TOLERANCE`, the number of
    parameters of the paper's model of this size."""
    near = (runs["parameters"].astype(float) / published.PARAMS[size] - 1).abs() < TOLERANCE
    return near & (runs["steps"] == steps)
