"""What megatron.core 0.16 needs on a machine without a GPU. No effect where CUDA is available.

Megatron's distributed code runs on gloo, but it asks for `torch.cuda.current_device()` wherever it
allocates, and wraps small functions in torch.compile, which needs a C++ compiler. Each patch below
is the smallest that lets the same modules run on processors.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


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
    return nullcontext() if torch.cuda.is_available() else _CudaMeansCpu()


def _patch() -> None:
    # Before any other module of megatron.core is imported: they bind the decorator at import.
    import megatron.core.jit

    megatron.core.jit.disable_jit_fuser()

    cpu = torch.device("cpu")
    torch.cuda.current_device = lambda: cpu  # type: ignore[assignment,return-value]
    torch.cuda.synchronize = lambda device=None: None

    from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher

    # The sizes of the token exchange go to the host on a side stream; here they are there already.
    MoEAlltoAllTokenDispatcher.cuda_dtoh_stream = object()
    MoEAlltoAllTokenDispatcher._maybe_dtoh_and_synchronize = _sizes_are_on_the_host


def _sizes_are_on_the_host(self: Any, point: str, tokens_per_expert: Any = None) -> Any:
    if point == self.cuda_dtoh_point:
        for name in ("input_splits", "output_splits", "output_splits_tp"):
            sizes = getattr(self, name)
            if isinstance(sizes, torch.Tensor):
                setattr(self, name, sizes.numpy())
    return tokens_per_expert


class _NoRandomness:
    """In the place of Megatron's bookkeeping of generator states per layout: it enters it around
    whole layers, though nothing here draws random numbers after the initial weights."""

    def fork(self, *names: str) -> AbstractContextManager[None]:
        return nullcontext()


def _patch_everywhere() -> None:
    from megatron.core.tensor_parallel import random

    random._CUDA_RNG_STATE_TRACKER = _NoRandomness()
    random._CUDA_RNG_STATE_TRACKER_INITIALIZED = True
    # Named in the router's code, but only imported where TransformerEngine is (on GPUs as well).
    from megatron.core.transformer.moe import moe_utils

    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None


if not torch.cuda.is_available():
    _patch()
_patch_everywhere()
