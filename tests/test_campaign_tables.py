"""Tables of the campaign, on made runs of all its grids: each says what was put into it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from analysis.compare.comparison import Comparison, compare
from analysis.tables.source import load, read_tables
from docs import campaign_tables as tables
from docs.predictions import targets
from experiments.studies import catalogue
from experiments.studies.campaign import STEPS
from tests.analysis.made_runs import BOOKS, config, write_run
from tst_study.config import Config, Superposition
from tst_study.run.writer import append_task_results

LITTLE = {**BOOKS, "corpora": [{**BOOKS["corpora"][0], "fingerprint": "9" * 64}]}
GAINS = {"laptop-32": -0.03, "laptop-64": 0.02, "laptop-128": 0.05}


class TwiceTheRate:
    """The higher the rate, the better, in runs that choose one."""

    def held_out(self, config: Config) -> float:
        return -config.optimizer.learning_rate


def truth(run: Config) -> float:
    """A gain of 0.02 at the main setting, and a difference of 0.01 for everything changed; pairs
    deviate by 0.002 about their mean, the same mean for four seeds and for eight."""
    model = f"laptop-{run.model.hidden_size}"
    level = 3.4 + 400 / run.schedule.steps + 0.001 * run.seed
    if run.optimizer.learning_rate < 2e-3:
        level += 0.05
    s = run.superposition
    if s.bag_size == 1:
        return level
    gain = GAINS[model] + 0.002 * (-1) ** run.seed
    gain += 0.01 * (s.bag_size != 4) + 0.1 * (s.step_ratio - 0.25)
    plain = Superposition(bag_size=s.bag_size, step_ratio=s.step_ratio)
    changed = s != plain and run.seed % 2
    return level - gain + 0.01 * (s != plain) + 0.004 * bool(changed)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    root = tmp_path_factory.mktemp("campaign")
    for run in catalogue.load("laptop", "desktop").runs(TwiceTheRate()):
        if run.name.startswith("generated"):
            continue
        little = run.name.startswith("little-text")
        write_run(root, run, truth(run), data=LITTLE if little else BOOKS, log_every=5_000)
    return compare(load(root))


def numbers(table: str, row: str) -> list[float]:
    (line,) = re.findall(rf"^\| {re.escape(row)} \|.*$", table, flags=re.MULTILINE)
    words = line.split("|", 2)[2].replace("−", "-").replace("s = ", "")
    return [float(number) for number in re.findall(r"-?\d+\.?\d*", words)]


def test_lengths_allow_for_all_four_and_have_eight_seeds(found: Comparison) -> None:
    table = tables.lengths(found)
    assert table.count("\n") == 1 + 4
    for steps in ("5,000", "10,000", "20,000", "28,000"):
        seeds, baseline, superposed, gain, low, high, *_ = numbers(table, steps)
        assert (seeds, gain) == (8, 0.02)
        assert baseline - superposed == pytest.approx(0.02, abs=2e-4)
        assert (low + high) / 2 == pytest.approx(gain, abs=1e-4)
    assert low < 0.0178  # an interval of its own is 0.0179 to 0.0221


def test_the_main_length_is_held_against_equal_flops_data_and_loss(found: Comparison) -> None:
    table = tables.primary(found)
    assert numbers(table, "FLOPs")[:3] == pytest.approx([0.02, 0.0182, 0.0218], abs=2e-4)
    # 400 / 20,000 less 400 / 35,000 is 0.0086: what the longer baseline gains by itself.
    assert numbers(table, "data")[0] == pytest.approx(0.0114, abs=1e-4)
    assert numbers(table, "data")[3] == 1.75
    assert "| loss |" in table


def context_row(task: str, value: float) -> dict[str, object]:
    metrics = {name: value for one, name in tables.CONTEXT if one == task}
    counters = {"step": STEPS, "phase": "recovery", "raw_tokens": 1, "latent_tokens": 1, "flops": 1}
    of_data = {"annealed": True, "data": "40x65-aa", "samples": 40, "details": {}, "seconds": 1.0}
    return {**counters, **of_data, "task": task, "metrics": metrics}


def test_context_says_which_arm_leans_more_on_what(found: Comparison) -> None:
    tasks = {task for task, _ in tables.CONTEXT}
    pairs = found.pairs[found.pairs["steps"] == STEPS]
    for pair in pairs[pairs["superposed_folder"].str.contains("/lengths-")].to_dict("records"):
        less = 0.5 + 0.001 * pair["seed"]
        for folder, value in (
            (pair["baseline_folder"], 2.0),
            (pair["superposed_folder"], 2.0 - less),
        ):
            append_task_results(folder, [context_row(task, value) for task in tasks])
    table = tables.context(
        found, read_tables(found.pairs["superposed_folder"].iloc[0].rpartition("/")[0]).evaluations
    )
    # Seeds 3 to 10: 0.00245 from seed to seed, and Student's t of 7 degrees for ten rows is 4.03.
    assert numbers(table, "loss on Python code") == [8, 2, 1.4935, -0.5065, -0.51, -0.503]
    assert numbers(table, "lost by shuffling within bags of 4")[-1] == -0.503
    assert table.count("| better |") == 4
    assert table.count("| leans less on it |") == 6


def test_rates_are_shown_for_both_arms_and_each_at_its_own(found: Comparison) -> None:
    table = tables.rates(found)
    assert [numbers(table, rate)[0] for rate in ("0.0005", "0.001", "0.002", "0.004")] == [4] * 4
    assert "(baseline 0.002, superposed 0.002): 0.0200 [" in table


def test_ratios_and_bag_sizes_stand_beside_the_main_setting(found: Comparison) -> None:
    table = tables.step_ratios(found)
    assert [numbers(table, f"s = 4, r = {r}")[3] for r in (0.1, 0.25, 0.4, 0.6)] == [
        0.005,
        0.02,
        0.035,
        0.055,
    ]
    table = tables.bag_sizes(found)
    assert [numbers(table, str(s))[3] for s in (2, 3, 4, 6, 8, 12, 16)] == [0.03] * 2 + [0.02] + [
        0.03
    ] * 4


def test_sizes_are_compared_at_the_rate_of_each(found: Comparison) -> None:
    table = tables.sizes(found)
    assert {model: numbers(table, model)[3] for model in GAINS} == GAINS


def test_little_text_has_its_own_baseline(found: Comparison) -> None:
    table = tables.little_text(found)
    assert numbers(table, "s = 4, r = 0.25")[3] == 0.02
    assert table.count("\n") == 1 + 2


def test_ablations_are_held_against_the_plain_setting(found: Comparison) -> None:
    table = tables.ablations(found)
    assert table.count("\n") == 1 + 7
    for row in ("s = 4, r = 0.25, re-initialised", "s = 16, r = 0.25, output only"):
        assert numbers(table, row)[2] == pytest.approx(0.012, abs=1e-4)
    assert table.count("worse than plain") == 7


def test_output_only_is_held_against_both_arms_of_other_seeds(found: Comparison) -> None:
    table = tables.output_only(found)
    assert table.count("\n") == 1 + 2
    seeds, _, _, ahead, *_ = numbers(table, "the baseline")
    assert (seeds, ahead) == (4, pytest.approx(0.008, abs=1e-4))
    behind, low, high = numbers(table, "plain superposition")[3:6]
    assert behind == pytest.approx(-0.012, abs=1e-4)
    assert low < behind < high


def committed(what: str, params: float, tokens: float, seeds: range) -> dict[str, object]:
    """By law 0.03 and by trend 0.02 in each seed, the truth; no gain but 0.01 at the nearest."""
    return {
        "what": what,
        "params": params,
        "tokens": tokens,
        "seeds": list(seeds),
        "law": (0.03, 0.02, 0.04),
        "trend": (0.02, 0.01, 0.03),
        "trend_by_seed": [0.02 + 0.0001 * seed for seed in seeds],
        "same": (0.01, 0.0, 0.02),
        "same_by_seed": [0.01] * len(seeds),
        "none": 0.0,
    }


def test_predictions_stand_beside_what_came(
    found: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long, large = targets()
    ways = [committed(*long[:3], range(3, 11)), {**committed(*large[:3], range(3, 7)), "law": None}]
    later = {**committed("years later", 1.0, 1.0, range(3, 7))}
    monkeypatch.setattr(tables, "PREDICTIONS", tmp_path / "predictions.json")
    tables.PREDICTIONS.write_text(json.dumps({"predictions": [*ways, later]}))
    lines = tables.predictions(found).replace("−", "-").splitlines()[2:]
    assert len(lines) == 3 * len(tables.WAYS)
    assert "28,000 steps: 0.0200 [" in lines[0]
    assert "(8 seeds)" in lines[0]
    law, trend, same, none = (line.split(" | ") for line in lines[:4])
    assert law[3].startswith("-0.0100 [")
    assert law[4].startswith("refuted; no nearer")
    assert trend[4].startswith("not refuted; nearer than the same")
    assert same[3].startswith("0.0100 [")
    assert none[3].startswith("0.0200 [")
    assert same[4].startswith("refuted")
    assert "laptop-128, 10,000 steps: 0.0500 [" in lines[4]
    assert "these runs determine none" in lines[4]
    assert "years later: not trained yet" in lines[8]


def test_one_seed_is_a_number_without_an_interval(tmp_path: Path) -> None:
    """As while a grid is being trained: a table is made, and makes no claim."""
    for s in (1, 4):
        run = config(3, s, 0.25 * (s > 1), steps=STEPS, name=f"lengths-{STEPS}-s{s}")
        write_run(tmp_path, run, 3.5 - 0.02 * (s > 1), log_every=5_000)
    one = compare(load(tmp_path))
    assert "| 0.0200 | – | – | one seed: no claim |" in tables.lengths(one)
    assert "| FLOPs | 0.0200 | 1.000 | one seed: no claim |" in tables.primary(one)
