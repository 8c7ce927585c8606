"""Training loss against steps, baseline and superposition, the switch marked (paper, Figure 1).

The loss of the superposition phase is that of bags: another quantity, drawn thin and pale and
named so. Everything else is next-token loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.summary import Summary
from analysis.wording import group_details, group_label, number
from paper_figures.item import Item, Missing, command
from paper_figures.picture import Picture
from paper_figures.sources import Sources
from paper_figures.study.selection import (
    folders_of,
    main_groups,
    pairs_of,
    representative,
    slug,
)
from paper_figures.style import (
    COLUMN,
    MUTED,
    PAPER,
    bag_size_mark,
    new_figure,
    switch_line,
    thousands,
)

KIND = "loss_curves"
TITLE = "Training loss against steps"
SMOOTHING = 0.02
"""Width of the running mean, as a share of all steps."""
POINTS = 500
"""Points drawn per curve: more than a printed column can show."""


def items(sources: Sources, name: str = KIND) -> list[Item | Missing]:
    """Per corpus and model, at its main length: the whole run, and its end."""
    summary = sources.summary
    found: list[Item | Missing] = []
    for group, rows in main_groups(summary):
        chosen = representative(rows)
        if len(chosen):
            found += _pictures_of_group(summary, group, chosen)
    return found or [
        Missing(
            KIND,
            TITLE,
            "Needs a finished baseline and a finished superposed run of one seed: "
            f"`{command('laptop', 'quick')}`.",
        )
    ]


def _pictures_of_group(summary: Summary, group: str, chosen: pd.DataFrame) -> list[Picture]:
    members = summary.tables.runs[summary.tables.runs["group"] == group]
    data = curve_data(summary, chosen)
    held_out = evaluation_data(summary, chosen)
    folders = folders_of(summary, chosen)
    seeds = int(chosen["seeds"].max())
    start = (
        f"{group_details(members)}; r = {chosen['step_ratio'].iloc[0]:.3g}. Mean over "
        f"{number(seeds, 'seed')}, "
        f"running mean over {SMOOTHING:.0%} of the steps, never across the switch"
    )
    whole = (
        f"{start}; shading: range over seeds. Every step costs the same FLOPs. The pale part "
        "before the switch is the loss of bags, a different quantity that is not to be compared "
        "with next-token loss."
    )
    end = (
        f"{start}. Lines: next-token training loss from the switch on. Points: loss on held-out "
        "text; only those at the last step, where the learning rate is annealed, are compared."
    )
    name = slug(summary, group)
    return [
        Picture(
            KIND,
            f"loss_curves-{name}",
            f"Training loss, {group_label(members)}",
            whole,
            data,
            folders,
            lambda: _whole(data),
        ),
        Picture(
            KIND,
            f"loss_curves_end-{name}",
            f"After the switch, {group_label(members)}",
            end,
            pd.concat([data[data["quantity"] == "next_token"], held_out], ignore_index=True),
            folders,
            lambda: _end(data, held_out),
        ),
    ]


def curve_data(summary: Summary, chosen: pd.DataFrame) -> pd.DataFrame:
    """Smoothed curves: setting, bag_size, quantity, step, loss (mean), low and high over seeds."""
    parts = []
    for setting, bag_size, steps, folders in _arms(summary, chosen):
        table = curve_of(summary, folders, steps)
        table.insert(0, "setting", setting)
        table.insert(1, "bag_size", bag_size)
        parts.append(table)
    return pd.concat(parts, ignore_index=True)


def curve_of(summary: Summary, folders: Sequence[str], steps: int) -> pd.DataFrame:
    """The smoothed curve of runs that differ in their seed alone: quantity, step, loss, low, "
    "high."""
    curves = summary.tables.curves
    mine = curves[curves["folder"].isin(folders)]
    mine = mine.assign(folder=mine["folder"].astype(str))
    smooth = [
        _smoothed(rows, steps)
        for _, rows in mine.groupby(["folder", "phase", "loss_name"], sort=True)
    ]
    by_step = pd.concat(smooth).groupby(["quantity", "step"], sort=True)["loss"]
    return _thinned(by_step.agg(loss="mean", low="min", high="max").reset_index(), steps)


def evaluation_data(summary: Summary, chosen: pd.DataFrame) -> pd.DataFrame:
    """Held-out loss of the recovery phase, mean over seeds; a mid-superposition model is none."""
    table = summary.tables.evaluations
    table = table[table["phase"] == "recovery"]
    parts = []
    for setting, bag_size, _steps, folders in _arms(summary, chosen):
        mine = table[table["folder"].isin(folders)]
        mine = mine[mine["eval_set"].isin(set(chosen["eval_set"]))]
        by_step = mine.groupby("step", sort=True)["nats_per_token"]
        rows = by_step.agg(loss="mean", low="min", high="max").reset_index()
        rows.insert(0, "setting", setting)
        rows.insert(1, "bag_size", bag_size)
        rows.insert(2, "quantity", "held_out")
        parts.append(rows)
    return pd.concat(parts, ignore_index=True)


def _arms(summary: Summary, chosen: pd.DataFrame) -> list[tuple[str, int, int, tuple[str, ...]]]:
    """(setting, bag size, steps, run folders), the baseline first."""
    steps = int(chosen["steps"].iloc[0])
    pairs = pairs_of(summary, chosen)
    arms = [("baseline", 1, steps, tuple(sorted(set(pairs["baseline_folder"]))))]
    for setting, bag_size in zip(chosen["setting"], chosen["bag_size"], strict=True):
        mine = tuple(sorted(pairs[pairs["setting"] == setting]["superposed_folder"]))
        # Several share their r, which the caption names.
        label = f"s = {bag_size}" if len(chosen) > 1 else str(setting)
        arms.append((label, int(bag_size), steps, mine))
    return arms


def _smoothed(rows: pd.DataFrame, steps: int) -> pd.DataFrame:
    """One phase of one run: centred running mean, its window never reaching into another phase."""
    rows = rows.sort_values("step")
    spacing = float(np.median(np.diff(rows["step"]))) if len(rows) > 1 else 1.0
    window = max(1, round(SMOOTHING * steps / spacing))
    loss = rows["loss"].rolling(window, center=True, min_periods=1).mean()
    is_next_token = rows["loss_name"].iloc[0] == "next_token"
    return pd.DataFrame(
        {
            "quantity": "next_token" if is_next_token else "bag_loss",
            "step": rows["step"],
            "loss": loss,
        }
    )


def _thinned(table: pd.DataFrame, steps: int) -> pd.DataFrame:
    """The last row of each of `POINTS` equal stretches, by step, so that arms stay aligned."""
    stretch = (table["step"] * POINTS / steps).apply(np.ceil)
    return table[~pd.DataFrame({"q": table["quantity"], "s": stretch}).duplicated(keep="last")]


def draw_whole(axes: Axes, data: pd.DataFrame) -> None:
    """All of the run, bag losses pale; the axis starts where the steepest part is over."""
    steps = int(data["step"].max())
    for setting, rows in data.groupby("setting", sort=False):
        mark = bag_size_mark(int(rows["bag_size"].iloc[0]))
        bags = rows[rows["quantity"] == "bag_loss"]
        tokens = rows[rows["quantity"] == "next_token"]
        axes.plot(bags["step"], bags["loss"], color=mark.colour, linewidth=0.8, alpha=0.45)
        axes.fill_between(
            tokens["step"], tokens["low"], tokens["high"], color=mark.colour, alpha=0.15, lw=0
        )
        axes.plot(
            tokens["step"], tokens["loss"], color=mark.colour, linestyle=mark.dash, label=setting
        )
    _mark_switches(axes, data)
    late = data[data["step"] > 0.04 * steps]
    low, high = float(data["low"].min()), float(late["loss"].max())
    axes.set_ylim(low - 0.06 * (high - low), high + 0.06 * (high - low))
    axes.set_xlim(0, steps)
    _label(axes, "training loss (nats per token)")
    if (data["quantity"] == "bag_loss").any():
        axes.plot([], [], color=MUTED, linewidth=0.8, alpha=0.6, label="loss of bags")
    axes.legend(loc="upper right")


def draw_end(axes: Axes, data: pd.DataFrame, held_out: pd.DataFrame) -> None:
    """From the switch on: next-token loss, and held-out loss as points."""
    steps = int(data["step"].max())
    start = _switches(data)[-1] if _switches(data) else 0
    tokens = data[(data["quantity"] == "next_token") & (data["step"] >= start)]
    late = pd.concat([tokens, held_out])
    late = late[late["step"] >= start + 0.15 * (steps - start)]
    low, high = float(late["loss"].min()), float(late["loss"].max())
    for setting, rows in tokens.groupby("setting", sort=False):
        mark = bag_size_mark(int(rows["bag_size"].iloc[0]))
        colour = mark.colour
        axes.plot(rows["step"], rows["loss"], color=colour, linestyle=mark.dash, linewidth=0.9)
        inside = (held_out["step"] > start) & (held_out["loss"] <= high)
        points = held_out[inside & (held_out["setting"] == setting)]
        edge: dict[str, Any] = {
            "markeredgecolor": PAPER,
            "markeredgewidth": 0.5,
            "clip_on": False,
            "zorder": 4,
        }
        axes.plot(points["step"], points["loss"], mark.marker, color=colour, **edge)
        # One entry for both: a line that carries the setting's marker.
        axes.plot([], [], mark.marker, color=colour, linestyle=mark.dash, lw=0.9, label=setting)
    axes.set_ylim(low - 0.08 * (high - low), high + 0.08 * (high - low))
    axes.set_xlim(start, steps)
    _label(axes, "next-token loss (nats per token)")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, columnspacing=1.4)


def _switches(data: pd.DataFrame) -> list[int]:
    bags = data[data["quantity"] == "bag_loss"]
    return sorted({int(rows["step"].max()) for _, rows in bags.groupby("setting")})


def _mark_switches(axes: Axes, data: pd.DataFrame) -> None:
    for step in _switches(data):
        switch_line(axes, step)


def _label(axes: Axes, y: str) -> None:
    axes.set_xlabel("step")
    axes.set_ylabel(y)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(thousands)


def _whole(data: pd.DataFrame) -> Figure:
    figure, (axes,) = new_figure(COLUMN, 2.5)
    draw_whole(axes, data)
    return figure


def _end(data: pd.DataFrame, held_out: pd.DataFrame) -> Figure:
    figure, (axes,) = new_figure(COLUMN, 2.5)
    draw_end(axes, data, held_out)
    return figure
