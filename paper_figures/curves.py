"""Loss curves, published and measured, in the same columns, and how they are drawn.

A superposed phase is a loss of bags, another quantity: pale, and never joined to what follows.
Measured runs have their held-out loss at the end of the curve, which is what is compared.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from tst_study.analysis import published
from tst_study.analysis.summary import Summary
from tst_study.analysis.tables.columns import rows_of
from tst_study.paper_figures.drawing import (
    is_baseline,
    is_hollow,
    lines,
    log_axis,
    point,
    step_axis,
    switch_line,
)
from tst_study.paper_figures.groups import Group
from tst_study.paper_figures.style import BASELINE, Look, Mark, cycle_mark

COLUMNS = (
    *("source", "panel", "label", "quantity", "step", "loss", "low", "high", "switch"),
    *("seeds", "verdict"),
)
"""`quantity`: bag_loss and next_token (training; low and high: range over seeds), or held_out (low
and high: 95% interval of the paired gain, at the baseline's level)."""
SMOOTHED = "Published curves are smoothed as the paper drew them, about 1,000 points each"
SMOOTHING = 0.05
"""Width of the running mean of measured curves, as a share of all steps."""
OFTEN = 10
"""Evaluations of a run from which on its curve is its held-out loss: that of a batch is so noisy
that it hides what superposition does."""
OWN_SMOOTHING = (
    f"held-out loss where runs were evaluated {OFTEN} times or more, else training loss, a running "
    f"mean over {SMOOTHING:.0%} of the steps, never across the switch"
)
ENDS = (
    "marks at the end: held-out loss, bars the 95% interval of the paired gain, hollow where no "
    "difference is shown"
)
READING = f"mean over seeds, {OWN_SMOOTHING}; shading: range over seeds; {ENDS}"
"""Of measured curves, for a caption."""
POINTS = 500
"""Points drawn per curve: more than a printed column can show."""


def published_curves(
    figure: int, runs: Mapping[str, str], superposed: int, panel: str = ""
) -> pd.DataFrame:
    """The published curves of one panel, in the columns of `COLUMNS`; `runs`: name by label, all
    but baselines with so many superposed steps."""
    table = published.curves(figure).query("panel == @panel").sort_values("step")
    parts = []
    for label, run in runs.items():
        rows, switch = table[table["run"] == run], 0 if is_baseline(label) else superposed
        quantity = np.where(rows["step"] <= switch, "bag_loss", "next_token")
        named = rows.assign(source="published", label=label, switch=switch, quantity=quantity)
        parts.append(named)
    return pd.concat(parts, ignore_index=True).reindex(columns=list(COLUMNS))


def group_curves(group: Group, names: Sequence[str], panel: str = "") -> pd.DataFrame:
    """Settings of a group under these names, and their baseline, with their held-out ends."""
    runs, pairs = group.summary.tables.runs, group.pairs
    base = runs[runs["folder"].isin(pairs["baseline_folder"])]
    parts = [mean_curve(group.summary, "baseline", base)]
    for name, setting in zip(names, group.rows["setting"], strict=True):
        own = pairs[pairs["setting"] == setting]["superposed_folder"]
        parts.append(mean_curve(group.summary, name, runs[runs["folder"].isin(own)]))
    ends = group.beside_baseline()
    level = {"label": "baseline", "loss": ends["baseline"].iloc[0], "seeds": ends["seeds"].max()}
    named = ends.assign(
        label=ends["setting"].map(dict(zip(group.rows["setting"], names, strict=True)))
    )
    ends = pd.concat([pd.DataFrame([level]), named], ignore_index=True)
    parts.append(ends.assign(quantity="held_out", step=group.steps, switch=0, source="measured"))
    return pd.concat(parts, ignore_index=True).assign(panel=panel)[list(COLUMNS)]


def mean_curve(summary: Summary, label: str, runs: pd.DataFrame) -> pd.DataFrame:
    """One line: the mean over runs (rows of the run table) that differ in their seed alone.

    Runs that were interrupted have rows of other steps: between its rows a run is interpolated, so
    that the mean is over all seeds at every step.
    """
    curves, first = summary.tables.curves, runs.iloc[0]
    mine = curves[curves["folder"].isin(runs["folder"])].astype({"folder": str})
    steps = int(first["steps"])
    held_out = _held_out(summary, runs)
    if not held_out.empty:
        mine = mine[mine["loss_name"] != "next_token"]
    parts = [
        smoothed(rows, steps).assign(folder=str(folder))
        for (folder, _, _), rows in mine.groupby(["folder", "phase", "loss_name"], sort=True)
    ]
    tables = []
    logged = [rows for rows in (held_out, *parts) if len(rows)]
    if not logged:
        return pd.DataFrame(columns=list(COLUMNS))
    for quantity, rows in pd.concat(logged).groupby("quantity", sort=True):
        by_run = rows.pivot_table(index="step", columns="folder", values="loss")
        whole = by_run.interpolate("index", limit_area="inside").T
        spread = {"loss": whole.mean(), "low": whole.min(), "high": whole.max()}
        tables.append(pd.DataFrame(spread).reset_index().assign(quantity=quantity))
    table = pd.concat(tables, ignore_index=True)
    # The last row of each of equal stretches, by step, so that arms stay aligned.
    stretch = (table["step"] * POINTS / steps).apply(np.ceil)
    table = table[~table.assign(stretch=stretch).duplicated(["quantity", "stretch"], keep="last")]
    named: dict[str, Any] = {"source": "measured", "panel": "", "label": label}
    table = table.assign(**named, seeds=runs["seed"].nunique(), switch=first["superposed_steps"])
    return table.reindex(columns=list(COLUMNS))


def _held_out(summary: Summary, runs: pd.DataFrame) -> pd.DataFrame:
    """Held-out losses of next tokens, in the columns of `smoothed`; none where evaluations are too
    few for a curve."""
    table = summary.tables.held_out
    table = table[table["folder"].isin(runs["folder"]) & table["eval_set"].isin(runs["eval_set"])]
    table = table.astype({"folder": str})
    if table.groupby("folder").size().reindex(runs["folder"].astype(str)).fillna(0).min() < OFTEN:
        table = table.iloc[:0]
    found = table[table["phase"] == "recovery"].rename(columns={"nats_per_token": "loss"})
    return found[["folder", "step", "loss"]].assign(quantity="next_token")


def smoothed(rows: pd.DataFrame, steps: int) -> pd.DataFrame:
    """One phase of one run: centred running mean, its window never reaching into another phase."""
    rows = rows.sort_values("step")
    spacing = float(np.median(np.diff(rows["step"]))) if len(rows) > 1 else 1.0
    window = max(1, round(SMOOTHING * steps / spacing))
    is_next_token = rows["loss_name"].iloc[0] == "next_token"
    return pd.DataFrame(
        {
            "quantity": "next_token" if is_next_token else "bag_loss",
            "step": rows["step"],
            "loss": rows["loss"].rolling(window, center=True, min_periods=1).mean(),
        }
    )


def marks(labels: Sequence[str]) -> dict[str, Mark]:
    """Baselines are ink and solid; the others in their order of appearance."""
    others = [label for label in dict.fromkeys(labels) if not is_baseline(label)]
    return {
        label: cycle_mark(others.index(label)) if label in others else BASELINE for label in labels
    }


def draw(
    axes: Axes,
    data: pd.DataFrame,
    looks: Mapping[str, Mark],
    window: tuple[float, float],
    loss: tuple[float, float] | None = None,
    *,
    solid: bool = False,
) -> None:
    """The curves of one panel between two steps; `loss`: its limits, or None for a whole run on a
    log scale."""
    for quantity, rows in data.groupby("quantity", sort=False):
        if quantity == "next_token":
            lines(axes, rows, looks, solid=solid)
        elif quantity == "bag_loss":
            lines(axes, rows, looks, solid=True, band=False, linewidth=0.7, alpha=0.45)
    draw_ends(axes, data, looks)
    axes.set_xlim(*window)
    if loss is None:
        whole_on_log_scale(axes, data)
    else:
        axes.set_ylim(*loss)
    for switch in sorted(set(data["switch"].astype(int)) - {0}):
        if window[0] < switch < window[1]:
            switch_line(axes, switch)
    step_axis(axes)


def draw_ends(axes: Axes, data: pd.DataFrame, looks: Mapping[str, Mark]) -> None:
    for row in rows_of(data[data["quantity"] == "held_out"]):
        words = f"{said(row)} held-out, {row['seeds']:.0f} seeds"
        look: Look = {"hollow": is_hollow(row), "words": words, "clip_on": False, "markersize": 3.5}
        at, bar = (row["step"], row["loss"]), (row["low"], row["high"])
        point(axes, at, looks[row["label"]], bar, **look)


def last_losses(data: pd.DataFrame) -> dict[str, tuple[float, str]]:
    """By label: the held-out loss of runs, the last training loss of published curves; as said."""
    ends = data[data["quantity"] == "held_out"]
    if len(ends):
        return {row["label"]: (row["loss"], said(row)) for row in rows_of(ends)}
    found = {str(label): last(rows) for label, rows in data.groupby("label", sort=False)}
    return {label: (loss, f"{label}: {loss:.3f}") for label, loss in found.items()}


def legend_looks(data: pd.DataFrame, looks: Mapping[str, Mark]) -> dict[str, Mark]:
    return {words: looks[label] for label, (_, words) in last_losses(data).items()}


def said(row: Mapping[str, Any]) -> str:
    """`s = 4: 3.356 [3.272, 3.440]`."""
    bounded = pd.notna(row["low"])
    interval = f" [{row['low']:.3f}, {row['high']:.3f}]" if bounded else ""
    return f"{row['label']}: {row['loss']:.3f}{interval}"


def limits(
    data: pd.DataFrame, window: tuple[float, float], settled: float = 0.15
) -> tuple[float, float]:
    """Limits of the loss that hold all next-token losses once the first `settled` has passed."""
    start = window[0] + settled * (window[1] - window[0])
    late = data[(data["step"] >= start) & (data["step"] <= window[1])]
    late = late[late["quantity"] != "bag_loss"]
    held_out = late[late["quantity"] == "held_out"]
    ends = [*late["loss"], *held_out["low"].dropna(), *held_out["high"].dropna()]
    low, high = float(min(ends)), float(max(ends))
    pad = 0.06 * (high - low)
    return low - pad, high + pad


def whole_on_log_scale(axes: Axes, data: pd.DataFrame) -> None:
    """Limits and ticks for a whole run, its loss of bags included, on a log scale."""
    started = data[data["step"] > 0.01 * data["step"].max()]
    low, high = float(data["loss"].min()), float(started["loss"].max())
    ticks = (1, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 10)
    log_axis(axes, "y", [tick for tick in ticks if low <= tick <= high])
    axes.set_ylim(low * 0.98, high * 1.02)


def end_of(data: pd.DataFrame) -> float:
    """The last step, rounded up to three digits: published curves end a few steps early."""
    step = float(data["step"].max())
    unit = 10.0 ** (math.floor(math.log10(step)) - 2)
    return math.ceil(step / unit) * unit


def last(rows: pd.DataFrame) -> float:
    tokens = rows[rows["quantity"] == "next_token"]
    return float(tokens.sort_values("step")["loss"].iloc[-1])
