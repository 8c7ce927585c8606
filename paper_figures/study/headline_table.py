"""What each method cost and reached, one row per setting (paper, Table 1)."""

from typing import Any

import numpy as np
import pandas as pd

from analysis.summary import Summary
from analysis.tables.columns import rows_of
from analysis.verdict.comparison import SAME, Comparison, alike
from paper_figures.item import Item
from paper_figures.registration import PAIR, figure
from paper_figures.sources import Sources
from paper_figures.table import Grid, Table, gain_entry, number_as, number_entry
from tst_study.config.superposition_setting import COLUMNS as SETTING
from tst_study.config.superposition_setting import SuperpositionSetting
from tst_study.text import big, duration

CAPTION = (
    "Means over seeds; ± is the standard deviation over seeds. Time is training alone, on the "
    "machine at hand, other runs beside it."
)
_OF_RUN = ("corpus", "parameters", "learning_rate", "superposed_steps", "steps", "raw_tokens")
_OF_RESULT = ("gain", "low", "high", "verdict")


def headline_data(summary: Summary) -> pd.DataFrame:
    """One row per method, setting and length; means over seeds, deviations over seeds.

    A baseline has a row where something is compared with it; its pilots at other learning rates
    stand in the learning-rate sweep instead. `gain` is paired by seed, so it need not be the
    difference of the two losses where the arms have different seeds.
    """
    comparison, keys = summary.comparison, list(SAME)
    if comparison.table.empty:
        return pd.DataFrame()
    runs = comparison.eligible.merge(comparison.table[keys].drop_duplicates(), on=keys)
    by_method = runs.groupby([*keys, *SETTING], dropna=False, sort=False)
    rows = [_row(members, comparison) for _, members in by_method]
    rows.sort(key=lambda row: row["order"])
    return pd.DataFrame(rows).drop(columns="order")


def _row(members: pd.DataFrame, comparison: Comparison) -> dict[str, Any]:
    first = next(rows_of(members))
    setting, table = SuperpositionSetting.of_row(first).label, comparison.table
    found = alike(table, {**first, "setting": setting}, (*SAME, "setting"))
    result = next(rows_of(found), {})
    leading = ("corpus", "parameters", "steps", *SAME)
    loss = members["nats_per_token"].astype(float)
    return {
        "order": (
            *(first[column] for column in leading),
            *SuperpositionSetting.of_row(first).order,
        ),
        "setting": setting,
        "loss": loss.mean(),
        "loss_deviation": loss.std(ddof=1) if len(members) > 1 else np.nan,
        **{column: result.get(column) for column in _OF_RESULT},
        "seeds": len(members),
        **{column: first[column] for column in (*_OF_RUN, "data_multiplier", "flops")},
        "training_seconds": members["training_seconds"].astype(float).mean(),
        "bits_per_byte": members["bits_per_byte"].astype(float).mean(),
    }


def loss_text(row: dict[str, Any]) -> str:
    """`3.5530 ± 0.0180`: mean and standard deviation over seeds."""
    spread = "" if pd.isna(row["loss_deviation"]) else f" ± {row['loss_deviation']:.4f}"
    return f"{row['loss']:.4f}{spread}"


def grid(table: pd.DataFrame) -> Grid:
    """What was reached first, then what it cost."""
    rate = {"learning rate": lambda row: number_as(row["learning_rate"], "{:g}".format)}
    several = len(table) and table["learning_rate"].nunique() > 1
    return Grid.of(
        rows_of(table),
        {
            "method": lambda row: row["setting"],
            "held-out loss": lambda row: number_as(row["loss"], lambda _: loss_text(row)),
            "gain": lambda row: gain_entry(row, digits=3),
            "seeds": lambda row: number_entry(row["seeds"]),
            "corpus": lambda row: row["corpus"],
            "steps": lambda row: number_entry(row["steps"]),
            **(rate if several else {}),
            "superposed": lambda row: number_entry(row["superposed_steps"]),
            "parameters": lambda row: number_as(row["parameters"], big),
            "tokens read": lambda row: number_as(row["raw_tokens"], big),
            "FLOPs": lambda row: number_as(row["flops"], "{:.3g}".format),
            "time": lambda row: number_as(row["training_seconds"], duration),
        },
    )


@figure("headline_table", title="Cost and loss by setting", lacks=PAIR)
def headline_table(sources: Sources) -> list[Item]:
    found = headline_data(sources.summary)
    if found.empty:
        return []
    folders = tuple(sorted(sources.summary.comparison.eligible["folder"]))
    return [Table(caption=CAPTION, data=found, folders=folders, grids=(grid(found),))]
