"""Where two training curves cross, with what the noise of the curves leaves open."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis import published
from analysis.checks import Floats, needs_columns, numbers
from analysis.fitting.uncertainty import roughness
from tst_study.errors import UserError

COLUMNS = ("at", "low", "high", "loss", "below_after")


def crossings(curve: pd.DataFrame, other: pd.DataFrame, along: str = "step") -> pd.DataFrame:
    """Places along `along` (step, flops, raw_tokens) where `curve` and `other` cross in `loss`.

    Interpolated linearly on the union of both curves' points, within what both cover. `low` and
    `high` bound the stretch around the crossing in which the difference stays within twice its
    noise (roughness of both curves; smoothed curves are less rough than training was).
    `below_after`: `curve` is the lower one after the crossing; `lasting`: they cross no more.
    Losses of bags must not be among the rows.

    Raises `UserError` where the curves have no stretch in common and for a value that is not a
    finite number.
    """
    for points in (curve, other):
        needs_columns(points, (along, "loss"), "curve")
        numbers(points[along], along)
        numbers(points["loss"], "loss")
    one, two = curve.sort_values(along), other.sort_values(along)
    x = np.unique(np.concatenate([one[along].to_numpy(float), two[along].to_numpy(float)]))
    start = max(float(one[along].min()), float(two[along].min()))
    stop = min(float(one[along].max()), float(two[along].max()))
    x = x[(x >= start) & (x <= stop)]
    if len(x) < 3:
        raise UserError(f"the two curves have no stretch of {along} in common")
    losses = np.interp(x, one[along].to_numpy(float), one["loss"].to_numpy(float))
    gap = losses - np.interp(x, two[along].to_numpy(float), two["loss"].to_numpy(float))
    noise = float(np.hypot(_noise(one), _noise(two)))
    inside = np.abs(gap) <= 2 * noise
    rows = []
    # On a point that both share the gap is zero, and belongs to the side it came from.
    side = pd.Series(np.sign(gap)).replace(0, np.nan).ffill().to_numpy()
    for i in np.flatnonzero(side[:-1] * side[1:] < 0):
        share = gap[i] / (gap[i] - gap[i + 1])
        first, last = i, i + 1
        while first > 0 and inside[first]:
            first -= 1
        while last < len(x) - 1 and inside[last]:
            last += 1
        rows.append(
            {
                "at": float(x[i] + share * (x[i + 1] - x[i])),
                "low": float(x[first]),
                "high": float(x[last]),
                "loss": float(losses[i] + share * (losses[i + 1] - losses[i])),
                "below_after": bool(gap[i + 1] < 0),
            }
        )
    found = pd.DataFrame(rows, columns=list(COLUMNS))
    return found.assign(lasting=found.index == len(found) - 1)


def published_crossings() -> pd.DataFrame:
    """Figures 1 and 3: where superposition falls below its baseline at equal steps (equal FLOPs),
    and by how much it is below where the shorter curve ends."""
    curves = published.curves()
    rows = []
    for (figure, panel), group in curves[curves["figure"].isin([1, 3])].groupby(
        ["figure", "panel"]
    ):
        runs = {str(name): rows for name, rows in group.groupby("run")}
        superposed = next(name for name in runs if "tst" in name)
        baseline = next(name for name in runs if "baseline" in name)
        found = crossings(runs[superposed], runs[baseline])
        end = runs[superposed]["step"].max()
        there = np.interp(end, runs[baseline]["step"], runs[baseline]["loss"])
        last = found[found["lasting"]]
        rows.append(
            {
                "figure": f"{figure}{str(panel)[:1]}",
                "superposed": superposed,
                "baseline": baseline,
                **({} if last.empty else last.iloc[0][["at", "low", "high", "loss"]].to_dict()),
                "crossings": len(found),
                "below_at_its_end": float(there - runs[superposed]["loss"].iloc[-1]),
                "baseline_annealed_there": bool(end >= 0.995 * runs[baseline]["step"].max()),
            }
        )
    return pd.DataFrame(rows)


def _noise(curve: pd.DataFrame) -> float:
    losses: Floats = curve["loss"].to_numpy(dtype=float)
    return roughness(losses[len(losses) // 2 :])
