"""What the paper trained (shapes, batches, rates, GPUs), and its tables and curves, a function for
each file."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

import pandas as pd

from tst_study.config.presets import expand_preset
from tst_study.config.schema import Model
from tst_study.cost.compute import count_parameters, flops_per_position

PRESET = {"270M": "270m", "600M": "600m", "3B": "3b", "10B-A1B": "moe-10b-a1b"}
LEARNING_RATE = {"270M": 2e-3, "600M": 1e-3, "3B": 2e-4, "10B-A1B": 3e-4}
"""Peak."""
GPUS = {"270M": 8, "600M": 8, "3B": 64, "10B-A1B": 64}


def batch(size: str) -> tuple[int, int]:
    """(sequences, length), latent positions. The lengths are not stated: 2,048 is that of SmolLM2,
    whose shapes the dense models have, 8,192 makes 8M tokens of 1,024 sequences."""
    return 1024, 8192 if size == "10B-A1B" else 2048


def model(size: str) -> Model:
    """The shape behind one of the paper's labels."""
    return Model(**expand_preset({"preset": PRESET[size]}))


def step_flops(size: str) -> int:
    """Model FLOPs of one step of the paper's runs."""
    sequences, length = batch(size)
    return sequences * length * flops_per_position(model(size), length)


PARAMS = {size: float(count_parameters(model(size)).total) for size in PRESET}
"""Numbers of parameters by the paper's labels, counted from the shapes."""

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
