"""The paper's runs in the schema of the run table."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.published.files import headline_runs, loss_grid
from analysis.published.setups import GPUS, LEARNING_RATE, batch, model
from analysis.runs.run_row import COLUMNS, SHAPE, finished, rows_of
from tst_study.configuration.superposition_setting import SuperpositionSetting
from tst_study.cost.compute import count_parameters, flops_per_position

EVAL_SET = "published training loss"


def runs() -> pd.DataFrame:
    """Tables 1, 2 and 4–7 in the schema of the run table, with `gpu_hours` (NaN for the grids)
    and `source` beside it. A run that Table 1 prints again counts once in comparisons."""
    rows = [
        _row(
            source=f"Table {row['table']}",
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


def _row(
    *,
    source: str,
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
    shape, (sequences, length) = model(size), batch(size)
    parameters = count_parameters(shape)
    name = f"{size}-{steps}-s{bag_size}-r{superposed / steps:.2f}-{weighting}"
    if superposed == 0:
        name = f"{size}-{steps}-baseline"
    if reinitialized:
        name += "-reinitialized"
    latent = sequences * length * steps
    raw = sequences * length * (bag_size * superposed + steps - superposed)
    setting = SuperpositionSetting.of_row(
        {
            "bag_size": bag_size,
            "superposed_steps": superposed,
            "step_ratio": superposed / steps,
            "weighting": weighting,
            "reinitialized": reinitialized,
        }
    )
    return finished(
        setting,
        steps,
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
        nats_per_token=loss,
        evaluated_phase="superposition" if superposed == steps else "recovery",
        annealed=True,
        group=f"paper {size}, {steps} steps",
        family=f"paper {size}",
        fingerprint=f"paper-{name}",
        folder=source,
        gpu_hours=gpu_hours,
        source=source,
    )
