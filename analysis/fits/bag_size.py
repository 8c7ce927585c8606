"""The best bag size: the minimum of a U-shaped curve of losses over s, or why there is none.

Two forms are fitted: a parabola in log s, and an asymmetric form, a + b/s + c log s. Nobody knows
which of them is true. A form is therefore dropped only if the curve rules it out but not the other
one, and the interval spans the forms that remain. If the residuals of all that remain are larger
than the differences between seeds can explain, the form is not known, and there is no interval.

The interval of one form holds the values of s at which a t-test cannot tell the slope of the fitted
curve from zero (Fieller's method). With several seeds the test compares the slopes of the seeds'
curves, so an error common to the runs of one seed does no harm; with one curve it uses the
residuals. No form is evaluated beyond the values of s that were tried.
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import special

from tst_study.analysis import published
from tst_study.analysis.answer import Answer
from tst_study.analysis.checks import Floats
from tst_study.analysis.statistics import critical_t
from tst_study.analysis.tables.columns import settings_of
from tst_study.analysis.tables.eligible import over_shared_seeds
from tst_study.errors import UserError

LEAST_VALUES = 4
"""Fewest values of s for a fit, one more than a form has coefficients."""
UNKNOWN = "form not known"
"""`Optimum.form` if neither form describes the curve."""
RULED_OUT = 0.01
"""Significance level of the test that rules out one form, and of the test that none fits."""
_GRID = 400
"""Number of values of log s, evenly spaced over those tried, at which a form is evaluated."""
GROUP = ("size", "steps", "weighting")
"""The runs of one curve over s agree in these columns and in r."""
_NOTHING = "no superposed run beside a baseline: an optimum needs one r at four or more s"


def bag_size_answer(grid: pd.DataFrame | None = None) -> Answer:
    """Answer `tst-study analyse bag-size`: the best s of each curve over s.

    grid: a row for each loss, with columns size, steps, weighting, step_ratio, bag_size, loss (nats
    per token) and, optionally, seed; the published grids by default. Raises `UserError` for a grid
    without superposed rows.
    """
    table = optima(published.loss_grid() if grid is None else grid)
    tables, sentences = {}, []
    fitted = table[table["form"] != ""]
    if len(fitted):
        names = [*GROUP, "step_ratio", "best", "low", "high", "flat_low", "flat_high"]
        shown = fitted[[*names, "form", "sentence"]].reset_index(drop=True)
        tables["Best s (both forms, all values)"] = shown
        if edges := int((fitted["sentence"] != "").sum()):
            where = f"{edges} of {len(fitted)} curves along s are lowest at an edge"
            sentences.append(f"{where} or have no determined minimum: no number.")
    if few := len(table) - len(fitted):
        sentences.append(f"{few} curves along s have fewer than {LEAST_VALUES} values: no optimum.")
    if len(fitted):
        sentences.append(
            "Noise is that of seeds, where all values of a curve share two or more."
            if (fitted["seeds"] > 1).any()
            else "Noise is the residuals of each form: no two seeds were run at all values of a "
            "curve."
        )
    inputs = published.fingerprints("final_loss_grid") if grid is None else {}
    return Answer("bag-size", tables, tuple(sentences), inputs)


def grid_of_runs(pairs: pd.DataFrame) -> pd.DataFrame:
    """Turn compared pairs (`Comparison.pairs`) into a grid for `optima`, with one row per setting
    and seed, and baselines at s = 1. Ablations of anything but the weighting are left out.

    The negative of the paired gain takes the place of the loss, so that differences between the
    seeds' baselines drop out; the baselines themselves have 0. Raises `UserError` if no pair is
    left."""
    plain = [setting.is_plain_but("weighting") for setting in settings_of(pairs)]
    pairs = pairs.loc[plain]
    if pairs.empty:
        raise UserError(_NOTHING)
    pairs = pairs.assign(size=_labels(pairs), step_ratio=pairs["step_ratio"].round(4))
    grid = pairs.assign(loss=-pairs["gain"])[[*GROUP, "step_ratio", "bag_size", "seed", "loss"]]
    baselines = grid.drop_duplicates([*GROUP, "seed"]).assign(step_ratio=0.0, bag_size=1, loss=0.0)
    return pd.concat([grid, baselines], ignore_index=True)


def _labels(pairs: pd.DataFrame) -> pd.Series:
    """Label each pair by its corpus. The group's key is added if several groups share corpus and
    length, the learning rate if the group was compared at several, and likewise the held-out
    text."""
    groups = pairs.groupby(["corpus", "steps"])["group"].transform("nunique")
    rates = pairs.groupby("group")["rate"].transform("nunique", dropna=False)
    texts = pairs.groupby("group")["eval_set"].transform("nunique")
    label = pairs["corpus"].where(groups == 1, pairs["corpus"] + " " + pairs["group"])
    label = label.where(rates == 1, label + pairs["learning_rate"].map(" at {:g}".format))
    return label.where(texts == 1, label + " on " + pairs["eval_set"])


def optima(grid: pd.DataFrame) -> pd.DataFrame:
    """Find the optimum of each curve over s in a grid of losses (see `bag_size_answer`).

    A curve is all superposed rows of one size, length (steps), weighting and r. The table has one
    row for each: these four columns, the fields of `Optimum`, and `sentence`. If there is no best
    s, `sentence` says why: it says that the curve has too few values of s, or it repeats `edge`.
    Otherwise it is empty.

    If a curve begins at s = 2 and its interval has no low end, the baseline joins it as s = 1. Only
    the seeds that every s of a curve has are used; if there is no such seed, losses are means over
    all seeds. Without a column `seed` all rows are of one seed.

    Raises `UserError` for a grid without superposed rows.
    """
    grid = grid.assign(seed=grid.get("seed", 0))
    tried = grid[(grid["bag_size"] > 1) & (grid["step_ratio"] > 0)]
    baselines = grid[grid["bag_size"] == 1].drop_duplicates(["size", "steps", "seed"])
    of_size = {key: [rows] for key, rows in baselines.groupby(["size", "steps"])}
    rows: list[dict[str, Any]] = []
    for keys, curve in tried.groupby([*GROUP, "step_ratio"], sort=True):
        named = dict(zip((*GROUP, "step_ratio"), keys, strict=True))
        losses = _by_seed(curve)
        if len(losses) < LEAST_VALUES:
            few = f"{len(losses)} bag sizes: an optimum needs {LEAST_VALUES}"
            rows.append({**named, "form": "", "points": len(losses), "sentence": few})
            continue
        lowest = optimum(losses.index.to_numpy(float), losses.to_numpy(float))
        if curve["bag_size"].min() == 2 and lowest.low is None:
            # The optimum may lie at s = 2 or below, and only the baseline can tell. All other
            # curves are fitted without it, because a form that fits s = 2 and above does not fit
            # the large step from s = 1 to s = 2 as well.
            losses = _by_seed(pd.concat([curve, *of_size.get(keys[:2], [])]))
            lowest = optimum(losses.index.to_numpy(float), losses.to_numpy(float))
        rows.append({**named, **asdict(lowest), "sentence": lowest.edge})
    if not rows:
        raise UserError(_NOTHING)
    return pd.DataFrame(rows)


def _by_seed(curve: pd.DataFrame) -> pd.DataFrame:
    """Return losses by s (rows) and seed (columns). If the values of s share no seed, there is one
    column, which holds means over all seeds."""
    losses = over_shared_seeds(curve, "bag_size", "loss")
    return losses.mean(axis=1).to_frame() if losses.isna().any(axis=None) else losses


@dataclass(frozen=True)
class Optimum:
    """The lowest point of a curve of losses over s, with its interval."""

    form: str
    """`parabola` or `asymmetric` if the other form alone was ruled out, else `both`. It is
    `form not known` instead if the residuals are too large for every form that remains."""
    points: int
    """Number of values of s."""
    seeds: int
    """Number of seeds that all values of s share; 1 for a single curve, and for a curve of
    means."""
    best: float | None
    """The best s, not rounded; None if `edge` says why there is none."""
    low: float | None
    """Low end of the 95% interval; None if the interval reaches beyond the values tried, if the
    form is not known, and if every form is lowest at an edge."""
    high: float | None
    """High end of the 95% interval; None as for `low`."""
    flat_low: float | None
    """The smallest s at which the fitted loss is within one `noise` of its minimum; None without
    `best`."""
    flat_high: float | None
    """The largest such s."""
    loss: float | None
    """Fitted loss at `best`, mean over seeds, nats per token; None without `best`."""
    noise: float
    """Standard deviation of a point of the mean curve, nats per token. It is estimated from the
    scatter of the seeds or, for a single curve, from the residuals of the form that fits best."""
    edge: str
    """The reason that there is no `best`: the curve is lowest at an edge of the values tried, or
    its minimum is not determined. Empty if there is a `best`."""


def optimum(bags: ArrayLike, losses: ArrayLike) -> Optimum:
    """Find the optimum of losses (nats per token) over `bags`, four or more values of s.

    losses: shape (values,), or (values, seeds) for several seeds. A constant added to all losses of
    one seed changes neither the noise nor the tests."""
    x, y = np.log(np.asarray(bags, dtype=float)), np.asarray(losses, dtype=float)
    order = np.argsort(x)
    x, y = x[order], y.reshape(len(y), -1)[order]
    seeds = y.shape[1]
    grid = np.linspace(x.min(), x.max(), _GRID)
    forms = [_fitted("parabola", x, y, grid), _fitted("asymmetric", x, y, grid)]
    fits = [form for form in forms if not form.ruled_out] or forms
    if seeds > 1:
        own = y - y.mean(axis=0)
        # Taking out each seed's level costs one degree of freedom per seed.
        noise = float(np.sqrt(own.var(axis=1, ddof=1).sum() / (len(x) - 1) / seeds))
    else:
        noise = min(form.residual for form in forms)
    reason = _no_number(fits)
    unknown = all(fit.misfits for fit in fits)
    loss: float | None = None
    logs: dict[str, float | None] = dict.fromkeys(("best", "low", "high", "flat_low", "flat_high"))
    if not (unknown or all(fit.edge for fit in fits)):
        lows, highs = zip(*(fit.interval for fit in fits), strict=True)
        logs["low"] = None if None in lows else min(lows)
        logs["high"] = None if None in highs else max(highs)
    if not reason:
        best = float(np.mean([fit.lowest for fit in fits]))
        places = np.append(grid, best)
        heights = np.mean([fit.heights(places) for fit in fits], axis=0)
        near, loss = places[heights <= heights[-1] + noise], float(heights[-1])
        logs |= {"best": best, "flat_low": near.min(), "flat_high": near.max()}
    return Optimum(
        form=UNKNOWN if unknown else fits[0].name if len(fits) == 1 else "both",
        points=len(x),
        seeds=seeds,
        loss=loss,
        noise=noise,
        edge=reason,
        **{name: None if log is None else float(np.exp(log)) for name, log in logs.items()},
    )


_Name = Literal["parabola", "asymmetric"]


def _terms(name: _Name, at: NDArray[Any]) -> NDArray[Any]:
    """Return a form's three terms at the given values of log s, shape (places, 3)."""
    if name == "parabola":
        return np.stack([np.ones_like(at), at, at**2], axis=-1)
    return np.stack([np.ones_like(at), np.exp(-at), at], axis=-1)


@dataclass(frozen=True)
class _Form:
    """A form fitted by least squares to the mean curve over seeds. Places (`lowest`, `interval`)
    are logs of s."""

    name: _Name
    coefficients: Floats
    residual: float
    """Standard deviation of the residuals, nats per token."""
    lowest: float
    edge: int
    """-1 or 1 if the lowest point is at the smallest or the largest value tried, else 0."""
    interval: tuple[float | None, float | None]
    ruled_out: bool
    misfits: bool

    def heights(self, at: Floats) -> Floats:
        heights: Floats = _terms(self.name, at) @ self.coefficients
        return heights


def _fitted(name: _Name, x: Floats, y: Floats, grid: Floats) -> _Form:
    """Fit a form to losses and judge it. y: the losses, shape (values, seeds). x: the logs of s,
    rising, one for each row of y."""
    own, mean = _terms(name, x), y.mean(axis=1)
    coefficients = np.linalg.lstsq(own, mean, rcond=None)[0]
    residuals = mean - own @ coefficients
    best = int((_terms(name, grid) @ coefficients).argmin())
    residual = float(np.sqrt((residuals**2).sum() / (len(x) - 3)))
    bend = np.exp(-x) if name == "parabola" else x**2
    return _Form(
        name,
        coefficients,
        residual,
        lowest=float(grid[best]),
        edge=-1 if best == 0 else int(best == _GRID - 1),
        interval=_interval(name, x, y, grid, residual, best),
        ruled_out=_ruled_out(own, bend, y, residuals),
        misfits=_misfits(y, residuals),
    )


def _interval(
    name: _Name, x: Floats, y: Floats, grid: Floats, residual: float, best: int
) -> tuple[float | None, float | None]:
    """Find both ends of the range of log s in which a t-test cannot tell the slope of the fitted
    form from zero. An end is None if that range reaches the end of the values tried. Both are None
    if the slope differs from zero everywhere and does not change its sign from falling to
    rising."""
    # The slope of the fit is a weighted sum of the losses, with a row of `weights` for each point
    # of the grid. The derivative of the terms is taken by the complex step.
    weights = (_terms(name, grid + 1e-30j).imag / 1e-30) @ np.linalg.pinv(_terms(name, x))
    of_seeds, seeds = weights @ y, y.shape[1]
    slopes = of_seeds.mean(axis=1)
    if seeds > 1:
        errors = of_seeds.std(axis=1, ddof=1) / np.sqrt(seeds)
        critical = critical_t(seeds - 1)
    else:
        errors = residual * np.linalg.norm(weights, axis=1)
        critical = critical_t(len(x) - 3)
    plausible = np.flatnonzero(np.abs(slopes) <= critical * errors)
    if len(plausible):
        first, last = plausible[0], plausible[-1]
        return (
            None if first == 0 else float(grid[first - 1]),
            None if last == _GRID - 1 else float(grid[last + 1]),
        )
    # The slope differs from zero everywhere: the optimum lies beyond an end, or between two points
    # of the grid.
    if slopes[0] < 0 < slopes[-1]:
        return float(grid[best - 1]), float(grid[best + 1])
    return None, None


def _ruled_out(own: Floats, bend: Floats, y: Floats, residuals: Floats) -> bool:
    """Return whether a t-test shows that the curve bends in a way that this form cannot follow.

    own: this form's terms at each s, shape (values, 3). bend: the term that only the other form
    has, shape (values,). One curve of four values leaves no degree of freedom for the test, so it
    rules nothing out.
    """
    points, seeds = y.shape
    bend = bend - own @ np.linalg.lstsq(own, bend, rcond=None)[0]
    bends = bend @ y / np.linalg.norm(bend)
    if seeds > 1:
        error, freedom = float(bends.std(ddof=1)) / np.sqrt(seeds), seeds - 1
    elif points == LEAST_VALUES:
        return False
    else:
        freedom = points - 4
        error = np.sqrt(max(0.0, float(residuals @ residuals) - bends[0] ** 2) / freedom)
    error = max(error, 1e-9 * float(np.ptp(y)))  # anything smaller is rounding
    return bool(2 * special.stdtr(freedom, -abs(bends.mean()) / error) < RULED_OUT)


def _misfits(y: Floats, residuals: Floats) -> bool:
    """Return whether the residuals are larger than the differences between seeds can explain (the
    F-test of lack of fit; Draper and Smith, Applied Regression Analysis). With one seed, which
    cannot tell, return False."""
    points, seeds = y.shape
    if seeds == 1:
        return False
    misfit = seeds * (residuals**2).sum() / (points - 3)
    own = y - y.mean(axis=1)[:, None]
    own = own - own.mean(axis=0)  # a seed's level drops out
    freedom = (points - 1) * (seeds - 1)
    error = max((own**2).sum() / freedom, (1e-9 * np.ptp(y)) ** 2)
    return bool(special.fdtrc(points - 3, freedom, misfit / error) < RULED_OUT)


def _no_number(fits: list[_Form]) -> str:
    """Say why there is no best value; return an empty text if there is one."""
    edges = {fit.edge for fit in fits}
    if edges in ({1}, {-1}):
        at = float(np.exp(fits[0].lowest))
        tried = "the largest tried; run larger ones"
        if edges == {-1}:
            tried = {1: "the baseline", 2: "the smallest bag; give its baseline, s = 1, too"}.get(
                round(at), "the smallest tried; run smaller ones"
            )
        curves = "the fitted curve is" if len(fits) == 1 else "both fitted curves are"
        return f"edge: {curves} lowest at s = {at:.3g}, {tried}"
    places = [fit.lowest for fit in fits]
    ends = [fit.interval for fit in fits]
    widths = [np.inf if low is None or high is None else high - low for low, high in ends]
    if any(edges) or max(places) - min(places) > max(widths):
        each = " and ".join(f"{np.exp(fit.lowest):.3g} ({fit.name})" for fit in fits)
        return f"not determined: lowest at s = {each}; run more values or seeds"
    return ""
