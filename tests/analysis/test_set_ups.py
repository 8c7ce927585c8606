"""The set-up to compare at is the one whose baseline is good and whose pairs agree, and it is found
among made runs in which that is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.compare.comparison import compare
from analysis.compare.set_ups import set_ups, set_ups_answer
from analysis.tables.source import load
from tests.analysis.made_runs import config, write_run
from tst_study.errors import UserError

LUCK = (0.0, 0.004, -0.003, 0.002)


def made(root: Path, name: str, baseline: float, gains: tuple[float, ...], **more: object) -> None:
    for seed, (luck, gain) in enumerate(zip(LUCK, gains, strict=True)):
        for s, r, loss in ((1, 0.0, baseline + luck), (4, 0.2, baseline + luck - gain)):
            words = f"m-1000-s{s}-{name}-seed{seed}"
            write_run(root, config(seed, s, r, name=words, **more), loss)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two good baselines, one of them noisy in its pairs, and a worse one that would be quiet."""
    made(tmp_path, "lr1", 3.45, (0.02, 0.08, 0.01, 0.05), optimizer__learning_rate=1e-3)
    made(tmp_path, "lr2", 3.449, (0.03, 0.04, 0.05, 0.04), optimizer__learning_rate=2e-3)
    made(tmp_path, "lr4", 3.55, (0.02, 0.02, 0.02, 0.0201), optimizer__learning_rate=4e-3)
    return tmp_path


def test_the_quietest_of_the_good_baselines_is_chosen(runs: Path) -> None:
    table = set_ups(compare(load(runs))).set_index("set_up")
    assert list(table.index[table["chosen"]]) == ["lr2"]
    assert table.loc["lr4", "above_best"] == pytest.approx(0.101, abs=1e-6)
    assert table.loc["lr2", "deviation"] == pytest.approx(0.00816, abs=1e-4)
    assert set(table["seeds"]) == {4}


def test_runs_that_lag_are_counted_by_arm(runs: Path) -> None:
    """0.05 above the others of their arm: a baseline, and the superposed runs of two seeds."""
    made(runs, "heads", 3.46, (0.05, 0.05, -0.01, -0.01), model__qk_norm=True)
    for seed, s, r, loss in ((4, 1, 0.0, 3.52), (4, 4, 0.2, 3.43)):
        write_run(runs, config(seed, s, r, name=f"m-heads-seed{seed}", model__qk_norm=True), loss)
    answer = set_ups_answer(compare(load(runs)), {})
    row = answer.tables["Set-ups"].set_index("set_up").loc["heads"]
    assert (row["lagging_baselines"], row["lagging_superposed"]) == (1, 2)
    (said,) = answer.sentences
    assert "compare at lr2" in said


def test_one_seed_chooses_nothing(tmp_path: Path) -> None:
    write_run(tmp_path, config(0), 3.5)
    write_run(tmp_path, config(0, 4, 0.2), 3.4)
    with pytest.raises(UserError, match="two seeds or more: nothing to choose by"):
        set_ups(compare(load(tmp_path)))


def test_set_ups_that_names_do_not_tell_apart_are_named_by_what_differs(tmp_path: Path) -> None:
    """Runs of one's own, all called alike; and what lags is counted in its own setting alone."""
    for rate in (1e-3, 2e-3):
        for seed, luck in enumerate((*LUCK, 0.06)):
            for s, gain in ((1, 0.0), (4, 0.02), (8, 0.03 + 0.002 * seed)):
                run = config(seed, s, 0.2 * (s > 1), name="mine", optimizer__learning_rate=rate)
                write_run(tmp_path, run, 3.45 + 10 * rate + luck - gain - 0.001 * s * (seed % 2))
    answer = set_ups_answer(compare(load(tmp_path)), {})
    assert set(answer.tables["Set-ups"]["set_up"]) == {"as it is lr0.001", "as it is lr0.002"}
    assert len(answer.sentences) == 2
    for said in answer.sentences:
        assert "2 baselines and 2 superposed runs of 10 each" in said
