"""Equal loss: how many baseline steps would reach the loss that superposition reached?

Read by interpolation in log steps between baselines of several lengths, seed by seed, each of
them annealed at its own end; never beyond the shortest or the longest of them.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pandas as pd

from analysis.comparison import Comparison
from analysis.paired import mean_interval
from analysis.run_row import rows_of

COLUMNS = (
    "group",
    "setting",
    "steps",
    "learning_rate",
    "seeds",
    "baseline_steps",
    "speed_up",
    "low",
    "high",
    "note",
)


def equal_loss(comparison: Comparison) -> pd.DataFrame:
    """One row per compared setting for which its baseline was run at two or more lengths.

    `baseline_steps` is the geometric mean over seeds, `speed_up` that number over the setting's
    own steps, with a 95% interval over seeds (None for one seed). Where a loss lies outside what
    the baselines reached, the row holds no number, and `note` says so.
    """
    baselines = comparison.eligible[comparison.eligible["method"] == "baseline"]
    rows: list[dict[str, Any]] = []
    for row in rows_of(comparison.table):
        same = baselines[
            (baselines["family"] == row["family"])
            & (baselines["learning_rate"] == row["learning_rate"])
            & (baselines["eval_set"] == row["eval_set"])
        ]
        if same["steps"].nunique() < 2:
            continue
        pairs = comparison.pairs
        mine = pairs[
            (pairs["group"] == row["group"])
            & (pairs["setting"] == row["setting"])
            & (pairs["learning_rate"] == row["learning_rate"])
            & (pairs["eval_set"] == row["eval_set"])
        ]
        rows.append({**row, **_speed_up(mine, same, row["steps"])})
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _speed_up(pairs: pd.DataFrame, baselines: pd.DataFrame, steps: int) -> dict[str, Any]:
    logs: list[float] = []
    notes: dict[str, list[int]] = {}
    for seed, loss in zip(pairs["seed"], pairs["superposed"], strict=True):
        own = baselines[baselines["seed"] == seed].sort_values("steps")
        reached = steps_to_reach(loss, list(own["steps"]), list(own["nats_per_token"]))
        if isinstance(reached, str):
            notes.setdefault(reached, []).append(seed)
        else:
            logs.append(math.log(reached / steps))
    if notes:
        nothing = {"baseline_steps": None, "speed_up": None, "low": None, "high": None}
        said = (f"seed {', '.join(map(str, seeds))}: {why}" for why, seeds in notes.items())
        return {**nothing, "note": "; ".join(said)}
    interval = mean_interval(logs)
    speed_up = math.exp(float(np.mean(logs)))
    return {
        "baseline_steps": speed_up * steps,
        "speed_up": speed_up,
        "low": math.exp(interval[1]) if interval else None,
        "high": math.exp(interval[2]) if interval else None,
        "note": "" if interval else "one seed: no claim",
    }


def steps_to_reach(loss: float, steps: list[int], losses: list[float]) -> float | str:
    """Steps at which baselines (in order of length) reach `loss`, or why that cannot be said."""
    if len(steps) < 2:
        return "its baseline has one length only"
    if any(after >= before for before, after in itertools.pairwise(losses)):
        return "longer baselines are not always better, so no length belongs to a loss"
    if loss > losses[0]:
        return f"worse than the shortest baseline ({steps[0]:,} steps)"
    if loss < losses[-1]:
        return f"better than the longest baseline ({steps[-1]:,} steps)"
    return float(np.exp(np.interp(-loss, [-x for x in losses], np.log(steps))))
