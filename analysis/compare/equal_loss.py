"""Equal loss: how many baseline steps would reach the loss that superposition reached?

Read between baselines of several lengths (`length_curve`), each annealed at its own end; the number
is never beyond the shortest or the longest of them.
"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from analysis.checks import positive
from analysis.compare.comparison import SAME, SAME_BUT_LENGTH, Comparison, alike
from analysis.compare.length_curve import LengthCurve, floors, hull, paired_tables
from analysis.tables.columns import rows_of
from tst_study.errors import UserError


def equal_loss(comparison: Comparison) -> pd.DataFrame:
    """One row per compared setting for which its baseline was run at two or more lengths.

    Columns: group, setting, steps, learning_rate and those of `speed_up`. Intervals hold for all
    settings that the comparison held against one baseline together.
    """
    baselines = comparison.eligible[comparison.eligible["method"] == "baseline"]
    baselines = baselines.assign(loss=baselines["nats_per_token"])
    rows: list[dict[str, Any]] = []
    for row in rows_of(comparison.table):
        same = alike(baselines, row, SAME_BUT_LENGTH)
        if same["steps"].nunique() < 2:
            continue
        mine = alike(comparison.pairs, row, (*SAME, "setting"))
        mine = mine.assign(loss=mine["superposed"])
        named = {name: row[name] for name in ("group", "setting", "steps", "learning_rate")}
        rows.append({**named, **speed_up(same, mine, row["comparisons"])})
    return pd.DataFrame(rows)


def speed_up(
    baselines: pd.DataFrame, superposed: pd.DataFrame, comparisons: int = 1
) -> dict[str, Any]:
    """Baseline steps at the loss of runs of one length. Columns of both: steps, seed, loss.

    seeds: those that every length has. baseline_steps; speed_up: that number over the runs' own
    steps; low, high: its 95% interval for all `comparisons` together, None for one seed and on a
    side that the baselines' lengths do not bound. Where the loss lies outside what the baselines
    reached there is no number, and `note` says so.
    """
    for table, name in ((baselines, "baselines"), (superposed, "superposed runs")):
        positive(table, ("steps", "loss"), name)
    nothing: dict[str, Any] = {"seeds": superposed["seed"].nunique()}
    nothing |= dict.fromkeys(("baseline_steps", "speed_up", "low", "high"))
    try:
        (table, own), said = paired_tables([baselines, superposed], "steps")
        curve = LengthCurve.of(table, "baseline")
    except UserError as error:
        return {**nothing, "note": str(error)}
    losses = own.to_numpy(dtype=float).ravel()
    ends, loss = [f"{math.exp(x):,.0f} steps" for x in curve.x[[0, -1]]], float(losses.mean())
    notes = [note for note in (said, curve.note) if note]
    outside = ""
    if loss > curve.means[0]:
        outside = f"worse than the shortest baseline ({ends[0]})"
    if loss < curve.means[-1]:
        word = "best" if curve.means[-1] <= table.mean(axis=1).min() else "last usable"
        outside = f"better than the {word} baseline ({ends[1]})"
    if outside:
        return {**nothing, "note": "; ".join([outside, *notes])}
    steps = float(own.index[0])
    best, low, high = hull(
        [curve.reached(losses, floor, math.log(steps), comparisons) for floor in floors([curve])]
    )
    if len(losses) < 2:
        notes.append("one seed: no claim")
    return {
        "seeds": len(losses),
        "baseline_steps": best * steps,
        "speed_up": best,
        "low": low,
        "high": high,
        "note": "; ".join(notes),
    }
