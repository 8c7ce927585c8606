"""Losses that are compared seed by seed: over different seeds a comparison would be one of luck."""

from __future__ import annotations

import pandas as pd


def over_shared_seeds(runs: pd.DataFrame, by: str, value: str) -> pd.DataFrame:
    """`value` by `by` (rows) and seed (columns), of the seeds that all rows have; of every seed,
    with gaps, where they share none. Runs of one place in the table are averaged."""
    table = runs.astype({value: float}).pivot_table(value, index=by, columns="seed")
    shared = table.dropna(axis=1)
    return table if shared.empty else shared
