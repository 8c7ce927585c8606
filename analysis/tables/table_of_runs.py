"""Runs that were trained elsewhere, as a table: one row per run, in the columns of `SCHEMA`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.checks import needs_columns, numbers, positive, truths
from analysis.tables.columns import (
    CURVE_COLUMNS,
    EVALUATION_COLUMNS,
    RUN_COLUMNS,
    Tables,
    finished,
    rows_of,
)
from tst_study.config.identity import digest
from tst_study.errors import UserError


@dataclass(frozen=True)
class Column:
    """A column that a table of runs may have."""

    name: str
    default: Any
    """None: it must be there. The default stands for a whole column that is missing; a cell that is
    missing is an error."""
    words: str
    bounds: Mapping[str, float] | None = None
    """Of a number, as `checks.numbers` takes them."""
    whole: bool = False


POSITIVE, NOT_NEGATIVE = {"above": 0.0}, {"least": 0.0}


SCHEMA = (
    Column("run", None, "a name of its own"),
    Column("loss", None, "final held-out next-token loss, nats per token", POSITIVE),
    Column("params", None, "parameters; of a mixture those active for a token", POSITIVE),
    Column("tokens", "", "trained positions (or give flops): for s tokens a bag, bags", POSITIVE),
    Column("flops", "", "of the training; 6 · params · tokens", POSITIVE),
    Column("steps", "", "of the optimizer; tokens where it is missing", POSITIVE, whole=True),
    Column("annealed", True, "whether the learning rate had decayed when the loss was taken"),
    Column("seed", 0, "pairs a run with its baseline", NOT_NEGATIVE, whole=True),
    Column("bag_size", 1, "s, tokens a bag; 1 is a baseline", POSITIVE, whole=True),
    Column(
        "step_ratio",
        0.0,
        "r, the share of the steps that is superposed",
        {"least": 0.0, "most": 1.0},
    ),
    Column("weighting", "uniform", "target weights"),
    Column("learning_rate", 0.0, "peak", NOT_NEGATIVE),
    Column("corpus", "", "training text: runs of one corpus are compared"),
    Column("eval_set", "", "held-out text: losses on one text are compared"),
    Column("batch", "", "whatever else must be equal for two runs to be compared"),
    Column("model", "", "label of rows that belong to one training"),
)


def read_frame(path: str | Path) -> pd.DataFrame:
    """A CSV or parquet file. Raises `UserError` where it is none."""
    source = Path(path)
    if not source.is_file():
        raise UserError(f"{source}: no such file; give a table of runs as CSV or parquet")
    try:
        return pd.read_parquet(source) if source.suffix == ".parquet" else pd.read_csv(source)
    except (ValueError, OSError) as error:
        raise UserError(f"{source}: not a table ({error})") from error


def checked(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with every column of the schema, defaults filled in, numbers as numbers.

    Raises `UserError` for a missing column, or a bad value by column, row and value.
    """
    needs_columns(frame, [column.name for column in SCHEMA if column.default is None], "table")
    rows = with_tokens(frame)
    if "steps" not in rows:
        rows = rows.assign(steps=rows["tokens"].round().clip(lower=1))
    for column in SCHEMA:
        if column.name not in rows and column.name == "model":
            continue  # whose default differs between the laws (`scaling.chinchilla`)
        if column.name not in rows:
            rows[column.name] = column.default
        elif column.bounds is not None:
            rows[column.name] = numbers(
                rows[column.name], column.name, **column.bounds, whole=column.whole
            )
        elif rows[column.name].isna().any():
            where = rows.index[rows[column.name].isna()][0]
            raise UserError(f"column {column.name}, row {where}: is missing; fill it in")
    rows["annealed"] = truths(rows["annealed"], "annealed")
    none = (rows["bag_size"] > 1) & (rows["step_ratio"] > 0) & (_superposed(rows) < 1)
    if none.any():
        raise UserError(
            f"column steps, row {rows.index[none][0]}: with so few steps, step_ratio makes no "
            "superposed step; give steps as a number of steps, not of thousands"
        )
    return rows


def _superposed(rows: pd.DataFrame) -> pd.Series:
    return (rows["step_ratio"] * rows["steps"]).round()


def runs_of(frame: pd.DataFrame) -> pd.DataFrame:
    """A table of runs (`SCHEMA`) in the columns of the run table (`source.load`): what
    `comparison.compare`, `matched.matched` and every question of `tst-study analyse` take."""
    rows_checked = checked(frame)
    if "step_ratio" not in frame and (rows_checked["bag_size"] > 1).any():
        raise UserError("column step_ratio is missing: bags of more than one token need their r")
    twice = rows_checked["run"][rows_checked["run"].duplicated()]
    if len(twice):
        raise UserError(
            f"column run: {twice.iloc[0]!r} stands there more than once; give each run a name of "
            "its own"
        )
    rows = [_run(row) for row in rows_of(rows_checked)]
    table = pd.DataFrame(rows, columns=list(RUN_COLUMNS))
    table.attrs["problems"] = []
    return table


def fingerprint_of_file(path: str | Path) -> dict[str, str]:
    """sha256 by name."""
    return {Path(path).name: hashlib.sha256(Path(path).read_bytes()).hexdigest()}


def tables_of(frame: pd.DataFrame) -> Tables:
    """A table of runs as the tables of run folders, without curves."""
    empty = [
        pd.DataFrame(columns=["folder", *names]) for names in (CURVE_COLUMNS, EVALUATION_COLUMNS)
    ]
    return Tables(runs_of(frame), empty[0], empty[1], ())


def _run(row: dict[str, Any]) -> dict[str, Any]:
    steps, ratio = int(row["steps"]), float(row["step_ratio"])
    superposed = round(ratio * steps)
    more = 1 + superposed / steps * (row["bag_size"] - 1)
    family = " ".join(f"{row[name]:g}" if name == "params" else str(row[name]) for name in _FAMILY)
    known = finished(
        steps,
        {**row, "step_ratio": ratio, "superposed_steps": superposed},
        run_id=str(row["run"]),
        name=str(row["run"]),
        study="table",
        seed=int(row["seed"]),
        parameters=row["params"],
        active_parameters=row["params"],
        corpus=str(row["corpus"]) or "this table",
        learning_rate=float(row["learning_rate"]),
        latent_tokens=row["tokens"],
        raw_tokens=row["tokens"] * more,
        data_multiplier=more,
        flops=row["flops"],
        eval_set=str(row["eval_set"]),
        nats_per_token=float(row["loss"]),
        annealed=bool(row["annealed"]),
        family=family,
        group=f"{family}, {row['tokens']:g} tokens, {steps} steps",
        fingerprint=digest([str(value) for value in row.values()]),
        folder=str(row["run"]),
    )
    return {**known, **dict.fromkeys(_NUMBERS, np.nan)}


_FAMILY = ("corpus", "params", "batch")
_NUMBERS = ("training_seconds", "device_count", "epochs")
"""Used as numbers wherever they are known."""


def with_tokens(frame: pd.DataFrame, others: tuple[str, ...] = ("loss",)) -> pd.DataFrame:
    """The frame with tokens and flops, either from the other by C = 6 N D."""
    if "tokens" not in frame and "flops" not in frame:
        raise UserError("frame: column 'tokens' is missing, and 'flops' to compute it from")
    known = "tokens" if "tokens" in frame else "flops"
    positive(frame, ("params", known, *others), "frame")
    if "flops" not in frame:
        return frame.assign(flops=6.0 * frame["params"] * frame["tokens"])
    if "tokens" not in frame:
        return frame.assign(tokens=frame["flops"] / 6.0 / frame["params"])
    needs_columns(frame, ("flops",), "frame")
    return frame
