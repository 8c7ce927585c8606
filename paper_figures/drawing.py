"""Pictures, and the drawing that several share: lines, means with intervals, keys and axes."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullLocator

from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.wording import gain, signed
from tst_study.paper_figures.item import Item
from tst_study.paper_figures.style import FAINT, INK, MUTED, Look, Mark, styled, text_width, wrapped

_METADATA: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}


@dataclass(frozen=True, kw_only=True)
class Picture(Item):
    draw: Callable[[], Figure]

    def figure(self, titled: bool = True) -> Figure:
        """Draw it, with its message above the panels unless a page or a paper prints it there."""
        with styled():
            figure = self.draw()
            if titled:
                words = wrapped(self.title, 72 * figure.get_figwidth() / 1.2 - 8, 8)
                place: Look = {"ha": "left", "fontsize": 8, "fontweight": "bold"}
                figure.suptitle(words, x=4 / 72 / figure.get_figwidth(), **place)
                figure.set_figheight(figure.get_figheight() + 0.2 * (words.count("\n") + 1))
            # Executed here, once for all formats: as the figure's own engine it would run at each
            # draw, and every file would be drawn twice.
            ConstrainedLayoutEngine().execute(figure)
        return figure

    def contents(self) -> dict[str, bytes]:
        figure = self.figure()
        return {f".{kind}": rendered(figure, kind) for kind in _METADATA}

    def for_print(self) -> dict[str, bytes]:
        return {".pdf": rendered(self.figure(titled=False), "pdf")}

    def drawing(self) -> str:
        """Return the SVG of the picture without its title, which a page prints itself."""
        return rendered(self.figure(titled=False), "svg").decode()


def rendered(figure: Figure, kind: str) -> bytes:
    """Return the figure as a file's bytes, free of dates and program names."""
    file = io.BytesIO()
    with styled():
        figure.savefig(file, format=kind, metadata=_METADATA[kind])
    return file.getvalue()


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
) -> None:
    """Draw a line for each value of `by`, and a band where the data has `low` and `high`."""
    for name, rows in data.sort_values(x, kind="stable").groupby(by, sort=False):
        mark = looks[str(name)]
        own: Look = {"color": mark.colour, "label": f"_arm {mark.arm}", "linewidth": 1.1}
        axes.plot(rows[x], rows[y], linestyle=mark.line, **own)
        low, high = rows["low"].astype(float), rows["high"].astype(float)
        axes.fill_between(rows[x], low, high, color=mark.colour, alpha=0.15, lw=0)


def point(
    axes: Axes,
    at: tuple[float, float],
    mark: Mark,
    bar: tuple[float | None, float | None] = (None, None),
    *,
    hollow: bool = False,
    across: bool = False,
    **look: Any,
) -> None:
    """Draw a mean and its interval, along x if `across`; hollow where no difference is shown."""
    low, high = bar
    if low is not None and high is not None:
        draw = axes.hlines if across else axes.vlines
        draw(at[1] if across else at[0], low, high, color=mark.colour, linewidth=1.0)
    face = "none" if hollow else mark.colour
    more = {"markeredgewidth": 0.9, "zorder": 4, "label": f"_arm {mark.arm}", **look}
    axes.plot(*at, mark.marker, color=mark.colour, markerfacecolor=face, **more)


def points_aside(
    axes: Axes, data: pd.DataFrame, looks: Mapping[str, Mark], x: str, apart: float
) -> None:
    """Draw losses with their bars, the settings of one x apart by a factor, so that bars do not
    cover one another."""
    for place, (setting, rows) in enumerate(data.groupby("setting", sort=False)):
        aside = apart ** (place - (data["setting"].nunique() - 1) / 2)
        for row in rows_of(rows):
            at, bar = (row[x] * aside, row["loss"]), (row["low"], row["high"])
            point(axes, at, looks[str(setting)], bar)


def is_baseline(label: str) -> bool:
    return label.startswith("baseline")


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
    points = 1.1 * 72 * axes.bbox.width / axes.figure.dpi  # the layout makes it a little wider
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
        for kind, text in [(headings, str(heading)), *((names, name) for name in rows["name"])]:
            words = wrapped(text, width)
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
    across = axes.get_yaxis_transform()
    headings, names = forest_rows(data, width)
    for row, is_near, (_, place) in zip(rows_of(data), near, names, strict=True):
        if row["primary"]:
            axes.axhspan(place - 0.45, place + 0.45, color=FAINT, alpha=0.6, lw=0, zorder=0)
        beside: Look = {"xycoords": ("axes fraction", "data"), "va": "center"}
        if is_near:
            hollow = row["verdict"] not in CLAIMED
            at, bar = (row["gain"], place), (row["low"], row["high"])
            point(axes, at, row["mark"], bar, hollow=hollow, across=True)
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
    entries: dict[str, Look] = {"95% interval excludes zero": {**dot, "linestyle": "-"}}
    for unclaimed in sorted(set(data["verdict"]) - {*CLAIMED}):
        entries[unclaimed] = {**dot, "markerfacecolor": "none"}
    if data["primary"].any():
        entries["the primary question"] = {"color": FAINT, "marker": "s", "markersize": 7}
    key(axes, entries)
