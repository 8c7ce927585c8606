"""What the law and the trends say of runs that are not trained yet, beside two nulls
(docs/plan-of-runs.md, G7).

    python -m docs.predictions docs/records/campaign --to docs/records/predictions.json

It refuses where a run that it would predict has ended already.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from analysis.compare.paired import mean_interval
from analysis.law.held_out import observed_gains
from analysis.law.rows import rows_of_runs, settings
from analysis.law.superposition_law import Law, fit_law
from analysis.run_table import load
from experiments.studies.campaign import HELD_OUT_STEPS, LARGER, SIZES_STEPS
from experiments.studies.grid import SMALL_MAIN
from experiments.studies.scales import scale_of
from tst_study.cost.compute import count_parameters
from tst_study.errors import UserError

Interval = tuple[float, float, float]
"""Value, and the ends of its 95% interval."""


@dataclass(frozen=True)
class Prediction:
    """Of the mean gain of one setting, nats."""

    what: str
    params: float
    tokens: float
    law: Interval
    trend: Interval
    """Seed by seed a line over the logarithm of the length or size, continued."""
    same: Interval
    """First null: the gain at the nearest length or size that has been trained."""
    none: float = 0.0
    """Second null."""


def predict(law: Law, what: str, params: float, tokens: float, along: str) -> Prediction:
    """`law`: fitted to rows with a seed; `along`: params or tokens, in which alone what is
    predicted differs from runs of the main setting.

    Raises `UserError` where such runs are there already, or too few others.
    """
    rows = law.rows
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
    nearest = min(gains.columns, key=lambda value: abs(np.log(value / wanted[along])))
    lines = np.polyfit(np.log(gains.columns.to_numpy(float)), gains.T.to_numpy(float), 1)
    return Prediction(
        what,
        params,
        tokens,
        law=_by_law(law, params, tokens),
        trend=_interval(np.polyval(lines, np.log(wanted[along]))),
        same=_interval(gains[nearest].to_numpy(float)),
    )


def _by_law(law: Law, params: float, tokens: float) -> Interval:
    asked = settings(params, tokens, SMALL_MAIN.bag_size, float(SMALL_MAIN.step_ratio))
    value, half = float(law.of_rows(asked)[0]), float(law.errors(asked)[0])
    return value, value - half, value + half


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


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("records", type=Path)
    parser.add_argument("--to", type=Path, required=True)
    given = parser.parse_args(arguments)
    runs = load(given.records)
    rows, _ = rows_of_runs(runs[runs["name"].str.match("lengths|step-ratios|bag-sizes|sizes")])
    law = fit_law(rows.reset_index(drop=True))
    found = [asdict(predict(law, *target)) for target in targets()]
    given.to.write_text(json.dumps({"runs": len(rows), "predictions": found}, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
