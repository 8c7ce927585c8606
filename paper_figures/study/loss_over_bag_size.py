"""Final held-out loss over bag size, beside the baseline's level (paper, Figure 4)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.run_row import rows_of
from analysis.summary import Summary
from analysis.wording import group_details, group_label, number
from paper_figures.item import Item, Missing, command
from paper_figures.picture import Picture
from paper_figures.sources import Sources
from paper_figures.study.selection import folders_of, pairs_of, plain_rows, slug
from paper_figures.style import COLUMN, INK, MUTED, cycle_mark, new_figure

KIND = "loss_over_bag_size"
TITLE = "Held-out loss over bag size"
READING = (
    "Each point is the baseline's mean less the mean gain over paired seeds, its bar the 95% "
    "interval of that gain: a bar that reaches the baseline's line shows no difference; without a "
    "bar it is one seed and no claim. Shading: "
    "range of the baseline over seeds, which pairing takes out."
)


def items(sources: Sources, name: str = KIND) -> list[Item | Missing]:
    """One per comparison group that has two or more bag sizes of the plain method."""
    summary = sources.summary
    found: list[Item | Missing] = []
    for _, rows in summary.comparison.table.groupby(["group", "learning_rate", "eval_set"]):
        plain = plain_rows(rows)
        if plain["bag_size"].nunique() >= 2:
            found.append(_picture(summary, plain))
    return found or [
        Missing(
            KIND,
            TITLE,
            "Needs two or more bag sizes beside their baseline: generated language has them at "
            f"`{command('laptop', 'quick')}`, prose at "
            f"`{command('laptop', 'desktop')}`.",
        )
    ]


def _picture(summary: Summary, plain: pd.DataFrame) -> Picture:
    group = str(plain["group"].iloc[0])
    runs = summary.tables.runs
    members = runs[runs["group"] == group]
    data = bag_size_data(summary, plain)
    optimum = members["optimal_nats_per_token"].dropna()
    best = float(optimum.iloc[0]) if len(optimum) else None
    known = (
        ""
        if best is None
        else f" The language's own entropy, which no model can beat, is {best:.3f} nats per token."
    )
    return Picture(
        KIND,
        f"loss_over_bag_size-{slug(summary, group)}",
        f"Held-out loss over bag size, {group_label(members)}",
        f"{group_details(members)}; {number(int(plain['seeds'].max()), 'seed')}. {READING}{known}",
        data,
        folders_of(summary, plain),
        lambda: _figure(data, best),
    )


def bag_size_data(summary: Summary, plain: pd.DataFrame) -> pd.DataFrame:
    """One row per setting: loss at the baseline's level, and the ends of its bar.

    Settings may have been run with different seeds, so each keeps its distance to the baseline of
    its own seeds and stands at the level of the baseline over all of them.
    """
    pairs = pairs_of(summary, plain)
    seeds = pairs.drop_duplicates("seed")["baseline"]
    level = float(seeds.mean())
    rows = []
    for row in rows_of(plain.sort_values(["step_ratio", "bag_size"])):
        rows.append(
            {
                "step_ratio": row["step_ratio"],
                "bag_size": row["bag_size"],
                "seeds": row["seeds"],
                "loss": level - row["gain"],
                "low": level - row["high"] if pd.notna(row["high"]) else np.nan,
                "high": level - row["low"] if pd.notna(row["low"]) else np.nan,
                "baseline": level,
                "baseline_low": float(seeds.min()),
                "baseline_high": float(seeds.max()),
            }
        )
    return pd.DataFrame(rows)


def draw(axes: Axes, data: pd.DataFrame, optimum: float | None) -> None:
    first = data.iloc[0]
    axes.axhspan(first["baseline_low"], first["baseline_high"], color=INK, alpha=0.08, lw=0)
    axes.axhline(first["baseline"], color=INK, linewidth=1.0)
    ratios = sorted(data["step_ratio"].unique())
    for index, ratio in enumerate(ratios):
        rows, mark = data[data["step_ratio"] == ratio], cycle_mark(index)
        shift = 2 ** (0.06 * (index - (len(ratios) - 1) / 2))  # so that bars do not overlap
        x = rows["bag_size"] * shift
        label = f"r = {ratio:.3g}"
        line: dict[str, Any] = {"linestyle": mark.dash, "linewidth": 0.9, "label": label}
        axes.plot(x, rows["loss"], mark.marker, color=mark.colour, **line)
        axes.vlines(x, rows["low"], rows["high"], color=mark.colour, linewidth=1.0)
    _limits(axes, data, optimum)
    axes.annotate(
        "baseline",
        (1.0, first["baseline"]),
        xycoords=("axes fraction", "data"),
        xytext=(-1, 2),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=7,
    )
    sizes = sorted(data["bag_size"].unique())
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set_xlim(sizes[0] / 1.25, sizes[-1] * 1.25)
    shared = f", at {label}" if len(ratios) == 1 else ""
    axes.set_xlabel(f"bag size s (log scale){shared}")
    axes.set_ylabel("held-out loss (nats per token)")
    if not shared:
        axes.legend(loc="best")


def _limits(axes: Axes, data: pd.DataFrame, optimum: float | None) -> None:
    """All points and the baseline; bars of two seeds may leave the frame; the optimum if near."""
    inner = [*data["loss"], data["baseline_low"].min(), data["baseline_high"].max()]
    span = max(max(inner) - min(inner), 1e-3)
    low = max(data["low"].min(), min(inner) - span) if data["low"].notna().any() else min(inner)
    high = min(data["high"].max(), max(inner) + span) if data["high"].notna().any() else max(inner)
    low, high = min(low, *inner), max(high, *inner)
    if optimum is not None and low - optimum < 2 * span:
        low = min(low, optimum)
        axes.axhline(optimum, color=MUTED, linewidth=0.8, linestyle=(0, (1, 1.5)))
        axes.annotate(
            "entropy of the language",
            (0.0, optimum),
            xycoords=("axes fraction", "data"),
            xytext=(3, 2),
            textcoords="offset points",
            color=MUTED,
            fontsize=7,
        )
    pad = 0.06 * (high - low)
    axes.set_ylim(low - pad, high + pad)


def _figure(data: pd.DataFrame, optimum: float | None) -> Figure:
    figure, (axes,) = new_figure(COLUMN, 2.4)
    draw(axes, data, optimum)
    return figure
