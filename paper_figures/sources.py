"""The runs behind the tables and figures, and groups of runs that may be compared.

Runs are read once, when a table or figure first asks for them. If a figure shows one of several
groups, the group is chosen by what was run, never by how well it did.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from tst_study.analysis import published
from tst_study.analysis.published import TASKS
from tst_study.analysis.summary import Summary, summarise
from tst_study.analysis.tables.columns import Tables, rows_of
from tst_study.analysis.tables.source import Folders, read_tables, roots
from tst_study.analysis.verdict.comparison import SAME
from tst_study.analysis.wording import disambiguate_by_set_up, span
from tst_study.config.superposition_setting import COLUMNS as SETTING
from tst_study.config.superposition_setting import SuperpositionSetting
from tst_study.paper_figures.answers import answers
from tst_study.text import big

METRICS = ("acc", "acc_norm")
"""Names that lm-evaluation-harness gives to plain and to length-normalised accuracy. If a task
reports both, the second counts. The paper does not say which of them it prints."""


class Sources:
    """The runs in the given folders, or in tables that were read from them, and what is derived
    from them. Published numbers are in `analysis.published`."""

    def __init__(self, runs: Folders | Tables | None) -> None:
        self._tables = runs if isinstance(runs, Tables) else None
        self.folders = runs.roots if isinstance(runs, Tables) else roots(runs or ())

    @functools.cached_property
    def summary(self) -> Summary:
        """The summary of the runs; without any folder, that of an empty table."""
        return summarise(self._tables or read_tables(self.folders))

    @functools.cached_property
    def answers(self) -> pd.DataFrame:
        """The study's questions and settings, with their answers (`answers.answers`)."""
        return answers(self.summary)

    @property
    def runs(self) -> pd.DataFrame:
        """The run table."""
        return self.summary.tables.runs

    @functools.cached_property
    def groups(self) -> list[Group]:
        """The compared settings, in a `Group` for each comparison group, learning rate and held-out
        text; sorted by these three."""
        table = self.summary.comparison.table
        return [Group(self.summary, rows) for _, rows in table.groupby(list(SAME), dropna=False)]

    @functools.cached_property
    def accuracies(self) -> pd.DataFrame:
        """Accuracies that `tst-study evaluate` wrote for the last step of runs that may be
        compared: a row of such a run for each task, with the task and the accuracy, a fraction.

        Like the paper's, they are zero-shot and on all questions of a task. Evaluations with
        examples in the prompt, or on a part of the questions, are left out. So are those on another
        version of a task than most runs of a group have.
        """
        comparison, table = self.summary.comparison, self.summary.tables.evaluations
        table = table[table["task"].isin(TASKS) & table["metric"].isin(METRICS)]
        names = {"eval_set": "version", "value": "accuracy"}
        table = table.astype({"folder": str}).rename(columns=names)
        details = pd.DataFrame(list(table["details"].map(json.loads)), columns=["shots", "limit"])
        table = table[((details["shots"] == 0) & details["limit"].isna()).to_numpy()]
        table = table.sort_values(["folder", "task", "metric"], kind="stable")
        columns = ["folder", "step", "task", "version", "accuracy"]
        table = table[columns].merge(comparison.eligible, on=["folder", "step"])
        table = table.drop_duplicates(["folder", "task"], keep="last")
        usual = table.groupby([*SAME, "task"], dropna=False)["version"]
        return table[table["version"] == usual.transform(lambda versions: versions.mode()[0])]


TOLERANCE = 0.1
"""The relative difference in parameters below which a model counts as the paper's. The paper does
not say whether its dense models use grouped-query attention; if they used it as SmolLM2 does, the
270M and 600M models would have 5% and 7% fewer parameters."""


@dataclass(frozen=True, eq=False)
class Group:
    """Settings with the same comparison group, held-out text and learning rate, unless each arm is
    compared at its own; and their runs.

    Runs of one comparison group differ at most in their arm, seeds and learning rate; model, data,
    batch and number of steps are the same.
    """

    summary: Summary
    rows: pd.DataFrame
    """Rows of `Comparison.table`, one per setting."""

    @functools.cached_property
    def members(self) -> pd.DataFrame:
        """Rows of the run table with the settings' comparison group, at a learning rate of theirs
        or of their baselines. Runs of other settings, unfinished runs and runs on other held-out
        texts are among them."""
        runs = self.summary.tables.runs
        same = runs["group"].isin(self.rows["group"])
        rates = {*self.rows["learning_rate"], *self.baselines["learning_rate"]}
        return runs[same & runs["learning_rate"].isin(rates)]

    @functools.cached_property
    def pairs(self) -> pd.DataFrame:
        """The rows of `Comparison.pairs` that belong to these settings, one for each setting and
        seed."""
        key = [*SAME, *SETTING]
        return self.summary.comparison.pairs.merge(self.rows[key], on=key)

    @functools.cached_property
    def compared(self) -> pd.DataFrame:
        """Rows of the run table that were compared: runs of the settings and their baselines."""
        runs, ids = self.summary.comparison.eligible, self.rows["run_ids"].explode()
        same = runs[list(SAME)].isin(self.rows[list(SAME)].to_dict("list")).all(axis=1)
        return runs[same & runs["run_id"].isin(ids)]

    @property
    def baselines(self) -> pd.DataFrame:
        """Rows of `compared` that are baselines."""
        return self.compared[self.compared["method"] == "baseline"]

    @property
    def level(self) -> float:
        """Mean final loss of the baselines, in nats per token.

        The loss of a setting is shown as this level less its paired gain. The mean loss of the
        setting's own runs also depends on which seeds they have, so it would mislead if they have
        fewer seeds than the baselines.
        """
        return float(self.baselines["nats_per_token"].astype(float).mean())

    @property
    def folders(self) -> tuple[str, ...]:
        """Folders of the runs that were compared."""
        return tuple(sorted(self.compared["folder"].astype(str)))

    @property
    def weight(self) -> tuple[int, ...]:
        """The sort key by which the largest of several groups is chosen: the number of settings,
        then natural before generated text, then steps, then the sum of the settings' seeds."""
        seeds = int(self.rows["seeds"].sum())
        return self.rows["setting"].nunique(), not self.is_generated, self.steps, seeds

    @property
    def steps(self) -> int:
        """The number of steps that every run of the group has."""
        return int(self.members["steps"].iloc[0])

    @property
    def is_generated(self) -> bool:
        """Whether the text was generated to show how superposition works. A gain on such a text
        need not appear on natural text."""
        return bool(self.members["optimal_nats_per_token"].notna().any())

    @property
    def model(self) -> str:
        """Model and text in words: `363k parameters, books-bpe1024`."""
        first = self.members.iloc[0]
        return f"{big(first['parameters'])} parameters, {first['corpus']}"

    @property
    def scale(self) -> str:
        """The runs in words: `363k parameters, books-bpe1024, 10,000 steps, 3 seeds`.

        The learning rate is added if several were compared, and the study if runs of several were
        given.
        """
        made = " (made to show the mechanism)" if self.is_generated else ""
        runs = self.summary.tables.runs
        own = sorted(set(runs["study"][runs["folder"].isin(self.folders)]))
        study = f", {' and '.join(own)}" if runs["study"].nunique() > 1 else ""
        seeds = span(self.rows["seeds"], "seed")
        return f"{self.model}{made}, {self.steps:,} steps{self.rate}, {seeds}{study}"

    @property
    def rate(self) -> str:
        """`, learning rate 0.002` if settings of the comparison group were compared at several
        rates, `, each arm at its own learning rate` if that is so, otherwise empty."""
        if self.compared["rate"].isna().all() and self.compared["learning_rate"].nunique() > 1:
            return ", each arm at its own learning rate"
        table = self.summary.comparison.table
        rates = set(table["learning_rate"][table["group"].isin(self.rows["group"])])
        own = set(self.rows["learning_rate"])
        return f", learning rate {min(own):g}" if own < rates and len(own) == 1 else ""

    def only(self, rows: pd.DataFrame) -> Group:
        """Return the group with these of its rows alone."""
        return replace(self, rows=rows.reset_index(drop=True))

    def plain(self, *free: str, weighting: str = "uniform") -> Group:
        """Return the group of the settings that are the paper's method, with this weighting of the
        tokens in a bag. In the columns `free` a setting may differ from that."""
        keep = [
            SuperpositionSetting.of_row(row).is_plain_but(*free, "weighting")
            and ("weighting" in free or row["weighting"] == weighting)
            for row in rows_of(self.rows)
        ]
        return self.only(self.rows.loc[keep])

    def representative(self) -> Group:
        """Return the group of one setting of the paper's method: of those with the most seeds, the
        middle one when sorted by s, then r. Without such a setting the group is empty."""
        rows = self.plain().rows
        most = rows[rows["seeds"] == rows["seeds"].max()].sort_values(["bag_size", "step_ratio"])
        middle = (len(most) - 1) // 2
        return self.only(most[middle : middle + 1])

    def with_baseline(self) -> pd.DataFrame:
        """Return a row for the baseline, then one for each setting. The column `loss` is `level`
        for the baseline, and `level` less the gain for a setting."""
        base = {"bag_size": 1, "step_ratio": 0.0, "superposed_steps": 0, "data_multiplier": 1.0}
        base |= {"loss": self.level, "seeds": len(self.baselines)}
        own = self.rows.assign(loss=self.level - self.rows["gain"])
        return pd.concat([pd.DataFrame([base]), own], ignore_index=True)


def told_apart(groups: Sequence[Group], names: Sequence[str]) -> list[str]:
    """Return the groups' names; to equal ones is added what distinguishes the groups, except their
    numbers of steps."""
    return disambiguate_by_set_up(names, [group.compared.iloc[0] for group in groups])


def folders_of(groups: Iterable[Group]) -> tuple[str, ...]:
    """Return the run folders of several groups, sorted."""
    return tuple(sorted({folder for group in groups for folder in group.folders}))


def is_at_scale(runs: pd.DataFrame, size: str, steps: int) -> pd.Series:
    """Return a mask of the runs that have `steps` steps and, within `TOLERANCE`, as many parameters
    as the paper's model of the label `size`, such as `270M`."""
    near = (runs["parameters"].astype(float) / published.PARAMS[size] - 1).abs() < TOLERANCE
    return near & (runs["steps"] == steps)
