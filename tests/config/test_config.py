"""A configuration is whole, strict and frozen; what is wrong with it is one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.examples import EXAMPLE, example
from tst_study.config.schema import Execution, from_dict, load, to_dict, to_toml
from tst_study.errors import UserError

FILE = """
seed = 3
[model]
preset = "laptop-64"
hidden_size = 128
[superposition]
bag_size = 4
step_ratio = 0.2
weighting = "power_law"
[data]
corpora = [{ path = "a b/books", weight = 0.5 }, { path = 'c"d', weight = 0.5 }]
[batch]
sequences = 16
sequence_length = 64
[optimizer]
learning_rate = 2e-3
[schedule]
steps = 100
"""


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("model.hiden_size=64", ["model.hiden_size: unknown", "did you mean model.hidden_size?"]),
        ("model.depth=3", ["model.depth", "unknown key", "feed_forward_size"]),
        ("bag_size=4", ["bag_size: unknown key", "did you mean superposition.bag_size?"]),
        ("optimizer.lr=1", ["optimizer.lr: unknown key; did you mean optimizer.learning_rate?"]),
        ("optimizer={lr=1}", ["optimizer.lr: unknown key; did you mean optimizer.learning_rate?"]),
        ("superposition.s=4", ["superposition.s", "did you mean superposition.bag_size?"]),
        ("model.experts={cuont=4}", ["did you mean model.experts.count?"]),
        ("execution.parallel.tensr=2", ["did you mean execution.parallel.tensor?"]),
        ("data.corpora=[{pth='x'}]", ["data.corpora.0.pth", "did you mean data.corpora.path?"]),
        (
            "superposition={bag_size=4, mode='input_only', loss='hinge'}",
            ["superposition", "loss has no meaning with mode = 'input_only'"],
        ),
        (
            "superposition={bag_size=4, mode='output_only', align_bags_to_documents=true}",
            ["superposition", "align_bags_to_documents has no meaning with mode = 'output_only'"],
        ),
        ("schedule.warmup_steps=91", ["warmup_steps = 91", "decay, the last 10 of steps = 100"]),
    ],
)
def test_bad_value_is_one_line_that_names_key_value_and_remedy(
    override: str, parts: list[str]
) -> None:
    with pytest.raises(UserError) as raised:
        example(override)
    message = str(raised.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_missing_key_says_how_to_give_it() -> None:
    values = {key: value for key, value in EXAMPLE.items() if key != "batch"}
    with pytest.raises(UserError, match=r"batch: missing; .*--set batch="):
        from_dict(values)


def test_several_problems_are_counted() -> None:
    with pytest.raises(UserError, match=r"and 1 more"):
        example("model.layers=0", "batch.sequences=0")


def test_config_is_frozen() -> None:
    with pytest.raises(ValidationError):
        example().seed = 1  # type: ignore[misc]


def test_override_wins_over_file_and_last_override_wins(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(FILE)
    read = load(path, ["seed=4", "model.layers=3", "model.layers=5", "name=a=b"])
    assert (read.seed, read.model.layers, read.model.hidden_size) == (4, 5, 128)
    assert read.name == "a=b"


def test_resolved_config_reads_back_the_same(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(FILE)
    weighting = "superposition.weighting=[1, 0.5, 0.25, 0.125]"
    first = load(path, [weighting, 'data.validation="ü\\\\\\"x"'])
    path.write_text(to_toml(first))
    assert load(path) == first
    assert from_dict(to_dict(first)) == first


def test_toml_of_a_mixture_of_experts_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    moe = example("model={preset = 'laptop-moe', experts = {count = 4}}")
    path.write_text(to_toml(moe))
    assert load(path) == moe
    assert moe.model.experts is not None
    assert (moe.model.experts.count, moe.model.experts.per_token) == (4, 2)


def test_overrides_do_not_leak_between_configs() -> None:
    before = to_dict(example())
    example("model.layers=7", "optimizer.beta1=0.5")
    assert to_dict(example()) == before


def test_layers_are_compiled_on_gpus_unless_said_otherwise() -> None:
    asked = {value: Execution(compile=value) for value in ("auto", True, False)}
    assert [one.compiles(on_gpu=True) for one in asked.values()] == [True, True, False]
    assert [one.compiles(on_gpu=False) for one in asked.values()] == [False, True, False]


def test_training_goes_on_while_a_checkpoint_is_written_on_gpus_unless_said_otherwise() -> None:
    asked = [Execution(asynchronous_checkpoints=value) for value in ("auto", True, False)]
    assert [one.trains_while_saving(on_gpu=True) for one in asked] == [True, True, False]
    assert [one.trains_while_saving(on_gpu=False) for one in asked] == [False, True, False]


def test_a_run_json_is_a_config_with_later_keys_as_its_run_had_them(tmp_path: Path) -> None:
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
