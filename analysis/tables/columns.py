"""The three tables that hold runs, training curves and evaluations, and their columns.

Everything that reads runs makes these tables (`Tables`), and every analysis starts from them.
`columns.csv` declares the columns with their kinds, meanings and units. One group of columns says
how a run departs from the paper's method. These are declared by `superposition_setting.ABLATIONS`
instead, and come after `step_ratio`. `docs/tables.md` is made from both.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from tst_study.config.superposition_setting import ABLATIONS, COLUMNS, SuperpositionSetting

Kind = Literal["text", "whole", "number", "truth", "json"]


@dataclass(frozen=True)
class Column:
    """A column of one of the three tables."""

    name: str
    kind: Kind
    """`whole` numbers are at least 0, `number`s finite; `json` is text that holds JSON."""
    words: str
    """Meaning and unit; empty where the name says it all. Where no unit is named, losses are in
    nats per token, times in seconds and amounts of text in tokens."""
    optional: bool = True
    """Whether a cell may be missing."""


def _declared(table: str) -> tuple[Column, ...]:
    """Return the columns that `columns.csv` declares for one of the tables."""
    text = files(__package__).joinpath("columns.csv").read_text("utf8")
    return tuple(
        Column(row["column"], row["kind"], row["meaning"], not row["required"])  # type: ignore[arg-type]
        for row in csv.DictReader(text.splitlines())
        if row["table"] == table
    )


_SETTING = tuple(
    Column(
        one.column,
        "truth" if one.plain is False else "text",
        f"`{one.key}` of the config; {'false' if one.plain is False else 'empty'} where it is not "
        "used"
        if one.key
        else "of an imported run, the name of its arm, unless it is a baseline",
    )
    for one in ABLATIONS
)
_OF_RUNS = _declared("runs")
_RATIO = [column.name for column in _OF_RUNS].index("step_ratio") + 1
RUNS = (*_OF_RUNS[:_RATIO], *_SETTING, *_OF_RUNS[_RATIO:])
CURVES, EVALUATIONS = _declared("curves"), _declared("evaluations")
RUN_COLUMNS = (*(column.name for column in RUNS), "folder")
"""Names of the columns of the run table in memory. An archive does not store `folder`."""
SHAPE: tuple[str, ...] = ("layers", "hidden_size", "attention_heads", "key_value_heads")
SHAPE += ("feed_forward_size", "vocabulary_size")
"""Columns that hold the values that a config's section `model` has under the same names."""


@dataclass(frozen=True)
class Tables:
    """The three tables of a set of runs. The column `folder`, unique to each run, joins them."""

    runs: pd.DataFrame
    """One row per run."""
    curves: pd.DataFrame
    """One row per logged training step. If a step was logged again, only its last row is here."""
    evaluations: pd.DataFrame
    """One row per held-out loss, and per number that a task measured."""
    problems: tuple[str, ...]
    """Sentences about what went wrong or was assumed, for example runs that could not be read,
    exclusions of unknown runs, and facts that imported runs lack."""
    roots: tuple[Path, ...] = ()
    """The folders that `read_tables` was given. A study's `questions.json` is looked for there
    (`question.questions_of`)."""

    @property
    def held_out(self) -> pd.DataFrame:
        """The evaluations that are held-out losses, without those of tasks."""
        return self.evaluations[self.evaluations["task"].isna()]

    def only(self, wanted: pd.Series) -> Tables:
        """Return the runs for which `wanted` is true, with their curves and evaluations."""
        runs = self.runs[wanted]
        curves, evaluations = (
            table[table["folder"].isin(runs["folder"])].reset_index(drop=True)
            for table in (self.curves, self.evaluations)
        )
        return replace(
            self, runs=runs.reset_index(drop=True), curves=curves, evaluations=evaluations
        )

    def thinned(self, rows: int) -> Tables:
        """Return the same tables with fewer rows of each curve.

        A curve keeps at least `rows` evenly spaced rows and fewer than twice as many; a shorter one
        keeps all. In addition it keeps its last row and those of steps with a held-out loss.
        """
        runs = self.curves.groupby("folder", observed=True)["step"]
        place, count = runs.cumcount(), runs.transform("size")
        steps, evaluated = (
            pd.MultiIndex.from_arrays([table["folder"].astype("str"), table["step"]])
            for table in (self.curves, self.held_out)
        )
        kept = (place % (count // rows).clip(lower=1) == 0) | (place == count - 1)
        kept |= steps.isin(evaluated)
        return replace(self, curves=self.curves[kept].reset_index(drop=True))

    @classmethod
    def of(
        cls,
        rows: Sequence[Mapping[str, Any]],
        curves: pd.DataFrame,
        evaluations: pd.DataFrame,
        problems: Iterable[str] = (),
    ) -> Tables:
        """Make tables. `rows`: the rows of the run table, as dictionaries with the keys
        `RUN_COLUMNS`."""
        runs = pd.DataFrame(rows, columns=list(RUN_COLUMNS)).astype({"learning_rate": float})
        if runs["seed"].isna().any():  # pandas would turn the known seeds into floats
            seeds = [math.nan if pd.isna(row["seed"]) else row["seed"] for row in rows]
            runs["seed"] = pd.Series(seeds, runs.index, dtype=object)
        return cls(runs, curves, evaluations, tuple(problems))


def merged(parts: Sequence[Tables]) -> Tables:
    """Join the tables of one or more sources.

    If several sources have runs, the runs are sorted by folder, and `roots` is empty.
    """
    problems = tuple(problem for part in parts for problem in part.problems)
    parts = [part for part in parts if len(part.runs)] or parts[:1]
    if len(parts) == 1:
        return replace(parts[0], problems=problems)
    every = (row for part in parts for row in rows_of(part.runs))
    rows = sorted(every, key=lambda row: str(row["folder"]))
    curves, evaluations = (
        pd.concat([getattr(part, name).astype({"folder": "str"}) for part in parts])
        .astype({"folder": "category"})
        .reset_index(drop=True)
        for name in ("curves", "evaluations")
    )
    return Tables.of(rows, curves, evaluations, problems)


def typed(table: pd.DataFrame, columns: Iterable[Column]) -> pd.DataFrame:
    """Give a table's columns the dtypes of their kinds, in place, and return the table.

    A column of whole numbers with missing values becomes a column of floats; a column of truth
    values with missing ones keeps its dtype.
    """
    for column in columns:
        values = table[column.name]
        if column.kind in ("text", "json"):
            table[column.name] = values.astype("str").where(values.notna())
        elif column.kind == "truth" and not values.isna().any():
            table[column.name] = values.astype(bool)
        elif column.kind in ("number", "whole"):
            whole = column.kind == "whole" and not values.isna().any()
            table[column.name] = values.astype("int64" if whole else float)
    return table


def finished(steps: int, superposed: Mapping[str, Any], **known: Any) -> dict[str, Any]:
    """Return the row of a finished run that has no run folder: imported, published or simulated.

    `superposed`: the columns that describe its setting, as `SuperpositionSetting.of_row` reads
    them. `known`: values of other columns. They also replace what is assumed here of a finished
    run, such as its state. Columns for which none of these gives a value are None.
    """
    setting = SuperpositionSetting.of_row(superposed)
    return {
        **dict.fromkeys(RUN_COLUMNS),
        **columns_of(setting),
        **dict.fromkeys(("step", "steps", "evaluated_step"), steps),
        **dict.fromkeys(("message", "exclusion"), ""),
        "state": "done",
        "role": setting.role,
        "evaluated_phase": "superposition" if setting.superposed_steps == steps else "recovery",
        **known,
    }


def columns_of(setting: SuperpositionSetting) -> dict[str, Any]:
    """Return the columns that follow from a run's setting alone, with their values."""
    method = "baseline" if setting.is_baseline else "superposition"
    return {**setting.columns(), "method": method, "arm": setting.label}


def rows_of(table: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table as dictionaries by column name."""
    for part in (table.iloc[:1], table.iloc[1:]):  # many readers want the first row alone
        yield from part.to_dict("records")  # type: ignore[misc]


def settings_of(table: pd.DataFrame) -> list[SuperpositionSetting]:
    """Return the setting of each row of the run table."""
    names = [name for name in COLUMNS if name in table]
    return [SuperpositionSetting.of_row(row) for row in rows_of(table[names])]
