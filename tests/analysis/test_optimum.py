"""The optimum is found where it is, with an interval that means it, or not at all."""

from pathlib import Path

import numpy as np
import pytest

from tst_study.analysis import published
from tst_study.analysis.fits.bag_size import UNKNOWN, optima, optimum
from tst_study.analysis.questions import ask

BAGS = np.arange(2, 17)


def u_shape(best: float = 7.0) -> np.ndarray:
    """A parabola in log s."""
    return 3.14 + 0.02 * (np.log(BAGS) - np.log(best)) ** 2


def asymmetric() -> np.ndarray:
    """The other form, lowest at 7."""
    return 3.0 + 0.07 / BAGS + 0.01 * np.log(BAGS)


def test_a_form_that_the_curve_rules_out_is_dropped():
    for losses, form in ((u_shape(), "parabola"), (asymmetric(), "asymmetric")):
        result = optimum(BAGS, losses)
        assert (result.form, result.best) == (form, pytest.approx(7.0, rel=0.01))


def test_forms_that_disagree_by_more_than_their_intervals_leave_it_undetermined():
    """Four values and two seeds that agree closely cannot say which form is true."""
    few = [0, 2, 6, 14]
    noise = 1e-4 * np.random.default_rng(5).standard_normal((4, 2))
    result = optimum(BAGS[few], asymmetric()[few, None] + noise)
    assert (result.form, result.best) == ("both", None)
    assert "not determined: lowest at s = 7.92 (parabola) and 7.02 (asymmetric)" in result.edge
    assert result.low < 7.0 < result.high


def test_a_curve_of_another_form_has_no_interval():
    """A cusp at s = 5, measured well: neither form can say where it is lowest. Of the two that are
    known, few are refused."""
    random = np.random.default_rng(0)
    cusp = 3.0 + 0.02 * np.abs(np.log(BAGS / 5.0))
    refused = {"cusp": 0, "u": 0}
    for _ in range(40):
        noise = 2e-4 * random.standard_normal((len(BAGS), 4))
        for name, losses in (("cusp", cusp), ("u", u_shape())):
            result = optimum(BAGS, losses[:, None] + noise)
            if result.form == UNKNOWN:
                assert (result.low, result.high) == (None, None)
                refused[name] += 1
    assert refused["cusp"] == 40
    assert refused["u"] <= 2


@pytest.mark.parametrize(
    ("tried", "best", "edge"),
    [
        (BAGS, 40.0, "s = 16, the largest tried; run larger ones"),
        (BAGS[2:], 1.0, "s = 4, the smallest tried; run smaller ones"),
        (BAGS, 1.0, "s = 2, the smallest bag; give its baseline, s = 1, too"),
        (BAGS - 1, 0.1, "s = 1, the baseline"),
    ],
)
def test_an_optimum_beyond_what_was_tried_is_an_edge_not_a_number(tried, best, edge):
    result = optimum(tried, u_shape(best)[-len(tried) :])
    assert (result.best, result.low, result.high, result.loss) == (None,) * 4
    assert result.edge.endswith(edge)


def test_an_interval_that_reaches_the_edge_is_open_there():
    noise = 0.004 * np.random.default_rng(0).standard_normal((15, 3))
    result = optimum(BAGS, u_shape(11.0)[:, None] + noise)
    assert None not in (result.best, result.low)
    assert (result.high, result.seeds) == (None, 3)


def test_published_optima_fall_with_r():
    """270M, 20,000 steps: also read as 8.6, 7.3, 6.3 at r = 0.2, 0.3, 0.4."""
    table = optima(published.loss_grid().query("table == 4")).set_index("step_ratio")
    assert table["best"].loc[[0.2, 0.3, 0.4]].to_numpy() == pytest.approx([8.6, 7.3, 6.3], abs=0.7)


def test_the_baseline_says_whether_the_best_bag_is_smaller_than_the_smallest():
    """First campaign: s = 2, 3, 4 and the baseline show an optimum near 2, not an edge at 2."""
    answer = ask("bag-size", Path(__file__).parents[2] / "docs/records/campaign")
    row = answer.tables["Best s (both forms, all values)"].iloc[0]
    assert row["steps"] == 20_000
    assert 2.0 <= row["best"] <= 2.3
    assert row["low"] < 2
