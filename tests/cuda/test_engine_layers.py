"""Layers on TransformerEngine have the reference's weights, however they are named; never run.

Needs TransformerEngine, but no GPU: its modules are built and not called (`make test-fake-cuda`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from megatron.core.extensions.transformer_engine import HAVE_TE
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.tiny_runs import MIXTURE, MUON, assert_same_tensors, checkpoint_folders, run, tensors_of
from tests.tiny_runs import tiny as tiny_on
from tst_study.config import Config, Parallel
from tst_study.configuration.presets import PRESETS
from tst_study.cost.compute import count_parameters
from tst_study.megatron.checkpoint import Checkpoints
from tst_study.megatron.engine_layers import REFERENCE_NAMES
from tst_study.megatron.gradient_buffers import GradientBuffers
from tst_study.megatron.initialization import initialize, shards
from tst_study.megatron.model import SuperposedGPT, empty_model
from tst_study.megatron.muon import projections_of
from tst_study.megatron.optimizer import ModelOptimizer, _decays, _weight_of_norm
from tst_study.megatron.process_groups import process_groups

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not HAVE_TE, reason="needs TransformerEngine"),
]
KERNELS = "torch", "te"
SHAPES = {"dense": (), "experts": MIXTURE}
SEQUENTIAL = 'execution.expert_products="sequential"'
TENSOR = ("execution.parallel.tensor=2", "execution.parallel.sequence_parallel=true")
LAYOUTS: dict[str, tuple[int, tuple[str, ...]]] = {
    "tensor": (2, TENSOR),
    "pipeline": (2, ("execution.parallel.pipeline=2",)),
    "expert": (2, (*MIXTURE, "execution.parallel.expert=2")),
    "expert, one after another": (2, (*MIXTURE, "execution.parallel.expert=2", SEQUENTIAL)),
    "tensor and expert": (4, (*MIXTURE, *TENSOR, "execution.parallel.expert=2")),
}


def tiny(*overrides: str) -> Config:
    return tiny_on(Path("unread"), *overrides)


def preset(name: str) -> Config:
    return tiny(f"model={{preset='{name}'}}", "numerics.dtype=bfloat16")


@contextmanager
def built(
    config: Config, kernels: str, rank: int = 0, ranks: int = 1, *, meta: bool = False
) -> Iterator[SuperposedGPT]:
    """The model of one of so many ranks, which send nothing, on a machine that says it has a GPU.

    `meta`: its weights have no memory.
    """
    device = torch.device("meta" if meta else "cpu")
    dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
    try:
        with (
            process_groups(config.executed(device="cpu")),
            pytest.MonkeyPatch.context() as patch,
            device if meta else nullcontext(),
        ):
            patch.setattr(torch.cuda, "is_available", lambda: True)
            patch.setattr(torch.cuda, "current_device", lambda: device)
            yield empty_model(config.executed(kernels=kernels))
    finally:
        dist.destroy_process_group()


def of_both(config: Config, look: Any, **where: Any) -> list[Any]:
    """What `look` sees in the model of torch's kernels, and in that of TransformerEngine's."""
    seen = []
    for kernels in KERNELS:
        with built(config, kernels, **where) as model:
            seen.append(look(model))
    return seen


def places(model: SuperposedGPT) -> dict[Any, Any]:
    """Where the parts of a model lie in its checkpoint."""
    return {
        (shard.key, tuple(shard.global_offset)): (shard.global_shape, shard.local_shape)
        for shard in shards(model)
    }


def by_reference_name(model: SuperposedGPT) -> Iterator[tuple[str, str, torch.nn.Parameter]]:
    state = model.sharded_state_dict()
    for name, parameter in model.named_parameters():
        yield state[name].key, name, parameter


def treatment(model: SuperposedGPT, config: Config) -> tuple[Any, Any]:
    """By reference name: how many numbers decay or do not, and which matrices Muon sees."""
    decaying, matrices = defaultdict(Counter), defaultdict(Counter)
    for key, own_name, parameter in by_reference_name(model):
        decaying[key][_decays(own_name, parameter, config.optimizer)] += parameter.numel()
        inner = projections_of(own_name, parameter.shape, model.config)
        for part in inner.split(parameter) if inner else ():
            shape = inner.matrices(part).shape
            matrices[key][shape[1:]] += shape[0]
    return decaying, matrices


@cache
def seen(name: str) -> list[dict[str, Any]]:
    """Of a preset with torch's kernels and with TransformerEngine's."""
    config = preset(name)

    def look(model: SuperposedGPT) -> dict[str, Any]:
        return {
            "places": places(model),
            "shapes": {name: parameter.shape for name, parameter in model.named_parameters()},
            "treatment": treatment(model, config),
        }

    return of_both(config, look, meta=True)


@pytest.mark.parametrize("name", PRESETS)
def test_weights_have_the_same_places_in_a_checkpoint(name: str) -> None:
    reference, engine = seen(name)
    assert engine["places"] == reference["places"]
    numbers = [sum(shape.numel() for shape in one["shapes"].values()) for one in seen(name)]
    assert numbers == [count_parameters(preset(name).model).total] * 2


@pytest.mark.parametrize("name", PRESETS)
def test_the_same_weights_decay_and_the_same_matrices_are_muons(name: str) -> None:
    reference, engine = seen(name)
    assert engine["treatment"] == reference["treatment"]
    decaying, matrices = reference["treatment"]
    assert matrices
    assert {len(kinds) for kinds in decaying.values()} == {1}
    assert {kind for kinds in decaying.values() for kind in kinds} == {True, False}


@pytest.mark.parametrize("name", [name for name in PRESETS if "experts" not in PRESETS[name]])
def test_names_can_be_told_both_ways(name: str) -> None:
    def renamed(shapes: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
        def other(name: str) -> str:
            for here, there in names.items():
                name = name.replace(f".{here}", f".{there}")
            return name

        return {other(name): shape for name, shape in shapes.items()}

    reference, engine = (one["shapes"] for one in seen(name))
    assert engine != reference
    assert renamed(engine, REFERENCE_NAMES) == reference
    assert renamed(reference, {there: here for here, there in REFERENCE_NAMES.items()}) == engine


@pytest.mark.parametrize("products", [(), (SEQUENTIAL,)], ids=["grouped", "sequential"])
@pytest.mark.parametrize("shape", SHAPES)
def test_initial_weights_are_the_same_bits(shape: str, products: tuple[str, ...]) -> None:
    config = tiny(*SHAPES[shape], *products)

    def drawn(model: SuperposedGPT) -> dict[str, torch.Tensor]:
        initialize(model, config.model, config.seed)
        return {f"{shard.key} {shard.global_offset}": shard.data.clone() for shard in shards(model)}

    reference, engine = of_both(config, drawn)
    assert_same_tensors(reference, engine)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_so_are_slices_and_marks_of_every_rank(layout: str) -> None:
    ranks, settings = LAYOUTS[layout]
    config = tiny(*settings)

    def look(model: SuperposedGPT) -> Any:
        marks = defaultdict(Counter)
        for key, _, parameter in by_reference_name(model):
            summed_over_all = getattr(parameter, "allreduce", True)
            summed_over_tensor_ranks = getattr(parameter, "sequence_parallel", False)
            share = _weight_of_norm(parameter, False)
            marks[key][summed_over_all, summed_over_tensor_ranks, share] += parameter.numel()
        return places(model), marks

    for rank in range(ranks):
        reference, engine = of_both(config, look, rank=rank, ranks=ranks)
        assert engine == reference


@pytest.mark.parametrize("rule", [(), MUON], ids=["adamw", "muon"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_checkpoint_of_either_is_one_of_the_other(
    words: Path, tmp_path: Path, shape: str, rule: tuple[str, ...]
) -> None:
    """Weights and optimizer state go from torch's layers to TransformerEngine's and back."""
    settings = (*SHAPES[shape], *rule)
    run(words, tmp_path / "run", *settings)
    config, folder = tiny_on(words, *settings), tmp_path / "run"
    for kernels in ("te", "torch"):
        with built(config, kernels) as model:
            optimizer = ModelOptimizer(GradientBuffers(model, Parallel()), config.optimizer)
            common = Checkpoints(folder, keep=1).load_last(model, optimizer)
            assert common is not None
            folder = tmp_path / f"by {kernels}"
            Checkpoints(folder, keep=1).save(common["step"], model, optimizer, common)
    original, by_engine, back = (
        tensors_of(checkpoint_folders(tmp_path / name)[-1]) for name in ("run", "by te", "by torch")
    )
    assert_same_tensors(original, by_engine)
    assert_same_tensors(original, back)
