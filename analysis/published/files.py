"""The paper's tables and curves as it prints them, one function per file."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

import pandas as pd

from analysis.published.setups import PARAMS

FOLDER = Path(__file__).parent
TASKS = {
    "hellaswag": "HellaSwag",
    "arc_easy": "ARC-Easy",
    "arc_challenge": "ARC-Challenge",
    "mmlu": "MMLU",
    "boolq": "BoolQ",
    "openbookqa": "OpenBookQA",
    "piqa": "PIQA",
    "winogrande": "Winogrande",
}
"""lm-evaluation-harness's name of each task: the name people print."""

_NAMES = {
    "params": "size",
    "total_steps": "steps",
    "bag_weighting": "weighting",
    "final_loss": "loss",
    "train_loss": "loss",
    "distance_tokens": "distance",
}


@functools.cache
def _read(name: str) -> pd.DataFrame:
    return pd.read_csv(FOLDER / f"{name}.csv", dtype={"panel": str})


def fingerprints(*names: str) -> dict[str, str]:
    """sha256 of the published files that something was computed from, by file name."""
    return {
        f"published/{name}.csv": hashlib.sha256((FOLDER / f"{name}.csv").read_bytes()).hexdigest()
        for name in names
    }


def headline_runs() -> pd.DataFrame:
    """Tables 1 to 3: 13 rows, one per run; losses in nats per token, hours of one B200,
    accuracies in percent."""
    return _read("headline_runs").copy()


def loss_grid(table: int | None = None, *, unrecovered: bool = False) -> pd.DataFrame:
    """Tables 4–7, or one: final loss by table, size, steps, weighting, step_ratio, bag_size.

    r = 1 is left out unless asked for: it is the superposition loss, another quantity.
    """
    grid = _grid("final_loss_grid", table)
    grid["params"] = grid["size"].map(PARAMS)
    return grid if unrecovered else grid[grid["step_ratio"] < 1].reset_index(drop=True)


def downstream_grid(table: int) -> pd.DataFrame:
    """One of Tables 8 to 28: size, steps, step_ratio, bag_size, task, accuracy (a fraction)."""
    return _grid("downstream_grid", table)


def _grid(name: str, table: int | None) -> pd.DataFrame:
    grid = _read(name).rename(columns=_NAMES)
    return grid if table is None else grid[grid["table"] == table].reset_index(drop=True)


def curves(figure: int | None = None) -> pd.DataFrame:
    """Figures 1, 3, 6 and 9, or one of them: figure, panel (or an empty text), run, step, loss
    (training loss, smoothed as drawn)."""
    found = _read("loss_curves").rename(columns=_NAMES).fillna({"panel": ""})
    return found if figure is None else found[found["figure"] == figure].reset_index(drop=True)


def mutual_information() -> pd.DataFrame:
    """Figure 10: distance (tokens) and mutual_information (unit not stated) on DCLM."""
    return _read("mutual_information").rename(columns=_NAMES)
