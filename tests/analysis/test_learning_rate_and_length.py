"""The rate is the baseline's, and equal loss is read within the baseline's lengths only."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest

from analysis.summary import summarise
from analysis.tables.source import load, read_tables
from analysis.verdict.comparison import compare
from analysis.verdict.learning_rate import Sweep, sweeps
from analysis.verdict.length_curve import speed_up
from analysis.wording import bounds
from tests.analysis.made_runs import config, write_run


def swept(folder: Path) -> Sweep:
    runs = load(folder)
    (sweep,) = sweeps(runs, compare(runs))
    return sweep


def test_the_best_rate_is_chosen_on_the_baseline_over_shared_seeds(tmp_path: Path) -> None:
    for rate, loss in ((1e-3, 3.55), (2e-3, 3.50), (4e-3, 3.52)):
        write_run(tmp_path, config(0, optimizer__learning_rate=rate), loss)
    write_run(tmp_path, config(1), 3.9)  # a second, unlucky seed of the best rate alone
    write_run(tmp_path, config(0, 4, 0.2, optimizer__learning_rate=2e-3), 3.4)
    sweep = swept(tmp_path)
    assert (sweep.best, sweep.at_edge, sweep.followed) == (2e-3, False, True)
    assert sweep.margin == pytest.approx(0.02)


def test_a_best_rate_at_the_edge_and_a_rate_not_followed_are_said(tmp_path: Path) -> None:
    for rate, loss in ((1e-3, 3.45), (2e-3, 3.50)):
        write_run(tmp_path, config(0, optimizer__learning_rate=rate), loss)
    write_run(tmp_path, config(0, 4, 0.2, optimizer__learning_rate=2e-3), 3.4)
    sweep = swept(tmp_path)
    assert sweep.at_edge
    assert not sweep.followed
    assert "at the edge" in sweep.sentence()
    assert "also use 0.002" in sweep.sentence()


def test_rates_that_were_measured_on_two_texts_are_no_sweep(tmp_path: Path) -> None:
    """The easier text would win, not the better rate."""
    for rate, loss, text in ((1e-3, 4.0, "d"), (2e-3, 3.0, "e")):
        run = config(0, optimizer__learning_rate=rate)
        write_run(tmp_path, run, loss, eval_set=f"validation-{16 * text}")
    runs = load(tmp_path)
    assert sweeps(runs, compare(runs)) == []


def test_equal_loss_of_a_known_power_law_is_exact(tmp_path: Path) -> None:
    """Baselines fall as 2 + 3 steps^−0.3; the setting is worth √2 times its steps."""
    for seed, luck in enumerate((0.0, 0.03)):
        for steps in (500, 1000, 2000):
            write_run(tmp_path, config(seed, steps=steps), 2 + 3 * steps**-0.3 + luck)
        loss = 2 + 3 * (1000 * math.sqrt(2)) ** -0.3 + luck
        write_run(tmp_path, config(seed, 4, 0.2), loss)
    (row,) = summarise(read_tables(tmp_path)).equal_loss.to_dict("records")
    assert row["steps_ratio"] == pytest.approx(math.sqrt(2), rel=1e-4)
    assert row["baseline_steps"] == 1414


def arm(losses: dict[int, list[float]]) -> pd.DataFrame:
    """A table of runs, from losses of seed 0, 1, … by steps."""
    rows = [(steps, seed, loss) for steps in losses for seed, loss in enumerate(losses[steps])]
    return pd.DataFrame(rows, columns=["steps", "seed", "loss"])


@pytest.mark.parametrize(
    ("loss", "baselines", "note"),
    [
        (3.4, {500: [3.6], 1000: [3.5]}, "better than the best baseline (1,000 steps)"),
        (3.7, {500: [3.6], 1000: [3.5]}, "worse than the shortest baseline (500 steps)"),
        (3.55, {500: [3.5], 1000: [3.6]}, "not always better"),
        (3.55, {500: [3.6]}, "one length only"),
        (3.4, {500: [3.6], 1000: [3.5], 2000: [3.55]}, "better than the best baseline (1,000"),
        (
            3.45,
            {500: [3.6], 1000: [3.5], 2000: [3.52], 4000: [3.4]},
            "better than the last usable baseline (1,000 steps); the baseline at 2,000 is no "
            "better than at 1,000: left out from there",
        ),
    ],
)
def test_equal_loss_is_never_read_beyond_the_baselines(
    loss: float, baselines: dict[int, list[float]], note: str
) -> None:
    found = speed_up(arm(baselines), arm({1000: [loss]}))
    assert note in found["note"]
    assert found["speed_up"] is None


def test_equal_loss_reads_only_seeds_that_every_length_has() -> None:
    """The longest baseline was run with a lucky seed alone, and gives way."""
    baselines = arm({500: [3.60, 3.61], 1000: [3.50, 3.52], 4000: [3.0]})
    found = speed_up(baselines, arm({1000: [3.55, 3.56]}))
    assert found["seeds"] == 2
    assert found["note"] == "lengths with one seed are left out"
    assert 0.5 < found["speed_up"] < 1
    other = arm({1000: [3.55]}).assign(seed=7)
    assert "no seed was run at every length" in speed_up(baselines, other)["note"]
    twice = pd.concat([arm({500: [3.6]}), arm({500: [3.7], 1000: [3.5]})])
    assert "seed 0 has two losses at steps 500" in speed_up(twice, arm({1000: [3.55]}))["note"]


def test_a_summary_of_no_runs_is_a_sentence(tmp_path: Path) -> None:
    lines = summarise(read_tables(tmp_path)).lines()
    assert lines[0].startswith("Nothing to compare yet")


def test_a_rate_at_which_one_seed_diverged_is_not_the_best_of_the_others(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ((0.75, 1.5), "0.75, 1.50"),
        ((0.75, None), "0.75, open"),
        ((None, -1.5), "open, −1.50"),
        ((None, None), ""),
    ],
)
def test_an_interval_that_is_open_on_one_side_is_said_so(
    ends: tuple[float | None, float | None], said: str
) -> None:
    assert bounds({"low": ends[0], "high": ends[1]}) == said
