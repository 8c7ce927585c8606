"""The three tables that every analysis, figure and page reads, wherever the runs were trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from tst_study.analysis.tables.archive import find_archives, read_archive
from tst_study.analysis.tables.columns import Tables, merged
from tst_study.analysis.tables.run_folders import read_folders
from tst_study.analysis.tables.sheets import filled_cells, read_sheet
from tst_study.errors import UserError
from tst_study.record.reader import find_run_folders

EXCLUSIONS = "exclusions.csv"
Folders = str | Path | Iterable[str | Path]


def read_tables(sources: Folders) -> Tables:
    """Read every run folder and every archive at or below the given folders, once.

    Runs that an `exclusions.csv` names, in a given folder or beside runs below it, stay in the
    table, with the reason beside them.

    Raises `UserError` where a given folder does not exist, and for a wrong `exclusions.csv` or a
    damaged archive. Run folders that cannot be read are reported as problems instead, and so are
    sources without any run.
    """
    places = roots(sources)
    folders = _distinct(places, find_run_folders)
    archives = _distinct(places, find_archives)
    tables = merged([read_folders(folders), *map(read_archive, archives)])
    problems = list(tables.problems)
    if tables.runs.empty and not problems:
        problems.append(
            f"{', '.join(map(str, places))}: no run folder there; name the folder that holds the "
            "runs"
        )
    beside = [folder.parent for folder in folders if folder not in places]
    tables = replace(tables, roots=places)
    return _with_exclusions(tables, list(dict.fromkeys([*places, *beside, *archives])), problems)


def _with_exclusions(tables: Tables, roots: Sequence[Path], problems: list[str]) -> Tables:
    """Mark the runs that a person has taken out (`EXCLUSIONS`: columns `run`, a run id, and
    `reason`); a line that matches no run is a problem."""
    runs = tables.runs.copy()
    for run, reason in _read_exclusions(roots).items():
        meant = runs["run_id"] == run
        runs.loc[meant, "exclusion"] = reason
        if not meant.any():
            problems.append(f"{EXCLUSIONS}: {run} matches no run here (excluded for: {reason})")
    return replace(tables, runs=runs, problems=tuple(problems))


def _read_exclusions(roots: Iterable[Path]) -> dict[str, str]:
    """Reasons by run id, from every root that has the file.

    Raises `UserError` that names the file for a missing column, an empty cell, or a run with two
    reasons.
    """
    reasons: dict[str, str] = {}
    for path in filter(Path.is_file, (root / EXCLUSIONS for root in roots)):
        sheet = read_sheet(path)
        if not {"run", "reason"} <= {*sheet}:
            raise UserError(f"{path}: needs the columns run and reason")
        for line, row in filled_cells(sheet, path, "run", "reason"):
            run, reason = row["run"], row["reason"]
            if reasons.setdefault(run, reason) != reason:
                raise UserError(f"{path}, line {line}: {run} has two reasons; keep one")
    return reasons


def load(sources: Folders) -> pd.DataFrame:
    """One tidy row per run that could be read (`read_tables` says what could not).

    Losses are in nats per token, times in seconds, sizes in tokens. The final loss is that of the
    run's last held-out evaluation, wherever it stands: `evaluated_step` and `annealed` say so.
    """
    return read_tables(sources).runs


def roots(sources: Folders) -> tuple[Path, ...]:
    """Return the given folders, or the only one, as a tuple. Raises `UserError` for one that does
    not exist."""
    given = [sources] if isinstance(sources, str | Path) else sources
    for root in (folders := tuple(map(Path, given))):
        if not root.is_dir():
            raise UserError(f"{root}: no such folder; name a study's folder or a run's folder")
    return folders


def _distinct(places: Sequence[Path], find: Callable[[Path], list[Path]]) -> list[Path]:
    distinct: dict[Path, Path] = {}
    for folder in (folder for place in places for folder in find(place)):
        distinct.setdefault(folder.resolve(), folder)
    return sorted(distinct.values(), key=str)  # as a table's column of folders sorts
