"""The minimum of a U-shaped curve, with an interval and a flat range, or why there is none.

Three forms: a parabola in log s (or logit r); an asymmetric one, a + b/s + c log s (or a + b/r +
c/(1 − r)); and Akima's interpolation, which trusts every point and so has no interval. Which form
is true is not known: unless one is asked for, the first two are both fitted, one is dropped only
where the curve rules it out, and the interval spans those that are left. Where what they leave of
the curve is more than seeds differ by, neither is true: the form is not known, and there is no
interval. A form's own interval
holds the places at which a t-test does not tell its slope from zero (Fieller's method): over seeds,
whatever the cells of one seed share, or over what the form leaves of a single curve. None is asked
beyond the values that were tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import interpolate, stats

from analysis.checks import Floats, numbers
from analysis.fits.solver.uncertainty import roughness
from analysis.wording import number
from tst_study.errors import UserError, one_of
from tst_study.statistics import critical_t

Along = Literal["bag_size", "step_ratio"]
FormName = Literal["parabola", "asymmetric", "akima"]
FORM_NAMES: tuple[FormName, ...] = ("parabola", "asymmetric", "akima")
Asked = Literal["both", "parabola", "asymmetric", "akima"]
LEAST_VALUES = 4
UNKNOWN = "form not known"
RULED_OUT = 0.01
"""Level at which what a form leaves of the curve speaks against it."""
_GRID = 400


@dataclass(frozen=True)
class Optimum:
    """Where a loss is lowest along s or r; None where that cannot be said, and `edge` says why."""

    form: str
    """`both`, the one that was asked for or left, or `form not known`."""
    window: str
    points: int
    seeds: int
    best: float | None
    low: float | None
    """95%; None where it reaches beyond the values tried."""
    high: float | None
    flat_low: float | None
    """Values whose loss is within one `noise` of the lowest."""
    flat_high: float | None
    loss: float | None
    """At the optimum, mean over seeds."""
    noise: float
    """Standard deviation of a point, as a mean over seeds, nats."""
    noise_from: str
    """`seeds`, or `residuals`."""
    edge: str
    """Why `best` is missing: at an edge, or not determined."""


@dataclass(frozen=True)
class _Fit:
    """One form's answer, in the coordinate."""

    form: FormName
    curve: Callable[[Floats], Floats]
    at: float
    edge: int
    """-1 or 1 where the lowest point is the low or high end of the values tried."""
    low: float | None
    high: float | None
    ruled_out: bool

    @property
    def width(self) -> float:
        return np.inf if self.low is None or self.high is None else self.high - self.low


def coordinate(values: Floats, along: Along) -> Floats:
    """log s, or logit r: axes on which the curves are nearly parabolas."""
    return np.log(values) if along == "bag_size" else np.log(values / (1.0 - values))


def optimum(
    values: Sequence[float] | Floats,
    losses: ArrayLike,
    *,
    along: Along = "bag_size",
    form: Asked = "both",
    window: float | None = None,
) -> Optimum:
    """The optimum of losses (nats), one per value of s or r, shape (values,), or one per value and
    seed, shape (values, seeds); a seed's own level drops out.

    `window`: largest distance from the lowest point, in e-folds of s or units of logit r; all
    points by default.

    Raises `UserError` for fewer than four values in the window, a value given twice, a loss that is
    not finite, and a form that is not known.
    """
    one_of(along, ("bag_size", "step_ratio"), "along")
    one_of(form, ("both", *FORM_NAMES), "form")
    x, y = _in_window(values, losses, along, window)
    where = "all" if window is None else f"±{window:g}"
    if len(x) < LEAST_VALUES:
        inside, wider = ("", "") if window is None else (f" within {where}", ", or widen that")
        raise UserError(
            f"{number(len(x), 'value')} of {along}{inside}: an optimum needs at least four; run "
            f"more{wider}"
        )
    forms: list[FormName] = ["parabola", "asymmetric"] if form == "both" else [form]
    fits = [_fitted(name, x, y, along) for name in forms]
    fits = [fit for fit in fits if not fit.ruled_out] or fits

    def curve(at: Floats) -> Floats:
        heights: Floats = np.mean([fit.curve(at) for fit in fits], axis=0)
        return heights

    seeds = y.shape[1]
    if seeds > 1:
        own = y - y.mean(axis=0)
        noise = float(np.sqrt(own.var(axis=1, ddof=1).mean() / seeds))
    elif form == "akima":
        noise = roughness(y[:, 0])
    else:
        noise = min(_residual(name, x, y[:, 0], along) for name in forms)
    said = _no_number(fits, along, x)
    best = None if said else float(np.mean([fit.at for fit in fits]))
    unknown = form != "akima" and all(_misfits(fit.form, x, y, along) for fit in fits)
    no_interval = unknown or all(fit.edge for fit in fits)
    ends = [None, None] if no_interval else [_outer(fits, "low", min), _outer(fits, "high", max)]
    loss = None if best is None else float(curve(np.array([best]))[0])
    flat = (None, None) if loss is None else _flat(curve, x, loss + noise)
    best, low, high, flat_low, flat_high = (
        None if place is None else float(_back(place, along)) for place in (best, *ends, *flat)
    )
    return Optimum(
        form=UNKNOWN if unknown else fits[0].form if len(fits) == 1 else "both",
        window=where,
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
        edge=said,
    )


def places(x: Floats, curves: Floats, along: Along, form: FormName) -> Floats:
    """The optima of many curves over one axis, shape (points, curves), in s or r; NaN at edges."""
    at, edge = _lowest(_curve(form, x, curves, along), x)
    return np.where(edge == 0, _back(at, along), np.nan)


def _in_window(
    values: Sequence[float] | Floats, losses: ArrayLike, along: Along, window: float | None
) -> tuple[Floats, Floats]:
    """Coordinates, rising, and losses of shape (values, seeds)."""
    raw = numbers(values, along, above=0.0, below=np.inf if along == "bag_size" else 1.0)
    y = np.asarray(losses, dtype=float)
    numbers(y, "loss")
    if y.ndim not in (1, 2) or len(raw) != len(y):
        raise UserError(f"{len(raw)} values of {along}, losses of shape {y.shape}: one row each")
    if len(np.unique(raw)) < len(raw):
        raise UserError(f"a value of {along} is given twice; give seeds as columns of the losses")
    order = np.argsort(raw)
    x, y = coordinate(raw[order], along), y.reshape(len(y), -1)[order]
    if window is None:
        return x, y
    near = np.abs(x - x[int(np.argmin(y.mean(axis=1)))]) <= window + 1e-9
    return x[near], y[near]


def _basis(form: FormName, at: Floats, along: Along) -> tuple[Floats, Floats]:
    """Terms of a form and their derivatives by the coordinate, shapes (places, 3)."""
    one = np.ones_like(at)
    if form == "parabola":
        terms, slopes = (one, at, at**2), (0 * one, one, 2 * at)
    elif along == "bag_size":
        terms, slopes = (one, np.exp(-at), at), (0 * one, -np.exp(-at), one)
    else:
        odds = np.exp(at)  # r / (1 − r)
        terms, slopes = (one, 1 / odds, odds), (0 * one, -1 / odds, odds)
    return np.stack(terms, axis=-1), np.stack(slopes, axis=-1)


def _curve(form: FormName, x: Floats, y: Floats, along: Along) -> Callable[[Floats], Floats]:
    """y of shape (points,) or (points, curves) to a function of places, shape (places, …)."""
    if form == "akima":
        smooth: Callable[[Floats], Floats] = interpolate.Akima1DInterpolator(x, y)
        return smooth
    coefficients = np.linalg.lstsq(_basis(form, x, along)[0], y, rcond=None)[0]

    def curve(at: Floats) -> Floats:
        heights: Floats = _basis(form, at, along)[0] @ coefficients
        return heights

    return curve


def _fitted(form: FormName, x: Floats, y: Floats, along: Along) -> _Fit:
    curve = _curve(form, x, y.mean(axis=1), along)
    at, edge = (float(found) for found in _lowest(curve, x))
    if form == "akima":
        return _Fit(form, curve, at, int(edge), None, None, False)
    terms = _basis(form, x, along)[0]
    grid = np.linspace(x.min(), x.max(), _GRID)
    slopes, errors, critical = _told(
        _basis(form, grid, along)[1] @ np.linalg.pinv(terms), y, form, x, along
    )
    plausible = np.flatnonzero(np.abs(slopes) <= critical * errors)
    if len(plausible):
        first, last = plausible[0], plausible[-1]
        low = None if first == 0 else float(grid[first - 1])
        high = None if last == _GRID - 1 else float(grid[last + 1])
    else:  # Everywhere a slope: beyond one of the ends, or between two places of the grid.
        inside = (slopes[0] < 0) and (slopes[-1] > 0)
        low, high = (at - grid[1] + grid[0], at + grid[1] - grid[0]) if inside else (None, None)
    return _Fit(form, curve, at, int(edge), low, high, _ruled_out(form, x, y, along))


def _told(
    weights: Floats, y: Floats, form: FormName, x: Floats, along: Along
) -> tuple[Floats, Floats, float]:
    """Means and standard errors of `weights` @ y, and the critical value of t."""
    found = weights @ y
    seeds = y.shape[1]
    if seeds > 1:
        return found.mean(axis=1), found.std(axis=1, ddof=1) / np.sqrt(seeds), critical_t(seeds - 1)
    deviation = _residual(form, x, y[:, 0], along)
    errors = deviation * np.linalg.norm(weights, axis=1)
    return found[:, 0], errors, critical_t(len(x) - 3)


def _residual(form: FormName, x: Floats, y: Floats, along: Along) -> float:
    left = y - _curve(form, x, y, along)(x)
    return float(np.sqrt((left**2).sum() / (len(x) - 3)))


def _ruled_out(form: FormName, x: Floats, y: Floats, along: Along) -> bool:
    """Whether the curve bends in the way of the other form, by a t-test of that bend."""
    other: FormName = "asymmetric" if form == "parabola" else "parabola"
    terms, bend = _basis(form, x, along)[0], _basis(other, x, along)[0][:, 1]
    if form == "asymmetric" and along == "bag_size":
        bend = x**2
    seeds = y.shape[1]
    bend = bend - terms @ np.linalg.lstsq(terms, bend, rcond=None)[0]
    found = bend @ y / np.linalg.norm(bend)
    if seeds > 1:
        error, freedom = float(found.std(ddof=1)) / np.sqrt(seeds), seeds - 1
    else:
        left = y[:, 0] - terms @ np.linalg.lstsq(terms, y[:, 0], rcond=None)[0]
        freedom = len(x) - 4
        if freedom < 1:
            return False
        error = float(np.sqrt(max(0.0, left @ left - found[0] ** 2) / freedom))
    error = max(error, 1e-9 * float(np.ptp(y)))  # Below that all is rounding.
    return bool(2 * stats.t.sf(abs(found.mean()) / error, freedom) < RULED_OUT)


def _misfits(form: FormName, x: Floats, y: Floats, along: Along) -> bool:
    """Whether a form leaves more of the mean curve than seeds differ by (the F-test of lack of
    fit; Draper and Smith, Applied Regression Analysis). One seed cannot tell."""
    points, seeds = y.shape
    if seeds == 1:
        return False
    mean = y.mean(axis=1)
    left = seeds * ((mean - _curve(form, x, mean, along)(x)) ** 2).sum() / (points - 3)
    own = y - mean[:, None] - (y - mean[:, None]).mean(axis=0)  # a seed's level drops out
    freedom = (points - 1) * (seeds - 1)
    error = max((own**2).sum() / freedom, (1e-9 * np.ptp(y)) ** 2)
    return bool(stats.f.sf(left / error, points - 3, freedom) < RULED_OUT)


def _lowest(curve: Callable[[Floats], Floats], x: Floats) -> tuple[Floats, Floats]:
    """Place of the lowest point of each fitted curve, and -1 or 1 where it is at the low or high
    end of the values tried (else 0)."""
    grid = np.linspace(x.min(), x.max(), _GRID)
    best = curve(grid).argmin(axis=0)
    return grid[best], np.where(best == 0, -1, np.where(best == _GRID - 1, 1, 0))


def _outer(fits: list[_Fit], name: str, outermost: Callable[[list[float]], float]) -> float | None:
    ends = [getattr(fit, name) for fit in fits]
    return None if None in ends else outermost(ends)


def _flat(curve: Callable[[Floats], Floats], x: Floats, limit: float) -> tuple[float, float]:
    grid = np.linspace(x.min(), x.max(), _GRID)
    near = grid[curve(grid) <= limit]
    return (float(near.min()), float(near.max())) if len(near) else (float("nan"), float("nan"))


def _no_number(fits: list[_Fit], along: Along, x: Floats) -> str:
    """Why there is no best value, or an empty text."""
    name = "s" if along == "bag_size" else "r"
    edges = {fit.edge for fit in fits}
    if edges == {1} or edges == {-1}:
        end, word, more = (
            (x.min(), "smallest", "smaller") if edges == {-1} else (x.max(), "largest", "larger")
        )
        at = float(_back(end, along))
        curves = "the fitted curve is" if len(fits) == 1 else "both fitted curves are"
        last = along == "bag_size" and round(at) == 2 and edges == {-1}
        tried = "the smallest that there is" if last else f"the {word} tried; run {more} ones"
        return f"edge: {curves} lowest at {name} = {at:.3g}, {tried}"
    apart = max(fit.at for fit in fits) - min(fit.at for fit in fits)
    if edges != {0} or apart > max(fit.width for fit in fits):
        each = " and ".join(f"{float(_back(fit.at, along)):.3g} ({fit.form})" for fit in fits)
        return f"not determined: lowest at {name} = {each}; run more values or seeds"
    return ""


def _back(x: Floats | float, along: Along) -> Floats:
    """s or r of a coordinate."""
    value = np.asarray(x, dtype=float)
    back: Floats = np.exp(value) if along == "bag_size" else 1.0 / (1.0 + np.exp(-value))
    return back
