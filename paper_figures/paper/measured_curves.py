"""Measured loss curves in the columns of the published ones: means over seeds, smoothed."""

from __future__ import annotations

import pandas as pd

from analysis.summary import Summary
from paper_figures.paper.curves import COLUMNS
from paper_figures.study.loss_curves import SMOOTHING, curve_data, curve_of

SMOOTHED = f"running mean over {SMOOTHING:.0%} of the steps, never across the switch"


def measured(summary: Summary, rows: pd.DataFrame, panel: str = "") -> pd.DataFrame:
    """Baseline and settings (rows of the comparison, all of one group)."""
    data = curve_data(summary, rows)
    bags = data[data["quantity"] == "bag_loss"].groupby("setting")["step"].max()
    table = pd.DataFrame(
        {
            "source": "measured",
            "panel": panel,
            "label": data["setting"],
            "switch": data["setting"].map(bags).fillna(0).astype(int),
            **{name: data[name] for name in ("quantity", "step", "loss", "low", "high")},
        }
    )
    return table[list(COLUMNS)]


def of_runs(summary: Summary, label: str, runs: pd.DataFrame, panel: str = "") -> pd.DataFrame:
    """One line: the mean over runs (rows of the run table) that differ in their seed alone."""
    first = runs.iloc[0]
    curve = curve_of(summary, tuple(sorted(runs["folder"])), int(first["steps"]))
    named = {"source": "measured", "panel": panel, "label": label}
    table = curve.assign(**named, switch=int(first["superposed_steps"]))
    return table[list(COLUMNS)]
