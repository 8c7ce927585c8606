"""What a law recommends for a model and a length inside what it was fitted to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.fits.law.held_out import nearest, observed_gains
from analysis.fits.law.rows import settings
from analysis.fits.law.superposition_law import Law
from analysis.tables.columns import rows_of
from tst_study.errors import UserError

_NEAR = 0.02
"""Relative distance from a fitted size or length that still counts as inside."""


@dataclass(frozen=True)
class Recommendation:
    """(s, r) for a model and a length; gains in nats."""

    params: float
    tokens: float
    bag_size: int
    step_ratio: float
    gain: float
    gain_interval: tuple[float, float]
    """95%, of the law's gain at the recommended setting."""
    bag_interval: tuple[int, int]
    """Ends of all s that, with some r, the law does not show to be worse than the best (95%)."""
    ratio_interval: tuple[float, float]
    """The same of r."""
    best_run: str
    """The fitted setting with the largest mean gain at the nearest size and length: the advice
    that needs no law."""
    best_run_gain: float
    note: str
    """Whether the best lies at an end of what was tried."""


def recommend(law: Law, params: float, tokens: float) -> Recommendation:
    """The (s, r) of the largest gain under uniform weights, among the s and r between those fitted.

    Raises `UserError` for a size (parameters) or a length (latent tokens) outside the fitted ones.
    """
    far = outside(law, params, tokens)
    if far:
        raise UserError(far)
    rows, tried = candidates(law, params, tokens), law.rows[law.rows["bag_size"] > 1]
    gains = law.of_rows(rows)
    best = int(gains.argmax())
    half = float(law.errors(rows.iloc[[best]])[0])
    # Everything that is not shown to be worse, by the interval of its difference from the best.
    level = rows[gains[best] - gains <= law.errors(rows, rows.iloc[[best]])]
    ends = {name: (level[name].min(), level[name].max()) for name in ("bag_size", "step_ratio")}
    bag, ratio = int(rows["bag_size"].iloc[best]), float(rows["step_ratio"].iloc[best])
    at_end = [
        f"{symbol} at the {word} tried"
        for symbol, name, value in (("s", "bag_size", bag), ("r", "step_ratio", ratio))
        for word, end in (("smallest", tried[name].min()), ("largest", tried[name].max()))
        if abs(value - end) < 1e-9
    ]
    copied = _best_run(law, params, tokens)
    return Recommendation(
        params=params,
        tokens=tokens,
        bag_size=bag,
        step_ratio=ratio,
        gain=float(gains[best]),
        gain_interval=(float(gains[best]) - half, float(gains[best]) + half),
        bag_interval=(int(ends["bag_size"][0]), int(ends["bag_size"][1])),
        ratio_interval=(float(ends["step_ratio"][0]), float(ends["step_ratio"][1])),
        best_run=f"s = {copied['bag_size']:.0f}, r = {copied['step_ratio']:.2g}",
        best_run_gain=float(copied["gain"]),
        note="; ".join(at_end),
    )


def candidates(law: Law, params: float, tokens: float) -> pd.DataFrame:
    """All whole s and all hundredths of r between those that were fitted."""
    tried = law.rows[law.rows["bag_size"] > 1]
    low, high = tried["step_ratio"].min(), tried["step_ratio"].max()
    bags = np.arange(tried["bag_size"].min(), tried["bag_size"].max() + 1, dtype=float)
    ratios = low + 0.01 * np.arange(round(100 * (high - low)) + 1)
    return settings(params, tokens, bags, np.round(ratios, 4))


def outside(law: Law, params: float, tokens: float) -> str:
    """Why a law says nothing of a model or a length beyond what was fitted, or an empty text."""
    for name, value, unit in (("params", params, "parameters"), ("tokens", tokens, "tokens")):
        low, high = float(law.rows[name].min()), float(law.rows[name].max())
        if not low * (1 - _NEAR) <= value <= high * (1 + _NEAR):
            fitted = f"{low:.3g}" if high <= low * (1 + _NEAR) else f"{low:.3g} to {high:.3g}"
            return f"{value:.3g} {unit}: outside what the law was fitted to ({fitted})"
    return ""


def _best_run(law: Law, params: float, tokens: float) -> dict[str, Any]:
    rows = law.rows[law.rows["bag_size"] > 1].assign(gain=observed_gains(law.rows))
    near = nearest(rows, params, tokens)
    means = near.groupby(["bag_size", "step_ratio"])[["gain"]].mean().reset_index()
    return max(rows_of(means), key=lambda row: float(row["gain"]))
