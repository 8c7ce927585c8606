"""One place knows a setting: its columns, words and order, and what is shared before the switch."""

from typing import Any

import pytest

from tst_study.config.schema import SuperposedPhase
from tst_study.config.superposition_setting import (
    ABLATIONS,
    BASELINE,
    COLUMNS,
    Ablation,
    SuperpositionSetting,
)


def setting(*, smoothing: Any = None, **values: Any) -> SuperpositionSetting:
    superposition = SuperposedPhase(**{"bag_size": 4, "step_ratio": 0.2} | values)
    return SuperpositionSetting.from_config(
        {
            "superposition": superposition.model_dump(mode="json"),
            "label_smoothing": smoothing,
            "schedule": {"steps": 100},
        }
    )


ABLATED = {
    "mode": "input_only",
    "loss": "sum_to_one",
    "weighting": "power_law",
    "shuffle_targets": True,
    "reinitialize_at_switch": True,
    "optimizer_at_switch": "reset",
}


def test_every_key_of_superposition_but_s_and_r_is_an_ablation():
    keys = set(SuperposedPhase.model_fields) - {"bag_size", "step_ratio", "steps"}
    of_bags = {one.key.removeprefix("superposition."): one for one in ABLATIONS if one.of_bags}
    assert set(of_bags) == keys == set(ABLATED)
    for key, one in of_bags.items():
        assert SuperposedPhase.model_fields[key].default == one.plain


def test_a_smoothed_baseline_is_not_the_baseline():
    smoothed = setting(bag_size=1, smoothing={"epsilon": 0.25, "first_step": 1, "last_step": 25})
    assert not smoothed.is_baseline
    assert not smoothed.is_plain
    assert smoothed.role == "ablation"
    assert smoothed.name == "label_smoothing"
    assert smoothed.label == "label smoothing 0.25 in steps 1 to 25"
    assert SuperpositionSetting.of_row(smoothed.columns()).label == smoothed.label
    columns = smoothed.columns()
    assert (columns["mode"], columns["shuffled_targets"]) == (None, False)


def test_an_ablation_that_is_a_table_is_shown_key_by_key_or_in_its_words():
    """Each says by itself what it shows: it was once taken for label smoothing."""
    table = {"parts": 4, "step_ratio": 0.25}
    assert Ablation("warmth", "warmth", None, {}).label(table) == "warmth parts 4 step_ratio 0.25"
    warmer = SuperpositionSetting.of_row(
        {"bag_size": 1, "superposed_steps": 0, "step_ratio": 0.0, "batch_warmup": table}
    )
    assert warmer.label == "batch warmup from 1/4 over 0.25 of the steps"
    assert warmer.is_rival
    assert not BASELINE.is_rival
    assert SuperpositionSetting.of_row(warmer.columns()).label == warmer.label


def test_the_paper_s_method_is_plain_and_the_baseline_is_not():
    assert setting().is_plain
    assert setting().role == "superposition"
    assert not BASELINE.is_plain
    assert setting(bag_size=8, step_ratio=0.0) is BASELINE


@pytest.mark.parametrize("key", ABLATED)
def test_an_ablation_has_its_own_label_name_and_role(key):
    one = setting(**{key: ABLATED[key]})
    assert not one.is_plain
    assert one.role == "ablation"
    assert one.label != setting().label
    assert one.name != setting().name
    assert " " not in one.name
    assert one.order > setting().order
    (departure,) = [known for known, _ in one.ablations]
    assert one.is_plain_but(departure.column)
    shares_prefix = one.prefix_name == setting().prefix_name
    assert shares_prefix == departure.at_switch


def test_columns_and_setting_say_the_same():
    for one in (BASELINE, setting(), setting(**ABLATED | {"mode": "full", "loss": "mce"})):
        assert tuple(one.columns()) == COLUMNS
        assert SuperpositionSetting.of_row(one.columns()) == one


def test_words():
    assert setting().label == "s = 4, r = 0.2"
    assert setting(mode="output_only").label == "s = 4, r = 0.2, output only"
    assert setting(reinitialize_at_switch=True).label == "s = 4, r = 0.2, re-initialised"
    assert setting(optimizer_at_switch="reset").name == "s4-r0.2-optimizer_reset"
    given = setting(weighting=(1.0, 2.0, 3.0, 4.0))
    assert given.label == "s = 4, r = 0.2, weighting 1.0, 2.0, 3.0, 4.0"
    assert given.name == "s4-r0.2-weighting_given"
    falling = setting(bag_size=2, step_ratio=0.5, weighting=((1.0, 0.5), (1.0, 0.0)))
    assert falling.label.endswith("weighting 1.0, 0.5 → 1.0, 0.0")
    assert falling.name == "s2-r0.5-weighting_given"
    for one in (given, falling):
        assert SuperpositionSetting.of_row(one.columns()).label == one.label


def test_a_loss_with_parameters_has_a_label_and_without_them_its_name_s_identity():
    assert SuperposedPhase(loss={"kind": "mce", "label_smoothing": 0}) == SuperposedPhase()
    smoothed = setting(loss={"kind": "mce", "label_smoothing": 0.1})
    assert smoothed.label == "s = 4, r = 0.2, loss kind mce label_smoothing 0.1"
    assert smoothed.name == "s4-r0.2-loss_kind_given"
    with pytest.raises(ValueError, match="loss kind 'unheard' is unknown: use mce, "):
        SuperposedPhase(loss={"kind": "unheard"})
