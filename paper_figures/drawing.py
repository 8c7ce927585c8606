"""What figures draw more than once: lines, means with intervals, their keys and axes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.wording import gain_sentence
from tst_study.paper_figures.picture import say
from tst_study.paper_figures.style import (
    MUTED,
    PAPER,
    Look,
    Mark,
    bag_size_mark,
    room,
    text_width,
    wrapped,
)
from tst_study.text import shortened

DOTTED = (0, (1, 1.5))
CLAIMED = ("better", "worse")
"""Verdicts of an interval that excludes zero."""
HANDLE = 28.0
"""Points that a line of a key takes beside its words."""
ONE_SEED = "one seed: no claim"


def lines(
    axes: Axes,
    data: pd.DataFrame,
    looks: Mapping[str, Mark],
    *,
    x: str = "step",
    y: str = "loss",
    by: str = "label",
    solid: bool = False,
    band: bool = True,
    **look: Any,
) -> None:
    """A line for each value of `by`, and a band from `low` to `high` where the data has them."""
    there = list(dict.fromkeys(data[by]))
    sns.lineplot(
        data=data,
        x=x,
        y=y,
        hue=by,
        style=by,
        hue_order=there,
        style_order=there,
        palette={key: looks[key].colour for key in there},
        dashes={key: "" if solid else looks[key].dash or "" for key in there},
        estimator=None,
        legend=False,
        ax=axes,
        **{"linewidth": 0.9, **look},
    )
    for key, rows in data[data["low"].notna()].groupby(by) if band and "low" in data else ():
        low, high = rows["low"].astype(float), rows["high"].astype(float)
        axes.fill_between(rows[x], low, high, color=looks[str(key)].colour, alpha=0.13, lw=0)
    axes.set_xlabel("")
    axes.set_ylabel("")


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
    """A mean and its interval, along x if `across`; hollow: no difference is shown.

    `words`: what an SVG says of it.
    """
    low, high = bar
    if low is not None and high is not None and low == low:
        draw = axes.hlines if across else axes.vlines
        draw(at[1] if across else at[0], low, high, color=mark.colour, linewidth=1.0)
    face = "none" if hollow else mark.colour
    more = {"markeredgewidth": 0.9, "zorder": 4, **look}
    (drawn,) = axes.plot(*at, mark.marker, color=mark.colour, markerfacecolor=face, **more)
    say(drawn, words)


def means(
    axes: Axes,
    data: pd.DataFrame,
    looks: Mapping[str, Mark],
    words: Callable[[dict[str, Any]], str],
    *,
    x: str,
    y: str = "loss",
) -> None:
    """Means with their intervals; a line through those of each setting that has three or more,
    since one through two would look like a fit."""
    joined = data.groupby("setting").filter(lambda rows: len(rows) > 2)
    if len(joined):
        lines(axes, joined, looks, x=x, y=y, by="setting", band=False)
    for row in rows_of(data[data[y].notna()]):
        at, bar = (row[x], row[y]), (row["low"], row["high"])
        hollow = is_hollow(row, "setting")
        point(axes, at, looks[row["setting"]], bar, hollow=hollow, words=words(row))


def is_baseline(label: str) -> bool:
    return label.startswith("baseline")


def is_hollow(row: Mapping[str, Any], by: str = "label") -> bool:
    """Whether a mean shows no difference from the baseline, which is the measure itself."""
    compared = "verdict" in row and not is_baseline(row[by])
    return compared and row["verdict"] not in CLAIMED


def key(
    axes: Axes,
    entries: Mapping[str, Mapping[str, Any]],
    columns: int = 1,
    title: str = "",
    **place: Any,
) -> None:
    """A legend from looks of `Line2D`, by words, in as many columns of at most `columns` as there
    is room for."""
    drawn = [Line2D([], [], **{"color": MUTED, "linestyle": "none", **e}) for e in entries.values()]
    points = room(axes)
    widest = max(map(text_width, entries), default=0.0) + HANDLE
    columns = max(1, min(columns, len(drawn), int(points / widest)))
    words = [wrapped(entry, points - HANDLE) for entry in entries]
    more = {"handletextpad": 0.5, "columnspacing": 1.0, **place}
    axes.legend(drawn, words, ncols=columns, title=wrapped(title, points) or None, **more)


def key_above(
    axes: Axes, title: str, looks: Mapping[str, Mark], columns: int = 1, markers: bool = False
) -> None:
    """Title and legend above the frame, where they cover no curve."""
    entries = {
        words: {
            "color": mark.colour,
            "linestyle": (0, mark.dash) if mark.dash else "-",
            "linewidth": 1.1,
            "marker": mark.marker if markers else "",
        }
        for words, mark in looks.items()
    }
    where = {"loc": "lower left", "bbox_to_anchor": (0, 1.0), "alignment": "left"}
    key(axes, entries, columns, title, **where)


def end_labels(axes: Axes, ends: Iterable[tuple[float, float, str, str]]) -> None:
    """(x, y, words, colour): words right of the frame, moved apart so that none covers another; to
    a curve that ends before the frame does goes a dotted line, which is no curve."""
    bottom, top = axes.get_ylim()
    inches = axes.get_position().height * axes.get_figure(root=True).get_figheight()  # type: ignore[union-attr]
    gap = 8.5 / 72 / inches * (top - bottom)
    at = float("-inf")
    leader: Look = {"relpos": (0, 0.5), "shrinkA": 0, "shrinkB": 2}
    for x, y, words, colour in sorted(ends, key=lambda end: end[1]):
        at = max(y, at + gap)
        across, _ = axes.transAxes.inverted().transform(axes.transData.transform((x, y)))
        line: Look = {"lw": 0.8, "color": colour}
        if across < 0.9:
            line = {"lw": 0.6, "color": MUTED, "linestyle": DOTTED}
        axes.annotate(
            words,
            (x, y),
            xytext=(1.04, (at - bottom) / (top - bottom)),
            textcoords="axes fraction",
            fontsize=7,
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", **line, **leader},
        )


def log_axis(
    axes: Axes, which: str, ticks: Sequence[float], texts: Sequence[str] | None = None
) -> None:
    """A log scale with these ticks alone."""
    axes.set(**{f"{which}scale": "log"})
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_ticks(list(ticks), list(texts or [f"{tick:g}" for tick in ticks]))
    axes.minorticks_off()


def step_axis(axes: Axes) -> None:
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter("{x:,.0f}")


def switch_line(axes: Axes, x: float) -> None:
    """Mark the end of the superposition phase, named at the bottom."""
    axes.axvline(x, color=MUTED, linewidth=0.7, linestyle=DOTTED)
    place: Look = {"xycoords": ("data", "axes fraction"), "va": "bottom"}
    note(axes, "switch", (x, 0.0), (2.5, 2), color=MUTED, **place)


def level_line(axes: Axes, loss: float) -> None:
    """For reading off where another curve reaches a loss."""
    axes.axhline(loss, color=MUTED, linewidth=0.6, linestyle=DOTTED)


def note(
    axes: Axes, words: str, at: tuple[float, float], offset: tuple[float, float], **look: Any
) -> None:
    """Small words, offset from a place by points."""
    axes.annotate(words, at, xytext=offset, textcoords="offset points", fontsize=7, **look)


def forest(
    axes: Axes, data: pd.DataFrame, heading: str = "", tick: str = "one seed", columns: int = 2
) -> None:
    """Gains with their intervals, row below row, around zero; needs columns setting, bag_size,
    gain, low, high, verdict, and `ticks`: further values of a row, drawn as small ticks.

    `heading`: a column whose values stand above their rows.
    """
    axes.axvline(0, color=MUTED, linewidth=0.7)
    names: list[str] = []
    # So that `room` knows their width.
    axes.set_yticks(range(len(data)), [shortened(name, 60) for name in data["setting"]])
    for title, rows in data.groupby(heading, sort=False) if heading else [("", data)]:
        if title:
            lines = wrapped(str(title), room(axes) / 1.25).splitlines()  # bold is wider
            middle = len(names) + (len(lines) - 1) / 2
            at: Look = {"xytext": (0, middle), "textcoords": ("axes fraction", "data")}
            box = {"facecolor": PAPER, "edgecolor": "none", "pad": 1.0}
            words = "\n".join(lines)
            axes.annotate(words, (0, 0), fontweight="bold", fontsize=7, va="center", bbox=box, **at)
            names += [""] * len(lines)
        for row in rows_of(rows):
            mark, place = bag_size_mark(int(row["bag_size"])), len(names)
            places = [place] * len(row["ticks"])
            axes.plot(row["ticks"], places, "|", color=MUTED, mew=0.8, ms=5, zorder=5)
            hollow = row["verdict"] not in CLAIMED
            bar, said = (row["low"], row["high"]), gain_sentence(row)
            point(axes, (row["gain"], place), mark, bar, hollow=hollow, across=True, words=said)
            names.append(shortened(row["setting"], 60))
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.margins(x=0.06)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.set_xlabel("gain (nats per token)")
    dot, entries = {"marker": "o", "markersize": 4}, {}
    if data["verdict"].isin(CLAIMED).any():
        entries["95% interval excludes zero"] = {**dot, "linestyle": "-"}
    if unclaimed := sorted(set(data["verdict"]) - {*CLAIMED}):
        entries[", or ".join(unclaimed)] = {**dot, "markerfacecolor": "none"}
    if (data["verdict"] != ONE_SEED).any():
        entries[tick] = {"marker": "|", "markersize": 5}
    key(axes, entries, columns, loc="lower left", bbox_to_anchor=(-0.02, 1.0))
