"""Figure 9: weights of the tokens within a bag: uniform, 1/i, exp(−i), the first alone."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from analysis.run_row import rows_of
from analysis.summary import Summary
from analysis.wording import gain
from paper_figures.item import Finding, Item, Missing, Verdict, command
from paper_figures.measured import Arm, arms, folders
from paper_figures.paper import curves
from paper_figures.paper.measured_curves import SMOOTHED, of_settings
from paper_figures.picture import Picture
from paper_figures.published_numbers import CURVES
from paper_figures.sources import Sources
from paper_figures.style import PAGE, new_grid

WEIGHTINGS = {
    "uniform": "uniform",
    "power_law": "power law",
    "exponential": "exponential",
    "first_token": "first token",
    "mutual_information": "mutual information",
}
RUNS = (
    curves.Run("baseline", "baseline"),
    *(
        curves.Run(name, label, 20_000)
        for name, label in WEIGHTINGS.items()
        if name != "mutual_information"
    ),
)
PANELS = {"a_s4": 4, "b_s16": 16}
NEEDS = command("weightings", "paper")


def items(sources: Sources, name: str) -> list[Item | Missing]:
    """Above the published curves at s = 4 and 16, below up to two bag sizes that were run here."""
    found = _arms(sources.summary)
    data = pd.concat([curves.published(9, panel, RUNS) for panel in PANELS], ignore_index=True)
    if found:
        own = [_measured(sources.summary, arm) for arm in found]
        data = pd.concat([data, *own], ignore_index=True)
    paths = {path for arm in found for path in folders(sources.summary, arm.rows)}
    return [
        Picture(
            "bag_weightings",
            name,
            "Figure 9. Weights of the tokens within a bag",
            _caption(found),
            data,
            tuple(sorted(paths)),
            lambda: _figure(data),
            published=(CURVES,),
            finding=_finding(data, found),
        )
    ]


def _arms(summary: Summary) -> list[Arm]:
    """Settings of one s and r that differ in their weights alone: two bag sizes of one group."""
    best: list[Arm] = []
    for arm in arms(summary):
        rows = arm.rows[
            (arm.rows["mode"] == "full")
            & (arm.rows["loss_kind"] == "mce")
            & (arm.rows["optimizer_at_switch"] == "keep")
            & ~arm.rows["reinitialized"].astype(bool)
            & arm.rows["weighting"].isin(list(WEIGHTINGS))
        ]
        found: dict[int, Arm] = {}
        for _, same in rows.groupby(["bag_size", "superposed_steps"]):
            size = int(same["bag_size"].iloc[0])
            if len(same) >= 2 and (size not in found or len(same) > len(found[size].rows)):
                found[size] = Arm(same, arm.members, False)
        sizes = sorted(found)
        ends = [found[size] for size in dict.fromkeys([*sizes[:1], *sizes[-1:]])]
        best = max(best, ends, key=lambda entry: sum(len(one.rows) for one in entry))
    return best


def _measured(summary: Summary, arm: Arm) -> pd.DataFrame:
    first = arm.rows.iloc[0]
    panel = f"s = {first['bag_size']}, r = {first['step_ratio']:.3g}"
    names = [WEIGHTINGS[weighting] for weighting in arm.rows["weighting"]]
    return of_settings(summary, arm.rows, names, panel)


def _figure(data: pd.DataFrame) -> Figure:
    look = curves.marks(["baseline", *WEIGHTINGS.values()])
    sources = list(dict.fromkeys(data["source"]))
    figure, rows = new_grid(PAGE, 2.5 * len(sources), len(sources), 2)
    for row, source in zip(rows, sources, strict=True):
        mine = data[(data["source"] == source) & (data["quantity"] == "next_token")]
        panels = list(dict.fromkeys(mine["panel"]))
        for axes in row[len(panels) :]:
            axes.set_axis_off()
        for axes, panel in zip(row, panels, strict=False):
            part = mine[mine["panel"] == panel]
            window = (float(part["switch"].max()), curves.end_of(part))
            curves.draw(axes, part, look, window=window, loss=curves.limits(part, window))
            words = f"s = {PANELS[panel]}, r = 0.5" if panel in PANELS else panel
            axes.set_title(f"{source}: {words}, from the switch on")
        row[0].set_ylabel("training loss (nats per token)")
    return figure


def _caption(found: list[Arm]) -> str:
    text = (
        "Training loss of the recovery phase at equal FLOPs, r = 0.5, 40,000 steps; numbers: the "
        f"last of each curve. {curves.SMOOTHED}; one run each, of a model that the paper does not "
        "name. "
    )
    if not found:
        return text + f"Nothing measured: `{NEEDS}`, or `{command('weightings', 'one-gpu')}`."
    return text + (
        f"Below, measured: {found[0].scale}; mean over seeds, {SMOOTHED}; shading: range over "
        "seeds."
    )


def _finding(data: pd.DataFrame, found: list[Arm]) -> Finding:
    parts = []
    for panel, size in PANELS.items():
        own = data[data["panel"] == panel]
        ends = {str(label): curves.last(rows) for label, rows in own.groupby("label")}
        best = min(ends, key=ends.__getitem__)
        parts.append(
            f"s = {size}: {best} is best, {ends[best]:.3f} (baseline {ends['baseline']:.3f})"
        )
    published = "; ".join(parts)
    if not found:
        return Finding(published, needs=NEEDS)
    said = []
    for arm in found:
        best_row = next(rows_of(arm.rows.sort_values("gain", ascending=False)))
        said.append(
            f"s = {best_row['bag_size']}: {WEIGHTINGS[best_row['weighting']]} gains most, "
            f"{gain(best_row)}"
        )
    verdict: Verdict = "undecided"
    return Finding(published, "; ".join(said), found[0].scale, verdict)
