"""What items are made from: the runs of a folder, read once and only where an item asks."""

import functools
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.published import TASKS
from analysis.run_table import read_tables
from analysis.runs.run_row import rows_of
from analysis.summary import Summary, summarise
from paper_figures.groups import Group, all_groups
from tst_study.errors import UserError
from tst_study.run_record import read_task_results

METRICS = ("acc_norm", "acc")
"""The first that a task reports. (The paper does not say which of them it prints.)"""
COLUMNS = ("folder", "task", "accuracy", "metric")


class Sources:
    """Published numbers are read where they are needed (`analysis.published`); runs from here."""

    def __init__(self, runs: Path | str | None) -> None:
        if runs is not None and not Path(runs).is_dir():
            raise UserError(f"{runs}: no such folder; name a study's folder or a run's folder")
        self.folder = None if runs is None else Path(runs)

    @functools.cached_property
    def summary(self) -> Summary:
        """Of no runs at all, where no folder was named."""
        return summarise(read_tables(self.folder or []))

    @property
    def runs(self) -> pd.DataFrame:
        return self.summary.tables.runs

    @functools.cached_property
    def groups(self) -> list[Group]:
        return all_groups(self.summary)

    @property
    def plain_groups(self) -> list[Group]:
        """Groups with settings of the paper's method, those alone."""
        plain = (group.plain() for group in self.groups)
        return [group for group in plain if len(group.rows)]

    @property
    def all_settings(self) -> Group:
        """All that was compared, as if it were one group."""
        return Group(self.summary, self.summary.comparison.table)

    @functools.cached_property
    def main_groups(self) -> list[Group]:
        """Of each corpus and model the length and learning rate with most settings; of equals the
        longest, then that with most seeds."""

        def weight(group: Group) -> tuple[int, int, int]:
            return group.rows["setting"].nunique(), group.steps, int(group.rows["seeds"].sum())

        found: dict[str, Group] = {}
        for group in sorted(self.groups, key=weight, reverse=True):
            found.setdefault(group.rows["family"].iloc[0], group)
        return sorted(found.values(), key=lambda group: group.slug)

    @functools.cached_property
    def accuracies(self) -> pd.DataFrame:
        return accuracies(self.runs)


def accuracies(runs: pd.DataFrame) -> pd.DataFrame:
    """What `tst-study evaluate` wrote: per finished run and task the last accuracy, as a fraction.

    On all questions and without examples in the context, as the paper's are.
    """
    rows: list[dict[str, Any]] = []
    for run in rows_of(runs[runs["state"] == "done"]):
        found = {}
        for row in read_task_results(run["folder"]):
            whole = row["details"].get("shots") == 0 and row["details"].get("limit") is None
            if row["task"] in TASKS and row["step"] == run["steps"] and whole:
                known = (name for name in METRICS if row["metrics"].get(name) is not None)
                if metric := next(known, None):
                    found[row["task"]] = (row["task"], row["metrics"][metric], metric)
        rows += [dict(zip(COLUMNS, (run["folder"], *found[task]), strict=True)) for task in found]
    return pd.DataFrame(rows, columns=list(COLUMNS))
