"""Compute-optimal model size and data, by the three approaches of Hoffmann et al. 2022.

Points are final losses of annealed runs: params, tokens, flops, loss (nats). A point of a curve
whose learning rate was not annealed there reads too high by a few hundredths of a nat and pulls
the optimum towards small models; such points are refused.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.fitting import (
    Bootstrap,
    Fit,
    Huber,
    Objective,
    Problem,
    bootstrap,
    fit,
    leave_one_out,
)
from analysis.fitting.objectives import Floats
from analysis.fitting.solve import grid_of_starts
from analysis.scaling_laws import Base, chinchilla
from tst_study.errors import UserError

SAME_BUDGET = 0.1
"""Relative spread of FLOPs within which runs share a budget."""
NEAR = 1.2
"""Distance in log N from a budget's best run within which a parabola is fitted."""
LEAST_RUNS = 10
"""For the five parameters of the parametric law, with something left to judge it by."""
_GRID = {
    "log_E": (-0.5, 0.0, 0.5, 1.0),
    "alpha": (0.1, 0.3, 0.5, 0.8),
    "beta": (0.1, 0.3, 0.5, 0.8),
}


@dataclass(frozen=True)
class Frontier:
    """Compute-optimal sizes by budget, and N ∝ C^a, D ∝ C^b through them."""

    approach: str
    table: pd.DataFrame
    """flops, params, tokens, loss; `edge` where the best size was the smallest or largest tried."""
    params_exponent: float | None
    params_interval: tuple[float, float] | None
    """95%, by the scatter of the budgets around the line."""
    tokens_exponent: float | None
    note: str


def envelope(points: pd.DataFrame, budgets: int = 30) -> Frontier:
    """Approach 1: the lowest loss at each FLOPs budget over all sizes, each size interpolated in
    log FLOPs between its own points and never beyond them."""
    usable = _annealed(points)
    sizes = [(size, rows.sort_values("flops")) for size, rows in usable.groupby("params")]
    sizes = [(size, rows) for size, rows in sizes if rows["flops"].nunique() > 1]
    if len(sizes) < 3:
        raise UserError(
            f"{len(sizes)} model sizes with two or more lengths: an envelope needs three"
        )
    grid = np.geomspace(usable["flops"].min(), usable["flops"].max(), budgets)
    rows = []
    for flops in grid:
        there = [
            (float(np.interp(np.log(flops), np.log(own["flops"]), own["loss"])), float(str(size)))
            for size, own in sizes
            if own["flops"].min() <= flops <= own["flops"].max()
        ]
        if len(there) < 3:
            continue
        loss, size = min(there)
        tried = [other for _, other in there]
        edge = size in (min(tried), max(tried))
        rows.append(_frontier_row(float(flops), size, loss, edge))
    return _frontier("envelope", rows)


def isoflop(points: pd.DataFrame) -> Frontier:
    """Approach 2: at each budget a parabola of loss in log N; its minimum, if inside."""
    usable = _annealed(points).sort_values("flops")
    logs = np.log(usable["flops"].to_numpy(dtype=float))
    budget = np.concatenate([[0], np.cumsum(np.diff(logs) > SAME_BUDGET)])
    rows = []
    for _, own in usable.groupby(budget):
        if own["params"].nunique() < 4:
            continue
        x, y = np.log(own["params"].to_numpy(dtype=float)), own["loss"].to_numpy(dtype=float)
        # Far from the optimum the curve is no parabola any more.
        near = np.abs(x - x[int(np.argmin(y))]) <= NEAR
        if near.sum() >= 4:
            x, y = x[near], y[near]
        curvature, slope, constant = np.polyfit(x - x.mean(), y, 2)
        place = -slope / (2 * curvature) if curvature > 0 else np.nan
        flops = float(np.exp(np.log(own["flops"]).mean()))
        inside = x.min() <= place + x.mean() <= x.max()
        if inside:
            loss = constant - slope**2 / (4 * curvature)
            rows.append(_frontier_row(flops, float(np.exp(place + x.mean())), float(loss), False))
        else:
            best = int(np.argmin(y))
            rows.append(_frontier_row(flops, float(np.exp(x[best])), float(y[best]), True))
    if not rows:
        raise UserError(
            "no FLOPs budget with four or more model sizes: IsoFLOP curves need runs of several "
            "sizes at the same FLOPs"
        )
    return _frontier("IsoFLOP", rows)


def parametric(points: pd.DataFrame, objective: Objective | None = None) -> Fit:
    """Approach 3: E + A N^−α + B D^−β by Huber loss (delta 1e-3) on log L."""
    usable = _annealed(points)
    if usable["params"].nunique() < 3 or usable["tokens"].nunique() < 3:
        raise UserError(
            f"{usable['params'].nunique()} model sizes and {usable['tokens'].nunique()} amounts of "
            "data: the parametric law needs at least three of each"
        )
    if len(usable) < LEAST_RUNS:
        raise UserError(
            f"{len(usable)} runs: the parametric law has five parameters and needs {LEAST_RUNS}"
        )
    model = chinchilla(usable["params"], usable["tokens"])
    observed = usable["loss"].to_numpy(dtype=float)
    return fit(Problem(model, observed, objective or Huber()), grid_of_starts(model, _GRID))


def leave_one_size_out(points: pd.DataFrame, objective: Objective | None = None) -> pd.DataFrame:
    """Errors of each model size predicted by the parametric law of all others
    (`fitting.leave_one_out`): the largest size's is the one that extrapolates."""
    usable = _annealed(points)
    model = chinchilla(usable["params"], usable["tokens"])
    problem = Problem(model, usable["loss"].to_numpy(dtype=float), objective or Huber())
    sizes = [float(size) for size in usable["params"]]
    return leave_one_out(problem, sizes, grid_of_starts(model, _GRID), refine=6)


def allocation(
    found: Fit, flops: Floats, drawn: Bootstrap | None = None, draws: int = 400
) -> pd.DataFrame:
    """Compute-optimal params, tokens and loss at FLOPs budgets (C = 6 N D), with 95% intervals
    over runs. Columns: flops, params, params_low, params_high, tokens, …, loss, …"""
    drawn = drawn or bootstrap(found, draws)
    names = list(found.problem.model.parameters)
    # A draw that finds no fall with N or with D has no optimum; it is one of thousands.
    falling = drawn.draws[(drawn.draws["alpha"] > 0) & (drawn.draws["beta"] > 0)]
    others = [Base.of(dict(zip(names, row, strict=True))) for row in falling[names].to_numpy()]
    rows = []
    for budget in np.asarray(flops, dtype=float):
        best = _optimum(Base.of(found.values), float(budget))
        spread = np.array([_optimum(other, float(budget)) for other in others])
        low, high = np.quantile(spread, [0.025, 0.975], axis=0)
        row: dict[str, float] = {"flops": float(budget)}
        for i, name in enumerate(("params", "tokens", "loss")):
            row |= {name: best[i], f"{name}_low": low[i], f"{name}_high": high[i]}
        rows.append(row)
    return pd.DataFrame(rows)


def exponents(found: Fit, drawn: Bootstrap) -> dict[str, tuple[float, float, float]]:
    """N ∝ C^a with a = β / (α + β), and D ∝ C^b: value and 95% interval of each."""
    share = drawn.draws["beta"] / (drawn.draws["alpha"] + drawn.draws["beta"])
    a = found["beta"] / (found["alpha"] + found["beta"])
    low, high = drawn.interval(share)
    return {"params": (a, low, high), "tokens": (1 - a, 1 - high, 1 - low)}


def _optimum(base: Base, flops: float) -> tuple[float, float, float]:
    total = base.alpha + base.beta
    ratio = base.log_A - base.log_B + np.log(base.alpha / base.beta)
    log_size = (ratio + base.beta * np.log(flops / 6)) / total
    size = float(np.exp(log_size))
    tokens = flops / 6 / size
    return size, tokens, float(base.loss(size, tokens))


def _annealed(points: pd.DataFrame) -> pd.DataFrame:
    if "annealed" not in points:
        return points
    kept = points[points["annealed"].astype(bool)]
    if kept.empty:
        raise UserError(
            "no point whose learning rate was annealed: a running rate hides a few hundredths of "
            "a nat, more in longer runs; evaluate after the decay"
        )
    return kept


def _frontier_row(flops: float, params: float, loss: float, edge: bool) -> dict[str, float | bool]:
    return {
        "flops": flops,
        "params": params,
        "tokens": flops / 6 / params,
        "loss": loss,
        "edge": edge,
    }


def _frontier(approach: str, rows: list[dict[str, float | bool]]) -> Frontier:
    columns = ["flops", "params", "tokens", "loss", "edge"]
    table = pd.DataFrame(rows, columns=columns)
    inside = table[~table["edge"].astype(bool)]
    if len(inside) < 3:
        note = f"{len(inside)} budgets with their best size inside the sizes tried: no exponent"
        return Frontier(approach, table, None, None, None, note)
    x = np.log(inside["flops"].to_numpy(dtype=float))
    y = np.log(inside["params"].to_numpy(dtype=float))
    centred = x - x.mean()
    slope = float((centred @ y) / (centred @ centred))
    left = y - y.mean() - slope * centred
    error = float(np.sqrt((left @ left) / max(1, len(x) - 2) / (centred @ centred)))
    interval = (slope - 1.96 * error, slope + 1.96 * error)
    edges = int(table["edge"].sum())
    note = f"{edges} budgets with the best size at an edge left out" if edges else ""
    return Frontier(approach, table, slope, interval, 1 - slope, note)
