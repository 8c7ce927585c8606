"""One function decides: planned questions first, by the method each declared, then all else; by
intervals that equal textbook tests and cover wherever that was simulated."""

import itertools
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.analysis.made_runs import config, write_pairs, write_run
from tests.record.test_record import git
from tst_study.analysis.questions import ask
from tst_study.analysis.summary import summarise
from tst_study.analysis.tables.source import load, read_tables
from tst_study.analysis.verdict.comparison import compare
from tst_study.analysis.verdict.matched import matched
from tst_study.analysis.verdict.planned import labelled, settled
from tst_study.analysis.verdict.question import (
    Arm,
    Question,
    Questions,
    Registration,
    add_questions,
    asks_of,
    read_questions,
    register,
)
from tst_study.analysis.wording import verdict_parts
from tst_study.errors import UserError
from tst_study.experiments.studies import catalogue
from tst_study.record.launch_facts import descends

RECORDS = Path(__file__).parents[2] / "docs/records"


EARLY = Registration(time=datetime(2026, 1, 1, tzinfo=UTC))


def question(bag: int, family: str = "family", **more: Any) -> Question:
    return Question(
        name=f"s = {bag}",
        arm=Arm(name=f"s = {bag}", setting=f"s = {bag}, r = 0.2", where=more.pop("where", {})),
        against=Arm(name="baseline", setting="baseline"),
        family=family,
        **{"registration": EARLY, **more},
    )


def two_arms(one: Question, other: Question, family: str) -> Question:
    update = {"name": "two arms", "against": other.arm, "family": family}
    return one.model_copy(update=update)


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


def test_planned_questions_stand_first_each_family_with_its_own_allowance(runs):
    asked = [question(2), question(4), question(4, "main", primary=True)]
    asked += [two_arms(asked[1], question(8), "parts")]
    table = compare(load(runs), asked).verdicts
    assert list(table["heading"]) == ["Planned"] * 4 + ["Also seen"]
    assert list(table["family"]) == ["main", "family", "family", "parts", "Also seen"]
    assert list(table["comparisons"]) == [1, 2, 2, 1, 1]
    assert list(table["question"])[-1].startswith("s = 8, r = 0.2")
    assert list(table["verdict"]) == ["better", "better", "better", "better", "worse"]
    assert table["afterwards"].isna().all()
    alone = [heading for heading, *_ in verdict_parts(compare(load(runs)).verdicts)]
    assert alone == ["All settings; no question was registered"]


def test_a_setting_takes_the_verdict_of_the_question_about_all_its_runs(runs):
    whole, part = question(4, "main", primary=True), question(2, where={"seed": (0, 1, 2)})
    found = compare(load(runs), [part, whole, two_arms(question(2), question(8), "parts")])
    table = found.table.set_index("bag_size")
    assert list(table["heading"]) == ["Also seen", "Planned", "Also seen"]
    (main,) = found.verdicts[found.verdicts["primary"]].to_dict("records")
    assert (table.loc[4, "low"], table.loc[4, "high"]) == (main["low"], main["high"])
    assert table.loc[2, "seeds"] == 4


@pytest.mark.parametrize(
    ("lost", "more", "verdict"), [(1, 1, "better"), (1, 0, "unstable"), (2, 6, "unstable")]
)
def test_two_diverged_seeds_or_a_fifth_of_them_take_the_verdict(runs, lost, more, verdict):
    """Of either side, and although a person excluded them, at every kind of match."""
    for seed, bag in itertools.product(range(4, 4 + more), (1, 2, 4, 8)):
        gain = {2: 0.02, 4: 0.03, 8: -0.05}.get(bag, 0) + 0.001 * (seed * bag % 3)
        write_run(runs, config(seed, bag, 0.2 if bag > 1 else 0.0), 3.5 + 0.05 * seed - gain)
    for seed in range(10, 10 + lost):
        for bag in (2, 4):
            write_run(runs, config(seed, bag, 0.2), None, state="diverged")
    gone = load(runs).query("state == 'diverged'")["run_id"]
    (runs / "exclusions.csv").write_text("\n".join(["run,reason", *(f"{r},spike" for r in gone)]))
    asked = [question(4), two_arms(question(8), question(2), "parts")]
    table = compare(load(runs), asked).verdicts.set_index("question")
    assert (table.loc["s = 4", "verdict"], table.loc["s = 4", "diverged"]) == (verdict, lost)
    assert (table.loc["s = 4", "heading"], table.loc["s = 4", "order"]) == ("Planned", "")
    other = "worse" if verdict == "better" else "unstable comparison arm: no claim"
    assert (table.loc["two arms", "verdict"], table.loc["two arms", "diverged_against"]) == (
        other,
        lost,
    )
    for seed in range(4 + more):
        write_run(runs, config(seed, steps=1600), 3.4 + 0.05 * seed)  # as much text as s = 4
    equal = matched(compare(load(runs))).query("setting == 's = 4, r = 0.2'").set_index("kind")
    for kind in ("equal data", "equal loss"):
        assert (equal.loc[kind, "verdict"] == "unstable") is (verdict == "unstable")
    loss = question(4, "equal loss", matched="loss")
    (row,) = summarise(read_tables(runs), [loss]).equal_loss.to_dict("records")
    assert ("unstable" in row["note"]) is (verdict == "unstable")
    assert row["steps_ratio"] > 1
    same, longer = (
        Arm(name=f"{steps} steps", setting="baseline", where={"steps": steps})
        for steps in (1000, 1600)
    )
    at_data = question(4, where={"seed": tuple(range(4 + more))})  # none of which diverged
    asked = [
        question(4).model_copy(update={"against": same}),
        at_data.model_copy(update={"against": longer, "matched": "data", "family": "data"}),
    ]
    equal = matched(compare(load(runs), asked)).query("kind == 'equal data'").set_index("setting")
    assert equal.loc["s = 4, r = 0.2", "verdict"] == "worse"
    assert table["verdict"].iloc[2] == verdict
    for seed in range(4 + more):
        write_run(runs, config(seed, 4, 0.2, 1600), 3.3 + 0.05 * seed)
    said = "s = 4, r = 0.2: unstable, as runs diverged"
    assert (said in str(ask("compute", runs))) is (verdict == "unstable")


def test_a_shared_prefix_run_that_diverged_is_no_seed_of_its_own(runs):
    of_seed = {"seed": 9, "bag_size": 4, "step_ratio": 0.2}
    write_run(runs, config(**of_seed), None, state="diverged")
    trunk = config(**of_seed, role="trunk", schedule__stop_after=600)
    write_run(runs, trunk, None, state="diverged")
    asked = question(4, where={"steps": 1000})
    table = compare(load(runs), [asked]).verdicts.set_index("question")
    assert table.loc["s = 4", "diverged"] == 1


def test_a_second_version_of_a_question_needs_an_archive_of_its_own(tmp_path):
    """A question that was registered is not replaced, nor does it count twice."""
    add_questions(tmp_path, [question(2)])
    with pytest.raises(UserError, match=r"question 's = 2' of family 'family'.*of their own"):
        add_questions(tmp_path, [question(2, predicted=(0.0, 0.1))])
    add_questions(tmp_path, [question(2, registered="ab" * 20)])
    (kept,) = read_questions(tmp_path)
    assert kept.registered == "ab" * 20
    add_questions(tmp_path, [kept.model_copy(update={"name": "of another name"})])
    (kept,) = read_questions(tmp_path)
    assert kept.name == "of another name"


@pytest.mark.parametrize(
    ("gains", "since"),
    [
        ([1, -1, 2, 3], [0.75, 1.0]),
        ([1, 0, 2, 3], [0.75, 1.0]),
        ([1, 2, 3, 4], [0.25, 0.5, 0.75, 1]),
    ],
)
def test_a_gain_is_settled_since_it_was_last_none_or_of_the_other_sign(gains, since):
    curve = pd.DataFrame({"share": [0.25, 0.5, 0.75, 1.0], "gain": gains})
    assert settled(curve).tolist() == since


def test_arms_say_what_they_cost_and_gains_when_they_appeared(runs):
    """The arm trails by 0.1 at the first evaluation after the switch."""
    add_questions(runs, [question(2, predicted=(0.05, 0.1)), question(4, predicted=(0.02, 0.04))])
    tables = read_tables(runs)
    ends = tables.held_out
    trails = 0.1 * ends["folder"].astype(str).str.contains("s[248]-")
    early = ends.assign(step=500, nats_per_token=ends["nats_per_token"] + trails)
    summary = summarise(replace(tables, evaluations=pd.concat([early, ends])))
    assert list(summary.arms["arm"]) == ["baseline", "s = 2", "s = 4"]
    assert list(summary.arms["raw_tokens"] / summary.arms["raw_tokens"][0]) == [1, 1.2, 1.6]
    assert summary.arms["flops"].nunique() == 1
    way = summary.gains_over_training.groupby("question")["gain"].agg(list)["s = 4"]
    assert way == pytest.approx([0.03 - 0.1, 0.03], abs=0.005)
    said = [line.split("  ") for line in summary.lines() if line.startswith("     s =")]
    wrong, right = ([part.strip() for part in line if part.strip()] for line in said[:2])
    assert wrong[3:] == [
        "predicted: +0.050 to +0.100, wrong",
        "cost: 1.2× text",
        "during training: ahead at the end",
    ]
    assert right[3] == "predicted: +0.020 to +0.040, right"


def test_an_arm_that_holds_two_runs_of_a_seed_is_refused(runs):
    for seed in range(4):
        write_run(runs, config(seed, 4, 0.2, steps=500), 3.6)
    with pytest.raises(UserError, match=r"arm 's = 4': two runs of seed 0.*`where`"):
        compare(load(runs), [question(4)])


def test_questions_of_several_folders_are_asked_of_their_own_runs(tmp_path):
    for place, steps, gain in (("one", 1000, 0.02), ("other", 500, -0.02)):
        for seed in range(4):
            write_run(tmp_path / place, config(seed, steps=steps), 3.5 + 0.01 * seed)
            for bag, more in ((2, gain), (4, 2 * gain), (8, 3 * gain)):
                arm = config(seed, bag, 0.2, steps=steps)
                write_run(tmp_path / place, arm, 3.5 + 0.0101 * seed - more)
        asked = [question(2, "main", primary=True), two_arms(question(4), question(8), "parts")]
        add_questions(tmp_path / place, asked)
    found = summarise(read_tables([tmp_path / "one", tmp_path / "other"])).comparison
    assert list(found.verdicts["family"])[:2] == ["one: main", "other: main"]
    assert list(found.verdicts["comparisons"]) == [1, 1, 1, 1, 2, 2, 2, 2]
    assert list(found.verdicts["verdict"])[:2] == ["better", "worse"]
    means = found.table["baseline"] - found.table["superposed"]
    assert list(found.table["gain"]) == pytest.approx(list(means))
    assert set(found.table["verdict"][found.table["gain"] > 0]) == {"better"}


@pytest.mark.parametrize(
    ("record", "study"),
    [("campaign", "laptop"), ("what-does-the-work", "what-does-the-work"), ("tuned", "tuned")],
)
def test_the_questions_of_a_campaign_are_those_of_its_study(record, study):
    """They say the same of the same runs. The archive's find arms by the labels of their day, the
    study's by declared keys."""
    runs = read_tables(RECORDS / record).runs
    runs = runs.assign(setting=runs["arm"])

    def said(one: Question) -> list[object]:
        found = [sorted(side["run_id"]) for side in one.runs(runs)]
        assert all(found)
        form = {"registered", "registration", "arm", "against"}
        return [one.model_dump(exclude=form), one.arm.name, one.against.name, found]

    asked = catalogue.load(study, "desktop").questions
    assert [said(one) for one in read_questions(RECORDS / record)] == [said(one) for one in asked]


BASELINE = Arm(name="baseline", setting="baseline", where={"steps": (10, 20)})
GAIN = Question(
    name="gain", arm=Arm(name="s4", setting="s = 4, r = 0.5"), against=BASELINE, family="one"
)


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    """A study's file, tracked in a repository of its own."""
    file = tmp_path / "repository" / "ours.toml"
    file.parent.mkdir()
    git(file.parent, "init", "-q")
    file.write_text("[arms]")
    git(file.parent, "add", ".")
    git(file.parent, "commit", "-qm", "a grid")
    return file


def test_a_question_keeps_its_first_registration(tmp_path, ours):
    """The commit is that of the repository in which the study's file lies."""
    runs = tmp_path / "runs"
    register(runs, [GAIN], [ours], asks="Does it gain?")
    (first,) = read_questions(runs)
    assert first.registered == git(ours.parent, "rev-parse", "HEAD")
    assert first.registration
    assert first.registration.files
    assert asks_of([tmp_path]) == ["Does it gain?"]
    ours.write_text("[arms] # changed")
    other = GAIN.model_copy(update={"name": "other", "family": "two"})
    register(runs, [GAIN.model_copy(update={"name": "renamed"}), other], [ours])
    renamed, second = read_questions(runs)
    assert (renamed.registered, renamed.registration) == (first.registered, first.registration)
    assert second.registered is None
    assert second.registration
    assert second.registration.files != first.registration.files
    register(runs, [other.model_copy(update={"smallest_gain": 0.01})], [ours])
    (changed,) = read_questions(runs)
    assert changed.registration
    assert changed.registration.time > second.registration.time


def test_seeds_that_are_named_after_a_run_has_ended_are_added(tmp_path):
    def of(*seeds: int) -> Question:
        arms = {
            side: arm.model_copy(update={"where": {**arm.where, "seed": seeds}})
            for side, arm in (("arm", GAIN.arm), ("against", GAIN.against))
        }
        return GAIN.model_copy(update=arms)

    def seeds_after(*seeds: int) -> tuple[int, ...] | None:
        register(tmp_path, [of(*seeds)])
        (found,) = read_questions(tmp_path)
        assert found.registration
        return found.registration.seeds

    assert seeds_after(0, 1) is None
    assert seeds_after(0, 1, 2) is None  # nothing had ended
    write_run(tmp_path, config(0, role="pilot"), 3.5)
    assert seeds_after(0, 1, 2, 3) is None
    (first,) = read_questions(tmp_path)
    write_run(tmp_path, config(1), 3.5)
    assert seeds_after(0, 1, 2, 3, 4) == (0, 1, 2, 3)
    assert seeds_after(0, 1, 2, 3, 4, 5) == (0, 1, 2, 3)
    (grown,) = read_questions(tmp_path)
    assert first.registration
    assert grown.registration
    assert grown.registration.time == first.registration.time
    assert seeds_after(0, 1) is None  # seeds that are left out are a choice, made now
    (chosen,) = read_questions(tmp_path)
    assert chosen.registration
    assert chosen.registration.time > first.registration.time


def test_a_question_is_planned_if_its_runs_came_later(tmp_path):
    """Before, beside and after the runs; by hand; and with the commit of another repository."""

    def trained(bag: int, ratio: float = 0.2) -> None:
        for seed in range(3):
            luck = 0.01 * seed * bag
            write_run(tmp_path, config(seed, bag, ratio if bag > 1 else 0.0), 3.5 - luck)

    def found() -> tuple[str, str, bool]:
        tables = read_tables(tmp_path)
        (row,) = summarise(tables).verdicts.query("question == 's = 4'").to_dict("records")
        return row["heading"], row["order"], "right" in "\n".join(summarise(tables).lines())

    asked = question(4, primary=True, predicted=(-1.0, 1.0))
    register(tmp_path, [asked])
    assert found() == ("Planned", "", False)
    trained(1)
    trained(4)
    assert found() == ("Planned", "", True)
    late = asked.model_copy(update={"predicted": (0.0, 1.0)})
    register(tmp_path, [late])
    assert found() == ("Asked afterwards", "", False)
    commits = {"Asked afterwards": None, "Time unknown": "ab" * 20}
    for when, commit in commits.items():
        stamp = {"registration": None, "registered": commit}
        by_hand = Questions(questions=(late.model_copy(update=stamp),))
        (tmp_path / "questions.json").write_text(by_hand.model_dump_json())
        assert found() == (when, "", False)
    register(tmp_path, [question(4), question(8)])
    trained(8)
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    rows = summarise(read_tables(tmp_path)).verdicts.set_index("question")
    assert list(rows["heading"]) == ["Planned", "Asked afterwards"]
    assert rows.loc["s = 8", "order"] == f"against runs from {today}"


@pytest.mark.parametrize("sides", [(1,), (1, 4)])
def test_a_question_of_which_a_seed_was_excluded_by_hand_was_asked_afterwards(runs, sides):
    """The runs that are judged are then not those that were registered."""
    table = load(runs)
    gone = table[(table["seed"] == 3) & table["bag_size"].isin(sides)]["run_id"]
    (runs / "exclusions.csv").write_text("\n".join(["run,reason", *(f"{r},odd" for r in gone)]))
    loss = question(2, "equal loss", matched="loss")
    found = summarise(read_tables(runs), [question(4, primary=True), loss])
    row = found.verdicts.query("question == 's = 4'").iloc[0]
    assert (row["heading"], row["verdict"], row["seeds"]) == ("Asked afterwards", "better", 3)
    said = "1 of its 4 registered seeds excluded by hand"
    assert row["order"] == said
    assert f"{said})" in "\n".join(found.lines())
    (row,) = found.equal_loss.to_dict("records")
    assert (row["when"], said in row["note"]) == ("Asked afterwards", True)


@pytest.mark.parametrize(
    ("shift", "smallest", "verdict"),
    [
        (0.0, 0.06, "no worthwhile gain"),
        (0.0, 0.001, "undecided"),
        (0.03, 0.08, "no worthwhile gain"),
        (0.03, 0.02, "better"),
        (-0.03, 0.02, "worse"),
    ],
)
def test_a_gain_may_be_shown_to_be_too_small(tmp_path, shift, smallest, verdict):
    """Also one that is shown to be there."""
    write_pairs(tmp_path, *((3.5, 3.5 + luck - shift) for luck in (0.01, -0.01, 0.004, -0.002)))
    write_run(tmp_path, config(9, 4, 0.2, role="pilot", optimizer__learning_rate=1e-3), 3.0)
    answer = ask(
        "comparison", tmp_path, arm="both, s=4", against="baseline", smallest_gain=smallest
    )
    (row,) = answer.tables["Verdicts"].to_dict("records")
    assert (row["heading"], row["verdict"]) == ("Asked afterwards", verdict)
    assert row["seeds"] == 4
    with pytest.raises(UserError, match="--arm 's=9': no such arm among the runs; known: baseline"):
        ask("comparison", tmp_path, arm="s=9", against="baseline")


def test_arms_at_rates_of_their_own(tmp_path):
    """If the user says so, or if both were swept; what differs is said. Every kind of match and
    the curve over lengths take the same arms."""
    rates = {1: 4e-3, 4: 2e-3}
    for steps, seed, bag in itertools.product((1000, 1600), range(3), (1, 4)):
        ratio, worse = (0.2, 0.02) if bag > 1 else (0.0, 0.0)
        of = {"steps": steps, "optimizer__learning_rate": rates[bag]}
        loss = 3.5 - 0.01 * seed * bag + worse - steps / 1e4
        write_run(tmp_path, config(seed, bag, ratio, **of), loss)
    assert summarise(read_tables(tmp_path)).comparison.table.empty
    told = summarise(read_tables(tmp_path), own_rates=True)
    assert list(told.comparison.table["learning_rate"]) == [2e-3, 2e-3]
    assert {"differs": "learning rate 0.002 against 0.004"}.items() <= dict(
        told.verdicts.iloc[0]
    ).items()
    for bag, rate in itertools.product((1, 4), (2e-3, 4e-3)):
        of = {"role": "pilot", "optimizer__learning_rate": rate}
        write_run(tmp_path, config(9, bag, 0.2 if bag > 1 else 0.0, **of), 3.4)
    swept = summarise(read_tables(tmp_path))
    assert list(swept.comparison.table["run_ids"]) == list(told.comparison.table["run_ids"])
    assert set(swept.matches.query("kind == 'equal data'")["baseline_steps"].dropna()) == {1600}
    multipliers = next(iter(ask("compute", tmp_path).tables.values()))
    assert set(multipliers["setting"]) == {"s = 4, r = 0.2"}


def test_an_equal_loss_is_answered_by_an_interval(tmp_path):
    """The arm after 1,000 steps has the loss of the baseline after 1,400."""
    for seed in range(3):
        luck = 0.001 * seed
        for steps in (500, 1000, 2000):
            write_run(tmp_path, config(seed, steps=steps), 2 + 3 * steps**-0.3 + luck)
        arm = 2 + 3 * 1400**-0.3 + luck + 0.0005 * (seed % 2)
        write_run(tmp_path, config(seed, 4, 0.2), arm)
    add_questions(tmp_path, [question(4, "primary, equal loss", matched="loss")])
    summary = summarise(read_tables(tmp_path))
    (row,) = summary.equal_loss.to_dict("records")
    assert row["steps_ratio"] == pytest.approx(1.4, rel=0.02)
    assert row["low"] < 1.4 < row["high"]
    assert (row["when"], row["seeds"]) == ("Planned", 3)
    said = [line for line in summary.lines() if line.startswith("Equal loss")]
    assert said[0].startswith("Equal loss, primary, equal loss, s = 4: 1,000 steps are worth 1,")


def test_added_seeds_have_a_row_of_their_own(runs):
    """The planned row keeps the seeds that were named before any run had ended."""
    seeds = Registration(time=EARLY.time, seeds=(0, 1, 2))
    asked = question(4, "main", primary=True, registration=seeds)
    sides = {
        side: arm.model_copy(update={"where": {"seed": (0, 1, 2, 3)}})
        for side, arm in (("arm", asked.arm), ("against", asked.against))
    }
    add_questions(runs, [asked.model_copy(update=sides)])
    rows = summarise(read_tables(runs)).verdicts
    assert list(rows["heading"]) == ["Planned", "Asked afterwards"]
    assert list(rows["seeds"]) == [3, 4]
    assert list(rows["primary"]) == [True, False]


@pytest.mark.parametrize(
    ("record", "older"), [("campaign", 2), ("what-does-the-work", 0), ("tuned", 0)]
)
def test_the_campaigns_keep_what_they_planned(record, older):
    """The first has neither starts nor one commit: it needs the history of this repository."""
    if record == "campaign" and not descends(RECORDS, "c1e38ddf4048", "cc7af1a58396"):
        pytest.skip("no history of this repository here")
    rows = summarise(read_tables(RECORDS / record)).verdicts
    asked = rows[rows["heading"] != "Also seen"]
    assert set(asked["heading"]) == {"Planned"}
    assert (asked["order"] != "").sum() == older


def test_arms_are_found_by_declared_values_of_the_config(tmp_path):
    """r is compared as declared, not as the whole number of steps makes it; True is no 1."""
    for seed, bag, ratio in ((0, 1, 0.0), (0, 4, 0.3), (3, 4, 0.3004)):
        write_run(tmp_path, config(seed, bag, ratio), 3.5)
    weighting = (0.4, 0.3, 0.2, 0.1)
    write_run(tmp_path, config(1, 4, 0.3, steps=1000, superposition__weighting=weighting), 3.5)
    table = labelled(load(tmp_path))
    assert table["step_ratio"].nunique() == 2

    def found(**where: Any) -> int:
        wanted = {name.replace("__", "."): value for name, value in where.items()}
        return len(Arm(name="arm", where=wanted).runs(table))

    assert found(superposition__step_ratio=0.3) == 2
    assert found(superposition__step_ratio=(0.3004, 0.3), seed=(0, 3)) == 2
    assert found(superposition__weighting="[0.4, 0.3, 0.2, 0.1]") == 1
    assert found(superposition__weighting="uniform", superposition__bag_size=4.0) == 2
    assert found(superposition__bag_size=True) == 0
    assert found(label_smoothing__first_step=1) == 0
    assert found(no__such=1) == 0


def test_no_questions_write_no_file_and_damaged_ones_are_named(tmp_path):
    register(tmp_path / "runs", [])
    assert not (tmp_path / "runs").exists()
    assert read_questions(tmp_path) == ()
    (tmp_path / "questions.json").write_text('{"schema_version": 2, "questions": []}')
    with pytest.raises(UserError, match=r"questions\.json: schema_version"):
        read_questions(tmp_path)


def test_a_registered_question_finds_its_runs_although_a_key_that_it_names_is_gone():
    """Max pooling was a key when the fourth campaign was registered."""
    (old,) = {
        key: value
        for one in read_questions(Path(__file__).parents[2] / "docs/records/batch")
        for key, value in one.arm.where.items()
        if key == "superposition.pooling"
    }.items()
    asked = Question(
        name="x", family="x", arm=Arm(name="a", where=dict([old])), against=Arm(name="b")
    )
    configs = [{"superposition": inner} for inner in ({}, {"pooling": "mean"}, {"pooling": "max"})]
    table = pd.DataFrame({"role": "superposition", "config": list(map(json.dumps, configs))})
    assert list(asked.runs(table)[0].index) == [0, 1]
