"""Drawing that several figures share: lines, means with intervals, keys and axes."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullLocator

from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.wording import gain, signed
from tst_study.paper_figures.picture import say
from tst_study.paper_figures.style import (
    FAINT,
    INK,
    MUTED,
    Look,
    Mark,
    available_width,
    text_width,
    wrapped,
)

DOTTED = (0, (1, 1.5))
CLAIMED = ("better", "worse")
"""Verdicts whose interval excludes zero."""
HANDLE = 28.0
"""Points that a line of a key takes beside its words."""
FAR = 6
"""A gain so many times as large as the median gain would squeeze all others: it is stated beside
the frame."""


def lines(
    axes: Axes,
    data: pd.DataFrame,
    looks: Mapping[str, Mark],
    *,
    x: str = "step",
    y: str = "loss",
    by: str = "label",
    band: bool = True,
) -> None:
    """Draw a line for each value of `by`, and a band where the data has `low` and `high`."""
    for name, rows in data.sort_values(x, kind="stable").groupby(by, sort=False):
        mark = looks[str(name)]
        own: Look = {"color": mark.colour, "label": f"_arm {mark.arm}", "linewidth": 1.1}
        axes.plot(rows[x], rows[y], linestyle=mark.line, **own)
        ranged = rows[rows["low"].notna()] if band and "low" in rows else rows.iloc[:0]
        if len(ranged):
            ends = ranged["low"].astype(float), ranged["high"].astype(float)
            axes.fill_between(ranged[x], *ends, color=mark.colour, alpha=0.15, lw=0)


def point(
    axes: Axes,
    at: tuple[float, float],
    mark: Mark,
    bar: tuple[float | None, float | None] = (None, None),
    *,
    hollow: bool = False,
    across: bool = False,
    words: str = "",
    **look: Any,
) -> None:
    """Draw a mean and its interval, along x if `across`; hollow where no difference is shown.

    `words`: shown while the pointer is on the point in an SVG.
    """
    low, high = bar
    if low is not None and high is not None and low == low:
        draw = axes.hlines if across else axes.vlines
        draw(at[1] if across else at[0], low, high, color=mark.colour, linewidth=1.0)
    face = "none" if hollow else mark.colour
    more = {"markeredgewidth": 0.9, "zorder": 4, "label": f"_arm {mark.arm}", **look}
    (drawn,) = axes.plot(*at, mark.marker, color=mark.colour, markerfacecolor=face, **more)
    say(drawn, words)


def points_aside(
    axes: Axes, data: pd.DataFrame, looks: Mapping[str, Mark], x: str, apart: float
) -> None:
    """Draw losses with their bars, the settings of one x apart by a factor, so that bars do not
    cover one another."""
    for place, (setting, rows) in enumerate(data.groupby("setting", sort=False)):
        aside = apart ** (place - (data["setting"].nunique() - 1) / 2)
        for row in rows_of(rows):
            at, bar = (row[x] * aside, row["loss"]), (row["low"], row["high"])
            words = f"{setting}, {row[x]:g}: {row['loss']:.4f}"
            point(axes, at, looks[str(setting)], bar, words=words)


def is_baseline(label: str) -> bool:
    return label.startswith("baseline")


def is_hollow(row: Mapping[str, Any], by: str = "label") -> bool:
    """Return whether a mean shows no difference from the baseline, which is the measure itself."""
    compared = "verdict" in row and not is_baseline(row[by])
    return compared and row["verdict"] not in CLAIMED


def key(
    axes: Axes,
    entries: Mapping[str, Mapping[str, Any]],
    columns: int = 1,
    title: str = "",
) -> None:
    """Draw a legend above the frame, where it covers no curve, in as many columns of at most
    `columns` as fit.

    `entries`: properties of a `Line2D` by the words beside it.
    """
    drawn = [Line2D([], [], **{"color": MUTED, "linestyle": "none", **e}) for e in entries.values()]
    points = available_width(axes)
    widest = max(map(text_width, entries), default=0.0) + HANDLE
    columns = max(1, min(columns, len(drawn), int(points / widest)))
    words = [wrapped(entry, points - HANDLE) for entry in entries]
    above: Look = {"loc": "lower left", "bbox_to_anchor": (0, 1.0), "alignment": "left"}
    above |= {"handletextpad": 0.5, "columnspacing": 1.0}
    axes.legend(drawn, words, ncols=columns, title=wrapped(title, points) or None, **above)


def arm_key(
    axes: Axes,
    title: str,
    looks: Mapping[str, Mark],
    columns: int = 1,
    more: Mapping[str, Mapping[str, Any]] | None = None,
    markers: bool = False,
    curves: bool = True,
) -> None:
    """Draw the title of a panel and the key of its arms above the frame."""
    entries: dict[str, Mapping[str, Any]] = {
        words: {
            "color": mark.colour,
            "linestyle": mark.line if curves else "none",
            "linewidth": 1.2,
            "marker": mark.marker if markers else "",
        }
        for words, mark in looks.items()
    }
    key(axes, {**entries, **(more or {})}, columns, title)


def log_axis(
    axes: Axes, which: str, ticks: Sequence[float], texts: Sequence[str] | None = None
) -> None:
    """Set a log scale with these ticks alone."""
    axes.set(**{f"{which}scale": "log"})
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_ticks(list(ticks), list(texts or [f"{tick:.3g}" for tick in ticks]))
    axis.set_minor_locator(NullLocator())


def step_axis(axes: Axes) -> None:
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(3, integer=True, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter("{x:,.0f}")


def mark_time(axes: Axes, x: float, words: str) -> None:
    """Draw a dotted vertical line, named at the bottom of the panel."""
    axes.axvline(x, color=MUTED, linewidth=0.7, linestyle=DOTTED)
    place: Look = {"xycoords": ("data", "axes fraction"), "va": "bottom"}
    note(axes, words, (x, 0.0), (2.5, 2), color=MUTED, **place)


def level_line(axes: Axes, loss: float) -> None:
    """Draw a dotted line for reading off where another curve reaches a loss."""
    axes.axhline(loss, color=MUTED, linewidth=0.6, linestyle=DOTTED)


def note(
    axes: Axes, words: str, at: tuple[float, float], offset: tuple[float, float], **look: Any
) -> None:
    """Write small words, offset from a place by points."""
    axes.annotate(words, at, xytext=offset, textcoords="offset points", fontsize=7, **look)


def inside(gains: pd.Series) -> pd.Series:
    """Return which gains share a scale; the others are stated beside the frame."""
    size = gains.abs()
    return size <= FAR * max(float(size.median()), 1e-9)


NAMES = 225.0
"""Points that names of rows may take left of a forest."""


def forest_rows(
    data: pd.DataFrame, width: float = NAMES
) -> tuple[list[tuple[str, float]], list[tuple[str, float]]]:
    """Return headings and names, each in lines and with its place; a line takes one unit."""
    headings: list[tuple[str, float]] = []
    names: list[tuple[str, float]] = []
    top = 0.0
    for heading, rows in data.groupby("heading", sort=False):
        given = [(headings, str(heading))] if heading else []
        for kind, text in [*given, *((names, name) for name in rows["name"])]:
            words = wrapped(text, width / 1.15 if kind is headings else width)
            count = words.count("\n") + 1
            kind.append((words, top + (count - 1) / 2))
            top += count
        top += 0.4
    return headings, names


def forest(axes: Axes, data: pd.DataFrame, width: float = NAMES) -> None:
    """Draw gains with their intervals, row below row, around zero.

    `width`: points for the names of rows. Columns: name, heading (stands above its rows), mark,
    primary, gain, low, high, verdict.
    """
    axes.axvline(0, color=MUTED, linewidth=0.7)
    near = inside(data["gain"])
    shown = data[near][["gain", "low", "high"]].astype(float)
    least, most = min(float(shown.min().min()), 0.0), max(float(shown.max().max()), 0.0)
    left, right = least - 0.06 * (most - least), most + 0.06 * (most - least)
    axes.set_xlim(left, right)
    across = axes.get_yaxis_transform()
    headings, names = forest_rows(data, width)
    for row, is_near, (_, place) in zip(rows_of(data), near, names, strict=True):
        if row["primary"]:
            axes.axhspan(place - 0.45, place + 0.45, color=FAINT, alpha=0.6, lw=0, zorder=0)
        beside: Look = {"xycoords": ("axes fraction", "data"), "va": "center"}
        if is_near:
            hollow = row["verdict"] not in CLAIMED
            said = f"{row['name']}: {gain(row)} nats, {row['verdict']}"
            at, bar = (row["gain"], place), (row["low"], row["high"])
            point(axes, at, row["mark"], bar, hollow=hollow, across=True, words=said)
            note(axes, signed(row["gain"]), (1.0, place), (4, 0), **beside)
        else:
            edge, arrow, side = (0.0, "<", 1) if row["gain"] < 0 else (1.0, ">", -1)
            edge += 0.015 * side
            axes.plot(edge, place, arrow, color=row["mark"].colour, transform=across)
            beside |= {"ha": "left" if side > 0 else "right"}
            note(axes, f"beyond the frame: {gain(row)}", (edge, place), (6 * side, 0), **beside)
    ticks = [*headings, *names]
    axes.set_yticks([place for _, place in ticks], [words for words, _ in ticks])
    labels = axes.get_yticklabels()
    for label in labels[: len(headings)]:
        label.set(fontweight="bold", color=MUTED)
    for label, primary in zip(labels[len(headings) :], data["primary"], strict=True):
        label.set_fontweight("bold" if primary else "normal")
    axes.set_ylim(max(place for _, place in ticks) + 0.7, -0.7)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.set_xlabel("gain (nats per token); right of zero is better")
    dot: Look = {"marker": "o", "markersize": 4, "color": INK}
    entries: dict[str, Look] = {}
    if data["verdict"].isin(CLAIMED).any():
        entries["95% interval excludes zero"] = {**dot, "linestyle": "-"}
    if unclaimed := sorted(set(data["verdict"]) - {*CLAIMED}):
        entries[", or ".join(unclaimed)] = {**dot, "markerfacecolor": "none"}
    if data["primary"].any():
        entries["the primary question"] = {"color": FAINT, "marker": "s", "markersize": 7}
    key(axes, entries, 3)
