"""All patches of Megatron-Core, each with its cause and the versions of Megatron that need it.

(One private method of Megatron's is overridden in a subclass instead:
`Dispatcher._maybe_dtoh_and_synchronize`.)

`tests/model/test_megatron_patches.py` takes one patch away at a time and checks that it is still
needed. When such a test fails, remove the patch.

Most patches serve runs on **CPUs** (`ON_PROCESSORS`). Megatron's distributed code works on gloo,
but it asks for `torch.cuda.current_device()` wherever it allocates a tensor. These patches depend
on the device of the run, not on the machine: a run on CPUs touches no GPU that happens to be there.
Importing this module asks CUDA nothing.

"Main too" means that Megatron's main branch of August 2026 still needs the patch.
"""

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
    """Within the block, have Megatron allocate on `device`. For a CPU, the replacements of
    `ON_PROCESSORS` are in force; for a GPU nothing is changed."""
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
    """Replace the dispatcher's method that copies sizes to the host. On a CPU they are there
    already, and only have to become numpy arrays."""
    if point == self.cuda_dtoh_point:
        for name in ("input_splits", "output_splits", "output_splits_tp"):
            sizes = getattr(self, name)
            if isinstance(sizes, torch.Tensor):
                setattr(self, name, sizes.numpy())
    return tokens_per_expert


ON_PROCESSORS: dict[tuple[Any, str], Any] = {
    # All of Megatron's modules allocate on this device, in every version; main too.
    (torch.cuda, "current_device"): lambda: torch.device("cpu"),
    # From 0.19 on, every gradient reduction looks for events of CUDA graphs to wait for
    # (distributed/param_and_grad_buffer.py); main too.
    (torch.cuda, "current_stream"): lambda device=None: None,
    # torch's optimizers ask in every step for an accelerator and, if there is one, for its stream
    # (torch/optim/optimizer.py); torch 2.15 too.
    (torch.accelerator, "current_accelerator"): lambda check_available=False: None,
    # The constructor of the dispatcher makes a side stream, on which it later copies the sizes of
    # messages to the host (moe/token_dispatcher.py). On a CPU they are there already. Main too.
    (MoEAlltoAllTokenDispatcher, "cuda_dtoh_stream"): object(),
    (MoEAlltoAllTokenDispatcher, "_maybe_dtoh_and_synchronize"): _sizes_are_on_the_host,
}
"""The values of attributes of torch and Megatron in a run on CPUs, by (module or class, name of the
attribute)."""


@contextmanager
def one_group_for_the_same_ranks() -> Iterator[None]:
    """Within the block, give Megatron the same process group whenever it asks for one of the same
    ranks.

    Megatron makes some 20 groups (parallel_state.py, main too), most of them of the same ranks. A
    gloo group has three threads, one of which wakes a hundred times a second, and that slows the
    training of a small model. This is not for NCCL: there, messages that overlap need
    communicators of their own.
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
    """Call Megatron's `destroy_model_parallel`, and drop the two groups that it forgets to drop
    (parallel_state.py, main too). If these were freed after a fork, they would hang the process."""
    parallel_state.destroy_model_parallel()
    parallel_state._INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP = None
    parallel_state._INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP_GLOO = None


def mark_split_weights(model: torch.nn.Module) -> None:
    """Mark the weights that are split over tensor ranks, so that a gradient norm can count every
    weight once.

    Megatron 0.16 sets the mark only on weights that it draws itself (tensor_parallel/layers.py),
    and here `initialization.py` draws them. 0.19 always sets it.
    """
    split = ColumnParallelLinear | RowParallelLinear | VocabParallelEmbedding
    for module in model.modules():
        weight: Any = module.weight if isinstance(module, split) else None
        if weight is not None:
            weight.tensor_model_parallel = True


if not hasattr(moe_utils, "te_general_gemm"):
    # The router's code in 0.16 uses this name, but imports it only if TransformerEngine is there.
    moe_utils.te_general_gemm = None
