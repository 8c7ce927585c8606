"""Compute-optimal model size and data, by the three approaches of Hoffmann et al. 2022.

Points are final losses of annealed runs: params, tokens, flops, loss (nats). A point of a curve
whose learning rate was not annealed there reads too high by a few hundredths of a nat and pulls
the optimum towards small models; such points are refused. Rows with one label in a column `model`
(checkpoints of one training, lengths forked from one trunk) share errors, and are left out or
drawn together; without it, every row of an IsoFLOP curve is a model of its own, and otherwise
every size is one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import pandas as pd
from scipy import stats
from scipy.interpolate import Akima1DInterpolator

from analysis.checks import Floats, positive, truths
from analysis.fits.scaling.scaling_laws import Base, chinchilla
from analysis.fits.solver import Bootstrap, Fit, Huber, Problem, fit, grid_of_starts, leave_one_out
from analysis.tables.eligible import over_shared_seeds
from analysis.wording import number, told_apart
from tst_study.errors import UserError, one_of
from tst_study.statistics import critical_t

SAME_SIZE = 0.02
"""Relative difference of parameters within which runs are of one size."""
SAME_BUDGET = 0.1
"""Relative spread of FLOPs within which runs share a budget."""
NEAR = 1.2
"""Distance in log N from a budget's best run within which a parabola is fitted, unless given."""
LEAST_SIZES = 4
"""At one budget, for the three coefficients of a parabola."""
Form = Literal["parabola", "akima"]
"""The parabola by default: with noise its exponent is two to six times as near (docs/analysis.md).
Akima's interpolation trusts every point."""
LEAST_RUNS = 10
"""For the five parameters of the parametric law, with something left to judge it by."""
_GRID = {
    "log_E": (-0.5, 0.0, 0.5, 1.0),
    "alpha": (0.1, 0.3, 0.5, 0.8),
    "beta": (0.1, 0.3, 0.5, 0.8),
}


def points_of(runs: pd.DataFrame) -> pd.DataFrame:
    """Eligible runs of a run table as points of Chinchilla's laws: params, tokens, flops, loss, and
    what else the table has."""
    names = {"active_parameters": "params", "latent_tokens": "tokens", "nats_per_token": "loss"}
    numbers = dict.fromkeys(("params", "tokens", "flops", "loss"), float)
    return runs.rename(columns=names).astype(numbers)


@dataclass(frozen=True)
class Frontier:
    """Compute-optimal sizes by budget, and N ∝ C^a through them (so that D ∝ C^(1 − a))."""

    table: pd.DataFrame
    """flops, params, tokens, loss; `edge` where the best size was the smallest or largest tried."""
    params_exponent: float | None
    params_interval: tuple[float, float] | None
    """95%, as `interval_from` says: by the scatter of budgets around the line (t) where every run
    is a model of its own, else by leaving out one model at a time (jackknife, t)."""
    interval_from: str
    note: str


def envelope(
    points: pd.DataFrame, budgets: int = 30, *, near: float = NEAR, form: Form = "parabola"
) -> Frontier:
    """Approach 1: every size's losses interpolated in log FLOPs between its own points, never
    beyond them, and at each of so many budgets the minimum over sizes, found as by `isoflop`.

    Made-up budgets are no independent points: the interval is the jackknife's over models.
    """
    usable = annealed_points(points, ("params", "flops", "loss"))
    if "model" not in usable:
        usable = usable.assign(model=usable["size"])
    sizes = usable.groupby("size")["flops"].nunique()
    if (sizes > 1).sum() < LEAST_SIZES:
        raise UserError(
            f"{int((sizes > 1).sum())} model sizes with two or more lengths: an envelope needs "
            f"{LEAST_SIZES}"
        )
    grid = np.geomspace(usable["flops"].min(), usable["flops"].max(), budgets)

    def table(rows: pd.DataFrame) -> pd.DataFrame:
        parts = []
        for size, own in rows.groupby("size"):
            means = own.groupby("flops")["loss"].mean()
            inside = grid[(grid >= means.index.min()) & (grid <= means.index.max())]
            losses = np.interp(np.log(inside), np.log(means.index), means)
            parts.append(pd.DataFrame({"flops": inside, "size": size, "loss": losses}))
        found = pd.concat(parts)
        return _minima(found, found["flops"].to_numpy(dtype=float), near, form)

    return _frontier(usable, table)


def isoflop(points: pd.DataFrame, *, near: float = NEAR, form: Form = "parabola") -> Frontier:
    """Approach 2: at each budget the minimum of loss over log N, if inside: of a parabola through
    the sizes within `near` of the best, or of Akima's interpolation through all."""
    usable = annealed_points(points, ("params", "flops", "loss")).sort_values("flops")

    def table(rows: pd.DataFrame) -> pd.DataFrame:
        logs = np.log(rows["flops"].to_numpy(dtype=float))
        return _minima(rows, np.cumsum(np.diff(logs, prepend=logs[0]) > SAME_BUDGET), near, form)

    return _frontier(usable, table)


def parametric(points: pd.DataFrame) -> Fit:
    """Approach 3: E + A N^−α + B D^−β by Huber loss (delta 1e-3) on log L.

    A bootstrap of the fit draws models: the labels of the column `model`, or without one the sizes.
    A term that the data do not ask for ends at its bound: `Fit.identified` names it.
    """
    problem, _ = _parametric(points)
    return fit(problem, grid_of_starts(problem.model, _GRID))


def leave_one_size_out(points: pd.DataFrame) -> pd.DataFrame:
    """Errors of each model size predicted by the parametric law of all others
    (`fitting.leave_one_out`): the largest size's is the one that extrapolates."""
    problem, sizes = _parametric(points)
    return leave_one_out(problem, sizes, grid_of_starts(problem.model, _GRID), refine=6)


def _parametric(points: pd.DataFrame) -> tuple[Problem, list[float]]:
    """The law on the points that may be used, and the size of each of them."""
    usable = annealed_points(points, ("params", "tokens", "loss"))
    if usable["size"].nunique() < 3 or usable["tokens"].nunique() < 3:
        raise UserError(
            f"{usable['size'].nunique()} model sizes and {usable['tokens'].nunique()} amounts of "
            "data: the parametric law needs at least three of each"
        )
    if len(usable) < LEAST_RUNS:
        raise UserError(
            f"{len(usable)} runs: the parametric law has five parameters and needs {LEAST_RUNS}"
        )
    problem = Problem(
        chinchilla(usable["params"], usable["tokens"]),
        usable["loss"].to_numpy(dtype=float),
        Huber(),
        models=pd.factorize(usable["model" if "model" in usable else "size"])[0],
    )
    return problem, [float(size) for size in usable["size"]]


def allocation(found: Fit, flops: Floats, drawn: Bootstrap) -> pd.DataFrame:
    """Compute-optimal params, tokens and loss at FLOPs budgets (C = 6 N D), with 95% intervals
    over models. Columns: flops, params, params_low, params_high, tokens, …, loss, …"""
    names = list(found.problem.model.parameters)
    others = [Base.of(dict(zip(names, row, strict=True))) for row in drawn.draws[names].to_numpy()]
    rows = []
    for budget in np.asarray(flops, dtype=float):
        best = _optimum(Base.of(found.values), float(budget))
        spread = np.array([_optimum(other, float(budget)) for other in others])
        row: dict[str, float | None] = {"flops": float(budget)}
        for i, name in enumerate(("params", "tokens", "loss")):
            low, high = drawn.interval(spread[:, i])
            row |= {name: best[i], f"{name}_low": low, f"{name}_high": high}
        rows.append(row)
    return pd.DataFrame(rows)


def exponents(found: Fit, drawn: Bootstrap) -> dict[str, tuple[float, float | None, float | None]]:
    """N ∝ C^a with a = β / (α + β), and D ∝ C^b: value and 95% interval of each."""
    drawn_sum = drawn.draws["alpha"] + drawn.draws["beta"]
    return {
        name: (
            found[own] / (found["alpha"] + found["beta"]),
            *drawn.interval(drawn.draws[own] / drawn_sum),
        )
        for name, own in (("params", "beta"), ("tokens", "alpha"))
    }


def _optimum(base: Base, flops: float) -> tuple[float, float, float]:
    if not (base.alpha > 0 and base.beta > 0):  # no fall with N or with D: no optimum
        return np.nan, np.nan, np.nan
    total = base.alpha + base.beta
    ratio = base.log_A - base.log_B + np.log(base.alpha / base.beta)
    log_size = (ratio + base.beta * np.log(flops / 6)) / total
    size = float(np.exp(log_size))
    tokens = flops / 6 / size
    return size, tokens, float(base.loss(size, tokens))


def annealed_points(points: pd.DataFrame, needed: Sequence[str]) -> pd.DataFrame:
    """The points that may be used; raises `UserError` for a bad value of these columns, by column
    and row."""
    positive(points, needed, "points")
    if "params" in points:
        points = points.assign(size=sizes_of(points["params"]))
    if "annealed" not in points:
        return points
    kept = points[truths(points["annealed"], "annealed")]
    if kept.empty:
        raise UserError(
            "no point whose learning rate was annealed: a running rate hides a few hundredths of "
            "a nat, more in longer runs; evaluate after the decay"
        )
    return kept


def sizes_of(params: pd.Series) -> Floats:
    """The size that each run belongs to: the smallest within 2%. Counts of one model differ a
    little between sources, and where they are computed."""
    values = params.to_numpy(dtype=float)
    order = np.argsort(values)
    found, smallest = values.copy(), 0.0
    for place in order:
        if values[place] > (1 + SAME_SIZE) * smallest:
            smallest = values[place]
        found[place] = smallest
    return found


def alike_in_kind(baselines: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Baselines of one corpus, one held-out text and one kind of model, dense or mixture, within
    which sizes are compared; each with a label."""
    experts = baselines.get("experts", pd.Series(index=baselines.index, dtype=float))
    kinds = list(baselines.groupby(["corpus", "eval_set", experts.notna()], sort=True))
    names = told_apart(
        [str(corpus) or "all runs" for (corpus, *_), _ in kinds],
        [str(text) for (_, text, _), _ in kinds],
        ["mixtures of experts" if sparse else "dense" for (*_, sparse), _ in kinds],
    )
    return [(name, own) for name, (_, own) in zip(names, kinds, strict=True)]


def at_best_rates(points: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Of each size, length and set-up (columns `family`, `batch`) the points at its best learning
    rate, and in words what was left out and what was not told apart: a law of what was tuned badly
    tells of the tuning. Best is the lowest mean loss over the seeds that the rates share."""
    if "learning_rate" not in points:
        return points, ""
    points = points.reset_index(drop=True)
    sizes = sizes_of(points["params"])
    set_up = [name for name in ("family", "batch") if name in points]
    best = pd.Series(False, index=points.index)
    for _, own in points.groupby([sizes, "tokens", *set_up], sort=False):
        seeds = own.assign(seed=own.get("seed", 0))
        means = over_shared_seeds(seeds, "learning_rate", "loss").mean(axis=1)
        best[own.index] = own["learning_rate"] == means.idxmin()
    notes = []
    if left := int((~best).sum()):
        notes.append(f"{number(left, 'run')} at worse learning rates left out")
    cells = points[best].groupby([sizes[best.to_numpy()], "tokens"])
    if set_up and (several := int((cells[set_up].nunique() > 1).any(axis=1).sum())):
        where = f"at {several} of {len(cells)} sizes and lengths"
        notes.append(f"{where} several set-ups are fitted together")
    return points[best], "; ".join(notes)


def _minima(rows: pd.DataFrame, budget: Floats, near: float, form: Form) -> pd.DataFrame:
    """flops, params, tokens, loss, edge of the best size at each budget with enough sizes."""
    one_of(form, get_args(Form), "form")
    found = []
    for _, own in rows.groupby(budget):
        losses = own.groupby("size")["loss"].mean()
        if len(losses) < LEAST_SIZES:
            continue
        x, y = np.log(losses.index.to_numpy(dtype=float)), losses.to_numpy(dtype=float)
        place, loss = _lowest_of_parabola(x, y, near) if form == "parabola" else _akima(x, y)
        flops, size = float(np.exp(np.log(own["flops"]).mean())), float(np.exp(place))
        edge = bool(place in (x[0], x[-1]))
        found.append(
            {"flops": flops, "params": size, "tokens": flops / 6 / size, "loss": loss, "edge": edge}
        )
    return pd.DataFrame(found, columns=["flops", "params", "tokens", "loss", "edge"])


def _lowest_of_parabola(x: Floats, y: Floats, near: float) -> tuple[float, float]:
    """Place and height; an end of `x` where the minimum is not inside what was fitted."""
    best = int(np.argmin(y))
    # Far from the optimum the curve is no parabola any more.
    close = np.abs(x - x[best]) <= near
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
    """Slope of log N over log C through the budgets with their best size inside, its standard
    error and their number; None for fewer than three."""
    inside = table[~table["edge"].astype(bool)]
    if len(inside) < 3:
        return None
    line = stats.linregress(np.log(inside["flops"]), np.log(inside["params"]))
    return float(line.slope), float(line.stderr), len(inside)


def _frontier(points: pd.DataFrame, minima: Callable[[pd.DataFrame], pd.DataFrame]) -> Frontier:
    table = minima(points)
    if table.empty:
        raise UserError(
            f"no FLOPs budget with {LEAST_SIZES} or more model sizes: compute-optimal sizes need "
            "runs of several sizes at the same FLOPs"
        )
    found = _exponent(table)
    if found is None:
        inside = int((~table["edge"].astype(bool)).sum())
        note = f"{inside} budgets with their best size inside the sizes tried: no exponent"
        return Frontier(table, None, None, "", note)
    slope, error, count = found
    edges = int(table["edge"].sum())
    notes = [f"{edges} budgets with the best size at an edge left out"] if edges else []
    interval: tuple[float, float] | None = None
    if "model" in points and points["model"].duplicated().any():
        models = points["model"].unique()
        without = [_exponent(minima(points[points["model"] != model])) for model in models]
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
    return Frontier(table, slope, interval, source, "; ".join(notes))
