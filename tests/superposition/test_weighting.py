import math

import pytest

from tst_study.superposition.loss_kinds import LOSSES, check_loss_kind
from tst_study.superposition.weighting import offset_weights, weighting_at


def test_named_weightings_follow_their_formulas():
    assert offset_weights("uniform", 3) == (1.0, 1.0, 1.0)
    assert offset_weights("power_law", 4) == (1.0, 1 / 2, 1 / 3, 1 / 4)
    assert offset_weights("exponential", 2) == (math.exp(-1), math.exp(-2))
    assert offset_weights("first_token", 3) == (1.0, 0.0, 0.0)
    assert offset_weights("mutual_information", 2) == (3.625 + 1.355, 3.625 + 1.355 * 2**-1.246)


@pytest.mark.parametrize(
    ("weighting", "message"),
    [
        ("linear", "'linear' is unknown: use one of uniform, power_law"),
        ([1.0, 1.0], "has 2 numbers; bag_size 3"),
        (None, "None must be a name or 3 numbers"),
        (["a", "b", "c"], "must be a name or 3 numbers"),
        ([0.0, 0.0, 0.0], "not all zero"),
        ([1.0, -1.0, 1.0], "not negative"),
        ([1.0, math.nan, 1.0], "finite"),
    ],
)
def test_a_wrong_weighting_is_refused_in_one_line(weighting, message):
    with pytest.raises(ValueError, match=message) as error:
        offset_weights(weighting, 3)
    assert "\n" not in str(error.value)


def test_only_the_multi_hot_loss_takes_weights():
    for kind in LOSSES:
        check_loss_kind(kind)
    check_loss_kind("mce", "power_law")
    with pytest.raises(ValueError, match="sum_to_one"):
        check_loss_kind("sum_to_one", "power_law")


def test_rows_of_weights_lie_evenly_over_the_phase_with_straight_lines_between_them():
    rows = ((1.0, 0.5, 0.25), (1.0, 0.5, 0.0), (1.0, 0.0, 0.0))
    assert weighting_at(rows, 0.0) == rows[0]
    assert weighting_at(rows, 0.25) == (1.0, 0.5, 0.125)
    assert weighting_at(rows, 0.5) == rows[1]
    assert weighting_at(rows, 0.75) == (1.0, 0.25, 0.0)
    assert weighting_at(rows, 1.0) == rows[2]
    assert weighting_at("power_law", 0.5) == "power_law"
    assert weighting_at((2.0, 1.0), 0.5) == (2.0, 1.0)
    assert weighting_at(((2.0, 1.0),), 0.5) == (2.0, 1.0)
