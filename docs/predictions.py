"""What the law and the trends say of runs that are not trained yet, beside two nulls
(docs/research/plan-of-runs.md, G7).

    python -m docs.predictions docs/records/campaign --to docs/records/predictions.json

It refuses while a run that it is made from is lacking, and once one that it is about has ended.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.compare.paired import mean_interval
from analysis.law.held_out import observed_gains
from analysis.law.rows import rows_of_runs, settings
from analysis.law.superposition_law import BOX, LINEAR, Law, fit_law, published_law
from analysis.tables.source import load
from experiments.studies import campaign
from experiments.studies.campaign import HELD_OUT_STEPS, LARGER, LENGTHS, SIZES_STEPS, SMALLER
from experiments.studies.grid import SMALL_MAIN
from experiments.studies.scales import scale_of
from tst_study.cost.compute import count_parameters
from tst_study.errors import UserError

Interval = tuple[float, float, float]
"""Value, and the ends of its 95% interval: of a mean, not of another run."""

SHAPE = ("log_width", "log_onset", "onset_bag", "debt_recovery")
"""Parameters of the law without a unit, held at the values of the paper's grids: the campaign's
runs lie on a cross through (s, r), which does not determine them."""
BASED_ON = {
    "lengths": len(LENGTHS) * campaign.SEEDS_OF_LENGTHS,
    "step-ratios": len(campaign.STEP_RATIOS) * campaign.SEEDS_OF_GRIDS,
    "bag-sizes": len(campaign.BAG_SIZES) * campaign.SEEDS_OF_GRIDS,
    f"sizes-{SMALLER}-{SIZES_STEPS}": campaign.SEEDS_OF_GRIDS,
}
"""Superposed runs by the beginning of their names."""
ABOUT = (f"lengths-{HELD_OUT_STEPS}-", f"sizes-{LARGER}-")


@dataclass(frozen=True)
class Prediction:
    """Of the mean gain of the main setting, nats."""

    what: str
    params: float
    tokens: float
    seeds: list[int]
    """Of trend and null, which have a value for each."""
    law: Interval | None
    """None where these runs determine no law, or not in this direction."""
    trend: Interval
    """Seed by seed a line over the logarithm of the length or size, continued."""
    trend_by_seed: list[float]
    same: Interval
    """First null: the gain at the nearest length or size that has been trained."""
    same_by_seed: list[float]
    none: float = 0.0
    """Second null."""


def predict(
    rows: pd.DataFrame, law: Law | None, what: str, params: float, tokens: float, along: str
) -> Prediction:
    """`rows`: of a law, with a seed; `along`: params or tokens, in which alone what is predicted
    differs from runs of the main setting.

    Raises `UserError` where such runs are there already, or too few others.
    """
    main = (rows["bag_size"] == SMALL_MAIN.bag_size) & np.isclose(
        rows["step_ratio"], float(SMALL_MAIN.step_ratio)
    )
    wanted = {"params": params, "tokens": tokens}
    if (main & np.isclose(rows[along], wanted[along])).any():
        raise UserError(f"{what}: has been trained already; a prediction comes before")
    (other,) = wanted.keys() - {along}
    alike = main & np.isclose(rows[other], wanted[other]) & (rows["weighting"] == "uniform")
    gains = rows.assign(gain=observed_gains(rows))[alike].pivot_table(
        index="seed", columns=along, values="gain"
    )
    gains = gains.dropna()
    if gains.shape[0] < 2 or gains.shape[1] < 2:
        raise UserError(f"{what}: two seeds at two values of {along} are needed")
    nearest = min(gains.columns, key=lambda value: abs(np.log(float(value) / wanted[along])))
    lines = np.polyfit(np.log(gains.columns.to_numpy(float)), gains.T.to_numpy(float), 1)
    trend = np.polyval(lines, np.log(wanted[along]))
    same = gains[nearest].to_numpy(float)
    return Prediction(
        what,
        params,
        tokens,
        [int(seed) for seed in gains.index],
        law=None if law is None else _by_law(law, params, tokens),
        trend=_interval(trend),
        trend_by_seed=[float(value) for value in trend],
        same=_interval(same),
        same_by_seed=[float(value) for value in same],
    )


def _by_law(law: Law, params: float, tokens: float) -> Interval | None:
    asked = settings(params, tokens, SMALL_MAIN.bag_size, float(SMALL_MAIN.step_ratio))
    value, half = float(law.of_rows(asked)[0]), float(law.errors(asked)[0])
    return (value, value - half, value + half) if math.isfinite(value + half) else None


def _interval(values: np.ndarray) -> Interval:
    found = mean_interval(values)
    if found is None:
        raise UserError("seeds that are copies of one tell nothing")
    return found


def targets() -> list[tuple[str, float, float, str]]:
    """The longest length and the larger size, as `predict` takes them."""
    setting = scale_of("desktop").setting
    tokens = float(setting.sequences * setting.sequence_length)
    own, larger = (
        float(count_parameters(one.config("prediction").model).active)
        for one in (setting, replace(setting, model=LARGER))
    )
    return [
        (f"{HELD_OUT_STEPS:,} steps", own, HELD_OUT_STEPS * tokens, "tokens"),
        (f"{LARGER}, {SIZES_STEPS:,} steps", larger, SIZES_STEPS * tokens, "params"),
    ]


def rows_to_fit(runs: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Rows of a law from a run table, and what was left out with its reason.

    Raises `UserError` for runs that cannot be read, that are lacking, or that have ended too early.
    """
    if problems := runs.attrs["problems"]:
        raise UserError(f"{problems[0]}: mend it first, no run may be lost silently")
    over = runs[runs["state"].isin(["done", "diverged"])]
    late = over["name"][over["name"].str.startswith(ABOUT)]
    if len(late):
        raise UserError(f"{late.iloc[0]}: has ended; a prediction comes before")
    superposed = over["name"][over["method"] == "superposition"]
    for name, wanted in BASED_ON.items():
        found = int(superposed.str.match(rf"{name}-\w").sum())
        if found != wanted:
            raise UserError(f"{name}: {found} superposed runs are over, {wanted} are planned")
    own = runs[runs["name"].str.match("|".join(BASED_ON)) & (runs["role"] != "trunk")]
    rows, excluded = rows_of_runs(own)
    left_out = [
        f"{run}: {why}"
        for run, why in zip(excluded.get("run_id", ()), excluded.get("reason", ()), strict=True)
    ]
    return rows.reset_index(drop=True), left_out


def main_law(rows: pd.DataFrame, params: float) -> tuple[Law | None, dict[str, Any]]:
    """The law of one size, and what is to be said of it, its refusal included."""
    known = published_law().values
    try:
        law = fit_law(
            rows[np.isclose(rows["params"], params)].reset_index(drop=True),
            {name: known[name] for name in SHAPE},
        )
    except UserError as error:
        return None, {"refused": str(error)}
    values = {name: float(law.values[name]) for name in (*LINEAR, *BOX) if name not in law.held}
    return law, {
        "fitted": values,
        "held": {name: [float(law.values[name]), why] for name, why in law.held.items()},
        "noise": asdict(law.noise),
        "rows": len(law.rows),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("records", type=Path)
    parser.add_argument("--to", type=Path, required=True)
    given = parser.parse_args(arguments)
    rows, left_out = rows_to_fit(load(given.records))
    longest, larger = targets()
    law, said = main_law(rows, longest[1])
    found = [asdict(predict(rows, law, *longest)), asdict(predict(rows, None, *larger))]
    about = {"rows": len(rows), "left_out": left_out, "law": said, "predictions": found}
    with given.to.open("x", encoding="utf8") as file:
        file.write(json.dumps(about, indent=1, allow_nan=False) + "\n")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
    except FileExistsError as error:
        raise SystemExit(
            f"error: {error.filename}: is there already, and is never overwritten"
        ) from None
