"""Gain over the baseline at equal FLOPs, setting by setting, with its interval.

The one picture that answers the study's question; wins, ties and losses alike.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.run_row import rows_of
from analysis.summary import Summary
from analysis.wording import group_label, number
from paper_figures.item import Item, Missing, command
from paper_figures.picture import Picture
from paper_figures.sources import Sources
from paper_figures.study.selection import folders_of, main_groups, pairs_of, slug
from paper_figures.style import COLUMN, MUTED, bag_size_mark, new_figure

KIND = "gains"
TITLE = "Gain over the baseline at equal FLOPs"
READING = (
    "Baseline minus superposition, held-out next-token loss, paired by seed: right of zero, "
    "superposition is better. Bars: 95% t-interval over seeds; short ticks: single seeds. A filled "
    "mark has an interval that excludes zero; a hollow one shows no difference, and without a bar "
    "it is one seed and no claim. Arrows: the interval goes on beyond the frame."
)


def items(sources: Sources, name: str = KIND) -> list[Item | Missing]:
    """One picture per corpus and model, at its main length (`loss_over_length` has the others)."""
    summary = sources.summary
    found: list[Item | Missing] = []
    for group, rows in main_groups(summary):
        runs = summary.tables.runs
        data = gain_data(summary, rows)
        found.append(
            Picture(
                KIND,
                f"gains-{slug(summary, group)}",
                f"Gain over the baseline, {group_label(runs[runs['group'] == group])}",
                f"{READING} {number(len(rows), 'setting')}, up to "
                f"{number(int(rows['seeds'].max()), 'seed')} each.",
                data,
                folders_of(summary, rows),
                lambda data=data: _figure(data),  # type: ignore[misc]
            )
        )
    return found or [
        Missing(
            KIND,
            TITLE,
            "Needs a finished baseline and a finished superposed run of one seed: "
            f"`{command('laptop', 'quick')}`.",
        )
    ]


def gain_data(summary: Summary, rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of the comparison as drawn; `by_seed` lists the single gains, in order of seed."""
    columns = ["setting", "steps", "bag_size", "seeds", "gain", "low", "high", "verdict"]
    table = rows[columns].reset_index(drop=True)
    pairs = pairs_of(summary, rows)
    table["by_seed"] = [
        " ".join(
            f"{gain:.6f}"
            for gain in pairs[
                (pairs["group"] == row["group"])
                & (pairs["setting"] == row["setting"])
                & (pairs["learning_rate"] == row["learning_rate"])
            ].sort_values("seed")["gain"]
        )
        for row in rows_of(rows)
    ]
    return table


def draw(axes: Axes, data: pd.DataFrame) -> None:
    """A row per setting, the first at the top."""
    frame = _frame(data)
    axes.axvline(0, color=MUTED, linewidth=0.7)
    for place, row in enumerate(rows_of(data)):
        mark = bag_size_mark(int(row["bag_size"]))
        shown = row["verdict"] in ("better", "worse")
        singles = [float(text) for text in row["by_seed"].split()]
        axes.plot(
            singles,
            [place] * len(singles),
            "|",
            color=mark.colour,
            markersize=5,
            alpha=0.7,
            mew=0.7,
        )
        if pd.notna(row["low"]):
            _bar(axes, place, float(row["low"]), float(row["high"]), frame, mark.colour)
        axes.plot(
            row["gain"],
            place,
            marker=mark.marker,
            color=mark.colour,
            markerfacecolor=mark.colour if shown else "none",
            markeredgewidth=0.9,
            zorder=4,
        )
    axes.set_yticks(range(len(data)), list(data["setting"]))
    axes.set_ylim(len(data) - 0.4, -0.6)
    axes.set_xlim(*frame)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.set_xlabel("gain (nats per token)")


def _bar(
    axes: Axes, place: int, low: float, high: float, frame: tuple[float, float], colour: str
) -> None:
    axes.plot([max(low, frame[0]), min(high, frame[1])], [place] * 2, color=colour, linewidth=1.1)
    for end, beyond, marker in ((0, low < frame[0], 8), (1, high > frame[1], 9)):
        if beyond:
            axes.plot(frame[end], place, marker=marker, color=colour, markersize=4, clip_on=False)


def _frame(data: pd.DataFrame) -> tuple[float, float]:
    """Wide enough for all means, seeds and zero; two seeds' vast intervals are cut, with arrows."""
    singles = [float(text) for texts in data["by_seed"] for text in texts.split()]
    inner = [0.0, *data["gain"], *singles]
    span = max(max(inner) - min(inner), 1e-3)
    ends = [*data["low"].dropna(), *data["high"].dropna(), *inner]
    low = max(min(ends), min(inner) - 1.0 * span)
    high = min(max(ends), max(inner) + 1.0 * span)
    pad = 0.05 * max(high - low, span)
    return low - pad, high + pad


def _figure(data: pd.DataFrame) -> Figure:
    figure, (axes,) = new_figure(COLUMN, 0.6 + 0.19 * max(len(data), 2))
    draw(axes, data)
    return figure


def legend_words() -> str:
    """For a caption that has no room for the whole reading."""
    return "Bars: 95% intervals over paired seeds; hollow: no difference shown."
