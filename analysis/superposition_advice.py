"""What the law recommends for a model and a length, and how far it can be believed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.superposition_law import Law, published_law
from tst_study.errors import UserError

BAGS = np.arange(2, 33, dtype=float)
RATIOS = np.round(np.arange(0.02, 0.91, 0.01), 2)
TOLERANCE = 0.002
"""Nats: about the error that one trunk carries. Settings closer than this are not told apart."""
FAR_SIZE, FAR_LENGTH = 20.0, 5.0
"""Factors beyond the fitted sizes and lengths at which extrapolation ends."""


@dataclass(frozen=True)
class Recommendation:
    """(s, r) for a model and a length, with ranges."""

    params: float
    steps: float
    bag_size: int
    step_ratio: float
    gain: float
    gain_interval: tuple[float, float]
    bag_interval: tuple[float, float]
    """95% of the best s over refits to redrawn noise."""
    ratio_interval: tuple[float, float]
    bag_range: tuple[int, int]
    """Bags that, at their own best r, come within `TOLERANCE` of the best."""
    ratio_range: tuple[float, float]
    """Ratios within `TOLERANCE` at the best bag."""
    belief: str


def recommend(
    params: float, steps: float, law: Law | None = None, draws: Sequence[Law] | None = None
) -> Recommendation:
    """The (s, r) of the largest predicted gain; uniform weights, steps of 2M tokens.

    Raises `UserError` for a model or a length too far from what was fitted.
    """
    far = too_far(params, steps)
    if far:
        raise UserError(far)
    law = law or published_law()
    draws = law.drawn() if draws is None else draws
    gains = law.gains(params, steps, BAGS, RATIOS)
    bag, ratio = np.unravel_index(int(gains.argmax()), gains.shape)
    best = float(gains[bag, ratio])
    drawn = [other.gains(params, steps, BAGS, RATIOS) for other in draws]
    places = [np.unravel_index(int(g.argmax()), g.shape) for g in drawn]
    near_bags = BAGS[gains.max(axis=1) >= best - TOLERANCE]
    near_ratios = RATIOS[gains[bag] >= best - TOLERANCE]
    return Recommendation(
        params=params,
        steps=steps,
        bag_size=int(BAGS[bag]),
        step_ratio=float(RATIOS[ratio]),
        gain=best,
        gain_interval=interval([float(g[bag, ratio]) for g in drawn]),
        bag_interval=interval([float(BAGS[i]) for i, _ in places]),
        ratio_interval=interval([float(RATIOS[j]) for _, j in places]),
        bag_range=(int(near_bags.min()), int(near_bags.max())),
        ratio_range=(float(near_ratios.min()), float(near_ratios.max())),
        belief=belief(params, steps),
    )


def too_far(params: float, steps: float) -> str:
    """Why the law says nothing of a model or a length so far from the grids, or an empty text."""
    if not 270e6 / FAR_SIZE <= params <= 600e6 * FAR_SIZE:
        return f"{params:,.0f} parameters: too far from the fitted 270M and 600M"
    if not 20_000 / FAR_LENGTH <= steps <= 100_000 * FAR_LENGTH:
        return f"{steps:,.0f} steps of 2M tokens: too far from the fitted 20,000 and 100,000"
    return ""


def belief(params: float, steps: float) -> str:
    """How far the fitted grids reach towards a model and a length."""
    far = too_far(params, steps)
    if far:
        return far
    beyond = []
    if not 250e6 <= params <= 650e6:
        beyond.append(f"size {params / 600e6:.2g} times the largest fitted")
    if not 18_000 <= steps <= 110_000:
        beyond.append("length outside 20,000–100,000 steps")
    return "; ".join(["extrapolated", *beyond]) if beyond else "inside the fitted range"


def interval(values: Sequence[float]) -> tuple[float, float]:
    low, high = np.quantile(np.asarray(values), [0.025, 0.975])
    return float(low), float(high)
