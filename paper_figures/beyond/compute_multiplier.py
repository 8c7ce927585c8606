"""Compute multiplier against loss: how much more compute the baseline needs for the same loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.compute_multiplier import compute_multiplier
from analysis.published import PARAMS
from analysis.run_row import rows_of
from analysis.summary import Summary
from analysis.superposition_law import published_law
from analysis.wording import is_plain, number, setting_label
from paper_figures.item import Finding, Item, Missing, command
from paper_figures.paper.headline_runs import step_flops
from paper_figures.picture import Picture
from paper_figures.published_numbers import HEADLINE, LOSSES, loss_grid, table
from paper_figures.sources import Sources
from paper_figures.style import INK, MUTED, PAGE, bag_size_mark, new_figure
from tst_study.errors import UserError

LENGTHS = {4: 20_000, 5: 100_000}
"""Tables of one model at two lengths: 270M."""
BAGS = (4, 6, 8)
LAW_BAG = 6
PANELS = ("published, 270M", "published, all sizes")
RATIO = 0.3
POINTS = {
    "3B, s = 6": ("3B", 36_000, 20_000, 6),
    "10B-A1B, s = 16": ("10B-A1B", 125_000, 49_983, 16),
}
"""Pairs of Table 1 at about the same loss: model, steps of the baseline and of TST, s."""
NEEDS = command("loss-against-compute", "one-gpu")
DATA = ("panel", "label", "bag_size", "loss", "multiplier", "low", "high")


def items(sources: Sources, name: str) -> list[Item | Missing]:
    """Left from the published numbers, right from runs of two or more lengths."""
    own, used, reasons = _measured(sources.summary)
    law = _by_law()
    left = pd.concat([_interpolated(), law[law["label"].str.startswith("270M")]])
    data = pd.concat([left.assign(panel=PANELS[0]), _points(), law, own], ignore_index=True)
    return [
        Picture(
            "compute_multiplier",
            name,
            "Compute multiplier against loss",
            _caption(own, used, reasons),
            data.reindex(columns=list(DATA)),
            used,
            lambda: _figure(data),
            published=(HEADLINE, LOSSES),
            finding=_finding(data, own),
        )
    ]


def _interpolated() -> pd.DataFrame:
    """270M between 20k and 100k steps, by bag size."""
    grids = {steps: loss_grid(number) for number, steps in LENGTHS.items()}
    parts = []
    for bag_size in BAGS:
        arms = []
        for size, ratio in ((1, 0.0), (bag_size, RATIO)):
            losses = [
                grid[(grid["bag_size"] == size) & (grid["step_ratio"] == ratio)]["final_loss"].iloc[
                    0
                ]
                for grid in grids.values()
            ]
            flops = [float(steps * step_flops("270M")) for steps in grids]
            arms.append(pd.DataFrame({"flops": flops, "loss": losses, "seed": 0}))
        found = compute_multiplier(arms[0], arms[1])
        label = f"270M, s = {bag_size}"
        parts.append(found.assign(label=label, bag_size=bag_size))
    return pd.concat(parts, ignore_index=True)


def _by_law() -> pd.DataFrame:
    """The law's word on both of its sizes, at the s and r of Table 1."""
    law, rows = published_law(), []
    for size in ("270M", "600M"):
        for steps in np.geomspace(20_000, 100_000, 9):
            loss = law.loss(size, steps, LAW_BAG, RATIO)
            gain = law.gain(PARAMS[size], steps, LAW_BAG, RATIO)
            reached = law.baseline_steps(steps, gain)
            if reached is not None:
                row = {"loss": loss, "multiplier": reached / steps, "bag_size": LAW_BAG}
                rows.append(
                    {"panel": PANELS[1], "label": f"{size}, s = {LAW_BAG}, by the law", **row}
                )
    return pd.DataFrame(rows)


def _points() -> pd.DataFrame:
    """Steps over steps where Table 1 has both arms at about one loss; the loss is TST's."""
    runs = table(HEADLINE)
    rows = []
    for label, (params, baseline, steps, bag_size) in POINTS.items():
        same = runs[(runs["params"] == params) & (runs["method"] == "tst")]
        loss = float(same[same["total_steps"] == steps]["final_loss"].iloc[0])
        rows.append(
            {
                "panel": PANELS[1],
                "label": label,
                "bag_size": bag_size,
                "loss": loss,
                "multiplier": baseline / steps,
            }
        )
    return pd.DataFrame(rows)


def _measured(summary: Summary) -> tuple[pd.DataFrame, tuple[str, ...], list[str]]:
    """Plain settings that were run, like their baseline, at two or more lengths."""
    runs = summary.comparison.eligible
    runs = runs.assign(loss=runs["nats_per_token"].astype(float), ratio=_ratios(runs))
    parts: list[pd.DataFrame] = []
    used: set[str] = set()
    reasons: list[str] = []
    for _, family in runs.groupby(["family", "learning_rate", "eval_set"], sort=True):
        baseline = family[family["method"] == "baseline"]
        superposed = family[[is_plain(row) for row in rows_of(family)]]
        for _, members in superposed.groupby(["bag_size", "ratio"]):
            if members["steps"].nunique() < 2 or baseline["steps"].nunique() < 2:
                continue
            first = next(rows_of(members))
            label = f"{first['corpus']}, {setting_label(first)}"
            try:
                found = compute_multiplier(baseline, members)
            except UserError as error:
                reasons.append(f"{label}: {error}")
                continue
            parts.append(found.assign(panel="measured", label=label, bag_size=first["bag_size"]))
            used |= {*baseline["folder"], *members["folder"]}
    table = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(DATA))
    return table, tuple(sorted(used)), reasons


def _ratios(runs: pd.DataFrame) -> pd.Series:
    return runs["step_ratio"].astype(float).round(2)


def _figure(data: pd.DataFrame) -> Figure:
    panels = list(dict.fromkeys(data["panel"]))
    figure, row = new_figure(PAGE, 2.4, len(panels))
    for axes, panel in zip(row, panels, strict=True):
        _draw(axes, data[data["panel"] == panel])
        axes.set_title(panel)
        axes.set_xlabel("loss reached by both (nats per token)")
    row[0].set_ylabel("FLOPs of the baseline over FLOPs")
    return figure


def _draw(axes: Axes, data: pd.DataFrame) -> None:
    axes.axhline(1, color=MUTED, linewidth=0.7)
    for label, rows in data.groupby("label", sort=False):
        mark = bag_size_mark(int(rows["bag_size"].iloc[0]))
        law = str(label).endswith("by the law")
        look: dict[str, Any] = {"color": INK if law else mark.colour, "label": label}
        dash = "-" if "270M" in str(label) else (0, (4, 1.5))
        look["linestyle"] = "none" if len(rows) == 1 else dash if law else mark.dash
        look["marker"] = mark.marker if len(rows) == 1 else "none"
        axes.plot(rows["loss"], rows["multiplier"], linewidth=1.0, **look)
        if rows["low"].notna().any():
            low, high = rows["low"].astype(float), rows["high"].astype(float)
            axes.fill_between(rows["loss"], low, high, color=mark.colour, alpha=0.15, lw=0)
    axes.invert_xaxis()
    axes.set_ylim(0.9, None)
    axes.legend(loc="center left")


def _caption(own: pd.DataFrame, used: tuple[str, ...], reasons: list[str]) -> str:
    text = (
        "How many times the FLOPs the baseline needs for the same loss; losses fall to the right. "
        f"Published: 270M at r = {RATIO} between 20k and 100k steps (Tables 4 and 5, linear "
        "in log FLOPs between these two), the law of superposition, which bends, and the pairs of "
        "Table 1 at about one loss; one seed each, no interval. "
    )
    if own.empty:
        text += f"Nothing measured, which needs two or more lengths of both arms: `{NEEDS}`."
    else:
        text += (
            f"Measured: {number(len(used), 'run')}; bands: 95% over seeds drawn with replacement."
        )
    return text + "".join(f" Not drawn: {reason}." for reason in reasons)


def _finding(data: pd.DataFrame, own: pd.DataFrame) -> Finding:
    published = data[data["panel"].isin(PANELS)].drop_duplicates(["label", "loss"])
    said = "; ".join(
        _span(str(label), rows) for label, rows in published.groupby("label", sort=False)
    )
    text = f"not shown as a curve; from its numbers: {said}"
    if own.empty:
        return Finding(text, needs=NEEDS)
    measured = "; ".join(
        _span(str(label), rows) for label, rows in own.groupby("label", sort=False)
    )
    return Finding(text, measured, "", "not in the paper")


def _span(label: str, rows: pd.DataFrame) -> str:
    low, high = rows["multiplier"].min(), rows["multiplier"].max()
    return f"{label}: {low:.2f}" + (f" to {high:.2f}" if high - low > 0.005 else "")
