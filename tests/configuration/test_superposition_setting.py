"""One place knows a setting: its columns, words and order, and what is shared before the switch."""

from __future__ import annotations

from typing import Any

import pytest

from tst_study.config import Superposition
from tst_study.configuration.superposition_setting import (
    BASELINE,
    COLUMNS,
    DEPARTURES,
    SuperpositionSetting,
)


def setting(**values: Any) -> SuperpositionSetting:
    superposition = Superposition(bag_size=4, step_ratio=0.2, **values)
    return SuperpositionSetting.from_config(superposition.model_dump(mode="json"), 100)


DEPARTED = {
    "mode": "input_only",
    "loss": "sum_to_one",
    "weighting": "power_law",
    "align_bags_to_documents": True,
    "reinitialize_at_switch": True,
    "optimizer_at_switch": "reset",
}


def test_every_key_of_superposition_but_s_and_r_is_a_departure() -> None:
    keys = set(Superposition.model_fields) - {"bag_size", "step_ratio", "steps"}
    assert {one.key for one in DEPARTURES} == keys == set(DEPARTED)
    for one in DEPARTURES:
        assert Superposition.model_fields[one.key].default == one.plain


def test_the_paper_s_method_is_plain_and_the_baseline_is_not() -> None:
    assert setting().is_plain
    assert setting().role == "superposition"
    assert not BASELINE.is_plain
    assert SuperpositionSetting.from_config(Superposition(bag_size=8).model_dump(), 100) is BASELINE


@pytest.mark.parametrize("key", DEPARTED)
def test_a_departure_has_its_own_label_name_and_role(key: str) -> None:
    one = setting(**{key: DEPARTED[key]})
    assert not one.is_plain
    assert one.role == "ablation"
    assert one.label != setting().label
    assert one.name != setting().name
    assert " " not in one.name
    assert one.order > setting().order
    (departure,) = [known for known, _ in one.departures]
    assert one.is_plain_but(departure.column)
    shares_trunk = one.trunk_name == setting().trunk_name
    assert shares_trunk == departure.at_switch


def test_columns_and_setting_say_the_same() -> None:
    for one in (BASELINE, setting(), setting(**DEPARTED | {"mode": "full", "loss": "mce"})):
        assert tuple(one.columns()) == COLUMNS
        assert SuperpositionSetting.of_row(one.columns()) == one


def test_words() -> None:
    assert setting().label == "s = 4, r = 0.2"
    assert setting(mode="output_only").label == "s = 4, r = 0.2, output only"
    assert setting(reinitialize_at_switch=True).label == "s = 4, r = 0.2, re-initialised"
    assert setting(optimizer_at_switch="reset").name == "s4-r0.2-optimizer_reset"
    given = setting(weighting=(1.0, 2.0, 3.0, 4.0))
    assert given.label == "s = 4, r = 0.2, weighting 1.0, 2.0, 3.0, 4.0"
    assert given.name == "s4-r0.2-weighting_given"
