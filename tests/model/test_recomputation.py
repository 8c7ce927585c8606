"""The backward pass computes again exactly what it would have kept, and nothing of it stays."""

import gc
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from benchmarks.steps import PackageSteps, step_config, synthetic_tokens
from tests.allocated import AllocatedTensors
from tests.tiny_runs import MIXTURE, assert_same_run, run
from tst_study.config.presets import PRESETS, dense
from tst_study.config.schema import Config
from tst_study.model.layers import compile_layers
from tst_study.parallel.forward_backward import micro_batches
from tst_study.parallel.process_groups import process_groups
from tst_study.superposition.steps import NEXT_TOKEN


def recomputing(model: dict[str, Any], recompute: str, sequences: int, length: int) -> Config:
    return step_config(model, sequences, length).executed(recompute=recompute)


@pytest.mark.parametrize("model", [(), MIXTURE], ids=["dense", "mixture"])
def test_a_run_with_recomputation_is_the_same_run(words, tmp_path, model):
    run(words, tmp_path / "kept", *model)
    run(words, tmp_path / "again", *model, "execution.recompute=layer")
    assert_same_run(tmp_path / "kept", tmp_path / "again")


def test_experts_hold_on_to_nothing_that_was_computed_again():
    """Megatron's dispatchers keep tensors of their last pass, and with them its whole graph."""
    held = {}
    for recompute in ("none", "layer"):
        config = recomputing(PRESETS["laptop-moe"], recompute, sequences=4, length=128)
        allocated = AllocatedTensors()
        with process_groups(config) as ranks, allocated:
            package = PackageSteps(config, ranks.device)
            package.step()()
            gc.collect()
            held[recompute] = allocated.now
    assert held["layer"] == pytest.approx(held["none"], rel=0.05)


def compiled_steps(config: Config, backend: Any) -> tuple[int, float, torch.Tensor]:
    """Bytes that the first forward pass keeps for its backward pass; loss and gradients of the
    second."""
    torch.compiler.reset()
    saved: dict[int, int] = {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        saved[x.untyped_storage()._cdata] = x.untyped_storage().nbytes()
        return x

    with process_groups(config) as ranks:
        package = PackageSteps(config, ranks.device)
        if backend is not None:
            compile_layers(package.model.decoder.layers, backend)
        ids, labels = synthetic_tokens(config, 1, ranks.device)
        counts = NEXT_TOKEN.count_targets(labels)
        (batch,) = micro_batches(ids, labels, NEXT_TOKEN, counts, len(ids))
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            package.data_parallel(*batch).backward()
        loss = float(package.gradients(ids, labels, NEXT_TOKEN))
        gradients = [p.main_grad.flatten() for p in package.model.parameters()]
    return sum(saved.values()), loss, torch.cat(gradients)


SMALL = dense(12, 16, 2, 2, 64, vocabulary_size=64)
EXPERTS = {**SMALL, "experts": {"count": 4, "per_token": 2, "feed_forward_size": 16}}


@pytest.mark.parametrize("recompute", ["none", "layer"])
@pytest.mark.parametrize(("model", "parts"), [(SMALL, 1), (EXPERTS, 4)], ids=["dense", "experts"])
def test_twelve_layers_share_the_graph_of_each_part(model, parts, recompute):
    counter = CompileCounter()
    compiled_steps(recomputing(model, recompute, sequences=2, length=8), counter)
    assert counter.frame_count == parts


@pytest.mark.parametrize("model", [SMALL, EXPERTS], ids=["dense", "experts"])
def test_compiled_layers_keep_less_too_and_give_the_same_gradients(model):
    kept = {}
    configs = {name: recomputing({**model, "layers": 3}, name, 4, 32) for name in ("none", "layer")}
    _, loss, gradients = compiled_steps(configs["none"], None)
    for name, config in configs.items():
        kept[name], its_loss, its_gradients = compiled_steps(config, "aot_eager")
        assert its_loss == pytest.approx(loss, rel=1e-6)
        torch.testing.assert_close(its_gradients, gradients, rtol=1e-4, atol=1e-7)
    assert kept["layer"] < 0.1 * kept["none"]
