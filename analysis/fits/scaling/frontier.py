"""Compute-optimal model size and data by approach 2 of Hoffmann et al. 2022 (IsoFLOP curves): the
size with the lowest loss at each FLOPs budget. `tst-study analyse compute` prints the result;
`points` says which runs count."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import scipy  # which imports its own parts when they are first used

from tst_study.analysis.checks import Floats
from tst_study.analysis.fits.scaling.points import annealed_points
from tst_study.analysis.statistics import critical_t
from tst_study.errors import UserError
from tst_study.text import big

SAME_BUDGET, SPREAD = 0.1, 0.4
"""Runs are sorted by FLOPs. A new budget begins if the log of FLOPs rises by more than
`SAME_BUDGET` from one run to the next, or by more than `SPREAD` within the budget: models of
several sizes that are trained for equal 6 N D differ by up to 0.3."""
NEAR = 1.2
"""The sizes of a budget that are at most this far, in log N, from the one with the lowest loss take
part in the fit of a parabola. Further away the curve is not a parabola."""
LEAST_SIZES = 4
"""Fewest model sizes that a budget must have; one more than a parabola has coefficients."""
Lowest = Callable[[Floats, Floats], tuple[float, float]]
"""A function that draws a curve through or near points, x (rising) and y, and returns the place and
the height of its minimum, or of one of its ends if it has no minimum inside."""


@dataclass(frozen=True)
class Frontier:
    """Compute-optimal sizes and lengths by budget, and the power laws N ∝ C^a and D ∝ C^b through
    them."""

    table: pd.DataFrame
    """A row for each budget: flops, params (the best size), tokens (the best ones, likewise; flops
    / 6 / params if the points do not have them), loss (nats per token), edge (whether the best size
    was the smallest or the largest tried)."""
    params_exponent: float | None
    """The exponent a; None if fewer than three budgets have their best size inside the sizes
    tried."""
    params_interval: tuple[float, float] | None
    """95% t-interval of the exponent, by the scatter of the budgets about the power law; `isoflop`
    widens it if two forms of the curve disagree. None if there is no exponent."""
    tokens_exponent: float | None
    """The exponent b; None if there is no a."""
    note: str
    """How the interval was computed and what was left out, or why there is no exponent."""


def isoflop(points: pd.DataFrame) -> Frontier:
    """Find the compute-optimal sizes by approach 2.

    At each budget the best size is the minimum, over log N, of a parabola. It is fitted to the
    losses of the sizes within `NEAR` of the size with the lowest loss, or, if fewer than
    `LEAST_SIZES` sizes are that near, to the losses of all sizes.

    Akima's interpolation through all sizes is the check. It assumes no form of the curve, but noise
    moves it, because it goes through every point. The form matters if the ratio of the two sizes
    changes with the budget by more than its scatter (t-test, 5%), and the parabola's interval does
    not hold the exponent that the interpolation gives. Then the interval is widened to hold the
    intervals of both forms, and otherwise to hold that exponent; `note` says so.

    points: columns params, flops, loss (nats per token) and, if there, tokens and annealed (rows
    for which it is false are left out). Raises `UserError` for a missing column, a bad value, no
    annealed row, and if no budget has `LEAST_SIZES` sizes.
    """
    points = annealed_points(points, ("params", "flops", "loss")).sort_values("flops")
    chosen, rival = _of_form(points, _parabola), _of_form(points, _akima)
    interval, exponent = chosen.params_interval, rival.params_exponent
    if interval is None or exponent is None or interval[0] <= exponent <= interval[1]:
        return chosen
    both = chosen.table.merge(rival.table, on="flops").query("not (edge_x or edge_y)")
    if len(both) > 2:
        gap = np.log(both["params_y"]) - np.log(both["params_x"])
        slope, half = _slope(np.log(both["flops"]), gap)
        if abs(slope) <= half:
            return replace(
                chosen,
                params_interval=(min(interval[0], exponent), max(interval[1], exponent)),
                note=f"{chosen.note}, widened to akima's {exponent:.3f}",
            )
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
        return Frontier(table, None, None, None, note)
    log_c = np.log(inside["flops"])
    slope, half = _slope(log_c, np.log(inside["params"]))
    of_tokens, _ = _slope(log_c, np.log(inside["tokens"]))
    note = f"t-interval over {len(inside)} budgets"
    if edges := len(table) - len(inside):
        note += f"; left out, since the best size is at an edge: {edges}"
    return Frontier(table, slope, (slope - half, slope + half), of_tokens, note)


def _slope(x: pd.Series, y: pd.Series) -> tuple[float, float]:
    """Return the slope of a regression line, and half the width of its 95% t-interval."""
    line = scipy.stats.linregress(x, y)
    return float(line.slope), critical_t(len(x) - 2) * float(line.stderr)


def next_budget(frontier: Frontier) -> str:
    """Return a sentence that predicts the best size of the largest budget from the other budgets;
    empty if fewer than three others have their best size inside the sizes tried."""
    inside = frontier.table[~frontier.table["edge"].astype(bool)].sort_values("flops")
    if len(inside) < 4:
        return ""
    rest, last = inside.iloc[:-1], inside.iloc[-1]
    line = np.polyfit(np.log(rest["flops"]), np.log(rest["params"]), 1)
    size = float(np.exp(np.polyval(line, np.log(last["flops"]))))
    return (
        f"the best size at {last['flops']:.3g} FLOPs, predicted from the smaller budgets, is "
        f"{big(size)} for {big(last['params'])} found ({size / last['params'] - 1:+.1%})"
    )


def _minima(rows: pd.DataFrame, lowest: Lowest) -> pd.DataFrame:
    """Return the best size of each budget that has enough sizes (`Frontier.table`)."""
    minima: list[dict[str, Any]] = []
    budgets: list[float] = []
    last = -np.inf
    for log in np.log(rows["flops"].to_numpy(dtype=float)):
        same = log - last <= SAME_BUDGET and log - budgets[-1] <= SPREAD
        budgets.append(budgets[-1] if same else log)
        last = log
    for _, own in rows.groupby(np.array(budgets)):
        losses = own.groupby("size")["loss"].mean()
        if len(losses) < LEAST_SIZES:
            continue
        x, y = np.log(losses.index.to_numpy(dtype=float)), losses.to_numpy(dtype=float)
        place, loss = lowest(x, y)
        flops, size = float(np.exp(np.log(own["flops"]).mean())), float(np.exp(place))
        edge = bool(place in (x[0], x[-1]))
        tokens = flops / 6 / size
        if "tokens" in own:  # where FLOPs are not 6 N D, N and D have their minima apart
            read = np.log(own.groupby("size")["tokens"].mean().to_numpy(float))
            order = np.argsort(read)
            tokens = float(np.exp(lowest(read[order], y[order])[0]))
        minima.append(
            {"flops": flops, "params": size, "tokens": tokens, "loss": loss, "edge": edge}
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
    heights = scipy.interpolate.Akima1DInterpolator(x, y)(grid)
    best = int(heights.argmin())
    return float(grid[best]), float(heights[best])
