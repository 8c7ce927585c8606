"""The third campaign: ladders of rates, the arm that a pilot sweep names, and what resumes it."""

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.analysis.made_runs import write_run
from tst_study.analysis.tables.archive import add_to_archive
from tst_study.analysis.tables.source import read_tables
from tst_study.analysis.verdict.question import register
from tst_study.config.schema import Config
from tst_study.data import run_data
from tst_study.errors import UserError
from tst_study.experiments.launcher import launcher_of
from tst_study.experiments.plan.planned_run import is_over
from tst_study.experiments.plan.planner import Planner
from tst_study.experiments.state.status import rows_in
from tst_study.experiments.studies import catalogue
from tst_study.experiments.studies.grid import Tuning
from tst_study.experiments.studies.setting import BASELINE, Setting
from tst_study.experiments.study import BUNDLED, Study


class Bowl:
    """Losses rise with the distance from a best rate; power-law arms are the better ones."""

    def __init__(self, best_rate: float, best_batch: int = 32) -> None:
        self.best_rate, self.best_batch = best_rate, best_batch
        self.dead: list[str] = []

    def held_out(self, config: Config) -> float:
        gain = {"power_law": 0.02}.get(str(config.superposition.weighting), 0.0)
        other = 0.1 * (config.batch.sequences != self.best_batch)
        return 3.4 - gain + other + math.log(config.optimizer.learning_rate / self.best_rate) ** 2

    def dead_end(self, why: str) -> None:
        self.dead.append(why)


def names(runs: list[Config]) -> Counter[str]:
    return Counter(run.name.rpartition("-seed")[0] for run in runs)


def test_the_pilot_names_the_primary_arm_and_it_gets_twenty_seeds():
    runs = catalogue.load("tuned", "desktop").runs(Bowl(2.83e-3))
    found = names(runs)
    assert found["primary-10000-s4-r0.25-power_law-batch32-lr0.00283"] == 20
    assert found["primary-10000-baseline-batch32-lr0.00283"] == 20
    assert found["tuned-10000-s4-r0.25-output_only-batch32-lr0.00283"] == 12
    assert not [name for name in found if name.startswith("primary") and "output_only" in name]


def test_a_better_batch_of_the_baseline_is_that_of_every_arm():
    found = names(catalogue.load("tuned", "desktop").runs(Bowl(4e-3, best_batch=64)))
    measured = [name for name in found if name.startswith(("primary", "tuned"))]
    assert len(measured) == 4
    assert all("-5000-" in name and "batch64" in name for name in measured)


@pytest.mark.parametrize(
    ("best", "tried"),
    [
        (2e-3, [1.41e-3, 2e-3, 2.83e-3]),
        (2.83e-3, [1.41e-3, 2e-3, 2.83e-3, 4e-3]),
        (1e-4, [7.07e-4, 1e-3, 1.41e-3, 2e-3, 2.83e-3]),
    ],
)
def test_a_ladder_grows_while_its_best_rate_lies_at_an_end(best, tried):
    """Twice at most: a best rate beyond that stays at the edge."""
    setting = Setting.read(BUNDLED / "scales/smoke.toml")
    ladder = tuple(setting.with_rate(rate) for rate in (1.41e-3, 2e-3, 2.83e-3))
    tuning = Tuning((ladder,), (BASELINE,), lambda chosen: ())
    runs = tuning.runs("tuned", Bowl(best))
    rates = sorted(run.optimizer.learning_rate for run in runs)
    assert rates == pytest.approx(tried, rel=0.01)


def test_runs_of_an_archive_are_not_trained_again(tmp_path, monkeypatch):
    """Their losses decide what follows, as if their folders were there."""
    setting = Setting.read(BUNDLED / "scales/smoke.toml")
    configs = [setting.config("tuned", BASELINE, seed) for seed in range(2)]
    archive = tmp_path / "archive"

    def study(recorded: Path | None) -> Planner:
        shown = Study("tuned", "smoke", "", "", {}, lambda results: configs, tmp_path / "runs")
        return Planner(replace(shown, recorded=(recorded,) if recorded else ()), unprepared=True)

    done = study(None).decided()[0]
    write_run(tmp_path / "made", done.config, 3.25)
    tables = read_tables(tmp_path / "made")
    tables.runs["fingerprint"] = done.fingerprint
    add_to_archive(archive, tables)
    planner = study(archive)
    assert [is_over(run) for run in planner.decided()] == [True, False]
    assert [planner.held_out(config) for config in configs] == [3.25, None]
    rows = rows_in(tmp_path / "runs", planner.decided())
    assert [(row.state, row.held_out) for row in rows] == [("done", 3.25), ("waiting", None)]
    del configs[1]
    monkeypatch.setattr(run_data, "fingerprints", lambda config: planner.data(config))
    assert launcher_of("local").submit(planner.study) == 0


def test_a_second_study_in_one_folder_does_not_replace_the_firsts_questions(tmp_path):
    register(tmp_path, catalogue.load("tuned", "quick").questions)
    other = catalogue.load("what-does-the-work", "quick").questions
    with pytest.raises(UserError, match="questions of another study; name another --runs"):
        register(tmp_path, other)


def test_smaller_scales_have_pilot_seeds_of_their_own():
    """Otherwise the measured runs were the pilot's, by name and by seed."""
    runs = catalogue.load("tuned", "quick").runs(Bowl(2.83e-3))
    pilot = {run.seed for run in runs if "pilot" in run.name}
    measured = {run.seed for run in runs if "pilot" not in run.name}
    assert pilot
    assert pilot.isdisjoint(measured)
    assert any(run.name.startswith("primary-") for run in runs)
