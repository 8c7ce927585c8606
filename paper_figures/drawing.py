"""The base of all figures (`Picture`), and drawing functions that several figures share: lines,
means with intervals, keys and axes."""

import functools
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator
from rich.cells import cell_len

from tst_study.analysis.tables.columns import rows_of
from tst_study.paper_figures.item import Item
from tst_study.paper_figures.style import LETTER, MUTED, Look, Mark, give_fonts, styled, wrapped

_METADATA: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}


@dataclass(frozen=True, kw_only=True)
class Picture(Item):
    """An item that is a figure."""

    draw: Callable[[], Figure]
    """Draws the figure without its title; called inside `style.styled`."""

    def figure(self, titled: bool = True) -> Figure:
        """Draw the figure and lay it out. `titled`: whether the title stands above the panels."""
        with styled():
            figure = self.draw()
            if titled:
                words = wrapped(self.title, 72 * figure.get_figwidth() / 1.2 - 8, 8)
                place: Look = {"ha": "left", "fontsize": 8, "fontweight": "bold"}
                figure.suptitle(words, x=4 / 72 / figure.get_figwidth(), **place)
                figure.set_figheight(figure.get_figheight() + 0.2 * (words.count("\n") + 1))
        give_fonts(figure)
        # The layout is computed here, once for all formats. If the engine were set as the figure's
        # own, it would run at every draw, and each file would be drawn twice. It measures text as
        # SVG and PDF draw it, which is wider than the text of a PNG.
        with styled(**{"text.hinting": "none"}):
            ConstrainedLayoutEngine().execute(figure)
        return figure

    @functools.cached_property
    def untitled(self) -> Figure:
        """The figure without its title, which a paper has in the caption and the report in its
        text."""
        return self.figure(titled=False)

    def contents(self) -> dict[str, bytes]:
        titled = self.figure()
        files = {f".{kind}": rendered(titled, kind) for kind in ("svg", "png")}
        return {".pdf": rendered(self.untitled, "pdf"), **files}


def rendered(figure: Figure, kind: str) -> bytes:
    """Return the bytes of the figure as a file of this kind (pdf, svg or png), without dates and
    program names, so that equal figures give equal bytes."""
    file = io.BytesIO()
    with styled():
        figure.savefig(file, format=kind, metadata=_METADATA[kind])
    return file.getvalue()


DOTTED = (0, (1, 1.5))
CLAIMED = ("better", "worse")
"""The verdicts that claim a difference: the interval of the gain excludes zero."""
HANDLE = 28.0
"""Width in points that an entry of a key takes beside its words: the symbol and the gaps."""


def lines(
    axes: Axes,
    data: pd.DataFrame,
    looks: Mapping[str, Mark],
    *,
    x: str = "step",
    y: str = "loss",
    by: str = "label",
) -> None:
    """Draw a line for each value of the column `by`, and a band from `low` to `high` if the data
    has these columns. `looks`: the mark of each value."""
    for name, rows in data.sort_values(x, kind="stable").groupby(by, sort=False):
        mark = looks[str(name)]
        own: Look = {"color": mark.colour, "label": f"_arm {mark.arm}", "linewidth": 1.1}
        axes.plot(rows[x], rows[y], linestyle=mark.line, **own)
        if "low" in rows:
            low, high = rows["low"].astype(float), rows["high"].astype(float)
            axes.fill_between(rows[x], low, high, color=mark.colour, alpha=0.15, lw=0)


def point(
    axes: Axes, at: tuple[float, float], mark: Mark, hollow: bool = False, **look: Any
) -> None:
    """Draw a mean as a marker. `hollow`: do not fill it, as for a gain that no interval
    confirms."""
    face = "none" if hollow else mark.colour
    more = {"markeredgewidth": 0.9, "zorder": 4, "label": f"_arm {mark.arm}", **look}
    axes.plot(*at, mark.marker, color=mark.colour, markerfacecolor=face, **more)


def means(
    axes: Axes,
    data: pd.DataFrame,
    looks: Mapping[str, Mark],
    x: str,
    by: str = "setting",
    apart: float = 1.0,
    joined: bool = False,
) -> None:
    """Draw losses with bars from `low` to `high`, and a line through them if they are `joined`. The
    arms, which are the values of the column `by`, are moved sideways by powers of the factor
    `apart`, so that bars at one x do not cover one another."""
    for place, (name, rows) in enumerate(data.groupby(by, sort=False)):
        mark, aside = looks[str(name)], apart ** (place - (data[by].nunique() - 1) / 2)
        moved = rows.assign(**{x: rows[x] * aside})
        axes.vlines(moved[x], moved["low"], moved["high"], color=mark.colour, linewidth=1.0)
        if joined:
            lines(axes, moved.drop(columns=["low", "high"]), looks, x=x, by=by)
        for row in rows_of(moved):
            point(axes, (row[x], row["loss"]), mark)


def is_baseline(label: str) -> bool:
    """Return whether the label of a curve is that of a baseline."""
    return label.startswith("baseline")


def key(
    axes: Axes, entries: Mapping[str, Mapping[str, Any]], columns: int = 1, title: str = ""
) -> None:
    """Draw a legend above the frame, where it covers no curve. It has as many columns as fit, but
    at most `columns`.

    `entries`: for the words of each entry, the properties of the `Line2D` that is drawn beside
    them."""
    drawn = [Line2D([], [], **{"color": MUTED, "linestyle": "none", **e}) for e in entries.values()]
    points = 1.1 * 72 * axes.bbox.width / axes.figure.dpi  # the layout makes it a little wider
    widest = 7 * LETTER * max(map(cell_len, entries)) + HANDLE
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
    """Draw the title of a panel and the key of its arms above the frame.

    `looks`: the mark of each arm, by its words. `more`: further entries, as `key` takes them.
    `markers` and `curves`: whether entries of arms show the marker and the line.
    """
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
    """Give the x or the y axis (`which`) a log scale that has only these ticks."""
    axes.set(**{f"{which}scale": "log"})
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_ticks(list(ticks), list(texts or [f"{tick:.3g}" for tick in ticks]))
    axis.set_minor_locator(NullLocator())


def mark_step(axes: Axes, x: float, words: str) -> None:
    """Draw a dotted vertical line at `x`, with these words beside it at the bottom of the panel."""
    axes.axvline(x, color=MUTED, linewidth=0.7, linestyle=DOTTED)
    place: Look = {"xycoords": ("data", "axes fraction"), "va": "bottom"}
    note(axes, words, (x, 0.0), (2.5, 2), color=MUTED, **place)


def level_line(axes: Axes, loss: float) -> None:
    """Draw a dotted horizontal line at a loss, to show where another curve reaches it."""
    axes.axhline(loss, color=MUTED, linewidth=0.6, linestyle=DOTTED)


def note(
    axes: Axes, words: str, at: tuple[float, float], offset: tuple[float, float], **look: Any
) -> None:
    """Write words in a small font. `offset`: their distance from the place `at`, in points."""
    axes.annotate(words, at, xytext=offset, textcoords="offset points", fontsize=7, **look)
