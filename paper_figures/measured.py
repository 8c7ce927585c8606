"""Which runs stand beside which published numbers: by model, length and method, never by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from analysis.summary import Summary
from analysis.wording import big, number

NOMINAL = {"270M": 267e6, "600M": 600e6, "3B": 3.56e9, "10B-A1B": 10.5e9}
"""Weights of the paper's models (presets of the same names)."""
TOLERANCE = 0.1
"""Grouped heads make a model smaller by a twentieth; it is the same model to the paper."""


@dataclass(frozen=True)
class Arm:
    """One comparison group: runs that may be compared, and what of them was compared."""

    rows: pd.DataFrame
    """Rows of `Comparison.table`, one per setting."""
    members: pd.DataFrame
    """Rows of the run table."""
    at_scale: bool
    """Model and length are those of the published runs."""

    @property
    def is_generated(self) -> bool:
        """Its text was made up to show the mechanism; what it gains, prose need not."""
        return bool(self.members["optimal_nats_per_token"].notna().any())

    @property
    def scale(self) -> str:
        """`363k parameters, books-bpe1024, 10,000 steps, up to 3 seeds`."""
        first = self.members.iloc[0]
        made = " (made to show the mechanism)" if self.is_generated else ""
        return (
            f"{big(first['parameters'])} parameters, {first['corpus']}{made}, "
            f"{first['steps']:,} steps, {seeds_words(self.rows)}"
        )


def seeds_words(rows: pd.DataFrame) -> str:
    least, most = int(rows["seeds"].min()), int(rows["seeds"].max())
    return number(most, "seed") if least == most else f"{least} to {number(most, 'seed')}"


def is_of(members: pd.DataFrame, params: str, steps: int) -> bool:
    """Whether runs have the paper's model (by its number of weights) and length."""
    first = members.iloc[0]
    return bool(
        abs(first["parameters"] / NOMINAL[params] - 1) < TOLERANCE and first["steps"] == steps
    )


def arms(summary: Summary, params: str | None = None, steps: int = 0) -> Iterator[Arm]:
    """All comparison groups, in order of name; `params` and `steps`: of the published runs."""
    table, runs = summary.comparison.table, summary.tables.runs
    for (group, rate, eval_set), rows in table.groupby(
        ["group", "learning_rate", "eval_set"], sort=True
    ):
        members = runs[(runs["group"] == group) & (runs["learning_rate"] == rate)]
        at_scale = params is not None and is_of(members, params, steps)
        del eval_set
        yield Arm(rows.reset_index(drop=True), members, at_scale)


def plain(rows: pd.DataFrame, weighting: str = "uniform") -> pd.DataFrame:
    """Settings of the paper's method under one weighting of the bag, without any ablation."""
    chosen = rows[
        (rows["mode"] == "full")
        & (rows["loss_kind"] == "mce")
        & (rows["weighting"] == weighting)
        & ~rows["aligned_bags"].astype(bool)
        & ~rows["reinitialized"].astype(bool)
        & (rows["optimizer_at_switch"] == "keep")
    ]
    return chosen.reset_index(drop=True)


def grid_arm(
    summary: Summary, params: str, steps: int, weighting: str, *, any_scale: bool
) -> Arm | None:
    """The group that fills a grid over (r, s): the published scale's, or the one with most cells.

    Ties go to real text before generated language, then to the longer runs; losses play no part.
    """
    found = []
    for arm in arms(summary, params, steps):
        rows = plain(arm.rows, weighting)
        if len(rows) and (any_scale or arm.at_scale):
            cells = len(rows[["step_ratio", "bag_size"]].drop_duplicates())
            key = (arm.at_scale, cells, not arm.is_generated, int(arm.members["steps"].iloc[0]))
            found.append((key, Arm(rows, arm.members, arm.at_scale)))
    return max(found, key=lambda entry: entry[0])[1] if found else None


def folders(summary: Summary, rows: pd.DataFrame) -> tuple[str, ...]:
    """Run folders behind rows of the comparison, baselines included."""
    key = ["group", "setting", "learning_rate", "eval_set"]
    pairs = summary.comparison.pairs.merge(rows[key], on=key)
    both = pd.concat([pairs["baseline_folder"], pairs["superposed_folder"]])
    return tuple(sorted(set(both.astype(str))))
