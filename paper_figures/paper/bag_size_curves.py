"""Figures 4, 5, 8 and 11: final loss over bag size s, a curve and an optimum for every r.

The published files name tables, not figures: the four grids are taken in the order of their tables
(Figure 4 is Table 4, Figure 5 Table 5, Figure 8 Table 6, Figure 11 Table 7).
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tst_study.analysis import published
from tst_study.analysis.fits.bag_size import grid_of_runs, optima
from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.wording import number
from tst_study.paper_figures.answers import of_one_family
from tst_study.paper_figures.catalogue import figure, submit
from tst_study.paper_figures.drawing import key, log_axis
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
from tst_study.paper_figures.sources import Group, Sources
from tst_study.paper_figures.style import BASELINE, FAINT, INK, PAGE, Look, new_figure, ratio_colour

SHOWN = (0.1, 0.3, 0.5, 0.7)
"""Step ratios whose published curves are drawn; all are in the data."""
LEAST = 3
"""Bag sizes that make a measured curve."""
SAME_RATIO = 0.051
"""Distance in r up to which published optima are compared with a measured one: they fall with r."""
SIZES = (1, 2, 3, 4, 6, 8, 12, 16)


@figure({"figure4": TABLE4}, published=LOSSES, needs=submit("bag-grid", "paper", "one-gpu"))
@figure({"figure5": TABLE5, "figure8": TABLE6}, published=LOSSES, needs=submit("bag-grid", "paper"))
@figure({"figure11": TABLE7}, published=LOSSES, needs=submit("power-law", "paper", "one-gpu"))
def bag_size_curves(sources: Sources, which: PublishedGrid) -> Picture:
    """Show one published grid, and beside it the runs of this package that fit to it."""
    group = which.group(sources)
    if group is not None:
        tried = group.rows.groupby(group.rows["step_ratio"].round(4))["bag_size"].nunique()
        group = group if tried.max() >= LEAST else None
    grid = published.loss_grid(which.table)
    data, fitted = _published(grid), optima(grid).assign(source="published")
    count, scale = len(data), ""
    if group is not None:
        group = group.only(of_one_family(group.rows, sources.summary.verdicts))
        own = group.beside_baseline().assign(source="measured")
        own["step_ratio"] = own["step_ratio"].round(4)
        data = pd.concat([data, own.reindex(columns=data.columns)], ignore_index=True)
        scale = f"{group.model}, {group.steps:,} steps"
        best = optima(grid_of_runs(group.pairs)).assign(source="measured")
        best = best.reindex(columns=fitted.columns)
        best["loss"] = group.level + best["loss"].astype(float)
        fitted = pd.concat([fitted, best], ignore_index=True)
    return Picture(
        title=_message(which, fitted),
        caption=f"Final training loss of {number(count, 'published run')} (Table {which.table}), "
        "one seed each; s = 1 is the baseline. Black crosses: the fitted optimum and its 95% "
        "interval, which ends at an arrow where it is open. Optimum: mean of a parabola in log s "
        "and of a + b/s + c log s through all bag sizes above 1 of one r, less one that the curve "
        "rules out; s = 1 takes part where these leave the lower end open. Pale bar: where they "
        "are within one standard deviation of their lowest. Left r = "
        f"{', '.join(map(str, SHOWN))}; the others are in the data.",
        measured=f"Measured: {group.scale}; held-out loss at the baseline's mean less the paired "
        "gain, bars: its 95% interval over seeds. {_optimum_here(found)}"
        if group
        else "",
        data=data,
        folders=group.folders if group else (),
        draw=partial(_figure, data, fitted, {"published": which.words, "measured": scale}),
        fits={
            f"{row.pop('source')}, r = {row.pop('step_ratio'):.3g}": row for row in rows_of(fitted)
        },
        finding=_finding(fitted, group),
    )


def _message(which: PublishedGrid, fitted: pd.DataFrame) -> str:
    """Say how the best bag size changes with r, over the published optima that are determined."""
    known = fitted[(fitted["source"] == "published") & fitted["best"].notna()]
    known = known.sort_values("step_ratio")
    first, last = (next(rows_of(known.iloc[[place]])) for place in (0, -1))
    ends = (f"{end['best']:.0f} at r = {end['step_ratio']:.1f}" for end in (first, last))
    return (
        f"Figure {which.figure}. The best bag size falls from {' to '.join(ends)} ({which.words})"
    )


def _optimum_here(fitted: pd.DataFrame) -> str:
    """Say the optimum of the measured curve with most bag sizes, or why there is none."""
    own = fitted[fitted["source"] == "measured"].sort_values("points")
    return f"Optimum: {_in_words(next(rows_of(own.iloc[[-1]])))}."


def _published(grid: pd.DataFrame) -> pd.DataFrame:
    level = float(grid[grid["bag_size"] == 1]["loss"].iloc[0])
    columns = ["source", "step_ratio", "bag_size", "loss", "low", "high"]
    columns += ["error", "seeds", "baseline"]
    named = grid[grid["bag_size"] > 1].assign(source="published", baseline=level)
    return named.reindex(columns=columns).sort_values(["step_ratio", "bag_size"])


def _figure(data: pd.DataFrame, fitted: pd.DataFrame, scales: Mapping[str, str]) -> Figure:
    """Draw the published curves over s, their optimum over r, and the measured curve over s."""
    sources = list(dict.fromkeys(data["source"]))
    drawn, (row,) = new_figure(PAGE, 2.7, 1 + len(sources))
    for axes, source in zip((row[0], row[-1]), sources, strict=False):
        points, optima_shown = data[data["source"] == source], fitted[fitted["source"] == source]
        ratios = list(SHOWN)
        if source == "measured":  # the r with most bag sizes
            ratios = [points.groupby("step_ratio")["bag_size"].nunique().idxmax()]
        shown, best = (
            part[part["step_ratio"].round(3).isin(ratios)] for part in (points, optima_shown)
        )
        _draw_curves(axes, shown, best, f"{source}: {scales[source]}")
        axes.set_ylabel(f"final {'held-out ' * (source == 'measured')}loss (nats per token)")
    _draw_best(row[1], fitted[fitted["source"] == "published"])
    return drawn


def _draw_curves(axes: Axes, data: pd.DataFrame, fitted: pd.DataFrame, title: str) -> None:
    """Draw a curve over s for each r, which begins at the baseline (s = 1), and its optimum."""
    level, keys = float(data["baseline"].iloc[0]), {}
    for ratio, rows in data.groupby("step_ratio"):
        colour = ratio_colour(float(ratio))  # type: ignore[arg-type]
        look: Look = {"color": colour, "lw": 1.1, "marker": "o", "ms": 2.5, "mew": 0}
        sizes, losses = [1, *rows["bag_size"]], [level, *rows["loss"]]
        (line,) = axes.plot(sizes, losses, **look)
        axes.vlines(rows["bag_size"], rows["low"], rows["high"], color=colour, lw=0.8)
        low = next(rows_of(rows.sort_values("loss")))
        say(line, f"r = {ratio:.3g}: lowest {low['loss']:.4f} at s = {low['bag_size']}")
        keys[f"r = {ratio:.3g}"] = {"color": colour, "linestyle": "-"}
    axes.plot(1, level, BASELINE.marker, color=BASELINE.colour, ms=5, label="_arm baseline")
    keys["baseline"] = {"color": BASELINE.colour, "marker": BASELINE.marker}
    tried = (float(data["bag_size"].min()), float(data["bag_size"].max()))
    for row in rows_of(fitted[fitted["best"].notna()]):
        # An open interval reaches the last value tried.
        ends = [row[end] if pd.notna(row[end]) else tried[end == "high"] for end in ("low", "high")]
        axes.plot(ends, [row["loss"]] * 2, color=INK, linewidth=1.0, zorder=5)
        axes.plot(row["best"], row["loss"], "|", color=INK, markersize=6, mew=1.2, zorder=5)
        keys["fitted optimum"] = {"color": INK, "marker": "|", "linestyle": "-"}
    log_axis(axes, "x", SIZES)
    axes.set_xlabel("bag size s (log scale)")
    key(axes, keys, 3, title)


def _draw_best(axes: Axes, fitted: pd.DataFrame) -> None:
    """Draw the best s for each r, its interval, and the range that is about as good."""
    for row in rows_of(fitted[fitted["best"].notna()]):
        ratio = row["step_ratio"]
        axes.plot([row["flat_low"], row["flat_high"]], [ratio] * 2, color=FAINT, linewidth=5)
        for end, edge, marker in (("low", SIZES[0], "<"), ("high", SIZES[-1], ">")):
            known = pd.notna(row[end])
            to = row[end] if known else edge
            axes.plot([row["best"], to], [ratio] * 2, color=INK, linewidth=1.0)
            axes.plot(to, ratio, "" if known else marker, color=INK, ms=3)
        (best,) = axes.plot(row["best"], ratio, "|", color=INK, markersize=6, mew=1.2)
        say(best, f"r = {ratio:.3g}: s = {row['best']:.1f}")
    log_axis(axes, "x", SIZES)
    axes.set_xlim(0.9, 18)
    axes.set_ylim(0, 1)
    axes.set_xlabel("best bag size s (log scale)")
    axes.set_ylabel("step ratio r")
    keys: dict[str, Look] = {"fitted optimum, 95%": {"color": INK, "marker": "|", "linestyle": "-"}}
    keys["about as good"] = {"color": FAINT, "marker": "s", "markersize": 6}
    key(axes, keys, 1, "published: the optimum by r")


def _finding(fitted: pd.DataFrame, group: Group | None) -> Finding:
    theirs = fitted[fitted["source"] == "published"]
    middle = theirs[theirs["step_ratio"].between(0.15, 0.45)]
    published = "optimal s by r: " + ", ".join(_in_words(row) for row in rows_of(middle))
    if group is None:
        return Finding(published)
    own = fitted[fitted["source"] == "measured"]
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
    measured = "; ".join(_in_words(row) for row in rows_of(own if curves.empty else curves))
    return Finding(published, measured, group.scale, verdict)


def _in_words(row: dict[str, Any]) -> str:
    if pd.isna(row["best"]):
        return f"r = {row['step_ratio']:.3g}: {row['sentence']}"
    low, high = (f"{row[end]:.1f}" if pd.notna(row[end]) else "open" for end in ("low", "high"))
    return f"r = {row['step_ratio']:.3g}: {row['best']:.1f} [{low}, {high}]"
