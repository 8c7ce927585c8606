"""Questions are declared in code, and stamped with the commit that first held them."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from analysis.verdict.question import Arm, Question, read_questions, register
from experiments.studies import catalogue
from tst_study.config.schema import Config, to_dict
from tst_study.config.superposition_setting import SuperpositionSetting
from tst_study.errors import UserError

BASELINE = Arm(name="baseline", setting="baseline", where={"steps": (10, 20)})
GAIN = Question(
    name="gain", arm=Arm(name="s4", setting="s = 4, r = 0.5"), against=BASELINE, family="one"
)
FIRST, SECOND = ({"commit": digit * 40, "dirty": False} for digit in "ab")


def test_a_question_keeps_the_commit_that_first_held_it_word_for_word(tmp_path: Path) -> None:
    register(tmp_path, [GAIN], FIRST)
    other = GAIN.model_copy(update={"name": "other"})
    changed = GAIN.model_copy(update={"family": "two"})
    register(tmp_path, [GAIN, other], SECOND)
    assert [one.registered for one in read_questions(tmp_path)] == ["a" * 40, "b" * 40]
    register(tmp_path, [changed], SECOND)
    assert read_questions(tmp_path) == (changed.model_copy(update={"registered": "b" * 40}),)
    register(tmp_path, [GAIN], {"commit": "c" * 40, "dirty": True})
    assert read_questions(tmp_path) == (GAIN,)


def test_a_study_without_questions_writes_none(tmp_path: Path) -> None:
    register(tmp_path / "runs", [], FIRST)
    assert not (tmp_path / "runs").exists()
    assert read_questions(tmp_path) == ()


def test_damaged_questions_are_named(tmp_path: Path) -> None:
    (tmp_path / "questions.json").write_text('{"schema_version": 2, "questions": []}')
    with pytest.raises(UserError, match=r"questions\.json: schema_version"):
        read_questions(tmp_path)


class Best:
    """Baselines of batch 8 are the best."""

    def held_out(self, config: Config) -> float:
        return 1.0 if config.batch.sequences == 8 else 2.0


def test_each_arm_of_the_second_campaign_names_its_runs_and_no_others() -> None:
    study = catalogue.load("what-does-the-work", "desktop")
    runs = study.runs(Best())
    rows = [
        {
            **SuperpositionSetting.from_config(to_dict(run)).columns(),
            "steps": run.schedule.steps,
            "sequences": run.batch.sequences,
            "seed": run.seed,
            "name": run.name,
        }
        for run in runs
    ]
    table = pd.DataFrame(rows)
    arms = {arm.name: arm for one in study.questions for arm in (one.arm, one.against)}
    taken = {name: arm.runs(table) for name, arm in arms.items()}
    assert len(taken) == 10
    assert all(sorted(arm["seed"]) == list(range(11, 23)) for arm in taken.values())
    names = pd.concat(taken.values())["name"]
    assert names.is_unique
    assert set(table["name"]) - set(names) == {n for n in table["name"] if n.startswith("gate-")}
