"""The plan says what a study costs and what it can show, before anything is there."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest

from experiments import study
from experiments.detectable import detectable, smallest_in_deviations
from experiments.plan_table import Prices, lines
from experiments.planner import PlannedRun, Planner
from experiments.study import Study
from tests.examples import example
from tests.test_run_record import DATA, evaluation, metrics
from tst_study.config import Config
from tst_study.data import run_data
from tst_study.run_header import header_of
from tst_study.run_record import RunWriter


@pytest.mark.parametrize("pairs", [2, 3, 5, 16])
def test_the_detectable_gain_is_found_four_times_of_five(pairs: int) -> None:
    """Drawn ten thousand times: the paired t-test rejects at 5% as often as it should."""
    from scipy import stats

    effect = smallest_in_deviations(pairs)
    assert effect is not None
    draws = np.random.default_rng(0).normal(effect, 1.0, (10_000, pairs))
    power = (stats.ttest_1samp(draws, 0.0, axis=1).pvalue < 0.05).mean()
    assert power == pytest.approx(0.8, abs=0.015)


def test_one_seed_detects_nothing() -> None:
    assert smallest_in_deviations(1) is None


def seeded(count: int) -> list[Config]:
    return [
        example(f"superposition={{bag_size={s}, step_ratio=0.2}}", f"role={role}", f"seed={seed}",
                f"name=s{s}-seed{seed}")
        for seed in range(count)
        for s, role in ((1, "baseline"), (4, "superposition"))
    ]  # fmt: skip


def study_of(configs: list[Config]) -> Study:
    return Study("s", "test", "Title", "Claims.", (), lambda results: configs)


def finish(run: PlannedRun, loss: float) -> None:
    writer = RunWriter(run.folder, header_of(run.config, DATA))
    segment = writer.start_segment(None, {})
    writer.metrics({**metrics(segment, 100, loss), "training_seconds": 360.0})
    writer.evaluation(evaluation(segment, 100, loss))
    writer.status("done", 100)


def test_noise_is_that_of_the_pairs_that_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_data, "fingerprints", lambda config: DATA)
    planning = Planner(study_of(seeded(3)), tmp_path)
    before = detectable(planning.asked_for())
    assert before is not None
    assert before.deviation is None
    assert "3 seeds per arm detect a gain of 3.3 deviations" in before.sentence()
    for run, loss in zip(planning.asked_for(), (3.0, 2.9, 3.1, 3.0, 3.2, 3.07), strict=True):
        finish(run, loss)
    after = detectable(planning.asked_for())
    assert after is not None
    gains = np.array([0.1, 0.1, 0.13])
    assert after.deviation == pytest.approx(float(gains.std(ddof=1)))
    text = "\n".join(lines(study_of(seeded(3)), tmp_path))
    assert "6 runs: 6 done" in text
    assert "0.6 hours of one run at a time, by the runs that are done" in text


def test_a_plan_needs_neither_corpora_nor_runs(tmp_path: Path) -> None:
    os.chdir(tmp_path)
    chosen = study.load("equal-cost", "paper")
    text = lines(chosen, chosen.folder, Prices("B200", 0.4, 3.0), noise=0.01)
    trunk, branch = text[4], text[5]
    assert trunk.startswith("trunk-s1-32400steps-seed0-")
    assert trunk.split()[1] == "32,400"
    assert branch.split()[1] == "18,000–20,000"
    assert any("shared trunks save 40.0%" in line for line in text)
    assert any("GPU-hours of B200 at 40% MFU" in line and "at 3 an hour" in line for line in text)
    assert "One seed per arm" in text[-2]
    assert text[-1].endswith("provisional: prepared/dclm-llama3")


def test_gpu_hours_are_flops_over_what_the_device_does(tmp_path: Path) -> None:
    configs = seeded(1)[:1]
    (line,) = [
        line
        for line in lines(study_of(configs), tmp_path, Prices("H100", 0.5))
        if "GPU-hours" in line
    ]
    flops = float(line.split()[0])
    hours = float(line.split(", ")[1].split()[0])
    assert math.isclose(hours, flops / (989e12 * 0.5 * 3600), rel_tol=0.1)
