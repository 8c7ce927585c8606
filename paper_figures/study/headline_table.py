"""What each method cost and reached, one row per setting (paper, Table 1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.comparison import SETTING, Comparison
from analysis.run_row import rows_of
from analysis.summary import Summary
from analysis.wording import big, gain, setting_label, setting_order
from paper_figures.item import Item, Missing, command
from paper_figures.sources import Sources
from paper_figures.table import Entry, Grid, Table
from tst_study.units import duration

KIND = "headline_table"
TITLE = "Cost and loss by setting"
CAPTION = (
    "Means over seeds; ± is the standard deviation over seeds. Time is training alone, on the "
    "machine at hand, other runs beside it."
)

COLUMNS = (
    "corpus",
    "parameters",
    "setting",
    "learning_rate",
    "superposed_steps",
    "steps",
    "raw_tokens",
    "data_multiplier",
    "flops",
    "training_seconds",
    "seeds",
    "loss",
    "loss_deviation",
    "bits_per_byte",
    "gain",
    "low",
    "high",
    "verdict",
)


def headline_table(summary: Summary) -> pd.DataFrame:
    """One row per method, setting and length; means over seeds, deviations over seeds.

    A baseline has a row where something is compared with it; its pilots at other learning rates
    stand in the learning-rate sweep instead. `gain` is paired by seed, so it need not be the
    difference of the two losses where the arms have different seeds.
    """
    comparison = summary.comparison
    if comparison.table.empty:
        return pd.DataFrame(columns=list(COLUMNS))
    keys = ["group", "learning_rate", "eval_set"]
    compared = comparison.table[keys].drop_duplicates()
    runs = comparison.eligible.merge(compared, on=keys)
    rows = []
    for _, members in runs.groupby([*keys, *SETTING], dropna=False, sort=False):
        rows.append(_row(members, comparison))
    rows.sort(key=lambda row: row["order"])
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _row(members: pd.DataFrame, comparison: Comparison) -> dict[str, Any]:
    first = next(rows_of(members))
    setting = setting_label(first)
    found = comparison.table[
        (comparison.table["group"] == first["group"])
        & (comparison.table["learning_rate"] == first["learning_rate"])
        & (comparison.table["eval_set"] == first["eval_set"])
        & (comparison.table["setting"] == setting)
    ]
    result = next(rows_of(found), {})
    leading = ("corpus", "parameters", "steps", "group", "learning_rate", "eval_set")
    loss = members["nats_per_token"].astype(float)
    shared = (
        "corpus",
        "parameters",
        "learning_rate",
        "superposed_steps",
        "steps",
        "raw_tokens",
        "flops",
    )
    return {
        **{column: first[column] for column in (*shared, "data_multiplier")},
        "order": (*(first[column] for column in leading), *setting_order(first)),
        "setting": setting,
        "training_seconds": members["training_seconds"].astype(float).mean(),
        "seeds": len(members),
        "loss": loss.mean(),
        "loss_deviation": loss.std(ddof=1) if len(members) > 1 else np.nan,
        "bits_per_byte": members["bits_per_byte"].astype(float).mean(),
        **{column: result.get(column) for column in ("gain", "low", "high", "verdict")},
    }


@dataclass(frozen=True)
class Column:
    """How a column is printed: heading, text of a cell, and whether it holds numbers."""

    heading: str
    cell: Callable[[dict[str, Any]], str]
    key: str | None = None
    """The column to sort by; None for text."""


PRINTED: tuple[Column, ...] = (
    Column("corpus", lambda row: row["corpus"]),
    Column("parameters", lambda row: big(row["parameters"]), "parameters"),
    Column("method", lambda row: row["setting"]),
    Column("steps", lambda row: f"{row['steps']:,}", "steps"),
    Column("superposed", lambda row: f"{row['superposed_steps']:,}", "superposed_steps"),
    Column("tokens read", lambda row: big(row["raw_tokens"]), "raw_tokens"),
    Column("FLOPs", lambda row: f"{row['flops']:.3g}", "flops"),
    Column("time", lambda row: duration(row["training_seconds"]), "training_seconds"),
    Column("seeds", lambda row: str(row["seeds"]), "seeds"),
    Column("held-out loss", lambda row: loss_text(row), "loss"),
    Column("gain", lambda row: gain(row) if pd.notna(row["gain"]) else "", "gain"),
)


def loss_text(row: dict[str, Any]) -> str:
    """`3.553 ± 0.018`: mean and standard deviation over seeds."""
    if pd.isna(row["loss_deviation"]):
        return f"{row['loss']:.4f}"
    return f"{row['loss']:.4f} ± {row['loss_deviation']:.4f}"


def grid(table: pd.DataFrame, columns: Sequence[Column] = PRINTED) -> Grid:
    return Grid(
        title="",
        headings=tuple(column.heading for column in columns),
        rows=tuple(
            tuple(
                Entry(column.cell(row), value=row[column.key] if column.key else None)
                for column in columns
            )
            for row in rows_of(table)
        ),
    )


def items(sources: Sources, name: str = KIND) -> list[Item | Missing]:
    """The table, or what it lacks."""
    found = headline_table(sources.summary)
    if found.empty:
        needs = f"Needs a finished baseline and a superposed run: `{command('laptop', 'quick')}`."
        return [Missing(KIND, TITLE, needs)]
    eligible = sources.summary.comparison.eligible
    folders = tuple(sorted(eligible["folder"]))
    return [Table(KIND, KIND, TITLE, CAPTION, found, folders, (grid(found),))]
