"""The best bag size and step ratio: the minimum of a U-shaped curve, or why there is none.

Two forms are fitted: a parabola in log s (or logit r), and an asymmetric one, a + b/s + c log s (or
a + b/r + c/(1 − r)). Which of them is true is not known: one is dropped only where the curve rules
it out, and the interval spans those that remain. Where their residuals are larger than the
differences between seeds, neither is true: the form is not known, and there is no interval. A
form's own interval holds the places at which a t-test does not tell its slope from zero (Fieller's
method): over seeds, whatever the cells of one seed share, or over the residuals of a single curve.
No form is asked beyond the values that were tried.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import special

from tst_study.analysis import published
from tst_study.analysis.answer import Answer
from tst_study.analysis.checks import Floats
from tst_study.analysis.statistics import critical_t
from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.tables.eligible import over_shared_seeds
from tst_study.config.superposition_setting import SuperpositionSetting
from tst_study.errors import UserError

Along = Literal["bag_size", "step_ratio"]
LEAST_VALUES = 4
UNKNOWN = "form not known"
RULED_OUT = 0.01
"""Level of the tests that rule a form out."""
_GRID = 400
GROUP = ("size", "steps", "weighting")
_NOTHING = (
    "no superposed run beside a baseline: an optimum needs one r at four or more s (or one s at "
    "four or more r)"
)


def bag_size_answer(
    grid: pd.DataFrame | None = None, inputs: dict[str, str] | None = None
) -> Answer:
    """Answer `tst-study analyse bag-size`: the best s of each curve over s, the best r of each s.

    grid: losses (nats per token) by size, steps, weighting, step_ratio, bag_size and, if there,
    seed; the published grids by default.
    """
    given = published.loss_grid() if grid is None else grid
    bags, ratios = optima(given, "bag_size"), optima(given, "step_ratio")
    tables, sentences = {}, []
    for table, name, other in ((bags, "s", "step_ratio"), (ratios, "r", "bag_size")):
        fitted = table[table["form"] != ""]
        if len(fitted):
            names = [*GROUP, other, "best", "low", "high", "flat_low", "flat_high"]
            shown = fitted[[*names, "form", "sentence"]].reset_index(drop=True)
            tables[f"Best {name} (both forms, all values)"] = shown
            edges = int((fitted["sentence"] != "").sum())
            sentences.append(
                f"{edges} of {len(fitted)} curves along {name} are lowest at an edge or "
                "do not determine where: no number."
            )
        if few := len(table) - len(fitted):
            sentences.append(
                f"{few} curves along {name} have fewer than {LEAST_VALUES} values: no optimum."
            )
    noise = {*bags.get("noise_from", []), *ratios.get("noise_from", [])}
    if "seeds" in noise:
        sentences.append("Noise is that of seeds, where all values of a curve share two or more.")
    elif "residuals" in noise:
        sentences.append(
            "Noise is the residuals of each form: no two seeds were run at all values of a curve."
        )
    inputs = inputs or published.fingerprints("final_loss_grid")
    return Answer("bag-size", tables, tuple(sentences), inputs)


def grid_of_runs(pairs: pd.DataFrame) -> pd.DataFrame:
    """Turn compared pairs (`Comparison.pairs`) of the plain method into a grid, one row per cell
    and seed. Loss is minus the paired gain, so that a seed's luck drops out and the baseline, at
    s = 1, has none."""
    rows = rows_of(pairs)
    plain = [SuperpositionSetting.of_row(row).is_plain_but("weighting") for row in rows]
    pairs = pairs.loc[plain]
    if pairs.empty:
        raise UserError(_NOTHING)
    pairs = pairs.assign(size=_labels(pairs), step_ratio=pairs["step_ratio"].round(4))
    grid = pairs.assign(loss=-pairs["gain"])[[*GROUP, "step_ratio", "bag_size", "seed", "loss"]]
    baselines = grid.drop_duplicates([*GROUP, "seed"]).assign(step_ratio=0.0, bag_size=1, loss=0.0)
    return pd.concat([grid, baselines], ignore_index=True)


def _labels(pairs: pd.DataFrame) -> pd.Series:
    """Label each pair by its corpus; where several groups share corpus and length also by the
    group's key, and where a group has several also by learning rate and held-out text."""
    groups = pairs.groupby(["corpus", "steps"])["group"].transform("nunique")
    rates = pairs.groupby("group")["learning_rate"].transform("nunique")
    texts = pairs.groupby("group")["eval_set"].transform("nunique")
    label = pairs["corpus"].where(groups == 1, pairs["corpus"] + " " + pairs["group"].str[:6])
    label = label.where(rates == 1, label + pairs["learning_rate"].map(" at {:g}".format))
    return label.where(texts == 1, label + " on " + pairs["eval_set"])


def optima(grid: pd.DataFrame, along: Along = "bag_size") -> pd.DataFrame:
    """Return one row per curve: the fields of `Optimum` beside what names the curve.

    A curve is all s at one (size, steps, weighting, r), or with `along="step_ratio"` all r at one
    s. The baseline joins a curve over s, as s = 1, where the others leave open how small the best s
    is. Where the grid has a column `seed`, only seeds that every value of a curve has count.
    `sentence` takes the place of numbers where a curve has too few points or its optimum is not
    determined.
    """
    other = "step_ratio" if along == "bag_size" else "bag_size"
    tried = grid[(grid["bag_size"] > 1) & (grid["step_ratio"] > 0)]
    own = ["size", "steps", *("seed" for _ in {"seed"} & {*grid})]
    baselines = grid[grid["bag_size"] == 1].drop_duplicates(own)
    of_size = {key: [rows] for key, rows in baselines.groupby(["size", "steps"])}
    rows: list[dict[str, Any]] = []
    for keys, curve in tried.groupby([*GROUP, other], sort=True):
        named = dict(zip((*GROUP, other), keys, strict=True))
        losses = _by_seed(curve, along)
        if len(losses) < LEAST_VALUES:
            few = f"{len(losses)} {along.replace('_', ' ')}s: an optimum needs {LEAST_VALUES}"
            rows.append({**named, "form": "", "points": len(losses), "sentence": few})
            continue
        lowest = optimum(losses.index.to_numpy(float), losses.to_numpy(float), along=along)
        if along == "bag_size" and curve[along].min() == 2 and lowest.low is None:
            # The optimum may lie at s = 2 or below, which only the baseline can tell. Elsewhere it
            # stays out: the first step, from 1 to 2, is of no form that fits the rest.
            losses = _by_seed(pd.concat([curve, *of_size.get(keys[:2], [])]), along)
            lowest = optimum(losses.index.to_numpy(float), losses.to_numpy(float), along=along)
        rows.append({**named, **asdict(lowest), "sentence": lowest.edge})
    if not rows:
        raise UserError(_NOTHING)
    return pd.DataFrame(rows)


def _by_seed(curve: pd.DataFrame, along: Along) -> pd.DataFrame:
    """Return losses by value and seed; one column of means where the values share no seed."""
    if "seed" not in curve:
        return curve.set_index(along)[["loss"]]
    losses = over_shared_seeds(curve, along, "loss")
    return losses.mean(axis=1).to_frame() if losses.isna().any(axis=None) else losses


@dataclass(frozen=True)
class Optimum:
    """The place of the lowest loss along s or r; None where it is not known, and `edge` says
    why."""

    form: str
    """`both`, the form that was not ruled out, or `form not known`."""
    points: int
    """Number of values of s or r."""
    seeds: int
    best: float | None
    low: float | None
    """Low end of the 95% interval; None where it reaches beyond the values tried."""
    high: float | None
    flat_low: float | None
    """Lowest of the values whose loss is within one `noise` of the optimum's."""
    flat_high: float | None
    loss: float | None
    """Loss at the optimum, mean over seeds, nats per token."""
    noise: float
    """Standard deviation of a point of the mean curve, nats per token."""
    noise_from: str
    """`seeds`, or `residuals`."""
    edge: str
    """Why `best` is missing: at an edge, or not determined."""


def optimum(values: ArrayLike, losses: ArrayLike, *, along: Along = "bag_size") -> Optimum:
    """Find the optimum of losses (nats per token), one per value of s or r, shape (values,), or one
    per value and seed, shape (values, seeds); a seed's own level drops out. Four values or more."""
    x, y = np.asarray(values, dtype=float), np.asarray(losses, dtype=float)
    order = np.argsort(x)
    # The curves are nearly parabolas in log s, and in logit r.
    x = np.log(x[order]) if along == "bag_size" else special.logit(x[order])
    y = y.reshape(len(y), -1)[order]
    forms = [_Form(asymmetric, x, y, along) for asymmetric in (False, True)]
    fits = [form for form in forms if not form.ruled_out] or forms
    seeds = y.shape[1]
    if seeds > 1:
        own = y - y.mean(axis=0)
        noise = float(np.sqrt(own.var(axis=1, ddof=1).mean() / seeds))
    else:
        noise = min(form.residual for form in forms)
    reason = _no_number(fits, along)
    best = None if reason else float(np.mean([fit.lowest[0] for fit in fits]))
    unknown = all(fit.misfits for fit in fits)
    ends: list[float | None] = [None, None]
    if not (unknown or all(fit.lowest[1] for fit in fits)):
        lows, highs = zip(*(fit.interval for fit in fits), strict=True)
        ends = [None if None in lows else min(lows), None if None in highs else max(highs)]
    loss: float | None = None
    flat: list[float | None] = [None, None]
    if best is not None:
        loss = float(np.mean([fit.heights(np.array([best])) for fit in fits]))
        near = forms[0].grid[np.mean([fit.heights(fit.grid) for fit in fits], 0) <= loss + noise]
        flat = [near.min(), near.max()] if len(near) else [np.nan, np.nan]
    best, low, high, flat_low, flat_high = (
        None if place is None else _back(float(place), along) for place in (best, *ends, *flat)
    )
    return Optimum(
        form=UNKNOWN if unknown else fits[0].name if len(fits) == 1 else "both",
        points=len(x),
        seeds=seeds,
        best=best,
        low=low,
        high=high,
        flat_low=flat_low,
        flat_high=flat_high,
        loss=loss,
        noise=noise,
        noise_from="residuals" if seeds == 1 else "seeds",
        edge=reason,
    )


def _back(x: float, along: Along) -> float:
    """Return the s or r of a coordinate."""
    return float(np.exp(x) if along == "bag_size" else special.expit(x))


@dataclass(frozen=True)
class _Form:
    """A form fitted to the mean of a curve, by least squares."""

    asymmetric: bool
    x: Floats
    """Coordinates, rising, shape (values,)."""
    y: Floats
    """Nats, shape (values, seeds)."""
    along: Along

    @property
    def name(self) -> str:
        return "asymmetric" if self.asymmetric else "parabola"

    @property
    def seeds(self) -> int:
        return int(self.y.shape[1])

    @cached_property
    def grid(self) -> Floats:
        return np.linspace(self.x.min(), self.x.max(), _GRID)

    def terms(self, at: NDArray[Any]) -> NDArray[Any]:
        """Return the form's three terms at some coordinates, shape (places, 3)."""
        ones = np.ones_like(at)
        if not self.asymmetric:
            return np.stack([ones, at, at**2], axis=-1)
        if self.along == "bag_size":
            return np.stack([ones, np.exp(-at), at], axis=-1)
        return np.stack([ones, np.exp(-at), np.exp(at)], axis=-1)  # the odds r / (1 − r)

    @cached_property
    def own(self) -> Floats:
        """Terms at the curve's values."""
        return self.terms(self.x)

    @cached_property
    def coefficients(self) -> Floats:
        coefficients: Floats = np.linalg.lstsq(self.own, self.y.mean(axis=1), rcond=None)[0]
        return coefficients

    def heights(self, at: Floats) -> Floats:
        heights: Floats = self.terms(at) @ self.coefficients
        return heights

    @cached_property
    def residuals(self) -> Floats:
        """Mean curve minus the form, shape (values,)."""
        residuals: Floats = self.y.mean(axis=1) - self.heights(self.x)
        return residuals

    @property
    def residual(self) -> float:
        """Standard deviation of the residuals, nats per token."""
        return float(np.sqrt((self.residuals**2).sum() / (len(self.x) - 3)))

    @cached_property
    def lowest(self) -> tuple[float, int]:
        """Coordinate of the lowest point, and -1 or 1 where it is the low or high end of the values
        tried (else 0)."""
        best = int(self.heights(self.grid).argmin())
        return float(self.grid[best]), -1 if best == 0 else int(best == _GRID - 1)

    @cached_property
    def interval(self) -> tuple[float | None, float | None]:
        """Ends of the places at which a t-test does not tell the slope from zero."""
        grid = self.grid
        weights = (self.terms(grid + 1e-30j).imag / 1e-30) @ np.linalg.pinv(self.own)
        of_seeds = weights @ self.y
        slopes = of_seeds.mean(axis=1)
        if self.seeds > 1:
            errors = of_seeds.std(axis=1, ddof=1) / np.sqrt(self.seeds)
            critical = critical_t(self.seeds - 1)
        else:
            errors = self.residual * np.linalg.norm(weights, axis=1)
            critical = critical_t(len(self.x) - 3)
        plausible = np.flatnonzero(np.abs(slopes) <= critical * errors)
        if len(plausible):
            first, last = plausible[0], plausible[-1]
            return (
                None if first == 0 else float(grid[first - 1]),
                None if last == _GRID - 1 else float(grid[last + 1]),
            )
        # There is a slope everywhere: the optimum lies beyond an end, or between two grid points.
        if slopes[0] < 0 < slopes[-1]:
            step = float(grid[1] - grid[0])
            return self.lowest[0] - step, self.lowest[0] + step
        return None, None

    @cached_property
    def ruled_out(self) -> bool:
        """Whether the curve bends in the way of the other form, by a t-test of that bend."""
        x, y = self.x, self.y
        bend = _Form(not self.asymmetric, x, y, self.along).own[:, 1]
        if self.asymmetric and self.along == "bag_size":
            bend = x**2
        bend = bend - self.own @ np.linalg.lstsq(self.own, bend, rcond=None)[0]
        bends = bend @ y / np.linalg.norm(bend)
        if self.seeds > 1:
            error, freedom = float(bends.std(ddof=1)) / np.sqrt(self.seeds), self.seeds - 1
        else:
            freedom = len(x) - 4
            if freedom < 1:
                return False
            error = np.sqrt(
                max(0.0, float(self.residuals @ self.residuals) - bends[0] ** 2) / freedom
            )
        error = max(error, 1e-9 * float(np.ptp(y)))  # anything smaller is rounding
        return bool(2 * special.stdtr(freedom, -abs(bends.mean()) / error) < RULED_OUT)

    @cached_property
    def misfits(self) -> bool:
        """Whether the residuals are larger than the differences between seeds (the F-test of lack
        of fit; Draper and Smith, Applied Regression Analysis). One seed cannot tell."""
        points = len(self.x)
        if self.seeds == 1:
            return False
        misfit = self.seeds * (self.residuals**2).sum() / (points - 3)
        own = self.y - self.y.mean(axis=1)[:, None]
        own = own - own.mean(axis=0)  # a seed's level drops out
        freedom = (points - 1) * (self.seeds - 1)
        error = max((own**2).sum() / freedom, (1e-9 * np.ptp(self.y)) ** 2)
        return bool(special.fdtrc(points - 3, freedom, misfit / error) < RULED_OUT)


def _no_number(fits: list[_Form], along: Along) -> str:
    """Say why there is no best value; an empty text where there is one."""
    name = "s" if along == "bag_size" else "r"
    places, edges = zip(*(fit.lowest for fit in fits), strict=True)
    if set(edges) in ({1}, {-1}):
        word, more = ("smallest", "smaller") if edges[0] == -1 else ("largest", "larger")
        at = _back(places[0], along)
        curves = "the fitted curve is" if len(fits) == 1 else "both fitted curves are"
        tried = f"the {word} tried; run {more} ones"
        if along == "bag_size" and edges[0] == -1 and round(at) <= 2:
            tried = ("the baseline", "the smallest bag; give its baseline, s = 1, too")[
                round(at) - 1
            ]
        return f"edge: {curves} lowest at {name} = {at:.3g}, {tried}"
    ends = [fit.interval for fit in fits]
    widths = [np.inf if low is None or high is None else high - low for low, high in ends]
    if any(edges) or max(places) - min(places) > max(widths):
        each = " and ".join(f"{_back(fit.lowest[0], along):.3g} ({fit.name})" for fit in fits)
        return f"not determined: lowest at {name} = {each}; run more values or seeds"
    return ""
