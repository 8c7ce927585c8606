"""The speed comparison: that it compares like with like, and runs. Not how fast: CI is shared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.measuring import interleaved_seconds, median_ratio
from benchmarks.steps import PackageSteps, PlainModel, plain_step, step_config, synthetic_tokens
from benchmarks.training_step import main
from tst_study.cost.compute import count_parameters
from tst_study.parallel.process_groups import process_groups
from tst_study.superposition.method import NEXT_TOKEN


@pytest.mark.parametrize("preset", ["laptop-64", "270m-grouped"])
def test_the_plain_model_has_the_parameters_of_ours(preset: str) -> None:
    config = step_config({"preset": preset}, 1, 8).model
    with torch.device("meta"):
        plain = PlainModel(config)
    assert sum(p.numel() for p in plain.parameters()) == count_parameters(config).total


def test_the_plain_model_computes_the_loss_of_ours_from_the_same_weights() -> None:
    config = step_config({"preset": "laptop-64", "initial_deviation": 0.1}, 2, 16)
    with process_groups(config) as ranks:
        package = PackageSteps(config, ranks.device)
        plain = PlainModel(config.model)
        _copy_weights(package.model, plain, config.model.attention_heads)
        ids, labels = synthetic_tokens(config, 1, ranks.device)
        ours = package.gradients(ids, labels, NEXT_TOKEN)
        torch.testing.assert_close(plain(ids, labels), ours, rtol=1e-5, atol=0.0)


def _copy_weights(model: torch.nn.Module, plain: PlainModel, heads: int) -> None:
    given = dict(model.named_parameters())
    names = {
        "attention_norm": "input_layernorm",
        "qkv": "self_attention.linear_qkv",
        "projection": "self_attention.linear_proj",
        "feed_forward_norm": "pre_mlp_layernorm",
        "gate_and_up": "mlp.linear_fc1",
        "down": "mlp.linear_fc2",
    }
    with torch.no_grad():
        plain.embedding.weight.copy_(given["embedding.word_embeddings.weight"])
        plain.norm.weight.copy_(given["decoder.final_layernorm.weight"])
        plain.head.weight.copy_(given["output_layer.weight"])
        for number, layer in enumerate(plain.layers):
            for name, source in names.items():
                weight = given[f"decoder.layers.{number}.{source}.weight"]
                if name == "qkv":  # Megatron keeps query, key and value of a group together
                    parts = weight.unflatten(0, (heads, 3, -1))
                    weight = parts.transpose(0, 1).flatten(0, 2)
                layer.get_submodule(name).weight.copy_(weight)


def test_both_steps_learn_the_batch_that_they_repeat() -> None:
    config = step_config({"preset": "laptop-64"}, 2, 16)
    with process_groups(config) as ranks:
        for step in (PackageSteps(config, ranks.device).step(), plain_step(config, ranks.device)):
            first = float(step())
            for _ in range(5):
                last = float(step())
            assert last < first - 0.1


def test_a_ratio_is_taken_within_repeats() -> None:
    times = {"a": [2.0, 20.0, 2.0], "b": [1.0, 10.0, 4.0]}
    assert median_ratio(times, "a", "b") == 2.0


def test_every_candidate_is_timed_once_per_repeat_until_the_time_is_up() -> None:
    calls: list[str] = []
    candidates = {name: (lambda n=name: calls.append(n)) for name in "ab"}
    times = interleaved_seconds(candidates, repeats=5, warm_up=1)
    assert [len(values) for values in times.values()] == [5, 5]
    assert sorted(calls) == ["a"] * 6 + ["b"] * 6
    assert len(interleaved_seconds(candidates, repeats=5, seconds=0.0)["a"]) == 1


def test_the_comparison_runs_and_writes_its_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "step.json"
    threads = torch.get_num_threads()
    try:
        main(["--sizes", "tiny", "--repeats", "2", "--json", str(path)])
    finally:
        torch.set_num_threads(threads)
    (result,) = json.loads(path.read_text())["results"]
    assert set(result["milliseconds"]) == {"tst_study", "tst_study, superposed", "plain PyTorch"}
    assert [row["target"] for row in result["comparisons"]] == [1.25, 1.10]
    assert "superposed s=8 / baseline" in capsys.readouterr().out
