"""The three tables that every analysis, figure and page reads, wherever the runs were trained."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from analysis.tables.exclusions import read_exclusions, reason_of, unmatched
from analysis.tables.run_folders import read_folders
from tst_study.errors import UserError
from tst_study.run_record import find_run_folders

Sources = str | Path | Iterable[str | Path]


@dataclass(frozen=True)
class Tables:
    """What a set of runs came to (`columns`); `folder` joins the tables."""

    runs: pd.DataFrame
    """One row per run."""
    curves: pd.DataFrame
    """One row per logged training step that counts."""
    evaluations: pd.DataFrame
    """One row per held-out loss, and per number that a task measured."""
    problems: tuple[str, ...]
    """One sentence per run that could not be read."""
    roots: tuple[Path, ...] = ()
    """What was named, for what lies beside runs."""

    @property
    def held_out(self) -> pd.DataFrame:
        """Evaluations that are held-out losses."""
        return self.evaluations[self.evaluations["task"].isna()]


def read_tables(sources: Sources) -> Tables:
    """Read every run at or below the given folders, once.

    Runs that an `exclusions.csv` names, in a given folder or beside runs below it, keep their row
    and get its reason.

    Raises `UserError` where a given folder does not exist, or for a wrong `exclusions.csv`;
    anything wrong inside a run becomes a problem instead.
    """
    roots = _roots(sources)
    found = _run_folders(roots)
    runs, curves, evaluations, problems = read_folders(found)
    if runs.empty and not problems:
        problems.append(
            f"{', '.join(map(str, roots))}: no run folder there; name the folder that holds the "
            "runs"
        )
    beside = [folder.parent for folder in found if folder not in roots]
    tables = Tables(runs, curves, evaluations, (), tuple(roots))
    return _with_exclusions(tables, list(dict.fromkeys([*roots, *beside])), problems)


def _with_exclusions(tables: Tables, roots: Sequence[Path], problems: list[str]) -> Tables:
    exclusions = read_exclusions(roots)
    marks = list(zip(tables.runs["run_id"], tables.runs["fingerprint"], strict=True))
    runs = tables.runs.assign(exclusion=[reason_of(exclusions, *mark) for mark in marks])
    problems += unmatched(exclusions, marks)
    runs.attrs["problems"] = list(problems)
    return replace(tables, runs=runs, problems=tuple(problems))


def load(sources: Sources) -> pd.DataFrame:
    """One tidy row per run; `attrs["problems"]` lists the runs that could not be read.

    Losses are in nats per token, times in seconds, sizes in tokens. The final loss is that of the
    run's last held-out evaluation, wherever it stands: `evaluated_step` and `annealed` say so.
    """
    return read_tables(sources).runs


def _run_folders(roots: Sequence[Path]) -> list[Path]:
    found: dict[Path, Path] = {}
    for root in roots:
        if not root.is_dir():
            raise UserError(f"{root}: no such folder; name a study's folder or a run's folder")
        for folder in find_run_folders(root):
            found.setdefault(folder.resolve(), folder)
    return sorted(found.values(), key=str)  # as a table's column of folders sorts


def _roots(sources: Sources) -> list[Path]:
    return [Path(root) for root in ([sources] if isinstance(sources, str | Path) else sources)]
