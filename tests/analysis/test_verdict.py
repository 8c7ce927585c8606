"""One function decides: planned questions first, by the method each declared, then all else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.summary import summarise
from analysis.tables.source import load, read_tables
from analysis.verdict.comparison import compare
from analysis.verdict.decide import paired
from analysis.verdict.question import Arm, Question, add_questions, read_questions
from analysis.wording import verdict_parts
from experiments.studies import catalogue
from tests.analysis.made_runs import config, write_run
from tst_study.errors import UserError

RECORDS = Path(__file__).parents[2] / "docs/records"


def question(bag: int, family: str = "family", **more: Any) -> Question:
    return Question(
        name=f"s = {bag}",
        arm=Arm(name=f"s = {bag}", setting=f"s = {bag}, r = 0.2", where=more.pop("where", {})),
        against=Arm(name="baseline", setting="baseline"),
        family=family,
        **more,
    )


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """s = 2 and 4 gain by 0.02 and 0.03 in each of four seeds, s = 8 loses."""
    noise = np.random.default_rng(3).normal(0, 0.002, (4, 4))
    for seed in range(4):
        write_run(tmp_path, config(seed), 3.5 + 0.05 * seed + noise[seed, 3])
        for place, (bag, gain) in enumerate(((2, 0.02), (4, 0.03), (8, -0.05))):
            loss = 3.5 + 0.05 * seed - gain + noise[seed, place]
            write_run(tmp_path, config(seed, bag, 0.2), loss)
    return tmp_path


def test_planned_questions_stand_first_each_family_with_its_own_allowance(runs: Path) -> None:
    asked = [question(2), question(4), question(4, "main", primary=True)]
    table = compare(load(runs), asked).verdicts
    assert list(table["heading"]) == ["Planned"] * 3 + ["Also seen"]
    assert list(table["family"]) == ["main", "family", "family", "Also seen"]
    assert list(table["comparisons"]) == [1, 2, 2, 1]
    assert list(table["question"])[-1].startswith("s = 8, r = 0.2")
    assert list(table["verdict"]) == ["better", "better", "better", "worse"]
    alone = [heading for heading, *_ in verdict_parts(compare(load(runs)).verdicts)]
    assert alone == ["All settings; no question was registered"]


def test_paired_is_the_t_test_of_each_pair_and_says_what_the_default_says(runs: Path) -> None:
    asked = [question(bag, method="paired") for bag in (2, 4)]
    found = compare(load(runs), asked)
    for row in found.verdicts[found.verdicts["heading"] == "Planned"].to_dict("records"):
        pairs = found.pairs[found.pairs["setting"] == f"{row['question']}, r = 0.2"]
        alone = paired(list(pairs["gain"]), 2)
        assert (row["low"], row["high"]) == pytest.approx((alone.low, alone.high))
        assert row["afterwards_high"] != pytest.approx(row["high"])
    default = compare(load(runs), [question(bag) for bag in (2, 4)]).verdicts
    assert default["afterwards"].isna().all()


def test_a_setting_takes_the_verdict_of_the_question_about_all_its_runs(runs: Path) -> None:
    whole, part = question(4, "main", primary=True), question(2, where={"seed": (0, 1, 2)})
    found = compare(load(runs), [part, whole])
    table = found.table.set_index("bag_size")
    assert list(table["heading"]) == ["Also seen", "Planned", "Also seen"]
    (main,) = found.verdicts[found.verdicts["primary"]].to_dict("records")
    assert (table.loc[4, "low"], table.loc[4, "high"]) == (main["low"], main["high"])
    assert table.loc[2, "seeds"] == 4


@pytest.mark.parametrize(("lost", "verdict"), [(1, "better"), (2, "unstable")])
def test_diverged_seeds_are_counted_and_two_of_them_take_the_verdict(
    runs: Path, lost: int, verdict: str
) -> None:
    for seed in range(10, 10 + lost):
        for bag in (2, 4):
            write_run(runs, config(seed, bag, 0.2), None, state="diverged")
    table = compare(load(runs), [question(4)]).verdicts.set_index("question")
    assert (table.loc["s = 4", "verdict"], table.loc["s = 4", "diverged"]) == (verdict, lost)
    assert table["verdict"].iloc[1] == verdict


def test_what_is_not_trained_or_has_one_seed_makes_no_claim(tmp_path: Path) -> None:
    write_run(tmp_path, config(0), 3.5)
    write_run(tmp_path, config(0, 2, 0.2), 3.4)
    add_questions(tmp_path, [question(2), question(4)])
    summary = summarise(read_tables(tmp_path))
    assert list(summary.comparison.verdicts["verdict"]) == ["one seed: no claim", "no pair yet"]
    assert summary.comparison.verdicts["low"].isna().all()
    assert summary.lines()[0] == "Planned"


def test_an_arm_that_holds_two_runs_of_a_seed_is_refused(runs: Path) -> None:
    for seed in range(4):
        write_run(runs, config(seed, 4, 0.2, steps=500), 3.6)
    with pytest.raises(UserError, match=r"arm 's = 4': two runs of seed 0.*`where`"):
        compare(load(runs), [question(4)])


def test_the_questions_of_the_first_campaign_are_those_of_its_study() -> None:
    assert list(read_questions(RECORDS / "campaign")) == list(
        catalogue.load("laptop", "desktop").questions
    )
