"""Reads run folders and archives into the three tables from which every analysis, figure and page
of runs is made, wherever the runs were trained."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote

import pandas as pd

from tst_study.analysis.tables.archive import find_archives, read_archive
from tst_study.analysis.tables.columns import Tables, merged
from tst_study.analysis.tables.run_folders import read_folders
from tst_study.analysis.tables.sheets import filled_cells, read_sheet
from tst_study.errors import UserError
from tst_study.record.reader import find_run_folders

EXCLUSIONS = "exclusions.csv"
NO_LONGER_ASKED = "no_longer_asked.csv"
"""A file of the same form, which `submit` writes for the runs that a study no longer asks for."""
Folders = str | Path | Iterable[str | Path]


def read_tables(sources: Folders) -> Tables:
    """Read every run folder and every archive at or below the given folders, each once.

    An `exclusions.csv` may lie in a given folder, beside run folders below it, or in an archive.
    The runs that it names stay in the table, with the reason in the column `exclusion`.

    Raises `UserError` if a given folder does not exist, and for a wrong `exclusions.csv` or a
    damaged archive. Run folders that cannot be read are reported in `problems` instead, and so is
    the case that there is nothing to read.
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
    """Mark the runs that a person has taken out. An `EXCLUSIONS` file has the columns `run` (a run
    id) and `reason`, for the runs below its folder; a line that matches no run is reported as a
    problem."""
    runs = tables.runs.copy()
    for path in (root / name for root in roots for name in (NO_LONGER_ASKED, EXCLUSIONS)):
        for run, reason in _read_exclusions(path).items():
            named = runs["folder"][runs["run_id"] == run]
            meant = [
                row for row, folder in named.items() if Path(folder).is_relative_to(path.parent)
            ]
            runs.loc[meant, "exclusion"] = reason
            if not meant:
                problems.append(f"{path.name}: {run} matches no run here (excluded for: {reason})")
    return replace(tables, runs=runs, problems=tuple(problems))


def _read_exclusions(path: Path) -> dict[str, str]:
    """Return reasons by run id; none if there is no such file.

    Raises `UserError`, which names the file, for a missing column, an empty cell, or a run with two
    different reasons.
    """
    if not path.is_file():
        return {}
    sheet, reasons = read_sheet(path), dict[str, str]()
    if not {"run", "reason"} <= {*sheet}:
        raise UserError(f"{path}: needs the columns run and reason")
    for line, row in filled_cells(sheet, path, "run", "reason"):
        run, reason = row["run"], row["reason"]
        if reasons.setdefault(run, reason) != reason:
            raise UserError(f"{path}, line {line}: {run} has two reasons; keep one")
    return reasons


def own_runs(sources: Iterable[str]) -> tuple[Tables | None, list[str]]:
    """Read those sources of an import that are, or hold, run folders of this package; None if none
    does. Also return the other sources.

    Raises `UserError` for a run that cannot be read."""
    found = {source: find_run_folders(source) for source in sources if Path(source).is_dir()}
    folders = [folder for source in found for folder in found[source]]
    if not folders:
        return None, list(sources)
    tables = replace(read_folders(folders), roots=tuple(map(Path, found)))
    if tables.problems:
        raise UserError(tables.problems[0])
    return tables, [source for source in sources if not found.get(source)]


def load(sources: Folders) -> pd.DataFrame:
    """Return the run table of `read_tables`: one row per run that could be read.

    Losses are in nats per token, times in seconds, amounts of text in tokens. `nats_per_token` is
    the loss of the run's last held-out evaluation, even if that was before the end of the run; see
    `evaluated_step` and `annealed`.
    """
    return read_tables(sources).runs


def roots(sources: Folders) -> tuple[Path, ...]:
    """Return, as a tuple, the folder or folders that were given. Raises `UserError` for a folder
    that does not exist, and for a file, such as that of a study."""
    given = [sources] if isinstance(sources, str | Path) else sources
    for root in (folders := tuple(map(Path, given))):
        if root.is_file():
            remedy = f"name the folder of its runs, such as {root.parent / 'runs' / root.stem}"
            if root.suffix not in (".toml", ".py"):
                remedy = f"make an archive of it: tst-study import {quote(str(root))} --to ARCHIVE"
            raise UserError(f"{root}: a file; {remedy}")
        if not root.is_dir():
            raise UserError(f"{root}: no such folder; name a study's folder or a run's folder")
    return folders


def _distinct(places: Sequence[Path], find: Callable[[Path], list[Path]]) -> list[Path]:
    """Return the folders that `find` finds in these places, each once."""
    distinct: dict[Path, Path] = {}
    for folder in (folder for place in places for folder in find(place)):
        distinct.setdefault(folder.resolve(), folder)
    return sorted(distinct.values(), key=str)  # as text, like a table's column of folders
