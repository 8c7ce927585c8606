"""Points before the decay inform the loss after it, at this length and at others."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import analysis
from analysis.questions import ask
from analysis.scaling.loss_curve import Schedule
from analysis.scaling.loss_curve_answer import held_out
from tests.analysis.made_runs import config, write_run
from tst_study.config import Config
from tst_study.errors import UserError

PEAK, FLOOR, REDUCIBLE, DROP, EXPONENT = 2e-3, 3.0, 0.9, 60.0, 0.5


def schedule(steps: int) -> pd.DataFrame:
    """Warm-up over 50 steps, stable, decay to 0 over the last fifth; logged every 10 steps."""
    at = np.arange(0, steps + 1, 10)
    rate = PEAK * np.minimum(1.0, np.minimum(at / 50, (steps - at) / (0.2 * steps)))
    return pd.DataFrame({"step": at[1:], "learning_rate": rate[1:]})


def law(log: pd.DataFrame) -> np.ndarray:
    """The published formula, as a sum over every logged fall of the rate."""
    rates = np.concatenate([[0.0], log["learning_rate"]])
    steps = np.concatenate([[0.0], log["step"]])
    losses = []
    for now in range(1, len(steps)):
        middle = (rates[1 : now + 1] + rates[:now]) / 2
        areas = middle * np.diff(steps[: now + 1])
        brought = 0.0
        for k in range(1, now + 1):
            if rates[k] < rates[k - 1]:
                since = areas[k:].sum() + areas[k - 1] / 2
                brought += (rates[k - 1] - rates[k]) * (
                    1 - (1 + 2.0 * middle[k - 1] ** -0.65 * since) ** -0.6
                )
        # The unit of the area: that of 1,000 steps at the peak.
        area = areas.sum() / (1000 * PEAK)
        losses.append(FLOOR + REDUCIBLE * area**-EXPONENT - DROP * brought)
    return np.array(losses)


CLEAN = {steps: schedule(steps).assign(loss=lambda log: law(log)) for steps in (500, 1000, 2000)}
TRUTH = float(law(schedule(8000))[-1])
LONG = Schedule.of(schedule(8000))


def logs(lengths: tuple[int, ...], seeds: int, seed: int = 0, noise: float = 0.003) -> pd.DataFrame:
    """Held-out losses every 100 steps of runs whose seeds share an error as large as a point's."""
    random = np.random.default_rng(seed)
    parts = []
    for steps in lengths:
        for run in range(seeds):
            own = CLEAN[steps].assign(run=f"{steps}, seed {run}")
            error = noise * (random.standard_normal() + random.standard_normal(len(own)))
            own["loss"] = (own["loss"] + error).where(own["step"] % 100 == 0)
            parts.append(own)
    return pd.concat(parts, ignore_index=True)


def test_areas_are_the_published_sums() -> None:
    log = schedule(1000)
    area, annealed = Schedule.of(log).areas(log["step"].to_numpy(dtype=float))
    said = FLOOR + REDUCIBLE * (area / (1000 * PEAK)) ** -EXPONENT - DROP * annealed
    assert said[10:] == pytest.approx(law(log)[10:], abs=1e-9)


def test_one_length_alone_predicts_another() -> None:
    """Of final losses alone nothing follows from one length; the points before the decay tell."""
    curve = analysis.fit_loss_curve(logs((1000,), 1, noise=0.0))
    assert curve.predict([8000], LONG)["loss"].item() == pytest.approx(TRUTH, abs=1e-4)
    assert curve.fit["exponent"] == pytest.approx(EXPONENT, abs=1e-3)
    noisy = analysis.fit_loss_curve(logs((500, 1000, 2000), 2))
    (row,) = noisy.predict([8000], LONG).to_dict("records")
    assert row["low"] < row["loss"] < row["high"]
    assert row["loss"] == pytest.approx(TRUTH, abs=0.02)


def test_its_errors_stand_beside_a_power_law_and_the_last_length() -> None:
    table = held_out(logs((500, 1000, 2000), 2))
    assert list(zip(table["fitted_to"], table["steps"], strict=True)) == [
        (500, 1000),
        (500, 2000),
        (1000, 2000),
    ]
    error = table[["law", "last"]].sub(table["observed"], axis=0).abs()
    assert (error["law"] < error["last"]).all()
    assert table["power_law"].isna().all()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"learning_rate": -1.0}, "needs its learning_rate, 0 or more"),
        ({"loss": np.nan}, "needs values both before and after the learning rate decays"),
    ],
)
def test_logs_that_say_nothing_are_refused(change: dict[str, float], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        analysis.fit_loss_curve(logs((500,), 1).assign(**change))
    mixed = logs((500, 1000), 1)
    mixed["learning_rate"] *= np.where(mixed["run"] == "500, seed 0", 2.0, 1.0)
    with pytest.raises(UserError, match=r"peaks of 0.002, 0.004; a curve needs runs of one"):
        analysis.fit_loss_curve(mixed)


def test_the_question_is_asked_of_a_table_and_of_recorded_runs(tmp_path: Path) -> None:
    logs((500, 1000, 2000), 2).to_csv(tmp_path / "log.csv", index=False)
    answer = ask("loss-curve", table=tmp_path / "log.csv")
    assert "Longer runs from shorter ones, 3 predictions" in answer.sentences[-1]
    record = Path(__file__).parents[2] / "docs" / "records" / "desktop"
    (table,) = [t for name, t in ask("loss-curve", record).tables.items() if "predicted" in name]
    error = table[["law", "last"]].sub(table["observed"], axis=0).abs()
    assert (error["law"] < error["last"]).all()


def test_only_finished_baselines_make_a_curve_and_each_model_has_its_own(tmp_path: Path) -> None:
    """A run that diverged or goes on has no final loss; the rest is listed."""
    larger = {"model__hidden_size": 128, "model__head_size": 32}
    for more in ({}, larger):
        for steps in (500, 1000):
            log_run(tmp_path, config(0, steps=steps, **more), steps)
    broken = log_run(tmp_path, config(1, steps=2000), 1500, state="diverged")
    answer = ask("loss-curve", tmp_path)
    assert list(answer.excluded["run_id"]) == [broken.name]
    assert len([title for title in answer.tables if "Parameters, with" in title]) == 2
    held = [table for title, table in answer.tables.items() if "predicted" in title]
    assert all(set(table["steps"]) == {1000} for table in held)


def log_run(root: Path, run: Config, steps: int, state: str = "done") -> Path:
    """A run with the rates of its schedule and held-out losses by the law along it."""
    folder = write_run(root, run, 3.0, state=state, log_every=10)
    log = CLEAN[run.schedule.steps]
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rates = dict(zip(log["step"], log["learning_rate"], strict=True))
    rows = [row | {"learning_rate": rates[row["step"]]} for row in metrics]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (final,) = [json.loads(line) for line in (folder / "evals.jsonl").read_text().splitlines()]
    losses = dict(zip(log["step"], log["loss"], strict=True))
    jitter = {step: 0.001 * (step // 50 % 3) for step in losses}
    evals = [
        final
        | {"step": step, "nats_per_token": losses[step] + jitter[step], "annealed": step == steps}
        for step in range(100, min(steps, final["step"]) + 1, 100)
    ]
    (folder / "evals.jsonl").write_text("".join(json.dumps(row) + "\n" for row in evals))
    return folder
