"""What megatron.core needs to run on processors, for as long as a run does; on a GPU, nothing.

Megatron's distributed code runs on gloo, but it asks for `torch.cuda.current_device()` wherever it
allocates, and synchronizes streams that are not there. Each replacement below is the smallest that
lets the same modules run on processors. It follows the device of the run, not the machine's: a run
on processors touches no GPU that happens to be there. Importing this module asks CUDA nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from megatron.core.tensor_parallel import random
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher
from torch.overrides import TorchFunctionMode

_on_processors = False


@contextmanager
def working_on(device: torch.device) -> Iterator[None]:
    """While it lasts, Megatron allocates on `device`, and on processors asks for no GPU."""
    global _on_processors
    if device.type == "cuda":
        yield
        return
    before = [(owner, name, vars(owner).get(name)) for owner, name, _ in _REPLACED]
    was_on_processors, _on_processors = _on_processors, True
    for owner, name, value in _REPLACED:
        setattr(owner, name, value)
    try:
        yield
    finally:
        _on_processors = was_on_processors
        for owner, name, value in before:
            setattr(owner, name, value)


class _CudaMeansCpu(TorchFunctionMode):
    """Tensors asked for on "cuda", or moved there, stay on the processor."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        named = dict(kwargs or {})
        if function is torch.Tensor.cuda:
            return args[0]
        if str(named.get("device", "")).startswith("cuda"):
            named["device"] = "cpu"
        return function(*args, **named)


def cuda_means_cpu() -> AbstractContextManager[Any]:
    """Around those parts of Megatron that name the device outright (schedules, tied embeddings)."""
    return _CudaMeansCpu() if _on_processors else nullcontext()


def _sizes_are_on_the_host(self: Any, point: str, tokens_per_expert: Any = None) -> Any:
    if point == self.cuda_dtoh_point:
        for name in ("input_splits", "output_splits", "output_splits_tp"):
            sizes = getattr(self, name)
            if isinstance(sizes, torch.Tensor):
                setattr(self, name, sizes.numpy())
    return tokens_per_expert


_REPLACED: tuple[tuple[Any, str, Any], ...] = (
    (torch.cuda, "current_device", lambda: torch.device("cpu")),
    (torch.cuda, "synchronize", lambda device=None: None),
    # From 0.19 on every gradient reduction looks for events of CUDA graphs to wait for.
    (torch.cuda, "current_stream", lambda device=None: None),
    # Torch's optimizers ask in every step for an accelerator, and for its stream where one is.
    (torch.accelerator, "current_accelerator", lambda check_available=False: None),
    # The sizes of the token exchange go to the host on a side stream; here they are there already.
    (MoEAlltoAllTokenDispatcher, "cuda_dtoh_stream", object()),
    (MoEAlltoAllTokenDispatcher, "_maybe_dtoh_and_synchronize", _sizes_are_on_the_host),
)


class _NoRandomness:
    """In the place of Megatron's bookkeeping of generator states per layout: it enters it around
    whole layers, though nothing here draws random numbers after the initial weights."""

    def fork(self, *names: str) -> AbstractContextManager[None]:
        return nullcontext()


# On every device.
random._CUDA_RNG_STATE_TRACKER = _NoRandomness()
random._CUDA_RNG_STATE_TRACKER_INITIALIZED = True
if not hasattr(moe_utils, "te_general_gemm"):
    # Named in the router's code, but only imported where TransformerEngine is.
    moe_utils.te_general_gemm = None
