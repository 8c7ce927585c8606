"""The paper's numbers as tables, its runs in the schema of the run table.

Read from `paper_figures/published/` by path; its README says how each file was obtained. The
published losses are final training losses, smoothed by an unknown amount, of one run each: they are
an evaluation set of their own (`EVAL_SET`), never to be put beside held-out loss.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.run_row import COLUMNS, rows_of
from tst_study.compute_cost import count_parameters, flops_per_position
from tst_study.config import Model
from tst_study.model_presets import expand_preset

FOLDER = Path(__file__).parents[1] / "paper_figures" / "published"
EVAL_SET = "published training loss"
FILES = ("headline_runs", "final_loss_grid", "loss_curves", "mutual_information")

PARAMS = {"270M": 270e6, "600M": 600e6, "3B": 3e9, "10B-A1B": 10e9}
"""Numbers of parameters by the paper's labels."""
_PRESET = {"270M": "270m", "600M": "600m", "3B": "3b", "10B-A1B": "moe-10b-a1b"}
_LEARNING_RATE = {"270M": 2e-3, "600M": 1e-3, "3B": 2e-4, "10B-A1B": 3e-4}
# The dense runs' sequence length is not stated; 2,048 is that of SmolLM2, whose shapes they have.
_BATCH = {"dense": (1024, 2048), "moe": (1024, 8192)}
_GPUS = {"270M": 8, "600M": 8, "3B": 64, "10B-A1B": 64}


def _read(name: str) -> pd.DataFrame:
    return pd.read_csv(FOLDER / f"{name}.csv")


def fingerprints(*names: str) -> dict[str, str]:
    """sha256 of the published files that an answer was computed from, by file name."""
    return {
        f"published/{name}.csv": hashlib.sha256((FOLDER / f"{name}.csv").read_bytes()).hexdigest()
        for name in names or FILES
    }


def headline_runs() -> pd.DataFrame:
    """Tables 1 and 2: 13 rows, one per run; losses in nats per token, hours of one B200."""
    return _read("headline_runs")


def loss_grid(*, unrecovered: bool = False) -> pd.DataFrame:
    """Tables 4–7: final loss by table, params, steps, weighting, step_ratio, bag_size.

    r = 1 is left out unless asked for: it is the superposition loss, another quantity.
    """
    grid = _read("final_loss_grid").rename(
        columns={
            "params": "size",
            "total_steps": "steps",
            "bag_weighting": "weighting",
            "final_loss": "loss",
        }
    )
    grid["params"] = grid["size"].map(PARAMS)
    return grid if unrecovered else grid[grid["step_ratio"] < 1].reset_index(drop=True)


def curves() -> pd.DataFrame:
    """Figures 1, 3, 6 and 9: figure, panel, run, step, loss (training loss as drawn, smoothed)."""
    return _read("loss_curves").rename(columns={"train_loss": "loss"})


def mutual_information() -> pd.DataFrame:
    """Figure 10: distance (tokens) and mutual_information (unit not stated) on DCLM."""
    return _read("mutual_information").rename(columns={"distance_tokens": "distance"})


def runs() -> pd.DataFrame:
    """Tables 1, 2 and 4–7 in the schema of the run table, with `gpu_hours` (NaN for the grids)
    and `source` beside it. A run that Table 1 prints again counts once in comparisons."""
    rows = [
        _row(
            source=f"Table {row['table']}",
            architecture="dense",
            size=row["size"],
            steps=row["steps"],
            bag_size=row["bag_size"],
            superposed=round(row["step_ratio"] * row["steps"]),
            weighting=row["weighting"],
            loss=row["loss"],
        )
        for row in rows_of(loss_grid(unrecovered=True))
    ]
    rows += [
        _row(
            source="Table 2" if row["method"].startswith("tst_") else "Table 1",
            architecture=row["architecture"],
            size=row["params"],
            steps=row["total_steps"],
            bag_size=row["bag_size"],
            superposed=row["tst_steps"],
            weighting="uniform",
            loss=row["final_loss"],
            gpu_hours=row["b200_hours"],
            reinitialized=row["method"].startswith("tst_"),
        )
        for row in rows_of(headline_runs())
    ]
    table = pd.DataFrame(rows, columns=[*COLUMNS, "gpu_hours", "source"])
    table.attrs["problems"] = []
    return table


def model(size: str) -> Model:
    """The shape behind one of the paper's labels."""
    return Model(**expand_preset({"preset": _PRESET[size]}))


def _row(
    *,
    source: str,
    architecture: str,
    size: str,
    steps: int,
    bag_size: int,
    superposed: int,
    weighting: str,
    loss: float,
    gpu_hours: float | None = None,
    reinitialized: bool = False,
) -> dict[str, Any]:
    """What the paper does not state stays None."""
    shape, (sequences, length) = model(size), _BATCH[architecture]
    parameters, baseline = count_parameters(shape), superposed == 0
    name = f"{size}-{steps}-s{bag_size}-r{superposed / steps:.2f}-{weighting}"
    if baseline:
        name = f"{size}-{steps}-baseline"
    if reinitialized:
        name += "-reinitialized"
    latent = sequences * length * steps
    raw = sequences * length * (bag_size * superposed + steps - superposed)
    known: dict[str, Any] = {
        "run_id": f"paper-{name}",
        "study": "paper",
        "name": name,
        "role": "published",
        "state": "done",
        "message": "",
        "step": steps,
        "seed": 0,
        "method": "baseline" if baseline else "superposition",
        "layers": shape.layers,
        "hidden_size": shape.hidden_size,
        "attention_heads": shape.attention_heads,
        "key_value_heads": shape.key_value_heads,
        "feed_forward_size": shape.feed_forward_size,
        "vocabulary_size": shape.vocabulary_size,
        "experts": shape.experts.count if shape.experts else None,
        "parameters": parameters.total,
        "active_parameters": parameters.active,
        "steps": steps,
        "superposed_steps": superposed,
        "bag_size": 1 if baseline else bag_size,
        "step_ratio": superposed / steps,
        "mode": None if baseline else "full",
        "loss_kind": None if baseline else "mce",
        "weighting": None if baseline else weighting,
        "aligned_bags": False,
        "reinitialized": reinitialized,
        "optimizer_at_switch": None if baseline else "keep",
        "corpus": "DCLM" if architecture == "dense" else "FineWeb-Edu + DCLM",
        "learning_rate": _LEARNING_RATE[size],
        "schedule": "wsd",
        "sequences": sequences,
        "sequence_length": length,
        "raw_tokens": raw,
        "latent_tokens": latent,
        "data_multiplier": raw / latent,
        "flops": latent * flops_per_position(shape, length),
        "training_seconds": None if gpu_hours is None else gpu_hours * 3600 / _GPUS[size],
        "eval_set": EVAL_SET,
        "nats_per_token": loss,
        "evaluated_step": steps,
        "evaluated_phase": "superposition" if superposed == steps else "recovery",
        "annealed": True,
        "exclusion": "",
        "group": f"paper {size}, {steps} steps",
        "family": f"paper {size}",
        "fingerprint": f"paper-{name}",
        "folder": source,
        "gpu_hours": gpu_hours,
        "source": source,
    }
    return {**dict.fromkeys(COLUMNS), **known}
