"""Nothing of a step stays on the processor: CUDA tensors without numbers, and without a GPU.

Needs torch built for CUDA, and no GPU: `make test-fake-cuda`. Forward passes and losses of every
dense preset; backward passes and updates ask for a device that is not there, and what a router does
depends on numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from tst_study.config.presets import PRESETS
from tst_study.config.schema import Config, from_dict
from tst_study.model.model import SuperposedGPT, empty_model, superposition_objective
from tst_study.parallel.forward_backward import micro_batches
from tst_study.parallel.process_groups import Ranks, process_groups
from tst_study.superposition.losses import SET_LOSSES
from tst_study.superposition.method import NEXT_TOKEN, Objective

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(
        torch.version.cuda is None or torch.cuda.is_available(), reason="needs CUDA without a GPU"
    ),
]
GPU = torch.device("cuda", 0)
SEQUENCES, LENGTH, BAG_SIZE = 2, 64, 4
DENSE = [name for name, model in PRESETS.items() if "experts" not in model]
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "alone": (1, {}),
    "data": (8, {"optimizer": "distributed", "overlap_gradients": True}),
    "tensor": (2, {"tensor": 2, "sequence_parallel": True}),
}


def config_of(preset: str, ranks: int, layout: dict[str, Any], **superposition: Any) -> Config:
    return from_dict(
        {
            "model": {"preset": preset},
            "superposition": {"bag_size": BAG_SIZE, "step_ratio": 0.5, **superposition},
            "data": {"corpora": [{"path": "synthetic"}]},
            "batch": {"sequences": SEQUENCES * ranks, "sequence_length": LENGTH},
            "optimizer": {"learning_rate": 1e-3},
            "schedule": {"steps": 10},
            "numerics": {"dtype": "bfloat16"},
            "execution": {"device": "cuda", "parallel": layout},
        }
    )


@contextmanager
def pretended(config: Config, ranks: int) -> Iterator[tuple[SuperposedGPT, Ranks]]:
    """A model of one of so many ranks, none of whose tensors has numbers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "device_count", lambda: ranks)
        patch.setattr(torch.cuda, "set_device", lambda device: None)
        patch.setattr(torch.cuda, "current_device", lambda: GPU)
        patch.setattr(torch.cuda, "_lazy_init", lambda: None)
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
        try:
            with process_groups(config) as where, FakeTensorMode(), _MethodsAskNoDevice():
                yield empty_model(config), where
        finally:
            dist.destroy_process_group()


aten = torch.ops.aten
METHODS: dict[Any, Any] = {
    torch.Tensor.__invert__: aten.bitwise_not,
    torch.Tensor.contiguous: lambda x: aten.clone(x, memory_format=torch.contiguous_format),
    torch.tensor: lambda data, dtype=None, device="cpu": torch.empty(
        np.shape(data), dtype=dtype, device=device
    ),
    torch.Tensor.float: lambda x: aten._to_copy(x, dtype=torch.float32),
    torch.Tensor.double: lambda x: aten._to_copy(x, dtype=torch.float64),
    torch.Tensor.to: lambda x, *to, **named: aten._to_copy(x, **_wanted(to, **named)),
}


def _wanted(to: tuple[Any, ...], **named: Any) -> dict[str, Any]:
    kinds = {torch.dtype: "dtype", torch.device: "device", str: "device", int: "device"}
    given = {kinds[type(one)]: one for one in to if type(one) in kinds}
    if to and isinstance(to[0], torch.Tensor):
        given = {"dtype": to[0].dtype, "device": to[0].device}
    return given | {name: named[name] for name in ("dtype", "device") if name in named}


class _MethodsAskNoDevice(TorchFunctionMode):
    """Brackets and some methods ask for the tensor's device before it can say that it is none."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.Tensor.__getitem__:
            return _indexed(*args)
        if function is torch.Tensor.__setitem__:
            return None
        try:
            return METHODS.get(function, function)(*args, **(kwargs or {}))
        except torch.AcceleratorError:
            return getattr(aten, function.__name__)(*args, **(kwargs or {}))


def _indexed(x: torch.Tensor, key: Any) -> torch.Tensor:
    keys = list(key) if isinstance(key, tuple) else [key]
    if any(one is Ellipsis for one in keys):
        at, given = keys.index(Ellipsis), sum(one is not None for one in keys) - 1
        keys[at : at + 1] = [slice(None)] * (x.dim() - given)
    dim = 0
    for one in keys:
        if isinstance(one, torch.Tensor):
            return aten.index(x, [*[None] * dim, one])
        if one is None:
            x = x.unsqueeze(dim)
        elif isinstance(one, slice):
            x = aten.slice(x, dim, one.start, one.stop, one.step or 1)
        else:
            x = x.select(dim, one)
            continue
        dim += 1
    return x


@torch.no_grad()  # a step backward, once it is noted down, asks for the GPU's streams
def loss_of(model: SuperposedGPT, objective: Objective) -> torch.Tensor:
    shape = SEQUENCES, LENGTH * objective.stride
    ids, labels = torch.zeros(2, *shape, dtype=torch.int64, device=GPU)
    counts = objective.count_targets(labels)
    ((bags, targets),) = micro_batches(ids, labels, objective, counts, SEQUENCES)
    return model(bags, targets)


def cases() -> list[Any]:
    found = []
    for preset in DENSE:
        model = PRESETS[preset]
        for name, (ranks, layout) in LAYOUTS.items():
            heads = model["attention_heads"], model["key_value_heads"]
            divides = all(n % layout.get("tensor", 1) == 0 for n in heads)
            if divides:
                found.append(pytest.param(preset, ranks, layout, id=f"{preset}-{name}"))
    return found


@pytest.mark.parametrize(("preset", "ranks", "layout"), cases())
def test_losses_of_both_phases_are_computed_on_the_gpu(
    preset: str, ranks: int, layout: dict[str, Any]
) -> None:
    config = config_of(preset, ranks, layout)
    with pretended(config, ranks) as (model, _):
        assert {parameter.device for parameter in model.parameters()} == {GPU}
        for objective in (superposition_objective(config.superposition), NEXT_TOKEN):
            loss = loss_of(model, objective)
            assert (loss.device, loss.dtype, loss.shape) == (GPU, torch.float32, ())


@pytest.mark.parametrize("loss", SET_LOSSES)
def test_so_are_the_other_losses(loss: str) -> None:
    config = config_of("laptop-64", 1, {}, loss=loss)
    with pretended(config, 1) as (model, _):
        objective = superposition_objective(config.superposition)
        assert loss_of(model, objective).device == GPU


def test_a_tensor_that_stayed_on_the_processor_is_refused() -> None:
    config = config_of("laptop-64", 1, {})
    with pretended(config, 1) as (model, _):
        product = model.decoder.layers[1].mlp.linear_fc1
        product.weight = torch.nn.Parameter(torch.zeros(product.weight.shape, dtype=torch.bfloat16))
        with pytest.raises(RuntimeError, match="device"):
            loss_of(model, NEXT_TOKEN)
