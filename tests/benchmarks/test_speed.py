"""The speed comparison: that it compares like with like, and runs. Not how fast: CI is shared."""

import json
from functools import partial

import pytest
import torch

from benchmarks.measuring import measured
from benchmarks.speed import SIZES, main
from benchmarks.steps import PackageSteps, PlainModel, step_config, synthetic_tokens
from tst_study.config.presets import PRESETS
from tst_study.config.schema import Model
from tst_study.parallel.process_groups import process_groups
from tst_study.superposition.steps import NEXT_TOKEN


def test_candidates_alternate_and_are_compared_within_a_repeat():
    calls: list[str] = []
    rows = measured({name: partial(calls.append, name) for name in "abc"}, 3, "cpu")
    assert "".join(calls).endswith("abc" * 3)
    pairs = zip(rows["a"]["seconds"], rows["b"]["seconds"], strict=True)
    assert rows["a"]["over"]["b"][1] == sorted(a / b for a, b in pairs)[1]


@pytest.mark.parametrize("groups", [2, 1])
def test_the_plain_model_computes_the_loss_of_ours_from_the_same_weights(groups):
    model = {**PRESETS["laptop-64"], "initial_deviation": 0.1, "key_value_heads": groups}
    config = step_config(model, 2, 16)
    with process_groups(config) as ranks:
        package = PackageSteps(config, ranks.device)
        plain = PlainModel(config.model, length=16)
        _copy_weights(package.model, plain, config.model)
        ids, labels = synthetic_tokens(config, 1, ranks.device)
        ours = package.gradients(ids, labels, NEXT_TOKEN)
        torch.testing.assert_close(plain(ids, labels), ours, rtol=1e-5, atol=0.0)


def _copy_weights(model: torch.nn.Module, plain: PlainModel, shape: Model) -> None:
    given = dict(model.named_parameters())
    names = {
        "attention_norm": "input_layernorm",
        "qkv": "self_attention.linear_qkv",
        "projection": "self_attention.linear_proj",
        "feed_forward_norm": "pre_mlp_layernorm",
        "gate_and_up": "mlp.linear_fc1",
        "down": "mlp.linear_fc2",
    }
    queries = shape.attention_heads // shape.key_value_heads
    with torch.no_grad():
        plain.embedding.weight.copy_(given["embedding.word_embeddings.weight"])
        plain.norm.weight.copy_(given["decoder.final_layernorm.weight"])
        plain.head.weight.copy_(given["output_layer.weight"])
        for number, layer in enumerate(plain.layers):
            for name, source in names.items():
                weight = given[f"decoder.layers.{number}.{source}.weight"]
                if name == "qkv":  # Megatron keeps query, key and value of a group together
                    groups = weight.unflatten(0, (-1, queries + 2, shape.head_size))
                    parts = groups.split([queries, 1, 1], dim=1)
                    weight = torch.cat([part.flatten(0, 2) for part in parts])
                layer.get_submodule(name).weight.copy_(weight)


def test_losses_and_steps_are_compared_and_recorded(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(SIZES, "tiny", ({"preset": "laptop-64"}, 2, 16))
    threads = torch.get_num_threads()
    try:
        main(["tiny", "64x16x256x4", "--repeats", "2", "--json", str(tmp_path / "speed.json")])
    finally:
        torch.set_num_threads(threads)
    results = json.loads((tmp_path / "speed.json").read_text())["results"]
    assert list(results["tiny"]) == ["superposed", "baseline", "plain PyTorch"]
    assert {"plain PyTorch", "s=1", "s=4"} <= set(results["64x16x256x4"])
    assert "of plain PyTorch" in capsys.readouterr().out
