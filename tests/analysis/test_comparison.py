"""The rules for comparing runs, and the claims of a comparison."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tests.analysis.made_runs import config, write_pairs, write_run
from tst_study.analysis.fits.law.rows import rows_of_runs
from tst_study.analysis.fits.scaling.points import alike_in_kind, points_of
from tst_study.analysis.questions import ask
from tst_study.analysis.summary import summarise
from tst_study.analysis.tables.archive import add_to_archive
from tst_study.analysis.tables.eligible import eligible
from tst_study.analysis.tables.imports import import_logs
from tst_study.analysis.tables.source import EXCLUSIONS, load, read_tables
from tst_study.analysis.verdict.comparison import Comparison, compare, refuse_copies
from tst_study.analysis.verdict.decide import paired
from tst_study.analysis.verdict.matched import matched
from tst_study.analysis.verdict.question import Arm, Question, add_questions
from tst_study.analysis.wording import disambiguate_by_set_up
from tst_study.config.schema import to_dict
from tst_study.errors import UserError

LOG = "metrics.jsonl"
TST: dict[str, Any] = {"bag_size": 4, "step_ratio": 0.2}


def compared(folder: Path) -> Comparison:
    return compare(load(folder))


def test_a_terminal_names_what_was_left_out_and_why(tmp_path):
    """Also which baseline would have done, if only it had had as many steps."""
    write_run(tmp_path, config(0, steps=900), 3.5)
    lone = write_run(tmp_path, config(0, 4, 0.2), 3.4)
    for seed in range(1, 6):
        write_run(tmp_path, config(seed), 3.5, state="failed")
    lines = summarise(read_tables(tmp_path)).lines()
    said = [line for line in lines if line.startswith("Left out: ")]
    assert said[-1] == (
        f"Left out: {lone.name}: no finished baseline of the same data, model, steps, batch and "
        "schedule (the nearest has steps 900, not 1000)."
    )
    assert " and 1 more: not finished (failed, step 500 of 1,000)." in said[0]


def test_an_arm_of_cheaper_steps_is_compared_with_the_baseline_of_its_total_flops(tmp_path):
    """Its 1,200 steps cost as much as 1,000: 400 of them half as much as the others."""
    rival = {"batch_warmup": {"parts": 2, "step_ratio": 1 / 3}}
    for seed in range(3):
        write_run(tmp_path, config(seed), 3.5 + seed / 100)
        write_run(tmp_path, config(seed, steps=1200, **rival), 3.4 + seed / 90)
    short = write_run(tmp_path, config(0, steps=1190, **rival), 3.4)
    found = compared(tmp_path)
    row = found.table.iloc[0]
    assert (row["setting"], row["steps"], row["comparisons"], len(found.pairs)) == (
        "batch warmup from 1/2 over 0.333 of the steps", 1200, 1, 3,
    )  # fmt: skip
    assert list(found.excluded["run_id"]) == [short.name]
    kinds = matched(found).query("steps == 1200").set_index("kind")
    assert kinds.loc["equal FLOPs", "flops_ratio"] == 1
    assert kinds.loc["equal FLOPs", "steps_ratio"] == pytest.approx(1000 / 1200)
    assert kinds.loc["equal data", "baseline_steps"] == 1000


def test_a_run_of_another_folder_is_left_out_whatever_its_namesake_answers(tmp_path):
    for name, arms in (("a", ("baseline", "ours")), ("b", ("ours",))):
        rows = [
            {"run": f"{arm}-{seed}", "arm": arm, "seed": seed}
            | {"loss": 3.2 - 0.01 * seed * len(arm), "learning_rate": 1e-3 * len(arms)}
            for arm in arms
            for seed in range(3)
        ]
        (tmp_path / name).mkdir()
        finished(tmp_path / name, rows)
    arms = {side: Arm(name=side, setting=side) for side in ("ours", "baseline")}
    asked = Question(name="q", arm=arms["ours"], against=arms["baseline"], family="one")
    within = asked.model_copy(update={"within": str(tmp_path / "a")})
    found = compare(read_tables([tmp_path / "a", tmp_path / "b"]).runs, [within])
    assert list(found.excluded["run_id"]) == [f"ours-{seed}" for seed in range(3)]
    assert found.excluded["folder"].str.startswith(str(tmp_path / "b")).all()


def reasons(comparison: Comparison) -> list[str]:
    return list(comparison.excluded["reason"])


def test_pairing_by_seed_takes_the_noise_of_seeds_out(tmp_path):
    """Seeds differ by ten times the gain; the paired interval still excludes zero."""
    write_pairs(tmp_path, (3.5, 3.481), (3.7, 3.68), (3.4, 3.379))
    (row,) = compared(tmp_path).table.to_dict("records")
    half = stats.t.ppf(0.975, 2) * 0.001 / np.sqrt(3)
    assert row["gain"] == pytest.approx(0.020)
    assert (row["low"], row["high"]) == pytest.approx((0.020 - half, 0.020 + half))
    assert row["verdict"] == "better"
    assert row["seeds"] == 3


OTHER_GROUP = "same data, model, steps, batch and schedule"


@pytest.mark.parametrize(
    ("changed", "broken", "reason"),
    [
        ({}, {"annealed": False}, "not annealed"),
        ({}, {"state": "running"}, "not finished (running"),
        ({}, {"state": "diverged"}, "diverged at step 500 of 1,000"),
        ({}, {"evaluated_step": 900}, "no held-out evaluation after the last step"),
        ({}, {"eval_set": "validation-ffffffffffffffff"}, "same held-out text"),
        ({"step_ratio": 1.0}, {}, "never recovered"),
        ({"optimizer__learning_rate": 1e-3}, {}, "at its learning rate 0.001; --own-rates"),
        ({"seed": 5}, {}, "of its seed 5"),
        ({"steps": 500}, {}, OTHER_GROUP),
        ({"model__hidden_size": 128}, {}, OTHER_GROUP),
        ({"optimizer__weight_decay": 0.0}, {}, OTHER_GROUP),
    ],
)
def test_only_an_equal_finished_next_token_model_is_compared(tmp_path, changed, broken, reason):
    write_run(tmp_path, config(0), 3.5)
    write_run(tmp_path, config(**{"seed": 0, **TST, **changed}), 3.4, **broken)
    result = compared(tmp_path)
    assert result.table.empty
    (given,) = reasons(result)
    assert reason in given


def test_a_run_recorded_twice_counts_once(tmp_path):
    write_run(tmp_path, config(0), 3.5)
    for name in ("a", "b"):
        write_run(tmp_path, config(0, **TST), 3.4, folder=name)
    result = compared(tmp_path)
    assert list(result.table["seeds"]) == [1]
    assert "counted once" in reasons(result)[0]


@pytest.mark.parametrize("copied", range(2, 5))
def test_a_copied_curve_under_another_seed_is_refused(tmp_path, copied):
    """Copies would make every interval too short. Two equal rows may be chance."""
    first, second = (write_run(tmp_path, config(seed), 3.5) for seed in (0, 1))
    losses = [json.loads(line)["loss"] for line in (first / LOG).read_text().splitlines()]
    rows = [json.loads(line) for line in (second / LOG).read_text().splitlines()][:copied]
    (first / LOG).write_text("".join((first / LOG).read_text().splitlines(True)[:copied]))

    def write(of: list[float]) -> None:
        changed = ({**row, "loss": loss} for row, loss in zip(rows, of, strict=True))
        (second / LOG).write_text("".join(json.dumps(row) + "\n" for row in changed))

    write([loss + 1e-3 for loss in losses[:copied]])
    refuse_copies(read_tables(tmp_path))
    write(losses[:copied])
    if copied == 2:
        refuse_copies(read_tables(tmp_path))
        return
    one, other = read_tables(tmp_path).runs["run_id"]
    with pytest.raises(UserError, match=rf"runs '{one}' and '{other}': seeds 0 and 1, but the sa"):
        refuse_copies(read_tables(tmp_path))
    write_run(tmp_path, config(0), 3.5, folder="again")  # a second record of one seed is no copy
    (tmp_path / EXCLUSIONS).write_text(f"run,reason\n{other},a copy\n")
    refuse_copies(read_tables(tmp_path))


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_a_run_recorded_twice_with_two_results_counts_as_neither(tmp_path, names):
    """Else the folder's name would decide which gain is shown."""
    write_run(tmp_path, config(0), 3.5)
    write_run(tmp_path, config(0, **TST), 3.4, folder=names[0])
    write_run(tmp_path, config(0, **TST), 3.1, folder=names[1])
    result = compared(tmp_path)
    assert result.table.empty
    for reason in reasons(result)[:2]:
        assert "one run with two results" in reason
        assert f"3.4 in {tmp_path}/{names[0]}" in reason
        assert f"3.1 in {tmp_path}/{names[1]}" in reason


@pytest.mark.parametrize("other", [3.4, 3.1])
def test_a_run_that_was_imported_twice_is_one_run(tmp_path, other):
    for place, loss in (("a", 3.4), ("b", other)):
        (tmp_path / place).mkdir()
        arms = ({"loss": 3.5, "bag_size": 1}, {"loss": loss, "bag_size": 4, "step_ratio": 0.5})
        finished(tmp_path / place, [{"seed": 0, "learning_rate": 1e-3, **arm} for arm in arms])
    result = compared(tmp_path)
    assert len(result.table) == (other == 3.4)
    said = [reason for reason in reasons(result) if "counted once" not in reason]
    assert len(said) == 2 * (other != 3.4)
    assert all("one run with two results, 3.4 in" in reason for reason in said)


def test_runs_of_one_seed_that_read_their_text_in_another_order_are_no_pair(tmp_path):
    write_run(tmp_path, config(0), 3.5)
    write_run(tmp_path, config(0, **TST, data_seed=7), 3.4)
    result = compared(tmp_path)
    assert result.table.empty
    assert "in the order of data_seed 7" in reasons(result)[0]
    write_run(tmp_path, config(0, data_seed=7), 3.6)
    assert compared(tmp_path).pairs["gain"].tolist() == pytest.approx([0.2])
    rows, _ = rows_of_runs(load(tmp_path))
    own = rows[rows["level"] == rows["level"][rows["bag_size"] == 4].item()]
    assert own["loss"].tolist() == pytest.approx([3.6, 3.4])


def test_the_intervals_and_p_values_of_ten_settings_allow_for_ten():
    differences = [0.03, 0.05, 0.04, 0.06]
    alone, among = paired(differences), paired(differences, comparisons=10)
    half = stats.t.ppf(1 - 0.025 / 10, 3) * np.std(differences, ddof=1) / 2
    assert (among.low, among.high) == pytest.approx((0.045 - half, 0.045 + half))
    p_value = stats.ttest_1samp(differences, 0).pvalue
    assert (alone.p_adjusted, among.p_adjusted) == pytest.approx((p_value, 10 * p_value))
    assert (alone.verdict, among.verdict) == ("better", "no difference shown")


def test_what_was_not_planned_is_adjusted_over_all_settings_rates_and_lengths(tmp_path):
    for seed in range(3):
        for steps in (500, 1000):
            for rate in (1e-3, 2e-3):
                of = {"steps": steps, "optimizer__learning_rate": rate}
                write_run(tmp_path, config(seed, **of), 3.5 + 0.01 * seed)
                for bag in (2, 4):
                    write_run(tmp_path, config(seed, bag, 0.2, **of), 3.4 + 0.001 * seed * bag)
    assert set(compared(tmp_path).table["comparisons"]) == {8}


FINISHED = {"steps": 1000, "tokens_per_step": 2**21, "corpus": "fineweb", "eval_set": "held out"}


def finished(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """An archive of finished runs that were imported from a table."""
    shared = {**FINISHED, "parameters": 124_000_000, "annealed": True}
    table = pd.DataFrame([{**shared, **row} for row in rows])
    if "run" not in table:
        table["run"] = [f"run {place}" for place in range(len(rows))]
    table.rename(columns={"loss": "nats_per_token"}).to_csv(folder / "table.csv", index=False)
    add_to_archive(folder / "archive", import_logs([str(folder / "table.csv")], {}))
    return folder / "archive"


def test_imported_models_of_two_sizes_have_curves_and_names_of_their_own(tmp_path):
    bags = (1, 2, 3, 4, 6, 8, 12, 16)
    rows = [
        {
            "parameters": params,
            "learning_rate": 1e-3,
            "seed": seed,
            "bag_size": s,
            "step_ratio": 0.3 * (s > 1),
        }
        | {"loss": 3.3 + 0.03 * seed + (0.01 * math.log(s / best) ** 2 if s > 1 else 0.2)}
        for params, best in ((124_000_000, 4), (350_000_000, 8))
        for seed in range(3)
        for s in bags
    ]
    archive = finished(tmp_path, rows)
    (optima,) = ask("bag-size", archive).tables.values()
    assert sorted(optima["best"].round()) == [4, 8]
    names = compare(read_tables(archive).runs).verdicts["question"]
    assert names.is_unique
    assert names.str.contains("350M parameters").sum() == len(bags) - 1


def test_arms_of_imported_runs_may_differ_in_rate_if_other_rates_are_excluded(tmp_path):
    arms = (("baseline", 1e-3, 0.0), ("muon", 0.02, 0.05), ("muon", 0.01, 0.03))
    rows = [
        {"run": f"{arm}-{rate}-{seed}", "arm": arm, "learning_rate": rate, "seed": seed}
        | {"loss": 3.2 - gain + 0.01 * seed + 0.001 * (seed % 2) * (arm == "muon")}
        for arm, rate, gain in arms
        for seed in range(4)
    ]
    archive = finished(tmp_path, rows)
    runs = read_tables(archive).runs
    assert compare(runs).table.empty
    one = runs[runs["learning_rate"] != 0.01]
    unknown = one.assign(learning_rate=one["learning_rate"].replace(0.02, np.nan))
    assert list(compare(unknown).table["seeds"]) == [4]
    two = unknown["learning_rate"].mask(
        (unknown["arm"] == "baseline") & (unknown["seed"] > 1), 0.002
    )
    why, *_ = reasons(compare(unknown.assign(learning_rate=two)))
    assert why.endswith("learning rate, like its own; exclude the baseline's other rates")
    tuned = Arm(name="tuned", setting="muon", where={"learning_rate": 0.02})
    usual = Arm(name="usual", setting="baseline")
    asked = compare(runs, [Question(name="tuned", arm=tuned, against=usual, family="main")])
    assert list(asked.excluded["run_id"]) == [f"muon-0.01-{seed}" for seed in range(4)]
    out = "".join(f"muon-0.01-{seed},worse rate\n" for seed in range(4)) + "muon-0.1,a typo\n"
    (archive / "exclusions.csv").write_text(f"run,reason\n{out}")
    (row,) = compare(read_tables(archive).runs).table.to_dict("records")
    assert (row["seeds"], row["verdict"]) == (4, "better")
    for question in ("comparison", "compute"):
        said = " ".join(ask(question, archive).sentences)
        assert said.count("Problem: exclusions.csv: muon-0.1 matches no run") == 1


def test_a_key_that_configs_got_later_distinguishes_no_settings():
    old, new = (to_dict(config(1, steps=steps, model__qk_norm=True)) for steps in (1000, 2000))
    del old["optimizer"]["kind"]
    old["model"]["qk_norm"] = False
    row = {"parameters": None, "learning_rate": 1e-3, "eval_set": "books", "family": "abc"}
    rows = [row | {"config": json.dumps(values)} for values in (old, new)]
    names = disambiguate_by_set_up(["s = 4", "s = 4"], rows)
    assert names == ["s = 4, qk_norm=false", "s = 4, qk_norm=true"]


def test_finished_runs_without_seeds_may_have_equal_losses(tmp_path):
    losses = {"baseline": (3.21, 3.21, 3.25, 3.21, 3.26), "muon": (3.18, 3.19, 3.18, 3.20, 3.18)}
    rows = [
        {"run": f"{arm}-{place}", "arm": arm, "loss": loss}
        for arm, own in losses.items()
        for place, loss in enumerate(own)
    ]
    archive = finished(tmp_path, rows)
    (row,) = compare(read_tables(archive).runs).table.to_dict("records")
    assert row["gain"] == pytest.approx(0.042)
    (matches,) = ask("matched", archive).tables.values()
    equal = matches[matches["kind"] == "equal FLOPs"].iloc[0]
    assert (equal["gain"], equal["steps_ratio"]) == (row["gain"], 1.0)
    muon, baseline = (Arm(name=name, setting=name) for name in ("muon", "baseline"))
    question = Question(name="muon", arm=muon, against=baseline, family="main")
    other = read_tables(archive).runs
    other.loc[other["arm"] == "muon", "eval_set"] = "another text"
    assert compare(other, [question]).verdicts["verdict"].item() == "no pair yet"
    mixed = [question, question.model_copy(update={"name": "again", "method": "paired"})]
    with pytest.raises(UserError, match="family 'main': its questions name the methods moderated-"):
        compare(other, mixed)


@pytest.mark.parametrize(
    ("digits", "copies", "refused"),
    [(4, 4, True), (3, 4, True), (2, 4, False), (4, 1, False), (3, 1, False), (16, 2, True)],
)
def test_finished_runs_that_are_copies_under_other_seeds_are_refused(
    tmp_path, digits, copies, refused
):
    """Rounded losses of real seeds may be equal, those of three seeds in twelve rows may not."""
    random = np.random.default_rng(1)
    rows = []
    for bag in (1, 4):
        losses = np.tile(3.2 + 0.01 * random.standard_normal(12 // copies), copies).round(digits)
        known = {"bag_size": bag, "step_ratio": 0.5 * (bag > 1), "learning_rate": 1e-3}
        rows += [{"seed": seed, "loss": loss, **known} for seed, loss in enumerate(losses)]
    tables = read_tables(finished(tmp_path, rows))
    if refused:
        with pytest.raises(UserError, match="different seeds, but the same final loss 3"):
            refuse_copies(tables)
    else:
        refuse_copies(tables)


def test_studies_of_one_folder_name_keep_their_own_families(tmp_path):
    plain, baseline = (Arm(name=name, setting=name) for name in ("s = 4, r = 0.2", "baseline"))
    question = Question(name="plain", arm=plain, against=baseline, family="main", primary=True)
    for name, gain, first in (("alice", 0.05, 0), ("bob", -0.05, 3)):
        for seed in range(first, first + 3):
            write_run(tmp_path / name / "mine", config(seed), 3.5 + 0.01 * seed)
            loss = 3.5 - gain + 0.01 * seed + 0.001 * (seed % 3 == 1)
            write_run(tmp_path / name / "mine", config(seed, 4, 0.2), loss)
        add_questions(tmp_path / name / "mine", [question])
    folders = [tmp_path / name / "mine" for name in ("alice", "bob")]
    both = ask("comparison", folders).tables["Verdicts"]
    assert set(both["comparisons"]) == {1}
    assert list(both["verdict"]) == ["better", "worse"]
    matches = ask("matched", folders[0]).tables
    (table,) = matches.values()
    equal = table[table["kind"] == "equal FLOPs"]
    assert equal[["low", "high"]].to_numpy().tolist() == [both[["low", "high"]].iloc[0].tolist()]


def test_a_question_asked_the_other_way_round_turns_no_verdict_round(tmp_path):
    write_pairs(tmp_path, (3.5, 3.45), (3.51, 3.461), (3.52, 3.47))
    plain, baseline = (Arm(name=name, setting=name) for name in ("s = 4, r = 0.2", "baseline"))
    question = Question(name="is it worse", arm=baseline, against=plain, family="main")
    found = compare(load(tmp_path), [question])
    assert list(found.verdicts["verdict"]) == ["worse", "better"]
    assert found.table["gain"].item() == pytest.approx(0.05, abs=0.001)
    for seed in range(3):  # a longer baseline reads as much text
        write_run(tmp_path, config(seed, steps=1600), 3.4 + 0.01 * seed)
    long = baseline.model_copy(update={"where": {"steps": 1600}})
    matches = matched(compare(load(tmp_path), [question.model_copy(update={"arm": long})]))
    equal_data = matches[matches["kind"] == "equal data"].iloc[0]
    assert (equal_data["gain"] < 0, equal_data["verdict"]) == (True, "worse")


def test_mixtures_that_were_imported_are_not_fitted_with_dense_models(tmp_path):
    rows = [
        {"parameters": size, "active_parameters": size // part, "loss": 3.0, "seed": seed}
        for size in (10**8, 2 * 10**8)
        for part in (1, 8)
        for seed in range(2)
    ]
    for row in rows:
        row |= {"learning_rate": 1e-3, "bag_size": 1, "step_ratio": 0}
    kinds = alike_in_kind(points_of(eligible(load(finished(tmp_path, rows)))[0]))
    counts = {name: len(own) for name, own in kinds}
    assert counts == {"fineweb, dense": 4, "fineweb, mixtures of experts": 4}
