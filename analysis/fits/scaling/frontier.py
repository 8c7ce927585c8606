"""Compute-optimal model size and data by approach 2 of Hoffmann et al. 2022: the lowest loss over
sizes at each FLOPs budget (`points` says which runs count).

Rows with one label in a column `model` share errors; without it every row is a model of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd
from scipy.interpolate import Akima1DInterpolator

from tst_study.analysis.checks import Floats
from tst_study.analysis.fits.scaling.points import annealed_points
from tst_study.analysis.statistics import critical_t
from tst_study.errors import UserError

SAME_BUDGET = 0.1
"""Relative spread of FLOPs within which runs share a budget."""
NEAR = 1.2
"""Distance in log N from a budget's best run within which a parabola is fitted; further away the
curve is not a parabola."""
LEAST_SIZES = 4
"""Model sizes at one budget that the three coefficients of a parabola need."""
Form = Literal["parabola", "akima"]
"""Forms of a budget's curve. The parabola is the default: under noise its exponent scatters less (a
test shows it). Akima's interpolation trusts every point: noise moves it, the curve's form does
not."""
Lowest = Callable[[Floats, Floats], tuple[float, float]]
"""A function from x and y to the place and height of a curve's minimum, or to an end of `x` where
the minimum is not inside."""


@dataclass(frozen=True)
class Frontier:
    """Compute-optimal sizes by budget, and N ∝ C^a through them (so that D ∝ C^(1 − a))."""

    table: pd.DataFrame
    """Columns flops, params, tokens, loss (nats per token), edge (whether the best size was the
    smallest or largest tried)."""
    params_exponent: float | None
    params_interval: tuple[float, float] | None
    """95% interval: by the scatter of budgets around the line (t) where every run is a model of its
    own, else by leaving out one model at a time (jackknife, t); `note` says which."""
    note: str


def isoflop(points: pd.DataFrame, form: Form = "parabola") -> Frontier:
    """Find the compute-optimal sizes by approach 2: at each budget the minimum of loss over log N,
    of a parabola through the sizes within `NEAR` of the best, or of Akima's interpolation through
    all.

    The exponent is that of `form`. Where its interval does not hold the other form's exponent, the
    form is not settled: the interval is widened to hold both forms' intervals, and `note` says so.
    """
    points = annealed_points(points, ("params", "flops", "loss")).sort_values("flops")
    rival: Form = "akima" if form == "parabola" else "parabola"
    chosen, other = _of_form(points, form), _of_form(points, rival)
    interval, exponent = chosen.params_interval, other.params_exponent
    if interval is None or exponent is None or interval[0] <= exponent <= interval[1]:
        return chosen
    ends = [*interval, *(other.params_interval or ()), exponent]
    note = f"form not settled: {rival} gives {exponent:.3f}, so the interval holds both forms"
    return replace(chosen, params_interval=(min(ends), max(ends)), note=f"{chosen.note}; {note}")


def _of_form(points: pd.DataFrame, form: Form) -> Frontier:
    lowest = _LOWEST[form]
    table = _minima(points, lowest)
    if table.empty:
        raise UserError(
            f"no FLOPs budget with {LEAST_SIZES} or more model sizes: compute-optimal sizes need "
            "runs of several sizes at the same FLOPs"
        )
    line = _exponent(table)
    if line is None:
        inside = int((~table["edge"].astype(bool)).sum())
        note = f"{inside} budgets with their best size inside the sizes tried: no exponent"
        return Frontier(table, None, None, note)
    slope, error, count = line
    edges = int(table["edge"].sum())
    notes = [f"{edges} budgets with the best size at an edge left out"] if edges else []
    interval: tuple[float, float] | None = None
    if "model" in points and points["model"].duplicated().any():
        models = points["model"].unique()
        others = (points[points["model"] != model] for model in models)
        without = [_exponent(_minima(rest, lowest)) for rest in others]
        slopes = np.array([other[0] for other in without if other is not None])
        source, count = f"jackknife over {len(models)} models", len(models)
        error = float(np.sqrt((count - 1) * slopes.var())) if len(slopes) == count else np.nan
    else:
        source, count = f"t over {count} budgets", count - 1
    if np.isfinite(error):
        half = critical_t(count - 1) * error
        interval = (slope - half, slope + half)
    else:
        notes.append("without one of the models there is no exponent: no interval")
    return Frontier(table, slope, interval, "; ".join([source, *notes]))


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


def _exponent(table: pd.DataFrame) -> tuple[float, float, int] | None:
    """Fit log N over log C through the budgets whose best size lies inside: the slope, its standard
    error, the number of budgets; None for fewer than three."""
    inside = table[~table["edge"].astype(bool)]
    if len(inside) < 3:
        return None
    from scipy.stats import linregress  # Imported where needed: it takes longer than all of pandas.

    line = linregress(np.log(inside["flops"]), np.log(inside["params"]))
    return float(line.slope), float(line.stderr), len(inside)


_LOWEST: dict[Form, Lowest] = {"parabola": _parabola, "akima": _akima}
