"""Predicted memory is what tensors take, and what Megatron's ranks hold, rank by rank."""

import gc
from typing import Any, get_args

import pytest

from benchmarks.steps import PackageSteps, step_config
from tests.allocated import AllocatedTensors
from tests.distributed import run_ranks
from tests.tiny_runs import MIXTURE, built, last_tensors, run, tiny
from tst_study.config.optimizer_kinds import OptimizerName
from tst_study.config.presets import dense
from tst_study.config.schema import Config
from tst_study.cost.memory import estimate_memory, held_parameters
from tst_study.cost.parallel_layout import layout_of
from tst_study.parallel.process_groups import process_groups

SMALL = dense(4, 64, 4, 4, 192, vocabulary_size=1024)
GROUPED = {"key_value_heads": 2, "vocabulary_size": 8192, "hidden_size": 128, "head_size": 32}
EXPERTS = {"experts": {"count": 8, "per_token": 2, "feed_forward_size": 32}, "qk_norm": True}
CASES: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "dense": ({}, "float32", {}),
    "grouped queries, large vocabulary": (GROUPED, "float32", {}),
    "bfloat16": ({"layers": 8}, "bfloat16", {}),
    "tied, normed queries": ({"tied_embeddings": True, "qk_norm": True}, "float32", {}),
    "experts": (EXPERTS, "float32", {}),
    "experts in bfloat16": (EXPERTS, "bfloat16", {}),
    "micro-batches": ({}, "float32", {"micro_batch": 4}),
    "recomputed layers": ({"layers": 8}, "float32", {"recompute": "layer"}),
    "recomputed layers of experts": (EXPERTS, "float32", {"recompute": "layer"}),
}


@pytest.mark.parametrize(("model", "dtype", "execution"), CASES.values(), ids=CASES.keys())
def test_predicted_peak_is_within_a_tenth_of_the_allocated_one(model, dtype, execution):
    config = step_config(SMALL | model, 8, 128, dtype=dtype).executed(**execution)
    assert estimate_memory(config).total == pytest.approx(peak_of_a_step(config), rel=0.1)


def peak_of_a_step(config: Config) -> int:
    allocated = AllocatedTensors()
    with process_groups(config) as ranks, allocated:
        steps = PackageSteps(config, ranks.device)
        step = steps.step()
        step()  # the optimizer's state is made here
        gc.collect()
        allocated.peak = allocated.now
        step()
        return allocated.peak


LAYOUTS = [
    (1, ()),
    (2, ("tensor=2",)),
    (2, ("tensor=2", "sequence_parallel=true")),
    (2, ("expert=2",)),
    (4, ("tensor=2", "sequence_parallel=true", "expert=2")),
]


@pytest.mark.parametrize(("ranks", "layout"), LAYOUTS, ids=str)
@pytest.mark.parametrize("tied", ["true", "false"])
def test_weights_of_a_rank_are_counted_to_the_digit(tmp_path, ranks, layout, tied):
    model = MIXTURE if "expert=2" in layout else ()
    overrides = [f"execution.parallel.{x}" for x in layout]
    config = tiny(tmp_path, *model, f"model.tied_embeddings={tied}", *overrides)

    def weights_held() -> int:
        with built(config) as (built_model, _):
            return sum(p.numel() for p in built_model.parameters())

    held = held_parameters(config.model, layout_of(config))
    assert run_ranks(ranks, weights_held) == [held.dense + held.experts] * ranks


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", get_args(OptimizerName))
@pytest.mark.parametrize("model", [(), MIXTURE], ids=str)
def test_optimizer_state_is_counted_to_the_byte(words, tmp_path, model, kind, dtype):
    settings = (f"optimizer.kind={kind}", f"numerics.dtype={dtype}", *model)
    run(words, tmp_path, "schedule.steps=3", *settings)
    state = [x for name, x in last_tensors(tmp_path).items() if name.startswith("optimizer.")]
    expected = estimate_memory(tiny(words, *settings)).optimizer
    assert sum(4 * tensor.numel() for tensor in state) == expected


def test_a_distributed_optimizer_is_shared_by_the_data_ranks(tmp_path):
    whole = estimate_memory(tiny(tmp_path), ranks=4)
    shared = estimate_memory(tiny(tmp_path, "execution.parallel.optimizer=distributed"), ranks=4)
    assert shared.optimizer == pytest.approx(whole.optimizer / 4, rel=1e-3)
    assert (shared.weights, shared.activations) == (whole.weights, whole.activations)


def test_expert_ranks_have_room_for_half_more_than_an_even_share(tmp_path):
    def experts_keep(*settings: str) -> int:
        two, four = (
            estimate_memory(tiny(tmp_path, *MIXTURE, *settings, number), ranks=2).activations
            for number in ("model.experts.per_token=2", "model.experts.per_token=4")
        )
        return four - two

    alone, spread = experts_keep(), experts_keep("execution.parallel.expert=2")
    assert spread / alone == 1.5
