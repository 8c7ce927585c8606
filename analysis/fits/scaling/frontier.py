"""Compute-optimal model size and data by approach 2 of Hoffmann et al. 2022: the lowest loss over
sizes at each FLOPs budget (`points` says which runs count)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.interpolate import Akima1DInterpolator

from tst_study.analysis.checks import Floats
from tst_study.analysis.fits.scaling.points import annealed_points
from tst_study.analysis.statistics import critical_t
from tst_study.errors import UserError

SAME_BUDGET = 0.1
"""Difference in log FLOPs from one run to the next larger one above which a new budget begins."""
NEAR = 1.2
"""Distance in log N from a budget's best size within which a parabola is fitted; further away the
curve is not a parabola."""
LEAST_SIZES = 4
"""Fewest model sizes at a budget, one more than a parabola has coefficients."""
Lowest = Callable[[Floats, Floats], tuple[float, float]]
"""A function from x (rising) and y to the place and height of a curve's minimum, or of an end of
the curve where the minimum is not inside."""


@dataclass(frozen=True)
class Frontier:
    """Compute-optimal sizes by budget, and N ∝ C^a through them (so that D ∝ C^(1 − a))."""

    table: pd.DataFrame
    """Columns flops, params, tokens (flops / 6 / params), loss (nats per token), edge (whether the
    best size was the smallest or largest tried)."""
    params_exponent: float | None
    """a; None with fewer than three budgets whose best size is inside the sizes tried."""
    params_interval: tuple[float, float] | None
    """95% t-interval of a, by the scatter of the budgets around the line; `isoflop` widens it where
    two forms of the curve disagree."""
    note: str


def isoflop(points: pd.DataFrame) -> Frontier:
    """Find the compute-optimal sizes by approach 2: at each budget the minimum over log N of a
    parabola fitted to the losses of the sizes within `NEAR` of the best one, or of all sizes where
    fewer than `LEAST_SIZES` are so near.

    Akima's interpolation through all sizes is the check: it assumes no form of the curve, but noise
    moves it, because it goes through every point. Where the parabola's interval does not hold the
    exponent that the interpolation gives, the form is not settled: the interval is widened to hold
    both, and `note` says so. Raises `UserError` where no budget has `LEAST_SIZES` sizes.
    """
    points = annealed_points(points, ("params", "flops", "loss")).sort_values("flops")
    chosen, rival = _of_form(points, _parabola), _of_form(points, _akima)
    interval, exponent = chosen.params_interval, rival.params_exponent
    if interval is None or exponent is None or interval[0] <= exponent <= interval[1]:
        return chosen
    ends = [*interval, *(rival.params_interval or ()), exponent]
    note = f"form not settled: akima gives {exponent:.3f}, so the interval holds both forms"
    return replace(chosen, params_interval=(min(ends), max(ends)), note=f"{chosen.note}; {note}")


def _of_form(points: pd.DataFrame, lowest: Lowest) -> Frontier:
    table = _minima(points, lowest)
    if table.empty:
        raise UserError(
            f"no FLOPs budget with {LEAST_SIZES} or more model sizes: compute-optimal sizes need "
            "runs of several sizes at the same FLOPs"
        )
    inside = table[~table["edge"].astype(bool)]
    if len(inside) < 3:
        note = f"{len(inside)} budgets with their best size inside the sizes tried: no exponent"
        return Frontier(table, None, None, note)
    from scipy.stats import linregress  # here, because importing it takes longer than pandas does

    line = linregress(np.log(inside["flops"]), np.log(inside["params"]))
    slope, half = float(line.slope), critical_t(len(inside) - 2) * float(line.stderr)
    note = f"t over {len(inside)} budgets"
    if edges := len(table) - len(inside):
        note += f"; {edges} budgets with the best size at an edge left out"
    return Frontier(table, slope, (slope - half, slope + half), note)


def _minima(rows: pd.DataFrame, lowest: Lowest) -> pd.DataFrame:
    """Return flops, params, tokens, loss, edge of the best size of each budget with enough
    sizes."""
    minima = []
    logs = np.log(rows["flops"].to_numpy(dtype=float))
    for _, own in rows.groupby(np.cumsum(np.diff(logs, prepend=logs[0]) > SAME_BUDGET)):
        losses = own.groupby("size")["loss"].mean()
        if len(losses) < LEAST_SIZES:
            continue
        x, y = np.log(losses.index.to_numpy(dtype=float)), losses.to_numpy(dtype=float)
        place, loss = lowest(x, y)
        flops, size = float(np.exp(np.log(own["flops"]).mean())), float(np.exp(place))
        edge = bool(place in (x[0], x[-1]))
        minima.append(
            {"flops": flops, "params": size, "tokens": flops / 6 / size, "loss": loss, "edge": edge}
        )
    return pd.DataFrame(minima, columns=["flops", "params", "tokens", "loss", "edge"])


def _parabola(x: Floats, y: Floats) -> tuple[float, float]:
    best = int(np.argmin(y))
    close = np.abs(x - x[best]) <= NEAR
    at, heights = (x[close], y[close]) if close.sum() >= LEAST_SIZES else (x, y)
    curvature, slope, constant = np.polyfit(at - at.mean(), heights, 2)
    place = at.mean() - slope / (2 * curvature) if curvature > 0 else np.nan
    if at[0] <= place <= at[-1]:
        return float(place), float(constant - slope**2 / (4 * curvature))
    end = 0 if best < len(x) / 2 else -1
    return float(x[end]), float(y[end])


def _akima(x: Floats, y: Floats) -> tuple[float, float]:
    grid = np.linspace(x[0], x[-1], 4001)
    heights = Akima1DInterpolator(x, y)(grid)
    best = int(heights.argmin())
    return float(grid[best]), float(heights[best])
