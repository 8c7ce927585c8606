"""The runs that items are made from, read once and only where an item asks, and groups of runs that
may be compared: chosen by what was run, never by how well it did."""

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
"""The last that a task reports. (The paper does not say which of them it prints.)"""
COLUMNS = ["folder", "task", "accuracy"]


class Sources:
    """Published numbers are read where they are needed (`analysis.published`); runs from here."""

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
        """All that may be compared, in order of name."""
        table = self.summary.comparison.table
        return [Group(self.summary, rows) for _, rows in table.groupby(list(SAME), sort=True)]

    @functools.cached_property
    def accuracies(self) -> pd.DataFrame:
        """Accuracies that `tst-study evaluate` wrote: the last of each finished run and task, as a
        fraction, on all questions and without examples in the context, as the paper's are."""
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
"""Grouped heads make a model smaller by a twentieth; it is the same model to the paper."""


@dataclass(frozen=True, eq=False)
class Group:
    """Runs that may be compared, and some settings among them."""

    summary: Summary
    rows: pd.DataFrame
    """Rows of `Comparison.table`, one per setting."""

    @functools.cached_property
    def members(self) -> pd.DataFrame:
        """Rows of the run table that have the group and a learning rate of the settings."""
        runs = self.summary.tables.runs
        same = runs["group"].isin(self.rows["group"])
        return runs[same & runs["learning_rate"].isin(self.rows["learning_rate"])]

    @functools.cached_property
    def pairs(self) -> pd.DataFrame:
        """Rows of the comparison's pairs, one for each setting and seed."""
        key = [*SAME, "setting"]
        return self.summary.comparison.pairs.merge(self.rows[key], on=key)

    @functools.cached_property
    def baselines(self) -> pd.DataFrame:
        """Rows of the pairs, one for each baseline run."""
        return self.pairs.drop_duplicates("baseline_folder")

    @property
    def level(self) -> float:
        """Mean loss of all baselines. Settings that were run with fewer seeds stand at this level
        less their own paired gain: their plain means would compare the luck of different seeds."""
        return float(self.baselines["baseline"].mean())

    @property
    def folders(self) -> tuple[str, ...]:
        """Run folders of the settings, baselines included."""
        both = pd.concat([self.pairs["baseline_folder"], self.pairs["superposed_folder"]])
        return tuple(sorted(set(both.astype(str))))

    @property
    def weight(self) -> tuple[int, ...]:
        """Settings, natural text before generated language, steps and seeds."""
        seeds = int(self.rows["seeds"].sum())
        return self.rows["setting"].nunique(), not self.is_generated, self.steps, seeds

    @property
    def steps(self) -> int:
        return int(self.members["steps"].iloc[0])

    @property
    def is_generated(self) -> bool:
        """Its text was made up to show the mechanism; what it gains, natural text need not."""
        return bool(self.members["optimal_nats_per_token"].notna().any())

    @property
    def seeds(self) -> str:
        return span(self.rows["seeds"], "seed")

    @property
    def model(self) -> str:
        """`363k parameters, books-bpe1024`."""
        first = self.members.iloc[0]
        return f"{big(first['parameters'])} parameters, {first['corpus']}"

    @property
    def scale(self) -> str:
        """`363k parameters, books-bpe1024, 10,000 steps, 3 seeds`; with the learning rate where
        several were compared, and the study where there are several."""
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
        """Its settings of the paper's method, whatever these columns say, or with another
        weighting of the bag."""
        keep = [
            SuperpositionSetting.of_row(row).is_plain_but(*free, "weighting")
            and ("weighting" in free or row["weighting"] == weighting)
            for row in rows_of(self.rows)
        ]
        return self.only(self.rows.loc[keep])

    def representative(self) -> Group:
        """Return one of its plain settings, if there is any: the middle one of those with most
        seeds."""
        rows = self.plain().rows
        most = rows[rows["seeds"] == rows["seeds"].max()].sort_values(["bag_size", "step_ratio"])
        middle = (len(most) - 1) // 2
        return self.only(most[middle : middle + 1])

    def with_baseline(self) -> pd.DataFrame:
        """Return the baseline's row, then one for each setting: `loss` at the baseline's level."""
        base = {"bag_size": 1, "step_ratio": 0.0, "superposed_steps": 0, "data_multiplier": 1.0}
        base |= {"loss": self.level, "seeds": len(self.baselines)}
        own = self.rows.assign(loss=self.level - self.rows["gain"])
        return pd.concat([pd.DataFrame([base]), own], ignore_index=True)


def folders_of(groups: Iterable[Group]) -> tuple[str, ...]:
    return tuple(sorted({folder for group in groups for folder in group.folders}))


def is_at_scale(runs: pd.DataFrame, size: str, steps: int) -> pd.Series:
    """Return which runs have the paper's model, by its number of weights, and its length."""
    near = (runs["parameters"].astype(float) / published.PARAMS[size] - 1).abs() < TOLERANCE
    return near & (runs["steps"] == steps)
