"""Run folders as three tidy tables: runs, training curves and held-out evaluations.

Everything comes from the run folders (`tst_study.run_record`): no name is parsed, nothing is
guessed. A run that cannot be read is a problem that is reported; the others are read all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.runs.exclusions import read_exclusions, reason_of, unmatched
from analysis.runs.run_row import COLUMNS, RunRow, run_row
from tst_study.errors import UserError
from tst_study.run_record import Evaluation, Metrics, RunRecord, find_run_folders, read

Folders = str | Path | Iterable[str | Path]

NOT_ON_CURVES = ("segment", "step_seconds", "compile_seconds", "moe")
CURVE_COLUMNS = tuple(name for name in Metrics.__annotations__ if name not in NOT_ON_CURVES)
NOT_OF_EVALUATIONS = ("segment", "epochs", "seconds")
EVALUATION_COLUMNS = tuple(
    name for name in Evaluation.__annotations__ if name not in NOT_OF_EVALUATIONS
)


@dataclass(frozen=True)
class Tables:
    """What a set of run folders holds; `folder` joins the tables."""

    runs: pd.DataFrame
    """One row per run."""
    curves: pd.DataFrame
    """One row per logged training step that counts."""
    evaluations: pd.DataFrame
    """One row per held-out evaluation (downstream tasks are left out)."""
    problems: tuple[str, ...]
    """One sentence per run that could not be read."""


def read_tables(folders: Folders) -> Tables:
    """Read every run at or below the given folders, once.

    Runs that an `exclusions.csv` names, in a given folder or beside runs below it, keep their row
    and get its reason.

    Raises `UserError` where a given folder does not exist, or for a wrong `exclusions.csv`;
    anything wrong inside a run becomes a problem instead.
    """
    found = _run_folders(folders)
    tables = _read(found)
    problems = list(tables.problems)
    if tables.runs.empty and not problems:
        problems.append(
            f"{', '.join(map(str, _roots(folders)))}: no run folder there; name the folder that "
            "holds the runs"
        )
    roots = _roots(folders)
    beside = [folder.parent for folder in found if folder not in roots]
    return _with_exclusions(tables, list(dict.fromkeys([*roots, *beside])), problems)


def _read(folders: Sequence[Path]) -> Tables:
    records: list[RunRecord] = []
    rows: list[RunRow] = []
    problems: list[str] = []
    for folder in folders:
        try:
            record = read(folder)
            rows.append(run_row(record))
            records.append(record)
        except (UserError, OSError, ValueError) as error:
            problems.append(str(error))
        except (KeyError, TypeError, IndexError) as error:
            problems.append(f"{folder}: the record lacks what this version needs ({error!r})")
    runs = pd.DataFrame(rows, columns=list(COLUMNS))
    names = [str(record.folder) for record in records]
    return Tables(
        runs=runs,
        curves=_long(names, [record.metrics for record in records], CURVE_COLUMNS),
        evaluations=_long(names, [record.evals for record in records], EVALUATION_COLUMNS),
        problems=tuple(problems),
    )


def _with_exclusions(tables: Tables, roots: Sequence[Path], problems: list[str]) -> Tables:
    exclusions = read_exclusions(roots)
    marks = list(zip(tables.runs["run_id"], tables.runs["fingerprint"], strict=True))
    runs = tables.runs.assign(exclusion=[reason_of(exclusions, *mark) for mark in marks])
    problems += unmatched(exclusions, marks)
    runs.attrs["problems"] = list(problems)
    return replace(tables, runs=runs, problems=tuple(problems))


def load(folders: Folders) -> pd.DataFrame:
    """One tidy row per run; `attrs["problems"]` lists the runs that could not be read.

    Losses are in nats per token, times in seconds, sizes in tokens. The final loss is that of the
    run's last held-out evaluation, wherever it stands: `evaluated_step` and `annealed` say so.
    """
    return read_tables(folders).runs


def _run_folders(folders: Folders) -> list[Path]:
    found: dict[Path, Path] = {}
    for root in _roots(folders):
        if not root.is_dir():
            raise UserError(f"{root}: no such folder; name a study's folder or a run's folder")
        for folder in find_run_folders(root):
            found.setdefault(folder.resolve(), folder)
    return sorted(found.values(), key=str)  # as a table's column of folders sorts


def _roots(folders: Folders) -> list[Path]:
    return [Path(root) for root in ([folders] if isinstance(folders, str | Path) else folders)]


def _long(
    names: Sequence[str], groups: Sequence[Sequence[Any]], columns: Sequence[str]
) -> pd.DataFrame:
    """Rows of many runs in one table, built column by column."""
    codes = np.repeat(np.arange(len(names)), [len(rows) for rows in groups])
    table: dict[str, Any] = {"folder": pd.Categorical.from_codes(codes, categories=pd.Index(names))}
    for column in columns:
        values: Any = [row.get(column) for rows in groups for row in rows]
        # Numbers of FLOPs outgrow 64 bits; on a curve they are a coordinate.
        table[column] = np.array(values, dtype=float) if column == "flops" else values
    return pd.DataFrame(table)
