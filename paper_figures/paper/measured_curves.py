"""Measured loss curves in the columns of the published ones: means over seeds, smoothed."""

from __future__ import annotations

import pandas as pd

from analysis.summary import Summary
from paper_figures.paper.curves import COLUMNS
from paper_figures.study.loss_curves import SMOOTHING, curve_data

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
