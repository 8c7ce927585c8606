"""The numbers that the paper published: a function for each file in this folder, and the set-ups of
the paper's models. `README.md` says how each file was obtained. `runs` returns the runs of Tables
1, 2 and 4–7 as rows of the run table, so that they can be analysed like runs of our own.

Published losses are final training losses of one run each, smoothed by an unknown amount. As rows
of the run table they have an evaluation set of their own (`EVAL_SET`), so they are never compared
with held-out losses.
"""

import functools
import hashlib
import json
from pathlib import Path
from typing import Any

import pandas as pd

from tst_study.analysis.tables.columns import RUN_COLUMNS, SHAPE, finished, rows_of
from tst_study.config.presets import expand_preset
from tst_study.config.schema import Model
from tst_study.cost.compute import count_parameters, flops_per_position

PRESET = {"270M": "270m", "600M": "600m", "3B": "3b", "10B-A1B": "moe-10b-a1b"}
"""Names of our presets, by the paper's labels of its models."""
LEARNING_RATE = {"270M": 2e-3, "600M": 1e-3, "3B": 2e-4, "10B-A1B": 3e-4}
"""Peak learning rates, by the paper's labels."""


def batch(size: str) -> tuple[int, int]:
    """Return the number of sequences in a step, and their length in latent positions.

    The paper does not state the lengths. For the dense models we take 2,048, the length of SmolLM2,
    whose shapes 270M and 600M have. For the mixture, 1,024 sequences of 8,192 positions give its 8M
    tokens per step."""
    return 1024, 8192 if size == "10B-A1B" else 2048


def model(size: str) -> Model:
    """Return the shape of the model behind one of the paper's labels, such as `270M`."""
    return Model(**expand_preset({"preset": PRESET[size]}))


def step_flops(size: str) -> int:
    """Return the FLOPs of one step in the paper's runs with this model."""
    sequences, length = batch(size)
    return sequences * length * flops_per_position(model(size), length)


PARAMS = {size: float(count_parameters(model(size)).active) for size in PRESET}
"""Numbers of parameters, by the paper's labels, counted from the shapes. For the mixture this is
the number of parameters that are active for one token, by which the laws compare sizes."""

FOLDER = Path(__file__).parent
"""The folder that holds the files."""
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
"""Names of the downstream tasks as people print them, by their names in lm-evaluation-harness."""

EVAL_SET = "published training loss"
"""The `eval_set` of published losses. Only losses with the same `eval_set` are compared."""
_NAMES = {
    "params": "size",
    "total_steps": "steps",
    "bag_weighting": "weighting",
    "final_loss": "loss",
    "train_loss": "loss",
    "distance_tokens": "distance",
}
_OF_RUNS = {"tst_steps": "superposed_steps", "b200_hours": "gpu_hours"}


@functools.cache
def _read(name: str) -> pd.DataFrame:
    return pd.read_csv(FOLDER / f"{name}.csv", dtype={"panel": str})


@functools.cache
def evidence() -> dict[str, Any]:
    """Return the evidence behind `advise`, which `python -m benchmarks.advice` writes.

    `law`: the fit of the law of superposition to Tables 4–7. `left_out`: how well the law predicts
    the gains at sizes and lengths that were left out of the fit. `error`: the law's relative error
    for each e-fold beyond its sizes (`params`) and lengths (`tokens`). `own`: the gains in our own
    campaigns, a row for each setting. `pilots`: how often a pilot's rule errs in simulations."""
    evidence: dict[str, Any] = json.loads((FOLDER / "evidence.json").read_text(encoding="utf8"))
    return evidence


def others() -> pd.DataFrame:
    """Return the results that others published, with a row for each: grade (A to D, by the rule of
    `docs/evidence.md`), who, source (an address), params, tokens (latent; NaN if not stated), s, r,
    variant, held_equal, tuned, seeds, unit, baseline and superposed (losses), gain (their
    difference) and remarks."""
    table = _read("others")
    return table.assign(gain=table["baseline"] - table["superposed"])


def fingerprints(*names: str) -> dict[str, str]:
    """Return the sha256 of published files, by file name; `names` are without `.csv`."""
    return {
        f"published/{name}.csv": hashlib.sha256((FOLDER / f"{name}.csv").read_bytes()).hexdigest()
        for name in names
    }


def headline_runs() -> pd.DataFrame:
    """Return Tables 1 to 3, with a row for each of 13 runs: final losses in nats per token, B200
    GPU-hours, and accuracies in percent. Here `params` is the paper's label, such as `270M`."""
    return _read("headline_runs").copy()


def loss_grid(table: int | None = None, *, unrecovered: bool = False) -> pd.DataFrame:
    """Return Tables 4–7, or one of them, with a row for each run: table, size (the paper's label),
    params, steps, weighting, step_ratio, bag_size and loss (final, nats per token).

    Runs with r = 1 are left out unless `unrecovered` is true: their loss is the loss on bags, which
    is another quantity.
    """
    grid = _grid("final_loss_grid", table)
    grid["params"] = grid["size"].map(PARAMS)
    return grid if unrecovered else grid[grid["step_ratio"] < 1].reset_index(drop=True)


def downstream_grid(table: int) -> pd.DataFrame:
    """Return one of Tables 8 to 28: table, size (the paper's label), steps, step_ratio, bag_size,
    task (its name in lm-evaluation-harness) and accuracy (a fraction)."""
    return _grid("downstream_grid", table)


def _grid(name: str, table: int | None) -> pd.DataFrame:
    grid = _read(name).rename(columns=_NAMES)
    return grid if table is None else grid[grid["table"] == table].reset_index(drop=True)


def curves(figure: int | None = None) -> pd.DataFrame:
    """Return the curves of Figures 1, 3, 6 and 9, or of one of them: figure, panel (empty if the
    figure has none), run, step, and loss (training loss in nats per token, smoothed as the paper
    drew it)."""
    curves = _read("loss_curves").rename(columns=_NAMES).fillna({"panel": ""})
    return curves if figure is None else curves[curves["figure"] == figure].reset_index(drop=True)


def mutual_information() -> pd.DataFrame:
    """Return the curve of Figure 10: distance (tokens) and mutual_information, on the corpus DCLM.
    The paper does not state the unit."""
    return _read("mutual_information").rename(columns=_NAMES)


def runs() -> pd.DataFrame:
    """Return the runs of Tables 1, 2 and 4–7, also those with r = 1, as rows of the run table with
    two more columns: `gpu_hours` (NaN for Tables 4–7) and `source` (the table).

    A run that several tables print has a row for each of them. These rows have one fingerprint, so
    that the run counts once in comparisons."""
    grids, single = loss_grid(unrecovered=True), headline_runs().rename(columns=_NAMES | _OF_RUNS)
    grids = grids.assign(
        source="Table " + grids["table"].astype(str),
        superposed_steps=(grids["step_ratio"] * grids["steps"]).round().astype(int),
        reinitialized=False,
    )
    reinitialized = single["method"].str.startswith("tst_")
    source = reinitialized.map({True: "Table 2", False: "Table 1"})
    single = single.assign(source=source, reinitialized=reinitialized, weighting="uniform")
    rows = [_row(row) for part in (grids, single) for row in rows_of(part)]
    return pd.DataFrame(rows, columns=[*RUN_COLUMNS, "gpu_hours", "source"])


def _row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a published run as a row of the run table.

    The sequence length is an assumption (`batch`), from which tokens and FLOPs follow. The seed, 0,
    is a placeholder. Other facts that the paper does not state are None.
    """
    size, steps, bag_size, superposed, weighting = (
        row[name] for name in ("size", "steps", "bag_size", "superposed_steps", "weighting")
    )
    shape, (sequences, length) = model(size), batch(size)
    parameters = count_parameters(shape)
    name = f"{size}-{steps}-s{bag_size}-r{superposed / steps:.2f}-{weighting}"
    if superposed == 0:
        name = f"{size}-{steps}-baseline"
    if row["reinitialized"]:
        name += "-reinitialized"
    latent = sequences * length * steps
    raw = sequences * length * (bag_size * superposed + steps - superposed)
    return finished(
        steps,
        {**row, "step_ratio": superposed / steps},
        **{column: getattr(shape, column) for column in SHAPE},
        run_id=f"paper-{name}",
        study="paper",
        name=name,
        role="published",
        seed=0,
        experts=shape.experts.count if shape.experts else None,
        parameters=parameters.total,
        active_parameters=parameters.active,
        corpus="FineWeb-Edu + DCLM" if shape.experts else "DCLM",
        learning_rate=LEARNING_RATE[size],
        schedule="wsd",
        sequences=sequences,
        sequence_length=length,
        raw_tokens=raw,
        latent_tokens=latent,
        data_multiplier=raw / latent,
        flops=latent * flops_per_position(shape, length),
        eval_set=EVAL_SET,
        nats_per_token=row["loss"],
        annealed=True,
        group=f"paper {size}, {steps} steps",
        family=f"paper {size}",
        fingerprint=f"paper-{name}",
        folder=row["source"],
        gpu_hours=row.get("gpu_hours"),
        source=row["source"],
    )
