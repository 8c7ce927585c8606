"""How Figures 4, 5, 8 and 11 are drawn: all curves, those near the optimum, the optimum by r."""

import textwrap
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.runs.run_row import rows_of
from paper_figures.drawing import end_labels, level_line, lines, log_axis, note
from paper_figures.picture import say
from paper_figures.style import FAINT, INK, PAGE, new_figure, ratio_mark

NEAR = 0.55
"""Step ratios up to here are shown once more, near their optimum."""
SIZES = (2, 3, 4, 6, 8, 12, 16)


def draw(data: pd.DataFrame, found: pd.DataFrame, scales: Mapping[str, str]) -> Figure:
    """A row per source, `scales` its model and length: `data` and `found` as `bag_size_curves`
    makes them."""
    drawn, rows = new_figure(PAGE, 2.6 * len(scales), 3, len(scales))
    for (whole, near, best), (source, scale) in zip(rows, scales.items(), strict=True):
        mine, own = data[data["source"] == source], found[found["source"] == source]
        level = float(mine["baseline"].iloc[0])
        low = float(np.nanmin(mine[["loss", "low"]].astype(float)))
        top = level + 0.35 * abs(level - low)
        _draw_curves(whole, mine, (low - 0.08 * (top - low), top))
        level_line(whole, level, "baseline", below=True)
        whole.set_title(textwrap.fill(f"{source}: {scale}", 30))
        whole.set_ylabel("final loss (nats per token)")
        _draw_near(near, mine[mine["step_ratio"] <= NEAR], own[own["step_ratio"] <= NEAR])
        near.set_title("near the optimum\n(black: fitted, 95%)")
        _draw_best(best, own)
        best.set_title("fitted optimum by r")
    return drawn


def _draw_curves(axes: Axes, data: pd.DataFrame, loss: tuple[float, float]) -> None:
    """Curves by r between two losses, r at the end of each, or where it leaves the frame."""
    sizes = sorted(set(data["bag_size"]))
    log_axis(axes, "x", [size for size in SIZES if size in sizes] or sizes)
    axes.set_xlim(sizes[0] / 1.12, sizes[-1] * 1.12)
    axes.set_ylim(*loss)
    names = data["step_ratio"].map("{:.3g}".format)
    looks = {name: ratio_mark(float(name)) for name in names}
    markers = {name: mark.marker for name, mark in looks.items()}
    drawn = data.assign(label=names)
    lines(axes, drawn, looks, x="bag_size", band=False, markers=markers, markersize=3)
    for line, (name, rows) in zip(axes.lines, drawn.groupby("label", sort=False), strict=True):
        colour = looks[str(name)].colour
        axes.vlines(rows["bag_size"], rows["low"], rows["high"], color=colour, lw=0.8)
        line.set_markeredgewidth(0)
        low = rows.sort_values("loss").iloc[0]
        say(line, f"r = {name}: lowest {low['loss']:.4f} at s = {low['bag_size']}")
    ends: list[tuple[float, float, str, str]] = []
    leaving: list[tuple[float, str]] = []
    for name, rows in drawn.groupby("label", sort=True):
        sizes, losses, colour = list(rows["bag_size"]), list(rows["loss"]), looks[str(name)].colour
        inside = max((i for i, value in enumerate(losses) if value <= loss[1]), default=None)
        if inside == len(rows) - 1:
            ends.append((sizes[-1], losses[-1], str(name), colour))
        elif inside is not None:
            out = slice(inside, inside + 2)
            at = np.exp(np.interp(loss[1], losses[out], np.log(sizes[out])))
            leaving.append((float(at), str(name)))
    first = max([name for *_, name, _ in ends] + [name for _, name in leaving], default="")
    end_labels(axes, [(x, y, _named(name, first), colour) for x, y, name, colour in ends])
    for x, name in leaving:
        note(axes, _named(name, first), (x, loss[1]), (5, -1), va="top")
    axes.set_xlabel("bag size s (log scale)")


def _named(ratio: str, first: str) -> str:
    """Said once what the numbers are."""
    return f"r = {ratio}" if ratio == first else ratio


def _draw_near(axes: Axes, data: pd.DataFrame, found: pd.DataFrame) -> None:
    low, high = float(data["loss"].min()), float(data["loss"].quantile(0.9))
    if data["low"].notna().any():
        low, high = float(data["low"].min()), float(data["high"].max())
    pad = 0.1 * (high - low)
    _draw_curves(axes, data, (low - pad, high + pad))
    sizes = (float(data["bag_size"].min()), float(data["bag_size"].max()))
    for row in rows_of(found[found["best"].notna()]):
        # An interval that is open goes to the last value tried.
        ends = [row[end] if pd.notna(row[end]) else sizes[end == "high"] for end in ("low", "high")]
        axes.plot(ends, [row["loss"]] * 2, color=INK, linewidth=1.0, zorder=5)
        axes.plot(row["best"], row["loss"], "|", color=INK, markersize=6, mew=1.2, zorder=5)


def _draw_best(axes: Axes, found: pd.DataFrame) -> None:
    """s* by r: bar its interval, pale bar the flat range; an arrow where it lies at an edge."""
    for row in rows_of(found[found["best"].notna()]):
        mark, ratio = ratio_mark(float(row["step_ratio"])), row["step_ratio"]
        axes.plot([row["flat_low"], row["flat_high"]], [ratio] * 2, color=FAINT, linewidth=5)
        for end, edge, marker in (("low", SIZES[0], "<"), ("high", SIZES[-1], ">")):
            known = pd.notna(row[end])
            to = row[end] if known else edge
            axes.plot([row["best"], to], [ratio] * 2, color=mark.colour, linewidth=1.1)
            axes.plot(to, ratio, "" if known else marker, color=mark.colour)
        (best,) = axes.plot(row["best"], ratio, mark.marker, color=mark.colour)
        say(best, f"r = {ratio:.3g}: s = {row['best']:.1f}")
    log_axis(axes, "x", SIZES)
    axes.set_xlim(1.9, 18)
    axes.set_ylim(0, 1)
    axes.set_xlabel("optimal s (log scale)")
    axes.set_ylabel("step ratio r")
