"""What megatron.core 0.16 needs on a machine without a GPU. No effect where CUDA is available.

Megatron's distributed code runs on gloo, but it asks for `torch.cuda.current_device()` wherever it
allocates, and wraps small functions in torch.compile, which needs a C++ compiler. Each patch below
is the smallest that lets the same modules run on processors.
"""

from __future__ import annotations

from typing import Any

import torch


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


def _patch_everywhere() -> None:
    # Named in the router's code, but only imported where TransformerEngine is (on GPUs as well).
    from megatron.core.transformer.moe import moe_utils

    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None


if not torch.cuda.is_available():
    _patch()
_patch_everywhere()
