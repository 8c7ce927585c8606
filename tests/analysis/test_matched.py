"""Matches at equal FLOPs, data and loss are found by one ledger; the rate is the baseline's, and
equal loss is read within the baseline's lengths only."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tests.analysis.made_runs import config, imported, write_pairs, write_run
from tst_study.analysis import published
from tst_study.analysis.fits.scaling.compute_multiplier import compute_answer
from tst_study.analysis.tables.source import load
from tst_study.analysis.verdict.comparison import compare
from tst_study.analysis.verdict.learning_rate import Sweep, sweeps
from tst_study.analysis.verdict.length_curve import speed_up
from tst_study.analysis.verdict.matched import ledger, matched
from tst_study.analysis.verdict.question import Arm, Question
from tst_study.analysis.wording import bounds, verdict_parts


def rows_of_kind(table: pd.DataFrame, kind: str) -> pd.DataFrame:
    return table[table["kind"] == kind]


def test_hours_count_the_devices_or_one_where_nobody_wrote_how_many():
    runs = pd.DataFrame({"nats_per_token": [3, 3], "block": ["", ""], "device_count": [None, 4]})
    assert ledger(runs.assign(training_seconds=[1800, 900]))["hours"].tolist() == [0.5, 1.0]


def test_hours_are_those_of_one_seed_over_those_of_the_same(tmp_path):
    write_pairs(tmp_path, (3.5, 3.4), (3.5, 3.4))
    runs = load(tmp_path)
    runs["training_seconds"] = 10.0 + 20.0 * runs["seed"]
    assert set(matched(compare(runs))["hours_ratio"].dropna()) == {1.0}


@pytest.fixture(scope="module")
def table_1() -> pd.DataFrame:
    runs = published.runs()
    return matched(compare(runs[runs["source"] == "Table 1"]))


def test_table_1s_pairs_at_equal_flops(table_1):
    found = rows_of_kind(table_1, "equal FLOPs").dropna(subset=["gain"])
    gains = found.set_index(["family", "steps"])["gain"].to_dict()
    known = {("270M", 20_000): 0.070, ("270M", 100_000): 0.044, ("600M", 20_000): 0.076}
    known[("3B", 20_000)] = 0.132
    assert gains == pytest.approx({(f"paper {k}", steps): v for (k, steps), v in known.items()})
    assert set(found["verdict"]) == {"one seed: no claim"}


def test_at_equal_data_the_3b_baseline_wins_with_two_and_a_half_times_the_steps(table_1):
    (row,) = rows_of_kind(table_1, "equal data").dropna(subset=["gain"]).to_dict("records")
    names = ["family", "baseline_steps", "gain", "flops_ratio"]
    assert [row[name] for name in names] == ["paper 3B", 50_000, pytest.approx(-0.036), 2.5]


def test_equal_loss_interpolates_within_the_baselines_lengths(table_1):
    """One length of baseline, as the mixture has, allows a bound alone."""
    found = rows_of_kind(table_1, "equal loss").set_index("family")
    assert 36_000 < found.loc["paper 3B", "baseline_steps"] < 37_000
    assert found.loc["paper 3B", "hours_ratio"] == pytest.approx(447 / 247, abs=0.01)
    row = found.loc["paper 10B-A1B"]
    assert np.isnan(row["steps_ratio"])
    assert row["note"].startswith("at least 2.50 times the steps and 2.58 times the hours")


def test_a_baseline_of_more_steps_matches_the_data_of_a_superposed_run(tmp_path):
    """s = 4, r = 0.2 reads 1.6 times the tokens: 1,600 baseline steps."""
    for seed, luck in enumerate((0.0, 0.02, -0.01)):
        write_run(tmp_path, config(seed, 4, 0.2), 3.45 + 0.95 * luck)
        for steps, loss in ((1000, 3.50), (1600, 3.44)):
            write_run(tmp_path, config(seed, steps=steps), loss + luck)
    write_run(tmp_path, config(0, 8, 0.2), 3.6)  # one seed, which widens no other's interval
    found = matched(compare(load(tmp_path))).query("setting == 's = 4, r = 0.2'").set_index("kind")
    assert found.loc["equal FLOPs", "gain"] == pytest.approx(0.05, abs=1e-3)
    assert found.loc["equal FLOPs", "verdict"] == "better"
    assert found.loc["equal data", "baseline_steps"] == 1600
    assert found.loc["equal data", "gain"] == pytest.approx(-0.01, abs=1e-3)
    test = stats.ttest_1samp([-0.01 + 0.05 * luck for luck in (0.0, 0.02, -0.01)], 0.0)
    interval = found.loc["equal data", ["low", "high"]].tolist()
    assert interval == pytest.approx([*test.confidence_interval()])
    # 1.6^(5/6) on a line; both lengths allow more or less of a bend.
    assert found.loc["equal loss", "steps_ratio"] == pytest.approx(1.6 ** (5 / 6), rel=0.03)
    assert found.loc["equal loss", "low"] <= found.loc["equal loss", "steps_ratio"]


def test_at_equal_data_only_the_question_about_these_very_runs_counts(tmp_path):
    """One with the arms exchanged, and one about two of the seeds with as large a gain, do not."""
    for seed, luck in enumerate((0.01, -0.01, 0.005, -0.005)):
        write_run(tmp_path, config(seed, 4, 0.2), 3.45 + luck)
        write_run(tmp_path, config(seed, steps=1600), 3.5)
        write_run(tmp_path, config(seed, steps=1602), 3.0)  # within the tolerance, but not nearest
    compared = {
        "setting": Arm(name="s = 4", setting="s = 4, r = 0.2", where={"seed": (0, 1)}),
        "exchanged": Arm(name="longer", setting="baseline", where={"steps": 1600}),
    }
    whole = compared["setting"].model_copy(update={"where": {}})
    asked = [
        Question(name="a part", family="a", arm=compared["setting"], against=compared["exchanged"]),
        Question(name="exchanged", family="b", arm=compared["exchanged"], against=whole),
    ]
    asked = [one.model_copy(update={"matched": "data", "primary": True}) for one in asked]
    found = matched(compare(load(tmp_path), asked)).set_index("kind").loc["equal data"]
    assert (found["seeds"], found["verdict"]) == (4, "better")
    assert found["gain"] == pytest.approx(0.05)
    asked.append(asked[0].model_copy(update={"name": "these", "arm": whole}))
    answered = compare(load(tmp_path), asked)
    these = answered.verdicts.set_index("question").loc["these"]
    own = matched(answered).set_index("kind").loc["equal data"]
    assert (own["low"], own["high"]) == (these["low"], these["high"])
    assert own["low"] < found["low"]  # as two questions of a family hold together


@pytest.mark.parametrize(
    ("steps", "loss", "note"),
    [
        (1000, 3.5, "its baseline has one length only (1,000 steps)"),
        (1600, 3.4, "its baseline has one length only (1,600 steps)"),
        (1600, 3.5, "at least 1.60 times the steps and 1.60 times the hours"),
    ],
)
def test_one_longer_and_worse_baseline_is_a_bound(steps, loss, note, tmp_path):
    write_run(tmp_path, config(0, 4, 0.2), 3.4)
    write_run(tmp_path, config(0, steps=steps), loss)
    (row,) = rows_of_kind(matched(compare(load(tmp_path))), "equal loss").to_dict("records")
    assert row["note"].startswith(note)


def test_what_a_missing_baseline_lacks_is_said(tmp_path):
    def notes() -> list[str]:
        return matched(compare(load(tmp_path)))["note"].tolist()

    write_run(tmp_path, config(0, 4, 0.2), 3.4)
    lacking = ["no baseline of equal FLOPs", "no baseline of equal data"]
    assert notes() == [*lacking, "no baseline"]
    write_run(tmp_path, config(1), 3.5)
    assert notes() == [f"{lacking[0]} with its seeds", lacking[1], "no baseline with its seeds"]


def test_of_baselines_with_several_warm_ups_the_settings_own_counts_or_none(tmp_path):
    for seed, luck in enumerate((0.0, 0.02, -0.01)):
        write_run(tmp_path, config(seed, 4, 0.2, schedule__warmup_steps=40), 3.4 + luck)
        for warmup, loss in ((20, 3.0), (40, 3.5)):
            write_run(tmp_path, config(seed, schedule__warmup_steps=warmup), loss + 1.1 * luck)
            write_run(tmp_path, config(seed, steps=1600, schedule__warmup_steps=warmup // 3), loss)
    runs = load(tmp_path)
    runs["training_seconds"] = 10.0 + (runs["nats_per_token"] < 3.2)  # the other warm-up's
    found = matched(compare(runs)).set_index("kind")
    assert found.loc["equal FLOPs", "gain"] == pytest.approx(0.1, abs=1e-3)
    assert found.loc["equal FLOPs", "hours_ratio"] == 1.0
    assert found.loc["equal data", "note"] == "two baselines of equal data have one seed; keep one"


@pytest.mark.parametrize(("whole", "kept"), [("the comparison arm", (1, 2)), ("the arm", (0,))])
def test_a_question_about_a_seed_that_one_arm_lost_is_about_the_others(whole, kept, tmp_path):
    """Its verdict stands beside its matches, with the allowance of its family."""
    for seed, luck in enumerate((0.01, -0.01, 0.005, 0.0)):
        runs = [config(seed, 4, 0.2), config(seed), config(seed, steps=1600)]
        for place in range(3) if seed < 3 else kept:
            write_run(tmp_path, runs[place], 3.5 if place else 3.45 + luck)
    arm, family = Arm(name="s = 4", setting="s = 4, r = 0.2"), "all"
    arms = [Arm(name=f"{n}", setting="baseline", where={"steps": n}) for n in (1000, 1600)]
    asked = [Question(name=one.name, family=family, arm=arm, against=one) for one in arms]
    compared = compare(load(tmp_path), asked)
    rows = matched(compared).query("kind != 'equal loss'")
    assert set(rows["note"]) == {f"without a pair: seed 3 of {whole}"}
    assert rows["low"].tolist() == compared.verdicts["low"].tolist()
    ((_, _, cells),) = verdict_parts(compared.verdicts)
    assert {row["verdict"] for row in cells} == {f"better (without a pair: seed 3 of {whole})"}


def test_settings_whose_labels_are_equal_keep_their_own_verdicts(tmp_path):
    """The label shows three digits of r, too few to tell 0.25 from 0.2503."""
    for seed, luck in enumerate((0.0, 0.002, -0.001, 0.001)):
        write_run(tmp_path, config(seed, steps=10_000), 3.5)
        for ratio, gain in ((0.25, 0.05), (0.2503, -0.1)):
            write_run(tmp_path, config(seed, 4, ratio, steps=10_000), 3.5 - gain + luck)
    equal = matched(compare(load(tmp_path))).query("kind == 'equal FLOPs'")
    assert equal["setting"].nunique() == 1
    assert equal["verdict"].tolist() == ["better", "worse"]


def swept(folder: Path) -> Sweep:
    (sweep,) = sweeps(load(folder))
    return sweep


def test_the_best_rate_is_chosen_on_the_baseline_over_shared_seeds(tmp_path):
    for rate, loss in ((1e-3, 3.55), (2e-3, 3.50), (4e-3, 3.52)):
        write_run(tmp_path, config(0, optimizer__learning_rate=rate), loss)
    write_run(tmp_path, config(1), 3.9)  # a second, unlucky seed of the best rate alone
    write_run(tmp_path, config(0, 4, 0.2, optimizer__learning_rate=2e-3), 3.4)
    sweep = swept(tmp_path)
    assert (sweep.best, sweep.at_edge, sweep.followed) == (2e-3, False, True)
    assert sweep.margin == pytest.approx(0.02)
    write_run(tmp_path, config(0, optimizer__learning_rate=8e-3), 3.45)
    edge = swept(tmp_path)
    assert (edge.at_edge, edge.followed) == (True, False)
    assert "at the edge" in edge.sentence()
    assert "superposed runs use 0.002" in edge.sentence()


def test_equal_loss_of_a_known_power_law_is_exact(tmp_path):
    """Baselines fall as 2 + 3 steps^−0.3; the setting is worth √2 times its steps."""
    for seed, luck in enumerate((0.0, 0.03)):
        for steps in (500, 1000, 2000):
            write_run(tmp_path, config(seed, steps=steps), 2 + 3 * steps**-0.3 + luck)
        loss = 2 + 3 * (1000 * math.sqrt(2)) ** -0.3 + luck
        write_run(tmp_path, config(seed, 4, 0.2), loss)
    (row,) = rows_of_kind(matched(compare(load(tmp_path))), "equal loss").to_dict("records")
    assert row["steps_ratio"] == pytest.approx(math.sqrt(2), rel=1e-4)
    said = (row["baseline_steps"], row["verdict"], row["note"])
    assert said == (1414, "two seeds: no claim", "")


def arm(losses: dict[int, list[float]]) -> pd.DataFrame:
    """A table of runs, from losses of seed 0, 1, … by steps."""
    rows = [(steps, seed, loss) for steps in losses for seed, loss in enumerate(losses[steps])]
    return pd.DataFrame(rows, columns=["steps", "seed", "loss"])


def test_flops_that_differ_a_little_between_seeds_are_one_length(tmp_path):
    """The arm lacks the seed whose baseline's FLOPs are nearest to its own."""
    runs = arm({1000: [3.6, 3.61, 3.62], 2000: [3.4, 3.412, 3.42]}).assign(params=1e8)
    parts = [runs.assign(bag_size=s, step_ratio=0.1 * (s - 1)) for s in (1, 4)]
    runs = pd.concat(parts, ignore_index=True).query("bag_size == 1 or seed > 0")
    runs["flops"] = (1 + 1e-4 * (runs["seed"] - (runs["bag_size"] > 1))) * 6e14 * runs["steps"]
    table = load(imported(tmp_path, runs.assign(tokens=1e6 * runs["steps"])))
    (found, *_) = compute_answer(table).tables.values()
    assert found["multiplier"].tolist() == pytest.approx([1.0] * 3, rel=1e-3)
    assert set(rows_of_kind(matched(compare(table)), "equal FLOPs")["seeds"]) == {2}


@pytest.mark.parametrize(
    ("loss", "baselines", "note"),
    [
        (3.4, {500: [3.6], 1000: [3.5]}, "better than the best baseline (1,000 steps)"),
        (3.7, {500: [3.6], 1000: [3.5]}, "worse than the shortest baseline (500 steps)"),
        (3.55, {500: [3.5], 1000: [3.6]}, "are no better"),
        (
            3.45,
            {500: [3.6], 1000: [3.5], 2000: [3.52], 4000: [3.4]},
            "better than the last usable baseline (1,000 steps); the baseline from 2,000 on is "
            "left out: no better than at 1,000",
        ),
    ],
)
def test_equal_loss_is_never_read_beyond_the_baselines(loss, baselines, note):
    found = speed_up(arm(baselines), arm({1000: [loss]}))
    assert note in found["note"]
    assert found["speed_up"] is None


def test_equal_loss_reads_only_seeds_that_every_length_has():
    """The longest baseline was run with a lucky seed alone, and gives way."""
    baselines = arm({500: [3.60, 3.61], 1000: [3.50, 3.52], 4000: [3.0]})
    found = speed_up(baselines, arm({1000: [3.55, 3.56]}))
    assert found["seeds"] == 2
    assert found["note"] == "lengths with one seed are left out; two seeds: no claim"
    assert found["low"] is found["high"] is None
    assert 0.5 < found["speed_up"] < 1
    other = arm({1000: [3.55]}).assign(seed=7)
    assert "no seed was run at every length" in speed_up(baselines, other)["note"]
    twice = pd.concat([arm({500: [3.6]}), arm({500: [3.7], 1000: [3.5]})])
    assert "seed 0 has two losses at steps 500" in speed_up(twice, arm({1000: [3.55]}))["note"]


def test_a_rate_at_which_one_seed_diverged_is_not_the_best_of_the_others(tmp_path):
    for seed in (0, 1):
        for rate, loss in ((1e-3, 3.55), (2e-3, 3.50), (4e-3, 3.52)):
            write_run(tmp_path, config(seed, optimizer__learning_rate=rate), loss)
    write_run(tmp_path, config(0, optimizer__learning_rate=8e-3), None, state="diverged")
    write_run(tmp_path, config(1, optimizer__learning_rate=8e-3), 3.4)
    sweep = swept(tmp_path)
    assert (sweep.best, sweep.at_edge) == (2e-3, False)
    assert sweep.rates.set_index("learning_rate").loc[8e-3, "loss"] == float("inf")
    broken = load(tmp_path).query("state == 'diverged'")["run_id"].item()
    (tmp_path / "exclusions.csv").write_text(f"run,reason\n{broken},a node lost its clock\n")
    assert swept(tmp_path).best == 8e-3
    for rate in (2e-3, 4e-3):
        write_run(tmp_path, config(0, 4, 0.2, optimizer__learning_rate=rate), 3.4)
    assert swept(tmp_path).superposed_rates == (2e-3, 4e-3)
    other = load(tmp_path).query("bag_size == 4 and learning_rate == 4e-3")["run_id"].item()
    with (tmp_path / "exclusions.csv").open("a") as exclusions:
        exclusions.write(f"{other},a typo\n")
    assert swept(tmp_path).superposed_rates == (2e-3,)


def test_an_interval_that_is_open_on_one_side_is_said_so():
    ends = [(0.75, 1.5), (0.75, None), (None, -1.5), (None, None)]
    said = [bounds({"low": low, "high": high}) for low, high in ends]
    assert said == ["0.75, 1.50", "0.75, open", "open, −1.50", ""]


def test_between_lengths_five_fold_apart_the_interval_spans_the_forms_of_the_curve():
    """A curve that bends is no power law: one fitted form misses the truth, 1.5, by 3%."""

    def loss(steps: float) -> float:
        return 1.8 + 1.6 * (steps / 1000) ** -0.35 + 0.3 * math.exp(-steps / 1000)

    luck = (0.004, -0.003, 0.001, -0.002)
    own = arm({1000: [loss(1500) + 0.5 * one for one in luck]})
    found = {}
    for lengths in ((200, 1000, 5000), (500, 1000, 2000)):
        curve = arm({steps: [loss(steps) + one for one in luck] for steps in lengths})
        match = speed_up(curve, own)
        assert match["low"] < 1.5 < match["high"]
        found[lengths] = match["high"] - match["low"]
    assert found[200, 1000, 5000] > 3 * found[500, 1000, 2000]
