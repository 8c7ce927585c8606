"""What items are made from: the runs of a folder, read once and only where an item asks."""

from __future__ import annotations

import functools
from pathlib import Path

import pandas as pd

from analysis.run_table import read_tables
from analysis.summary import Summary, summarise_tables
from paper_figures.accuracies import accuracies
from paper_figures.groups import Group, all_groups, main_groups
from tst_study.errors import UserError


class Sources:
    """Published numbers are read where they are needed (`analysis.published`); runs from here."""

    def __init__(self, runs: Path | str | None) -> None:
        if runs is not None and not Path(runs).is_dir():
            raise UserError(f"{runs}: no such folder; name a study's folder or a run's folder")
        self.folder = None if runs is None else Path(runs)

    @functools.cached_property
    def summary(self) -> Summary:
        """Of no runs at all, where no folder was named."""
        return summarise_tables(read_tables(self.folder or []))

    @property
    def runs(self) -> pd.DataFrame:
        return self.summary.tables.runs

    @functools.cached_property
    def groups(self) -> list[Group]:
        return all_groups(self.summary)

    @functools.cached_property
    def main_groups(self) -> list[Group]:
        return main_groups(self.summary)

    @functools.cached_property
    def accuracies(self) -> pd.DataFrame:
        return accuracies(self.runs)
