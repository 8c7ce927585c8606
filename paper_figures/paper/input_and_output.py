"""Figure 6: superposition at the input only, at the output only, and at both."""

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
from paper_figures.style import COLUMN, PAGE, new_grid

RUNS = (
    curves.Run("baseline", "baseline"),
    curves.Run("input_superposition", "input only", 20_000),
    curves.Run("output_superposition", "output only", 20_000),
    curves.Run("full_superposition", "both", 20_000),
)
MODES = {"input_only": "input only", "output_only": "output only", "full": "both"}
NEEDS = command("input-output", "paper")


def items(sources: Sources, name: str) -> list[Item | Missing]:
    """Left the published curves, right those of the widest comparison of modes run here."""
    data, arm = curves.published(6, None, RUNS), _arm(sources.summary)
    if arm is not None:
        data = pd.concat([data, _measured(sources.summary, arm)], ignore_index=True)
    return [
        Picture(
            "input_and_output",
            name,
            "Figure 6. Superposition at the input, at the output, and at both",
            _caption(arm),
            data,
            folders(sources.summary, arm.rows) if arm else (),
            lambda: _figure(data),
            published=(CURVES,),
            finding=_finding(data, arm),
        )
    ]


def _arm(summary: Summary) -> Arm | None:
    """Settings of one s and r that differ in the mode alone; the group with most modes."""
    found = []
    for arm in arms(summary):
        rows = arm.rows[
            (arm.rows["loss_kind"] == "mce")
            & (arm.rows["optimizer_at_switch"] == "keep")
            & ~arm.rows["reinitialized"].astype(bool)
            & arm.rows["weighting"].isin(["uniform", "first_token"])
        ]
        for _, same in rows.groupby(["bag_size", "superposed_steps"]):
            modes = same.drop_duplicates("mode")
            if len(modes) >= 2:
                found.append(Arm(modes, arm.members, False))
    return max(found, key=lambda arm: len(arm.rows), default=None)


def _measured(summary: Summary, arm: Arm) -> pd.DataFrame:
    return of_settings(summary, arm.rows, [MODES[mode] for mode in arm.rows["mode"]])


def _figure(data: pd.DataFrame) -> Figure:
    sources = list(dict.fromkeys(data["source"]))
    look = curves.marks(["baseline", *MODES.values()])
    figure, (row,) = new_grid(PAGE if len(sources) > 1 else COLUMN, 2.5, 1, len(sources))
    for axes, source in zip(row, sources, strict=True):
        mine = data[(data["source"] == source) & (data["quantity"] == "next_token")]
        window = (float(mine["switch"].max()), curves.end_of(mine))
        fitting = curves.limits(mine, window)
        curves.draw(axes, mine, look, window=window, loss=fitting)
        axes.set_title(f"{source}: from the switch on")
        axes.set_ylabel("training loss (nats per token)")
    return figure


def _caption(arm: Arm | None) -> str:
    text = (
        "Training loss of the recovery phase at equal FLOPs, s = 4, r = 0.5, 40,000 steps; "
        "numbers: "
        f"the last of each curve. {curves.SMOOTHED}; one run each, of a model that the paper does "
        "not name. "
    )
    if arm is None:
        return text + f"Nothing measured: `{NEEDS}`, or `{command('input-output', 'one-gpu')}`."
    first = arm.rows.iloc[0]
    return text + (
        f"Right, measured: {arm.scale}, s = {first['bag_size']}, r = {first['step_ratio']:.3g}; "
        f"mean over seeds, {SMOOTHED}; shading: range over seeds."
    )


def _finding(data: pd.DataFrame, arm: Arm | None) -> Finding:
    own = data[data["source"] == "published"]
    ends = {str(label): curves.last(rows) for label, rows in own.groupby("label")}
    published = "; ".join(f"{label} {ends[label]:.3f}" for label in sorted(ends, key=ends.get))  # type: ignore[arg-type]
    if arm is None:
        return Finding(published, needs=NEEDS)
    rows = list(rows_of(arm.rows.sort_values("gain", ascending=False)))
    text = "gains: " + "; ".join(f"{MODES[row['mode']]} {gain(row)}" for row in rows)
    return Finding(published, text, arm.scale, _verdict(rows))


def _verdict(rows: list[dict[str, object]]) -> Verdict:
    """The paper's claim: both at once is best, and better than the baseline."""
    full = next((row for row in rows if row["mode"] == "full"), None)
    if full is None or full["verdict"] == "one seed: no claim":
        return "undecided"
    if full["verdict"] == "worse":
        return "disagrees"
    first = rows[0]["mode"] == "full"
    return "agrees" if full["verdict"] == "better" and first else "undecided"
