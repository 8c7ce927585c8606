"""The minimum of a U-shaped curve, with an interval and a flat range, or 'edge'.

Three forms: a parabola in log s (or logit r) around the lowest point; an asymmetric one, a + b/s +
c log s (or a + b/r + c/(1 − r)), whose minimum is b/c away from zero; and Akima's interpolation,
which trusts every point. None is asked beyond the values that were tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import interpolate

from analysis.fitting.objectives import Floats
from tst_study.errors import UserError

Along = Literal["bag_size", "step_ratio"]
FormName = Literal["parabola", "asymmetric", "akima"]
FORM_NAMES: tuple[FormName, ...] = ("parabola", "asymmetric", "akima")
SHOWN_EDGE = 0.025
"""Share of draws at an edge beyond which the interval is open on that side."""
_GRID = 400


@dataclass(frozen=True)
class Optimum:
    """Where a loss is lowest along s or r; None where that cannot be said, and `edge` says why."""

    form: str
    window: str
    points: int
    best: float | None
    low: float | None
    """95% over redrawn noise; None where it reaches beyond the values tried (`edge_share`)."""
    high: float | None
    flat_low: float | None
    """Values whose loss is within one `noise` of the lowest."""
    flat_high: float | None
    loss: float | None
    """At the optimum."""
    noise: float
    """Standard deviation of a point, nats."""
    noise_from: str
    """`seeds`, or `residuals`."""
    edge: str
    edge_share: float
    """Share of redrawn curves whose optimum lies at an edge."""


def coordinate(values: Floats, along: Along) -> Floats:
    """log s, or logit r: axes on which the curves are nearly parabolas."""
    return np.log(values) if along == "bag_size" else np.log(values / (1.0 - values))


def roughness(losses: Floats) -> float:
    """Standard deviation of a point from second differences: what no smooth curve explains.

    For neighbouring values that are about evenly spaced; 0 for fewer than four points.
    """
    if len(losses) < 4:
        return 0.0
    return float(np.sqrt((np.diff(losses, 2) ** 2).mean() / 6.0))


def optimum(
    values: Sequence[float] | Floats,
    losses: Sequence[float] | Floats,
    *,
    along: Along = "bag_size",
    form: FormName = "parabola",
    window: float | None = None,
    noise: float | None = None,
    draws: int = 400,
) -> Optimum:
    """The optimum of losses (nats, one per value of s or r, in any order).

    `window`: largest distance from the lowest point, in e-folds of s or units of logit r; all
    points by default. `noise`: standard deviation of a point where seeds tell it; else it is
    estimated from what the form leaves, and named so.

    Raises `UserError` for fewer than four points in the window.
    """
    x, y = _in_window(values, losses, along, window)
    where = "all" if window is None else f"±{window:g}"
    if len(x) < 4:
        raise UserError(
            f"{len(x)} values of {along} within the window ({where}): an optimum needs at least "
            "four; run more values or widen the window"
        )
    fitted = _fit(form, x, y, along)
    left = y - fitted(x)
    estimated = roughness(y) if form == "akima" else float(np.sqrt((left**2).sum() / (len(x) - 3)))
    deviation = estimated if noise is None else noise
    errors = deviation * np.random.default_rng(0).standard_normal((len(x), draws))
    at, loss, edge = (float(value) for value in _lowest(fitted, x))
    ends, _, sides = _lowest(_fit(form, x, fitted(x)[:, None] + errors, along), x)
    at_low, at_high = float((sides < 0).mean()), float((sides > 0).mean())
    low = high = None
    if not edge:
        low, high = (float(_back(end, along)) for end in np.quantile(ends, [0.025, 0.975]))
    flat = _flat(fitted, x, loss + deviation)
    return Optimum(
        form=form,
        window=where,
        points=len(x),
        best=None if edge else float(_back(at, along)),
        low=low if at_low <= SHOWN_EDGE else None,
        high=high if at_high <= SHOWN_EDGE else None,
        flat_low=None if edge else float(_back(flat[0], along)),
        flat_high=None if edge else float(_back(flat[1], along)),
        loss=None if edge else loss,
        noise=deviation,
        noise_from="residuals" if noise is None else "seeds",
        edge=_edge_sentence(edge, along, _back(x.min(), along), _back(x.max(), along)),
        edge_share=at_low + at_high,
    )


def places(x: Floats, curves: Floats, along: Along, form: FormName) -> Floats:
    """The optima of many curves over one axis, shape (points, curves), in s or r; NaN at edges."""
    at, _, edge = _lowest(_fit(form, x, curves, along), x)
    return np.where(edge == 0, _back(at, along), np.nan)


def _in_window(
    values: Sequence[float] | Floats,
    losses: Sequence[float] | Floats,
    along: Along,
    window: float | None,
) -> tuple[Floats, Floats]:
    raw, y = np.asarray(values, dtype=float), np.asarray(losses, dtype=float)
    if len(raw) != len(y):
        raise ValueError(f"{len(raw)} values, {len(y)} losses")
    if not np.isfinite(y).all():
        raise UserError("a loss is missing or infinite; leave that run out")
    order = np.argsort(raw)
    x, y = coordinate(raw[order], along), y[order]
    if window is None:
        return x, y
    near = np.abs(x - x[int(np.argmin(y))]) <= window + 1e-9
    return x[near], y[near]


def _fit(form: FormName, x: Floats, y: Floats, along: Along) -> Callable[[Floats], Floats]:
    """y of shape (points,) or (points, curves) to a function of places, shape (places, …)."""
    if form == "akima":
        smooth: Callable[[Floats], Floats] = interpolate.Akima1DInterpolator(x, y)
        return smooth

    def basis(at: Floats) -> Floats:
        if form == "parabola":
            columns = [np.ones_like(at), at, at**2]
        elif along == "bag_size":
            columns = [np.ones_like(at), np.exp(-at), at]
        else:
            ratio = _back(at, along)
            columns = [np.ones_like(at), 1 / ratio, 1 / (1 - ratio)]
        return np.stack(columns, axis=-1)

    coefficients = np.linalg.lstsq(basis(x), y, rcond=None)[0]

    def curve(at: Floats) -> Floats:
        heights: Floats = basis(at) @ coefficients
        return heights

    return curve


def _lowest(curve: Callable[[Floats], Floats], x: Floats) -> tuple[Floats, Floats, Floats]:
    """Place and loss of the lowest point of each fitted curve, and -1 or 1 where it is at the low
    or high end of the values tried (else 0)."""
    grid = np.linspace(x.min(), x.max(), _GRID)
    heights = curve(grid)
    best = heights.argmin(axis=0)
    edge = np.where(best == 0, -1, np.where(best == _GRID - 1, 1, 0))
    return grid[best], heights.min(axis=0), edge


def _flat(curve: Callable[[Floats], Floats], x: Floats, limit: float) -> tuple[float, float]:
    grid = np.linspace(x.min(), x.max(), _GRID)
    near = grid[curve(grid) <= limit]
    return (float(near.min()), float(near.max())) if len(near) else (float("nan"), float("nan"))


def _edge_sentence(edge: float, along: Along, smallest: Floats, largest: Floats) -> str:
    if not edge:
        return ""
    name = "s" if along == "bag_size" else "r"
    end, word, more = (
        (smallest, "smallest", "smaller") if edge < 0 else (largest, "largest", "larger")
    )
    return f"edge: lowest at {name} = {float(end):.3g}, the {word} tried; run {more} ones"


def _back(x: Floats | float, along: Along) -> Floats:
    """s or r of a coordinate."""
    value = np.asarray(x, dtype=float)
    back: Floats = np.exp(value) if along == "bag_size" else 1.0 / (1.0 + np.exp(-value))
    return back
