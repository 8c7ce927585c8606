"""Compute multiplier against loss: how much more compute the baseline needs for the same loss."""

from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tst_study.analysis import published
from tst_study.analysis.fits.scaling.compute_multiplier import compute_multiplier as multiplier
from tst_study.analysis.fits.scaling.compute_multiplier import multipliers_of
from tst_study.analysis.summary import Summary
from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.wording import number, told_apart_by_set_up
from tst_study.config.superposition_setting import SuperpositionSetting
from tst_study.paper_figures.catalogue import figure, submit
from tst_study.paper_figures.drawing import key, lines
from tst_study.paper_figures.item import Finding
from tst_study.paper_figures.picture import Picture
from tst_study.paper_figures.sources import Sources
from tst_study.paper_figures.style import MUTED, PAGE, Look, bag_size_mark, new_figure

LENGTHS = (4, 5)
"""Tables of one model at two lengths: 270M."""
BAGS = (4, 6, 8)
PANELS = ("published, 270M", "published, Table 1")
RATIO = 0.3
POINTS = {
    "3B, s = 6": ("3B", 36_000, 20_000, 6),
    "10B-A1B, s = 16": ("10B-A1B", 125_000, 49_983, 16),
}
"""Pairs of Table 1 at about the same loss: model, steps of the baseline and of TST, s."""
DATA = ["panel", "label", "bag_size", "loss", "multiplier", "low", "high"]


@figure(
    "compute_multiplier",
    title="Compute multiplier against loss",
    published=["headline_runs", "final_loss_grid"],
    needs=submit("loss-against-compute", "one-gpu"),
)
def compute_multiplier(sources: Sources) -> Picture:
    """Left from the published numbers, right from runs of two or more lengths."""
    own, used, reasons = _measured(sources.summary)
    left = _interpolated().assign(panel=PANELS[0])
    data = pd.concat([left, _points(), own], ignore_index=True)
    not_drawn = "".join(f" Not drawn: {reason}." for reason in reasons)
    shown = data[data["panel"].isin(PANELS)]
    said = f"not shown as a curve; from its numbers: {_spans(shown)}"
    return Picture(
        caption="How many times the FLOPs the baseline needs for the same loss; losses fall to the "
        f"right. Published: 270M at r = {RATIO} between 20k and 100k steps (Tables 4 and 5, a "
        "power law beyond half the highest floor that these two allow), and the pairs of Table 1 "
        f"at about one loss; one seed each, no interval.{not_drawn}",
        measured=f"Measured: {number(len(used), 'run')}; bands: 95% by the seeds' paired "
        "differences, of all settings of one text, model and learning rate together; no band where "
        "the lengths leave a side of it open.",
        data=data.reindex(columns=DATA),
        folders=used,
        draw=partial(_figure, data),
        finding=Finding(said, _spans(own), verdict="not in the paper"),
    )


def _interpolated() -> pd.DataFrame:
    """270M between 20k and 100k steps, by bag size."""
    cells = pd.concat([published.loss_grid(table) for table in LENGTHS])
    cells = cells.assign(flops=cells["steps"] * float(published.step_flops("270M")), seed=0)
    parts = []
    for size in BAGS:
        arm = cells[(cells["bag_size"] == size) & (cells["step_ratio"] == RATIO)]
        found = multiplier(cells[cells["bag_size"] == 1], arm)
        parts.append(found.assign(label=f"270M, s = {size}", bag_size=size))
    return pd.concat(parts, ignore_index=True)


def _points() -> pd.DataFrame:
    """Steps over steps where Table 1 has both arms at about one loss; the loss is TST's."""
    runs = published.headline_runs().query("method == 'tst'")
    losses = runs.set_index(["params", "total_steps"])["final_loss"]
    rows = [
        (PANELS[1], label, size, losses[params, steps], baseline / steps)
        for label, (params, baseline, steps, size) in POINTS.items()
    ]
    return pd.DataFrame(rows, columns=DATA[:5])


def _measured(summary: Summary) -> tuple[pd.DataFrame, tuple[str, ...], list[str]]:
    """Plain settings that were run, like their baseline, at two or more lengths."""
    runs = summary.comparison.eligible
    runs = runs.assign(loss=runs["nats_per_token"].astype(float))
    every: list[tuple[dict[str, Any], str, pd.DataFrame | str]] = []
    used: set[str] = set()
    for _, family in runs.groupby(["family", "learning_rate", "eval_set"], sort=True):
        baseline = family[family["method"] == "baseline"]
        if baseline["steps"].nunique() < 2:
            continue
        superposed = family[family["method"] != "baseline"]
        for name, members, found in multipliers_of(baseline, superposed, losses=9):
            first = next(rows_of(members))
            if not SuperpositionSetting.of_row(first).is_plain:
                continue
            every.append((first, f"{first['corpus']}, {name}", found))
            if not isinstance(found, str):
                used |= {*baseline["folder"], *members["folder"]}
    firsts = [first for first, *_ in every]
    labels = told_apart_by_set_up([name for _, name, _ in every], firsts, key="family")
    parts: list[pd.DataFrame] = []
    reasons: list[str] = []
    for label, (first, _, found) in zip(labels, every, strict=True):
        if isinstance(found, str):
            reasons.append(f"{label}: {found}")
        else:
            parts.append(found.assign(panel="measured", label=label, bag_size=first["bag_size"]))
    table = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=DATA)
    return table, tuple(sorted(used)), reasons


def _figure(data: pd.DataFrame) -> Figure:
    panels = list(dict.fromkeys(data["panel"]))
    drawn, (row,) = new_figure(PAGE, 2.8, len(panels))
    for axes, panel in zip(row, panels, strict=True):
        _draw(axes, data[data["panel"] == panel], panel)
        axes.set_xlabel("loss reached by both (nats per token)")
    row[0].set_ylabel("FLOPs of the baseline over FLOPs")
    return drawn


def _draw(axes: Axes, data: pd.DataFrame, panel: str) -> None:
    axes.axhline(1, color=MUTED, linewidth=0.7)
    looks: dict[str, Look] = {}
    for label, rows in data.groupby("label", sort=False):
        mark = bag_size_mark(int(rows["bag_size"].iloc[0]))
        if len(rows) == 1:
            axes.plot(rows["loss"], rows["multiplier"], mark.marker, color=mark.colour)
            looks[str(label)] = {"color": mark.colour, "marker": mark.marker}
        else:
            lines(axes, rows, {str(label): mark}, x="loss", y="multiplier")
            dash = (0, mark.dash) if mark.dash else "-"
            looks[str(label)] = {"color": mark.colour, "linestyle": dash}
    axes.invert_xaxis()
    axes.set_ylim(min(0.9, axes.get_ylim()[0]), None)
    key(axes, looks, 1, panel, loc="lower left", bbox_to_anchor=(0, 1), alignment="left")


def _spans(data: pd.DataFrame) -> str:
    said = []
    for label, rows in data.groupby("label", sort=False):
        low, high = rows["multiplier"].min(), rows["multiplier"].max()
        said.append(f"{label}: {low:.2f}" + (f" to {high:.2f}" if high - low > 0.005 else ""))
    return "; ".join(said)
