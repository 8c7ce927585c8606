"""The runs that items are made from, read once and only where an item asks."""

import functools
import json

import pandas as pd

from tst_study.analysis.published import TASKS
from tst_study.analysis.summary import Summary, summarise
from tst_study.analysis.tables.source import Folders, read_tables, roots
from tst_study.analysis.verdict.comparison import SAME
from tst_study.paper_figures.answers import answers
from tst_study.paper_figures.groups import Group

METRICS = ("acc_norm", "acc")
"""The first that a task reports. (The paper does not say which of them it prints.)"""
COLUMNS = ("folder", "task", "accuracy", "metric")


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
        # Of metrics the first, of rows the last.
        table = table.assign(place=table["metric"].map(METRICS.index))
        table = table.sort_values("place", ascending=False, kind="stable")
        table = table.drop_duplicates(["folder", "task"], keep="last").sort_index()
        return table.rename(columns={"value": "accuracy"})[list(COLUMNS)].reset_index(drop=True)
