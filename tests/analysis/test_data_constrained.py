"""Repeats are worth less and less; what reads more text repeats it sooner."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from analysis.fits.law.data_constrained import (
    best_of_mode,
    data_answer,
    effective_tokens,
    shares_of_full,
    win_map,
)
from analysis.tables.source import load
from analysis.verdict.comparison import compare
from tests.analysis.made_runs import config, write_run


def test_tokens_read_once_count_whole_and_repeats_ever_less() -> None:
    assert effective_tokens(1e9, 5e9) == pytest.approx(1e9)
    four, forty, endless = effective_tokens(np.array([4e9, 40e9, 1e15]), 1e9)
    assert four == pytest.approx(3.73e9, rel=0.01)  # up to four epochs nearly as good as new data
    assert forty < 20e9
    assert endless == pytest.approx((1 + 15.4) * 1e9)


def test_shares_of_the_gain_are_those_of_figure_6() -> None:
    """Ends: baseline 3.086, input-only 3.046, output-only 3.051, full 3.011."""
    shares = shares_of_full()
    assert shares["input_only"] == pytest.approx(0.040 / 0.075, abs=0.03)
    assert shares["output_only"] == pytest.approx(0.035 / 0.075, abs=0.03)


def test_full_wins_on_ample_data_and_output_only_where_data_repeat_much() -> None:
    table = win_map(600e6, [0.5e9, 100e9], [20_000]).set_index("unique_tokens")
    assert table.loc[100e9, "winner"] == "full"
    assert table.loc[0.5e9, "winner"] == "output_only"
    assert set(table["source"]) == {"fitted law, not runs"}
    scarce, ample = (best_of_mode("full", 600e6, 20_000, unique) for unique in (2e9, 1e12))
    assert scarce.bag_size * scarce.step_ratio < ample.bag_size * ample.step_ratio
    assert ample.loss < 0


def test_runs_decide_where_there_are_some(tmp_path: Path) -> None:
    for seed, luck in enumerate((0.0, 0.01, -0.02)):
        write_run(tmp_path, config(seed), 3.5 + luck)
        for mode, gain in (("full", 0.02), ("output_only", 0.03)):
            run = config(seed, 4, 0.2, superposition__mode=mode)
            write_run(tmp_path, run, 3.5 + luck - gain + 0.001 * seed)
    runs = load(tmp_path)
    (row,) = data_answer(compare(runs), runs, {}).tables["Winners, from runs"].to_dict("records")
    assert (row["winner"], row["verdict"], row["source"]) == ("output_only", "better", "runs")
    assert row["epochs"] == pytest.approx(1000 * 16 * 64 / 50_000_000)
