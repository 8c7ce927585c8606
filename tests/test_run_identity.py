"""What changes the result is the run; nothing else is."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.examples import example
from tst_study.run_identity import canonical_json, fingerprint, run_id

DATA = {"corpora": [{"fingerprint": "ab", "weight": 1.0}], "tokenizer": "cd"}


def identity(*overrides: str, data: dict[str, Any] = DATA) -> str:
    return fingerprint(example(*overrides), data)


@pytest.mark.parametrize(
    "override",
    [
        "data.corpora=[{path = 'elsewhere'}]",
        "data.validation=elsewhere",
        "execution.threads=2",
        "execution.micro_batch=4",
        "execution.parallel.tensor=2",
        "execution.device=cpu",
        "execution.log_every=1",
        "execution.checkpoint_every=7",
        "name=another",
        "study=another",
        "role=ablation",
        # The same 20 superposed steps, said in another way.
        "superposition={bag_size = 4, steps = 20}",
    ],
)
def test_paths_layout_and_names_are_not_hashed(override: str) -> None:
    assert identity(override) == identity()


@pytest.mark.parametrize(
    "override",
    [
        "seed=1",
        "model.layers=3",
        "superposition.bag_size=5",
        "superposition.step_ratio=0.3",
        "superposition.mode=output_only",
        "superposition.weighting=power_law",
        "superposition.optimizer_at_switch=reset",
        "batch.sequence_length=128",
        "optimizer.learning_rate=1e-3",
        "schedule.steps=101",
        "schedule.decay_ratio=0.2",
        "numerics.dtype=bfloat16",
    ],
)
def test_what_changes_the_result_is_hashed(override: str) -> None:
    assert identity(override) != identity()


def test_other_data_is_another_run() -> None:
    assert identity(data={**DATA, "tokenizer": "ef"}) != identity()


@pytest.mark.parametrize(
    "override",
    [
        "superposition={bag_size = 1, step_ratio = 0.5}",
        "superposition={bag_size = 8}",
        "superposition={bag_size = 1, weighting = 'power_law', optimizer_at_switch = 'reset'}",
    ],
)
def test_superposition_without_bags_or_steps_is_the_baseline(override: str) -> None:
    assert identity(override) == identity("superposition={}")


def test_identity_never_changes_between_versions() -> None:
    """Published run folders are found by this digest: a change needs a new schema version."""
    assert identity()[:16] == "5fdd457934ab6f6e"


def test_run_id_is_name_and_eight_digits() -> None:
    assert run_id(example("name=pair"), identity()) == f"pair-{identity()[:8]}"


@pytest.mark.parametrize("value", [math.nan, math.inf, {1: 2}, {"a": {"b": object()}}, [b"x"]])
def test_a_value_without_a_stable_form_is_an_error(value: Any) -> None:
    with pytest.raises(TypeError, match=r"stable form|not a string"):
        canonical_json(value)


def test_canonical_form_does_not_depend_on_the_order_of_keys() -> None:
    assert canonical_json({"b": 1, "a": [1.0, None]}) == canonical_json({"a": [1.0, None], "b": 1})
