"""The paper's tables held against each other and against arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np

from analysis import published
from analysis.tables.columns import rows_of

ROUNDING = 0.0005
"""Nats: Table 1 has three digits."""


def check(
    what: str,
    here: tuple[str, float],
    there: tuple[str, float],
    allowed: float,
    note: str = "",
    disagree: bool | None = None,
    word: str = "disagree",
) -> dict[str, Any]:
    """One row of the table of checks; `word`: the verdict where it is not `agree`."""
    difference = here[1] - there[1]
    worse = abs(difference) > allowed + 1e-12 if disagree is None else disagree
    said = note or f"{what}: {here[1]:.4g} in {here[0]}, {there[1]:.4g} in {there[0]}."
    return {
        "what": what,
        "here": here[0],
        "value": here[1],
        "there": there[0],
        "other": there[1],
        "difference": difference,
        "allowed": allowed,
        "verdict": word if worse else "agree",
        "note": said if worse else "",
    }


def headline(size: str, superposed: int, steps: int) -> dict[str, Any]:
    table = published.headline_runs()
    plain = table["method"].isin(["baseline", "tst"])
    same = (table["params"] == size) & (table["total_steps"] == steps)
    return next(rows_of(table[plain & same & (table["tst_steps"] == superposed)]))


def tables_against_grids() -> list[dict[str, Any]]:
    grid, rows = published.loss_grid(), []
    uniform = grid[grid["weighting"] == "uniform"]
    for run in rows_of(published.headline_runs().query("method in ['baseline', 'tst']")):
        ratio = run["tst_steps"] / run["total_steps"]
        cell = uniform[
            uniform["size"].eq(run["params"])
            & uniform["steps"].eq(run["total_steps"])
            & uniform["bag_size"].eq(run["bag_size"])
            & np.isclose(uniform["step_ratio"], ratio)
        ]
        if cell.empty:
            continue
        found = next(rows_of(cell))
        name = f"{run['params']}, {run['total_steps']:,} steps, s = {run['bag_size']}"
        rows.append(
            check(
                f"final loss, {name}",
                ("Table 1", float(run["final_loss"])),
                (f"Table {found['table']}", float(found["loss"])),
                ROUNDING,
            )
        )
    return rows


def unrecovered() -> dict[str, Any]:
    """r = 1 is the loss of bags. With weights 2/3, 1/3 it cannot be far below the mean of both
    tokens' losses unless the first is predicted better than a whole training predicts it."""
    grid = published.loss_grid(unrecovered=True).query("size == '600M' and bag_size == 2")
    losses = grid[grid["step_ratio"] == 1].set_index("weighting")["loss"]
    mean, value = float(losses["uniform"]), float(losses["power_law"])
    best = float(published.loss_grid().query("size == '600M'")["loss"].min())
    # The first token at best as well predicted as by the best trained model of the tables.
    lowest = (2 * best + (2 * mean - best)) / 3
    return check(
        "loss of bags (r = 1) at s = 2, power-law weights",
        ("Table 7", value),
        ("least that Table 6's uniform loss allows", lowest),
        0.0,
        f"Table 7's entry at r = 1, s = 2 ({value:.3f}) is no loss of bags: Table 6's uniform "
        f"{mean:.3f} allows no less than about {lowest:.3f}; it looks like a next-token loss after "
        "recovery.",
        disagree=value < lowest - 0.05,
    )


def hours_per_step() -> list[dict[str, Any]]:
    """A step costs the same in both phases, so hours follow steps."""
    rows = []
    for size, short, long in (("3B", 20_000, 50_000), ("10B-A1B", 49_983, 125_000)):
        superposed = {"3B": 6_000, "10B-A1B": 12_483}[size]
        one, two = headline(size, superposed, short), headline(size, 0, long)
        rates = [1e3 * run["b200_hours"] / run["total_steps"] for run in (one, two)]
        rows.append(
            check(
                f"hours per thousand steps, {size}",
                ("Table 1, TST", rates[0]),
                ("Table 1, baseline", rates[1]),
                0.02 * rates[1],
                f"At {size} a step of the TST run took {100 * (rates[0] / rates[1] - 1):+.1f}% "
                "hours beside one of the baseline, though both cost the same FLOPs: that part of "
                "the saving in hours is not the method's.",
            )
        )
    return rows


def tokens() -> list[dict[str, Any]]:
    """batch · (s · superposed + recovery), to what the table rounds to."""
    runs, rows = published.runs(), []
    table = published.headline_runs().query("method == 'tst'")
    for run in rows_of(table):
        same = (
            runs["source"].eq("Table 1")
            & runs["superposed_steps"].eq(run["tst_steps"])
            & runs["steps"].eq(run["total_steps"])
            & runs["name"].str.startswith(run["params"])
        )
        counted = float(runs[same]["raw_tokens"].iloc[0]) / 1e9
        rows.append(
            check(
                f"raw tokens (billions), {run['params']}, {run['total_steps']:,} steps",
                ("Table 1", run["total_tokens"] / 1e9),
                ("ledger", counted),
                0.01 * counted,
            )
        )
    return rows
