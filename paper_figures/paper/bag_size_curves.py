"""Figures 4, 5, 8 and 11: final loss over bag size s, a curve and an optimum for every r.

The published files name tables, not figures: the four grids are taken in the order of their tables
(Figure 4 is Table 4, Figure 5 Table 5, Figure 8 Table 6, Figure 11 Table 7).
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tst_study.analysis import published
from tst_study.analysis.fits.bag_size import grid_of_runs, optima
from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.wording import number
from tst_study.paper_figures.catalogue import figure, submit
from tst_study.paper_figures.drawing import end_labels, lines, log_axis, note
from tst_study.paper_figures.groups import Group
from tst_study.paper_figures.item import Finding, Verdict
from tst_study.paper_figures.paper.final_loss_grid import (
    LOSSES,
    TABLE4,
    TABLE5,
    TABLE6,
    TABLE7,
    PublishedGrid,
)
from tst_study.paper_figures.picture import Picture, say
from tst_study.paper_figures.sources import Sources
from tst_study.paper_figures.style import FAINT, INK, PAGE, Look, new_figure, ratio_mark

NEAR = 0.55
"""Step ratios up to here are shown once more, near their optimum."""
SAME_RATIO = 0.051
"""Published optima so near in r are held against a measured one: the optimum falls with r."""
SIZES = (2, 3, 4, 6, 8, 12, 16)


@figure({"figure4": TABLE4}, published=LOSSES, needs=submit("bag-grid", "paper", "one-gpu"))
@figure({"figure5": TABLE5, "figure8": TABLE6}, published=LOSSES, needs=submit("bag-grid", "paper"))
@figure({"figure11": TABLE7}, published=LOSSES, needs=submit("power-law", "paper", "one-gpu"))
def bag_size_curves(sources: Sources, which: PublishedGrid) -> Picture:
    """One figure: the published grid above, the runs of this package that stand beside it below."""
    group = which.group(sources)
    if group is not None and group.rows["bag_size"].nunique() < 2:
        group = None
    grid = published.loss_grid(which.table)
    data, found = _published(grid), optima(grid).assign(source="published")
    count, scales = len(data), {"published": which.words}
    if group is not None:
        own = group.beside_baseline().assign(source="measured")
        own["step_ratio"] = own["step_ratio"].round(4)
        data = pd.concat([data, own.reindex(columns=data.columns)], ignore_index=True)
        scales["measured"] = f"{group.model}, {group.steps:,} steps"
        best = optima(grid_of_runs(group.pairs)).assign(source="measured")
        best = best.reindex(columns=found.columns)
        best["loss"] = group.level + best["loss"].astype(float)
        found = pd.concat([found, best], ignore_index=True)
    return Picture(
        title=f"Figure {which.figure}. Final loss over bag size, {which.words}",
        caption=f"Final training loss of {number(count, 'published run')} (Table {which.table}), "
        "one seed each; numbers at the curves: r; black: the fitted optimum. Optimum: mean of a "
        "parabola in log s and of a + b/s + c log s through all bag sizes of one r, less one that "
        "the curve rules out; bars span their 95% intervals (an arrow: open on that side), pale "
        "bar: where they are within one standard deviation of their lowest.",
        measured=f"Below, measured: {group.scale}; held-out loss at the baseline's mean less the "
        "paired gain, bars: its 95% interval over seeds."
        if group
        else "",
        data=data,
        folders=group.folders if group else (),
        draw=partial(_figure, data, found, scales),
        fits={
            f"{row.pop('source')}, r = {row.pop('step_ratio'):.3g}": row for row in rows_of(found)
        },
        finding=_finding(found, group),
    )


def _published(grid: pd.DataFrame) -> pd.DataFrame:
    level = float(grid[grid["bag_size"] == 1]["loss"].iloc[0])
    columns = ["source", "step_ratio", "bag_size", "loss", "low", "high"]
    columns += ["error", "seeds", "baseline"]
    named = grid[grid["bag_size"] > 1].assign(source="published", baseline=level)
    return named.reindex(columns=columns).sort_values(["step_ratio", "bag_size"])


def _figure(data: pd.DataFrame, found: pd.DataFrame, scales: Mapping[str, str]) -> Figure:
    """A row per source, `scales` its model and length: all curves, without intervals also those
    near the optimum, and the optimum by r where it is known."""
    known = set(found["source"][found["best"].notna()])
    sure = {source: data["low"][data["source"] == source].notna().any() for source in scales}
    counts = [1 + (not sure[source]) + (source in known) for source in scales]
    drawn, rows = new_figure(PAGE, 2.6 * len(scales), *counts)
    for (whole, *others), (source, scale) in zip(rows, scales.items(), strict=True):
        mine, own = data[data["source"] == source], found[found["source"] == source]
        level = float(mine["baseline"].iloc[0])
        if sure[source]:
            _draw_near(whole, mine, own, level)
        else:
            low = float(mine["loss"].min())
            top = level + 0.35 * abs(level - low)
            _draw_curves(whole, mine, (low - 0.08 * (top - low), top))
            near, *others = others
            _draw_near(near, mine[mine["step_ratio"] <= NEAR], own[own["step_ratio"] <= NEAR])
            near.set_title("near the optimum")
        whole.axhline(level, color=INK, linewidth=0.9)
        place: Look = {"xycoords": ("axes fraction", "data"), "ha": "center", "va": "top"}
        note(whole, "baseline", (0.5, level), (-1, -2), color=INK, **place)
        whole.set_title(f"{source}: {scale}")
        whole.set_ylabel("final loss (nats per token)")
        for axes in others:
            _draw_best(axes, own)
            axes.set_title("fitted optimum by r")
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
        if len(rows) < 3:
            line.set_linestyle("none")
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
    end_labels(axes, ends)
    for x, name in leaving:
        note(axes, name, (x, loss[1]), (5, -1), va="top")
    axes.set_xlabel("bag size s (log scale); numbers: r")


def _draw_near(
    axes: Axes, data: pd.DataFrame, found: pd.DataFrame, level: float | None = None
) -> None:
    """Curves and their optima; `level`: what must be in sight beside the intervals."""
    low, high = float(data["loss"].min()), float(data["loss"].quantile(0.9))
    if level is not None:
        low, high = min(float(data["low"].min()), level), max(float(data["high"].max()), level)
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


def _finding(found: pd.DataFrame, group: Group | None) -> Finding:
    theirs = found[found["source"] == "published"]
    middle = theirs[theirs["step_ratio"].between(0.15, 0.45)]
    published = "optimal s by r: " + ", ".join(_said(row) for row in rows_of(middle))
    if group is None:
        return Finding(published)
    own = found[found["source"] == "measured"]
    known = own[own["best"].notna() & own["low"].notna() & own["high"].notna()]
    overlaps = [
        row["low"] <= near["high"].max() and row["high"] >= near["low"].min()
        for row in rows_of(known)
        if len(near := theirs[(theirs["step_ratio"] - row["step_ratio"]).abs() <= SAME_RATIO])
    ]
    verdict: Verdict = "undecided"
    if overlaps:
        verdict = "agrees" if all(overlaps) else "disagrees"
    if group.is_generated:
        verdict = "mechanism only"
    tried = group.rows.groupby(group.rows["step_ratio"].round(4))["bag_size"].nunique()
    # An r with one s is a point of another grid; where there is no other, its reason is told.
    curves = own[own["step_ratio"].map(tried) > 1]
    said = "; ".join(_said(row) for row in rows_of(own if curves.empty else curves))
    return Finding(published, said, group.scale, verdict)


def _said(row: dict[str, Any]) -> str:
    if pd.isna(row["best"]):
        return f"r = {row['step_ratio']:.3g}: {row['sentence']}"
    low, high = (f"{row[end]:.1f}" if pd.notna(row[end]) else "open" for end in ("low", "high"))
    return f"r = {row['step_ratio']:.3g}: {row['best']:.1f} [{low}, {high}]"
