"""Measured loss curves in the columns of the published ones: means over seeds, smoothed."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis.summary import Summary
from paper_figures.paper.curves import COLUMNS
from paper_figures.study.loss_curves import SMOOTHING, curve_of
from paper_figures.study.selection import pairs_of

SMOOTHED = f"running mean over {SMOOTHING:.0%} of the steps, never across the switch"


def of_settings(
    summary: Summary, rows: pd.DataFrame, names: Sequence[str], panel: str = ""
) -> pd.DataFrame:
    """Settings (rows of the comparison, all of one group) under these names, and their baseline."""
    runs, parts = summary.tables.runs, []
    pairs = pairs_of(summary, rows)
    base = runs[runs["folder"].isin(pairs["baseline_folder"])]
    parts.append(of_runs(summary, "baseline", base, panel))
    for name, setting in zip(names, rows["setting"], strict=True):
        own = pairs[pairs["setting"] == setting]["superposed_folder"]
        parts.append(of_runs(summary, name, runs[runs["folder"].isin(own)], panel))
    return pd.concat(parts, ignore_index=True)


def of_runs(summary: Summary, label: str, runs: pd.DataFrame, panel: str = "") -> pd.DataFrame:
    """One line: the mean over runs (rows of the run table) that differ in their seed alone."""
    first = runs.iloc[0]
    curve = curve_of(summary, tuple(sorted(runs["folder"])), int(first["steps"]))
    named = {"source": "measured", "panel": panel, "label": label}
    table = curve.assign(**named, switch=int(first["superposed_steps"]))
    return table[list(COLUMNS)]
