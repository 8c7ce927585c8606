"""Matches at equal FLOPs, data and loss are found by one ledger."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis import published
from analysis.tables.source import load
from analysis.verdict.comparison import compare
from analysis.verdict.matched import matched
from tests.analysis.made_runs import config, write_run


def rows_of_kind(table: pd.DataFrame, kind: str) -> pd.DataFrame:
    return table[table["kind"] == kind]


@pytest.fixture(scope="module")
def table_1() -> pd.DataFrame:
    runs = published.runs()
    return matched(compare(runs[runs["source"] == "Table 1"]))


def test_table_1s_pairs_at_equal_flops(table_1: pd.DataFrame) -> None:
    found = rows_of_kind(table_1, "equal FLOPs").dropna(subset=["gain"])
    gains = found.set_index(["family", "steps"])["gain"].to_dict()
    assert gains == pytest.approx(
        {
            ("paper 270M", 20_000): 0.070,
            ("paper 270M", 100_000): 0.044,
            ("paper 600M", 20_000): 0.076,
            ("paper 3B", 20_000): 0.132,
        }
    )
    assert set(found["verdict"]) == {"one seed: no claim"}


def test_at_equal_data_the_3b_baseline_wins_with_two_and_a_half_times_the_steps(
    table_1: pd.DataFrame,
) -> None:
    (row,) = rows_of_kind(table_1, "equal data").dropna(subset=["gain"]).to_dict("records")
    assert (row["family"], row["baseline_steps"]) == ("paper 3B", 50_000)
    assert row["gain"] == pytest.approx(-0.036)
    assert row["flops_ratio"] == pytest.approx(2.5)


def test_equal_loss_interpolates_within_the_baselines_lengths(table_1: pd.DataFrame) -> None:
    found = rows_of_kind(table_1, "equal loss").set_index("family")
    row = found.loc["paper 3B"]
    assert 36_000 < row["baseline_steps"] < 37_000
    assert row["hours_ratio"] == pytest.approx(447 / 247, abs=0.01)


def test_with_one_length_of_baseline_the_mixtures_speed_up_is_a_bound(
    table_1: pd.DataFrame,
) -> None:
    row = rows_of_kind(table_1, "equal loss").set_index("family").loc["paper 10B-A1B"]
    assert np.isnan(row["steps_ratio"])
    assert row["note"].startswith("at least 2.50 times the steps and 2.58 times the hours")


def test_a_baseline_of_more_steps_matches_the_data_of_a_superposed_run(tmp_path: Path) -> None:
    """s = 4, r = 0.2 reads 1.6 times the tokens: 1,600 baseline steps."""
    for seed, luck in enumerate((0.0, 0.02, -0.01)):
        write_run(tmp_path, config(seed, 4, 0.2), 3.45 + 0.95 * luck)
        for steps, loss in ((1000, 3.50), (1600, 3.44)):
            write_run(tmp_path, config(seed, steps=steps), loss + luck)
    found = matched(compare(load(tmp_path))).set_index("kind")
    assert found.loc["equal FLOPs", "gain"] == pytest.approx(0.05, abs=1e-3)
    assert found.loc["equal FLOPs", "verdict"] == "better"
    assert found.loc["equal data", "baseline_steps"] == 1600
    assert found.loc["equal data", "gain"] == pytest.approx(-0.01, abs=1e-3)
    # 1.6^(5/6) on a line; both lengths allow more or less of a bend.
    assert found.loc["equal loss", "steps_ratio"] == pytest.approx(1.6 ** (5 / 6), rel=0.03)
    assert found.loc["equal loss", "low"] <= found.loc["equal loss", "steps_ratio"]


def test_a_pair_shares_the_order_of_its_text_and_a_rate_has_rows_of_its_own(tmp_path: Path) -> None:
    """Two seeds in two orders are four pairs, not eight, whoever counts them."""
    for rate in (1e-3, 2e-3):
        for seed, order in ((0, 10), (0, 11), (1, 10), (1, 11)):
            same = {"data_seed": order, "optimizer__learning_rate": rate}
            write_run(tmp_path, config(seed, **same), 3.5 + 0.01 * seed + 0.001 * (order - 10))
            write_run(tmp_path, config(seed, 4, 0.2, **same), 3.4 + 10 * rate)
    runs = load(tmp_path)
    found = rows_of_kind(matched(compare(runs)), "equal FLOPs")
    assert dict(zip(found["learning_rate"], found["seeds"], strict=True)) == {1e-3: 4, 2e-3: 4}
    compared = compare(runs).table.set_index("learning_rate")
    assert (compared["seeds"] == 4).all()
    own = found.set_index("learning_rate")[["gain", "low", "high"]].astype(float)
    pd.testing.assert_frame_equal(own, compared[["gain", "low", "high"]].astype(float))
