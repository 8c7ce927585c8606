"""How Figures 4, 5, 8 and 11 are drawn: all curves, those near the optimum, the optimum by r."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.run_row import rows_of
from paper_figures.style import FAINT, INK, MUTED, PAGE, new_grid, ratio_mark

NEAR = 0.55
"""Step ratios up to here are shown once more, near their optimum."""


def figure(data: pd.DataFrame, found: pd.DataFrame) -> Figure:
    """A row per source: `data` and `found` as `bag_size_curves` makes them."""
    sources = list(dict.fromkeys(data["source"]))
    drawn, rows = new_grid(PAGE, 2.6 * len(sources), len(sources), 3)
    for (whole, near, best), source in zip(rows, sources, strict=True):
        mine, own = data[data["source"] == source], found[found["source"] == source]
        _draw_whole(whole, mine)
        whole.set_title(f"{source}: all r")
        whole.set_ylabel("final loss (nats per token)")
        _draw_near(near, mine, own)
        near.set_title("near the optimum (bar: 95%)")
        _draw_best(best, own)
        best.set_title("fitted optimum by r")
    return drawn


def _draw_whole(axes: Axes, data: pd.DataFrame) -> None:
    """Every curve as far as it stays near the baseline, its r at its end."""
    level = float(data["baseline"].iloc[0])
    low = float(np.nanmin(data[["loss", "low"]].astype(float)))
    top = level + 0.35 * abs(level - low)
    axes.axhline(level, color=INK, linewidth=0.9)
    axes.annotate(
        "baseline",
        (0.98, level),
        xycoords=("axes fraction", "data"),
        fontsize=7,
        xytext=(0, -2),
        textcoords="offset points",
        ha="right",
        va="top",
    )
    ends: list[tuple[float, float, str]] = []
    for _, curve in data.groupby("step_ratio"):
        ratio = float(curve["step_ratio"].iloc[0])
        mark = ratio_mark(ratio)
        inside = curve[curve["loss"] <= top]
        axes.plot(
            curve["bag_size"],
            curve["loss"],
            mark.marker,
            color=mark.colour,
            linestyle="-",
            linewidth=0.8,
            markersize=2.6,
        )
        axes.vlines(curve["bag_size"], curve["low"], curve["high"], color=mark.colour, lw=0.8)
        if len(inside) == len(curve):
            ends.append(
                (float(curve["bag_size"].iloc[-1]), float(curve["loss"].iloc[-1]), f"{ratio:.3g}")
            )
        elif len(inside):
            last = inside.iloc[-1]
            axes.annotate(
                f"{ratio:.3g}",
                (last["bag_size"], last["loss"]),
                xytext=(-3, 2),
                textcoords="offset points",
                ha="right",
                va="bottom",
                fontsize=7,
            )
    axes.set_ylim(low - 0.08 * (top - low), top)
    _sizes(axes, data, room=1.35)
    _label_ends(axes, ends)


def _label_ends(axes: Axes, ends: Sequence[tuple[float, float, str]]) -> None:
    """Words behind the last points of curves, moved apart so that none covers another."""
    bottom, top = axes.get_ylim()
    gap, at = 0.055 * (top - bottom), bottom - 1.0
    for x, y, text in sorted(ends, key=lambda end: end[1]):
        at = max(y, at + gap)
        axes.annotate(
            text,
            (x, y),
            xytext=(axes.get_xlim()[1], at),
            textcoords="data",
            fontsize=7,
            ha="right",
            va="center",
            arrowprops={"arrowstyle": "-", "lw": 0.4, "color": MUTED, "shrinkA": 1, "shrinkB": 3},
        )


def _draw_near(axes: Axes, data: pd.DataFrame, found: pd.DataFrame) -> None:
    near = data[data["step_ratio"] <= NEAR]
    ends: list[tuple[float, float, str]] = []
    for _, curve in near.groupby("step_ratio"):
        ratio = float(curve["step_ratio"].iloc[0])
        mark = ratio_mark(ratio)
        look: dict[str, Any] = {"color": mark.colour, "markersize": 3, "linewidth": 0.7}
        axes.plot(curve["bag_size"], curve["loss"], mark.marker, linestyle="-", **look)
        axes.vlines(curve["bag_size"], curve["low"], curve["high"], color=mark.colour, lw=0.8)
        last = curve.iloc[-1]
        ends.append((float(last["bag_size"]), float(last["loss"]), f"{ratio:.3g}"))
    for row in rows_of(found[found["step_ratio"] <= NEAR]):
        if pd.notna(row["best"]):
            axes.plot(_ends(row, near), [row["loss"]] * 2, color=INK, linewidth=1.0, zorder=5)
            axes.plot(row["best"], row["loss"], "|", color=INK, markersize=6, mew=1.2, zorder=5)
    low, high = float(near["loss"].min()), float(near["loss"].quantile(0.9))
    if near["low"].notna().any():
        low, high = float(near["low"].min()), float(near["high"].max())
    axes.set_ylim(low - 0.1 * (high - low), high + 0.1 * (high - low))
    _sizes(axes, data, room=1.35)
    _label_ends(axes, ends)


def _ends(row: dict[str, Any], data: pd.DataFrame) -> list[float]:
    """An interval that is open goes to the last value tried."""
    low = row["low"] if pd.notna(row["low"]) else float(data["bag_size"].min())
    high = row["high"] if pd.notna(row["high"]) else float(data["bag_size"].max())
    return [low, high]


def _draw_best(axes: Axes, found: pd.DataFrame) -> None:
    """s* by r: bar its interval, pale bar the flat range; an arrow where it lies at an edge."""
    for row in rows_of(found):
        mark, ratio = ratio_mark(float(row["step_ratio"])), row["step_ratio"]
        if pd.isna(row["best"]):
            continue
        axes.plot([row["flat_low"], row["flat_high"]], [ratio] * 2, color=FAINT, linewidth=5)
        for end, marker in (("low", "<"), ("high", ">")):
            if pd.notna(row[end]):
                axes.plot([row["best"], row[end]], [ratio] * 2, color=mark.colour, linewidth=1.1)
            else:
                edge = 2.0 if end == "low" else 16.0
                axes.plot([row["best"], edge], [ratio] * 2, color=mark.colour, linewidth=1.1)
                axes.plot(edge, ratio, marker, color=mark.colour)
        axes.plot(row["best"], ratio, mark.marker, color=mark.colour)
    axes.set_xscale("log")
    ticks = [2, 3, 4, 6, 8, 12, 16]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlim(1.9, 18)
    axes.set_ylim(0, 1)
    axes.set_xlabel("optimal s (log scale)")
    axes.set_ylabel("step ratio r")


def _sizes(axes: Axes, data: pd.DataFrame, room: float = 1.12) -> None:
    sizes = sorted(set(data["bag_size"]))
    ticks: Sequence[float] = [tick for tick in (2, 3, 4, 6, 8, 12, 16) if tick in sizes] or sizes
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:.0f}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlim(sizes[0] / 1.12, sizes[-1] * room)
    axes.set_xlabel("bag size s (log scale)")
