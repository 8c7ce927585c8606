"""A configuration is whole, strict and frozen; what is wrong with it is one line."""

import json
from pathlib import Path

import pytest

from tests.examples import example
from tst_study.config.schema import Execution, from_dict, load, to_dict, to_toml
from tst_study.errors import UserError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(to_toml(example()))
    return path


def test_override_wins_over_file_and_last_override_wins(file):
    read = load(file, ["seed=4", "model.layers=3", "model.layers=5", "name=a=b"])
    assert (read.seed, read.model.layers, read.model.hidden_size) == (4, 5, 64)
    assert read.name == "a=b"


def test_counts_are_read_as_people_write_them():
    read = example("schedule.steps=5k", "schedule.warmup_steps=1e2", "data.validation_tokens=1M")
    assert (read.schedule.steps, read.schedule.warmup_steps) == (5000, 100)
    assert read.data.validation_tokens == 10**6
    assert example("name=5k").name == "5k"
    with pytest.raises(UserError, match=r"schedule\.steps: 'many': should be a valid integer"):
        example("schedule.steps=many")


def test_a_preset_yields_to_every_key_that_is_given(file):
    assert load(file, ["model.preset=laptop-128"]).model == load(file).model


def test_resolved_config_reads_back_the_same(file):
    weighting = "superposition.weighting=[1, 0.5, 0.25, 0.125]"
    moe = "model={preset = 'laptop-moe', experts = {count = 4}}"
    first = load(file, [weighting, moe, 'data.validation="ü\\\\\\"x"'])
    file.write_text(to_toml(first))
    assert load(file) == first
    assert from_dict(to_dict(first)) == first
    assert (first.model.experts.count, first.model.experts.per_token) == (4, 2)


def test_layers_are_compiled_on_gpus_alone_unless_that_is_said():
    for value, happens in (("auto", (True, False)), (True, (True, True)), (False, (False, False))):
        asked = Execution(compile=value).compiles
        assert (asked(on_gpu=True), asked(on_gpu=False)) == happens


def test_a_checkpoint_beyond_the_last_step_is_refused(file):
    steps = load(file).schedule.last_step
    load(file, [f"execution.keep_steps=[1, {steps}]"])
    with pytest.raises(
        UserError, match=rf"keep_steps: {steps + 1} is beyond the last step, {steps}"
    ):
        load(file, [f"execution.keep_steps=[{steps + 1}]"])


def test_a_run_json_is_a_config_with_later_keys_as_its_run_had_them(tmp_path):
    values = to_dict(example("optimizer.learning_rate=0.125"))
    del values["data"]["held_out"], values["label_smoothing"]
    values["execution"]["a_key_of_old"] = True
    (tmp_path / "run.json").write_text(json.dumps({"config": values}))
    again = load(tmp_path / "run.json", ["seed=7"])
    assert (again.optimizer.learning_rate, again.seed) == (0.125, 7)
    assert again.data.held_out == "beginning"  # not today's default
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(UserError, match=r"run\.json"):
        load(tmp_path / "run.json")
