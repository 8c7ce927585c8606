"""Tables 4 to 7 and Figures 4, 5, 8 and 11: final loss over step ratio r and bag size s.

Measured runs of another model or text cannot have the paper's losses or gains, so no difference
between the two is computed. The published numbers name their tables but not the figures that show
them. The figures are taken to be in the order of the tables: Figures 4, 5, 8 and 11 show Tables 4,
5, 6 and 7."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tst_study.analysis import published
from tst_study.analysis.fits.bag_size import grid_of_runs, optima
from tst_study.analysis.summary import verdict_counts
from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.wording import number
from tst_study.paper_figures.answers import with_family_intervals
from tst_study.paper_figures.catalogue import figure, submit
from tst_study.paper_figures.drawing import Picture, key, log_axis
from tst_study.paper_figures.item import Finding, Verdict, judged
from tst_study.paper_figures.sources import Group, Sources, is_at_scale
from tst_study.paper_figures.style import BASELINE, FAINT, INK, PAGE, Look, new_figure, ratio_colour
from tst_study.paper_figures.table import (
    Grid,
    Table,
    gain_entry,
    grids_over_s_and_r,
    number_as,
    number_entry,
)

SHOWN = (0.1, 0.2, 0.3, 0.4, 0.5, 0.7)
"""The step ratios whose published curves are drawn. Those of all other step ratios are in the
data."""
LEAST = 3
"""Fewest bag sizes at one r for which a measured curve is drawn."""
SAME_RATIO = 0.051
"""Largest difference in r at which a published optimum is compared with a measured one. Optima at
more distant r differ anyway, because the best s falls as r rises."""
SIZES = (1, 2, 3, 4, 6, 8, 12, 16)
"""Ticks of the axes of s. In the panel of optima, an open interval is drawn up to the first or the
last of them."""


@dataclass(frozen=True)
class PublishedGrid:
    """One of the paper's four grids: the number of its table, and what its runs have in common."""

    table: int
    size: str
    steps: int
    weighting: str
    any_scale: bool
    """Whether runs at other than the paper's scale may fill the measured half. Only one grid of
    each weighting allows it, so that the same runs are not shown beside several grids."""
    figure: int
    """Number of the figure that shows the grid over bag size."""

    @property
    def words(self) -> str:
        """The properties that the runs have in common, in words."""
        weights = " with power-law weights" if self.weighting == "power_law" else ""
        return f"{self.size}, {self.steps:,} steps{weights}"

    def group(self, sources: Sources) -> Group | None:
        """Return the group of measured settings that fills the grid, or None if there is none.

        It is the group with the greatest `Group.weight` of those at the published scale. If there
        is no such group and `any_scale` is set, it is the one with the greatest weight of all
        groups. Settings with another weighting than the grid's do not count."""
        every = (group.plain(weighting=self.weighting) for group in sources.groups)
        plain = [group for group in every if len(group.rows)]
        at_scale = [group for group in plain if self.is_scale_of(group)]
        others = plain if self.any_scale else []
        return max(at_scale or others, key=lambda group: group.weight, default=None)

    def is_scale_of(self, group: Group) -> bool:
        """Return whether all runs of the group have the size and the length of the published grid,
        and natural text."""
        same = is_at_scale(group.members, self.size, self.steps)
        return bool(same.all()) and not group.is_generated


TABLE4 = PublishedGrid(4, "270M", 20_000, "uniform", True, figure=4)
TABLE5 = PublishedGrid(5, "270M", 100_000, "uniform", False, figure=5)
TABLE6 = PublishedGrid(6, "600M", 20_000, "uniform", False, figure=8)
TABLE7 = PublishedGrid(7, "600M", 20_000, "power_law", True, figure=11)
LOSSES = ["final_loss_grid"]
_MEASURED = ["measured_loss", "seeds", "measured_gain", "low", "high"]


@figure({"table4": TABLE4}, published=LOSSES, needs=submit("bag-grid", "paper", "one-gpu"))
@figure({"table5": TABLE5, "table6": TABLE6}, published=LOSSES, needs=submit("bag-grid", "paper"))
@figure({"table7": TABLE7}, published=LOSSES, needs=submit("power-law", "paper", "one-gpu"))
def final_loss_grid(sources: Sources, which: PublishedGrid) -> Table:
    """Show one grid; its measured half stays empty if there are no runs for it."""
    group = which.group(sources)
    data = grid_data(which.table, group)
    return Table(
        title=f"Table {which.table}. Final loss over s and r, {which.words}",
        caption=_caption(which, data),
        measured=f"Measured: {number(len(group.rows), 'setting')}, {group.scale}; gains are paired "
        "by seed, and each loss is the baseline's mean over all its seeds less the gain."
        if group
        else "",
        data=data,
        folders=group.folders if group else (),
        grids=_grids(data, group),
        finding=_table_finding(data, group),
    )


def grid_data(table: int, group: Group | None) -> pd.DataFrame:
    """Return a row for each combination of s and r that was published in a table or measured. The
    baseline is the row with s = 1 and r = 0.

    At r = 1 the published loss is a loss of bags, for which there is no gain.
    """
    cells = ["step_ratio", "bag_size"]
    grid = published.loss_grid(table, unrecovered=True)
    data = grid[[*cells, "loss"]].rename(columns={"loss": "published_loss"})
    gain = data["published_loss"][data["bag_size"] == 1].iloc[0] - data["published_loss"]
    data["published_gain"] = gain.where(data["step_ratio"] < 1)
    if group is not None:
        rows = group.with_baseline()
        rows = rows.assign(step_ratio=rows["step_ratio"].astype(float).round(3))
        measured = rows.rename(columns={"loss": "measured_loss", "gain": "measured_gain"})
        data = data.merge(measured[[*cells, *_MEASURED]], on=cells, how="outer")
    data = data.reindex(columns=[*cells, "published_loss", "published_gain", *_MEASURED])
    data = data.astype({**dict.fromkeys(_MEASURED, float), "seeds": "Int64"})
    return data.sort_values(cells, ignore_index=True)


def _grids(data: pd.DataFrame, group: Group | None) -> tuple[Grid, ...]:
    titles = {"published_loss": "Published: final training loss"}
    if group is not None:
        titles["measured_loss"] = f"Measured ({group.scale}): final held-out loss"
    grids = grids_over_s_and_r(data, titles, 4, "min")
    if group is None:
        return tuple(grids)
    there = data[data["measured_gain"].notna()]
    top = there["measured_gain"].max()
    columns = {
        "s": lambda row: number_entry(row["bag_size"]),
        "r": lambda row: number_as(row["step_ratio"], "{:.3g}".format),
        "gain, measured [95%]": lambda row: gain_entry(
            row, "measured_gain", best=row["measured_gain"] == top
        ),
        "seeds": lambda row: number_entry(row["seeds"]),
        "gain, published": lambda row: number_entry(row["published_gain"], 4, sign=True),
    }
    return (*grids, Grid.of(rows_of(there), columns, "Gain over the baseline (nats per token)"))


def _caption(which: PublishedGrid, data: pd.DataFrame) -> str:
    tokens = data[(data["step_ratio"] < 1) & (data["bag_size"] > 1)]
    best = next(rows_of(tokens.sort_values("published_loss")))
    odd = " (Table 7's entry looks like a next-token loss all the same)"
    return (
        "Final training loss in nats per token, "
        f"{number(int(data['published_loss'].count()), 'published run')} of one seed each. Bold: "
        f"the lowest of each r; the lowest of all is {best['published_loss']:.4f} at s = "
        f"{best['bag_size']:.0f}, r = {best['step_ratio']:.3g}, {best['published_gain']:.4f} below "
        "the baseline. r = 1 was never recovered: a loss of bags, another quantity"
        f"{odd if which.table == 7 else ''}."
    )


def _table_finding(data: pd.DataFrame, group: Group | None) -> Finding:
    cells = data[(data["step_ratio"] < 1) & (data["bag_size"] > 1)]
    gains, at = cells["published_gain"], cells[cells["step_ratio"] <= 0.5]["published_gain"]
    theirs = f"{(gains > 0).sum()} of {gains.count()} settings below the baseline"
    if (at.dropna() > 0).all():
        theirs += f", all {at.count()} with r ≤ 0.5"
    if group is None:
        return Finding(theirs)
    counts = verdict_counts(group.rows)
    measured = f"{number(len(group.rows), 'setting')}: {counts}"
    verdict = "mechanism only" if group.is_generated else judged(group.rows["verdict"])
    if len(group.rows) == 1 and verdict == "agrees":  # one setting is no grid
        verdict = "undecided"
    return Finding(theirs, measured, group.scale, verdict)


@figure({"figure4": TABLE4}, published=LOSSES, needs=submit("bag-grid", "paper", "one-gpu"))
@figure({"figure5": TABLE5, "figure8": TABLE6}, published=LOSSES, needs=submit("bag-grid", "paper"))
@figure({"figure11": TABLE7}, published=LOSSES, needs=submit("power-law", "paper", "one-gpu"))
def bag_size_curves(sources: Sources, which: PublishedGrid) -> Picture:
    """Show one published grid as curves over s. The group of measured runs that fills the grid is
    shown beside it if the group has `LEAST` bag sizes or more at some r."""
    group = which.group(sources)
    if group is not None and _sizes_by_ratio(group.rows).max() < LEAST:
        group = None
    grid = published.loss_grid(which.table)
    data, fitted = _published(grid), optima(grid).assign(source="published")
    count, scale, measured = len(data), "", ""
    if group is not None:
        group = group.only(with_family_intervals(group.rows, sources.summary.verdicts))
        data = pd.concat([data, _measured(group)[list(data)]], ignore_index=True)
        scale = f"{group.model}, {group.steps:,} steps"
        best = optima(grid_of_runs(group.pairs)).assign(source="measured")
        best = best.reindex(columns=fitted.columns)
        best["loss"] = group.level + best["loss"].astype(float)
        drawn = best[best["step_ratio"] == _sizes_by_ratio(group.rows).idxmax()]
        measured = f"Measured: {group.scale}; held-out loss at the baseline's mean less the paired "
        measured += "gain, bars: its 95% interval over seeds. Optimum: "
        measured += f"{_in_words(next(rows_of(drawn)))}."
        fitted = pd.concat([fitted, best], ignore_index=True)
    return Picture(
        title=_message(which, fitted),
        caption=f"Final training loss of {number(count, 'published run')} (Table {which.table}), "
        "one seed each; s = 1 is the baseline. Black crosses: the fitted optimum and its 95% "
        "interval, which ends at an arrow where it is open; an r without a cross has no clear "
        "optimum. It is the mean of those of two curves, a parabola in log s and a + b/s + c log s,"
        " unless the losses rule one out; fitted are all s above 1, and s = 1 if the lower end is "
        "open without it. Pale bar: within one standard deviation of the lowest loss. Left r = "
        f"{', '.join(map(str, SHOWN))}; the others are in the data.",
        measured=measured,
        data=data,
        folders=group.folders if group else (),
        draw=partial(_figure, data, fitted, {"published": which.words, "measured": scale}),
        fits={
            f"{row.pop('source')}, r = {row.pop('step_ratio'):.3g}": row for row in rows_of(fitted)
        },
        finding=_curve_finding(fitted, group),
    )


def _message(which: PublishedGrid, fitted: pd.DataFrame) -> str:
    """Return a title that says how the best bag size changes with r, by the published optima that
    could be determined."""
    known = fitted[(fitted["source"] == "published") & fitted["best"].notna()]
    known = known.sort_values("step_ratio")
    best = [f"{row['best']:.0f} at r = {row['step_ratio']:.1f}" for row in rows_of(known)]
    falls = f"The best bag size falls from {best[0]} to {best[-1]}"
    return f"Figure {which.figure}. {falls} ({which.words})"


def _published(grid: pd.DataFrame) -> pd.DataFrame:
    level = float(grid[grid["bag_size"] == 1]["loss"].iloc[0])
    columns = ["source", "step_ratio", "bag_size", "loss", "low", "high", "seeds", "baseline"]
    named = grid[grid["bag_size"] > 1].assign(source="published", baseline=level)
    return named.reindex(columns=columns).sort_values(["step_ratio", "bag_size"])


def _measured(group: Group) -> pd.DataFrame:
    rows, level = group.rows, group.level
    table = rows.assign(
        source="measured",
        step_ratio=rows["step_ratio"].round(4),
        loss=level - rows["gain"],
        low=level - rows["high"].astype(float),
        high=level - rows["low"].astype(float),
        baseline=level,
    )
    return table.sort_values(["step_ratio", "bag_size"])


def _sizes_by_ratio(rows: pd.DataFrame) -> pd.Series:
    """Return how many bag sizes were tried at each r."""
    return rows.groupby(rows["step_ratio"].round(4))["bag_size"].nunique()


def _figure(data: pd.DataFrame, fitted: pd.DataFrame, scales: Mapping[str, str]) -> Figure:
    """Draw the published curves over s, their optima over r and, if there is one, the measured
    curve of the r with most bag sizes."""
    sources = list(dict.fromkeys(data["source"]))
    drawn, (row,) = new_figure(PAGE, 2.9, 1 + len(sources))
    for axes, source in zip((row[0], row[-1]), sources, strict=False):
        points, best = data[data["source"] == source], fitted[fitted["source"] == source]
        ratios = list(SHOWN) if source == "published" else [_sizes_by_ratio(points).idxmax()]
        shown, best = (part[part["step_ratio"].round(4).isin(ratios)] for part in (points, best))
        _draw_curves(axes, shown, best, f"{source}: {scales[source]}")
        axes.set_ylabel(f"final {'held-out ' * (source == 'measured')}loss (nats per token)")
    _draw_best(row[1], fitted[fitted["source"] == "published"])
    return drawn


def _draw_curves(axes: Axes, data: pd.DataFrame, fitted: pd.DataFrame, title: str) -> None:
    """Draw a curve over s for each r, beginning at the baseline (s = 1), and the optimum of each
    curve."""
    import seaborn as sns  # its import takes half a second, which other pictures need not pay

    level, keys = float(data["baseline"].iloc[0]), {}
    ratios = sorted(data["step_ratio"].unique())
    colours = {ratio: ratio_colour(float(ratio)) for ratio in ratios}
    starts = pd.DataFrame({"step_ratio": ratios, "bag_size": 1, "loss": level})
    curves = pd.concat([starts, data[["step_ratio", "bag_size", "loss"]]])
    look: Look = {"lw": 1.1, "marker": "o", "ms": 2.5, "mew": 0, "estimator": None}
    names: Look = {"x": "bag_size", "y": "loss", "hue": "step_ratio", "hue_order": ratios}
    sns.lineplot(curves, **names, palette=colours, legend=False, ax=axes, **look)
    for ratio, rows in data.groupby("step_ratio"):
        colour = colours[ratio]
        axes.vlines(rows["bag_size"], rows["low"], rows["high"], color=colour, lw=0.8)
        keys[f"r = {ratio:.3g}"] = {"color": colour, "linestyle": "-"}
    axes.plot(1, level, BASELINE.marker, color=BASELINE.colour, ms=5, label="_arm baseline")
    keys["baseline"] = {"color": BASELINE.colour, "marker": BASELINE.marker}
    tried = (float(data["bag_size"].min()), float(data["bag_size"].max()))
    for row in rows_of(fitted[fitted["best"].notna()]):
        # An open end of the interval is drawn up to the smallest or the largest s that was tried.
        ends = [row[end] if pd.notna(row[end]) else tried[end == "high"] for end in ("low", "high")]
        axes.plot(ends, [row["loss"]] * 2, color=INK, linewidth=1.0, zorder=5)
        axes.plot(row["best"], row["loss"], "|", color=INK, markersize=6, mew=1.2, zorder=5)
        keys["optimum"] = {"color": INK, "marker": "|", "linestyle": "-"}
    log_axis(axes, "x", SIZES)
    axes.set_xlabel("bag size s (log scale)")
    key(axes, keys, 4, title)


def _draw_best(axes: Axes, fitted: pd.DataFrame) -> None:
    """Draw, for each r, the best s, its interval, and the range of s that is about as good as the
    best."""
    for row in rows_of(fitted[fitted["best"].notna()]):
        ratio = row["step_ratio"]
        axes.plot([row["flat_low"], row["flat_high"]], [ratio] * 2, color=FAINT, linewidth=5)
        for end, edge, marker in (("low", SIZES[0], "<"), ("high", SIZES[-1], ">")):
            known = pd.notna(row[end])
            to = row[end] if known else edge
            axes.plot([row["best"], to], [ratio] * 2, color=INK, linewidth=1.0)
            axes.plot(to, ratio, "" if known else marker, color=INK, ms=3)
        axes.plot(row["best"], ratio, "|", color=INK, markersize=6, mew=1.2)
    log_axis(axes, "x", SIZES)
    axes.set(xlim=(0.9, 18), ylim=(0, 1), ylabel="step ratio r")
    axes.set_xlabel("best bag size s (log scale)")
    keys: dict[str, Look] = {"fitted optimum, 95%": {"color": INK, "marker": "|", "linestyle": "-"}}
    keys["about as good"] = {"color": FAINT, "marker": "s", "markersize": 6}
    key(axes, keys, 1, "published: the optimum by r")


def _curve_finding(fitted: pd.DataFrame, group: Group | None) -> Finding:
    theirs = fitted[fitted["source"] == "published"]
    middle = theirs[theirs["step_ratio"].between(0.15, 0.45)]
    published = "optimal s by r: " + ", ".join(_in_words(row) for row in rows_of(middle))
    if group is None:
        return Finding(published)
    own = fitted[fitted["source"] == "measured"]
    overlaps = []
    for row in rows_of(own[own[["best", "low", "high"]].notna().all(axis=1)]):
        near = theirs[(theirs["step_ratio"] - row["step_ratio"]).abs() <= SAME_RATIO]
        if len(near):  # an open end counts as unbounded
            low, high = near["low"].fillna(-math.inf).min(), near["high"].fillna(math.inf).max()
            overlaps.append(row["low"] <= high and row["high"] >= low)
    verdict: Verdict = "undecided"
    if overlaps:
        verdict = "agrees" if all(overlaps) else "disagrees"
    if group.is_generated:
        verdict = "mechanism only"
    curves = own[own["points"] > 1]  # a single s is no curve
    measured = "; ".join(_in_words(row) for row in rows_of(curves))
    return Finding(published, measured, group.scale, verdict)


def _in_words(row: dict[str, Any]) -> str:
    if pd.isna(row["best"]):
        return f"r = {row['step_ratio']:.3g}: {row['sentence']}"
    low, high = (f"{row[end]:.1f}" if pd.notna(row[end]) else "open" for end in ("low", "high"))
    return f"r = {row['step_ratio']:.3g}: {row['best']:.1f} [{low}, {high}]"
