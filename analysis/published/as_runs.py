"""The paper's runs in the schema of the run table."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.published.files import GPUS, LEARNING_RATE, batch, headline_runs, loss_grid, model
from analysis.tables.columns import RUN_COLUMNS, SHAPE, finished, rows_of
from tst_study.cost.compute import count_parameters, flops_per_position

EVAL_SET = "published training loss"
_NAMES = {"params": "size", "total_steps": "steps", "tst_steps": "superposed_steps"}
_NAMES |= {"final_loss": "loss", "b200_hours": "gpu_hours"}


def runs() -> pd.DataFrame:
    """Tables 1, 2 and 4–7 in the schema of the run table, with `gpu_hours` (NaN for the grids)
    and `source` beside it. A run that Table 1 prints again counts once in comparisons."""
    grids, single = loss_grid(unrecovered=True), headline_runs().rename(columns=_NAMES)
    grids = grids.assign(
        source="Table " + grids["table"].astype(str),
        superposed_steps=(grids["step_ratio"] * grids["steps"]).round().astype(int),
        reinitialized=False,
    )
    again = single["method"].str.startswith("tst_")
    source = again.map({True: "Table 2", False: "Table 1"})
    single = single.assign(source=source, reinitialized=again, weighting="uniform")
    rows = [_row(row) for part in (grids, single) for row in rows_of(part)]
    table = pd.DataFrame(rows, columns=[*RUN_COLUMNS, "gpu_hours", "source"])
    table.attrs["problems"] = []
    return table


def _row(row: dict[str, Any]) -> dict[str, Any]:
    """What the paper does not state stays None."""
    size, steps, bag_size, superposed, weighting = (
        row[name] for name in ("size", "steps", "bag_size", "superposed_steps", "weighting")
    )
    shape, (sequences, length) = model(size), batch(size)
    gpu_hours = row.get("gpu_hours")
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
        training_seconds=None if gpu_hours is None else gpu_hours * 3600 / GPUS[size],
        eval_set=EVAL_SET,
        nats_per_token=row["loss"],
        annealed=True,
        group=f"paper {size}, {steps} steps",
        family=f"paper {size}",
        fingerprint=f"paper-{name}",
        folder=row["source"],
        gpu_hours=gpu_hours,
        source=row["source"],
    )
