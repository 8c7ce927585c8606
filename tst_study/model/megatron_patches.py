"""Patches of Megatron-Core: all of them, each with its cause and the versions that need it.

A subclass that overrides a private method is elsewhere: `Dispatcher`
(`_maybe_dtoh_and_synchronize`).
`tests/model/test_megatron_patches.py` takes one patch away at a time and expects the failure that
it prevents. Remove a patch when its test fails.

Most patches serve **processors**. Megatron's distributed code runs on gloo, but it asks for
`torch.cuda.current_device()` wherever it allocates.
What is replaced follows the device of the run, not the machine's: a run on processors touches no
GPU that happens to be there. Importing this module asks CUDA nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel.layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
)
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher


@contextmanager
def working_on(device: torch.device) -> Iterator[None]:
    """While it lasts, Megatron allocates on `device`, and on processors asks for no GPU."""
    if device.type == "cuda":
        yield
        return
    before = [(owner, name, vars(owner).get(name)) for owner, name in ON_PROCESSORS]
    for (owner, name), value in ON_PROCESSORS.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def _sizes_are_on_the_host(self: Any, point: str, tokens_per_expert: Any = None) -> Any:
    if point == self.cuda_dtoh_point:
        for name in ("input_splits", "output_splits", "output_splits_tp"):
            sizes = getattr(self, name)
            if isinstance(sizes, torch.Tensor):
                setattr(self, name, sizes.numpy())
    return tokens_per_expert


ON_PROCESSORS: dict[tuple[Any, str], Any] = {
    # Where all of its modules allocate. No version changes that: main of 2026-08 still does.
    (torch.cuda, "current_device"): lambda: torch.device("cpu"),
    # From 0.19 on every gradient reduction looks for events of CUDA graphs to wait for
    # (distributed/param_and_grad_buffer.py); main too.
    (torch.cuda, "current_stream"): lambda device=None: None,
    # Torch's optimizers ask in every step for an accelerator, and for its stream where one is
    # (torch/optim/optimizer.py); torch 2.15 too.
    (torch.accelerator, "current_accelerator"): lambda check_available=False: None,
    # The sizes of the token exchange go to the host on a side stream (moe/token_dispatcher.py),
    # which its constructor makes; here they are there already. Main too.
    (MoEAlltoAllTokenDispatcher, "cuda_dtoh_stream"): object(),
    (MoEAlltoAllTokenDispatcher, "_maybe_dtoh_and_synchronize"): _sizes_are_on_the_host,
}
"""Replacements, by the class or module and its attribute."""


@contextmanager
def one_group_for_the_same_ranks() -> Iterator[None]:
    """While it lasts, Megatron gets one and the same group wherever it asks for the same ranks.

    It makes some 20 groups (parallel_state.py, main too), most of them of the same ranks. With gloo
    each has a thread that wakes a hundred times a second and two more, which a small model's
    training feels; nccl wants communicators of their own for what overlaps.
    """
    original = parallel_state.create_group
    groups = {tuple(range(dist.get_world_size())): dist.group.WORLD}

    def create_group(ranks: list[int], **settings: Any) -> Any:
        key = tuple(ranks)
        if key not in groups:
            groups[key] = original(ranks, **settings)
        return groups[key]

    parallel_state.create_group = create_group
    try:
        yield
    finally:
        parallel_state.create_group = original


def forget_groups() -> None:
    """Megatron's `destroy_model_parallel`, and the groups that it holds on to (parallel_state.py,
    main too): freed after a fork, they would hang the process."""
    parallel_state.destroy_model_parallel()
    parallel_state._INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP = None
    parallel_state._INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP_GLOO = None


def mark_split_weights(model: torch.nn.Module) -> None:
    """The mark by which a gradient norm counts every weight once. 0.16 leaves it where it draws the
    weights (tensor_parallel/layers.py), which is done here by parameter name; 0.19 in any case."""
    split = ColumnParallelLinear | RowParallelLinear | VocabParallelEmbedding
    for module in model.modules():
        weight: Any = module.weight if isinstance(module, split) else None
        if weight is not None:
            weight.tensor_model_parallel = True


if not hasattr(moe_utils, "te_general_gemm"):
    # 0.16 names it in the router's code, but imports it only where TransformerEngine is.
    moe_utils.te_general_gemm = None
