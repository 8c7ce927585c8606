"""The paper's numbers as tables (`published/README.md` says how each was obtained)."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

import pandas as pd

FOLDER = Path(__file__).with_name("published")

HEADLINE = "headline_runs.csv"
LOSSES = "final_loss_grid.csv"
DOWNSTREAM = "downstream_grid.csv"
CURVES = "loss_curves.csv"
MUTUAL_INFORMATION = "mutual_information.csv"

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


@functools.cache
def table(name: str) -> pd.DataFrame:
    """A published file; the frame is shared, so change copies only."""
    text = {"panel": str, "params": str, "bag_weighting": str, "run": str}
    return pd.read_csv(FOLDER / name, dtype=text, keep_default_na=True)


@functools.cache
def file_digest(name: str) -> str:
    """sha256 of a published file."""
    return hashlib.sha256((FOLDER / name).read_bytes()).hexdigest()


def loss_grid(number: int) -> pd.DataFrame:
    """Tables 4 to 7: step_ratio, bag_size, final_loss (nats per token, training loss)."""
    grid = table(LOSSES)
    return grid[grid["table"] == number].reset_index(drop=True)


def downstream_grid(number: int) -> pd.DataFrame:
    """Tables 8 to 28: step_ratio, bag_size, task, accuracy (a fraction)."""
    grid = table(DOWNSTREAM)
    return grid[grid["table"] == number].reset_index(drop=True)


def curves(figure: int, panel: str | None = None) -> pd.DataFrame:
    """Figures 1, 3, 6, 9: run, step, train_loss, smoothed as the paper drew them."""
    found = table(CURVES)
    found = found[found["figure"] == figure]
    if panel is not None:
        found = found[found["panel"] == panel]
    return found.reset_index(drop=True)
