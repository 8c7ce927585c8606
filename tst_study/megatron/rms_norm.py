"""RMSNorm as the layers use it."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor


class RMSNorm(torch.nn.RMSNorm):
    """torch's RMSNorm, told to Megatron's sequence parallelism.

    Under sequence parallelism each rank sees a part of the positions; the mark on the weight makes
    `finalize_model_grads` sum its gradient over the tensor-parallel ranks. Norms of queries and
    keys see whole sequences but a part of the heads and need the same sum.
    """

    def __init__(
        self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **unused: Any
    ) -> None:
        dtype = config.params_dtype
        super().__init__(hidden_size, eps=eps, dtype=dtype, device=torch.cuda.current_device())
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        """x (…, hidden_size), same shape out."""
        if x.is_cuda or x.dtype != torch.float32 or torch.compiler.is_compiling():
            return super().forward(x)
        result: Tensor = _FewPasses.apply(x, self.weight, self.eps)
        return result


class _FewPasses(torch.autograd.Function):
    """On a CPU torch's norm is a chain of small operations, whose backward pass walks over memory
    twice as often as this one; on a GPU it is one kernel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale = size.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        normalized = x * scale
        ctx.save_for_backward(normalized, weight, scale)
        return normalized * weight

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        (gradient,), (normalized, weight, scale) = gradients, ctx.saved_tensors
        product = gradient * normalized
        # What moves a row along itself does not change its norm of one.
        along = (product @ weight).div_(-normalized.shape[-1]).unsqueeze(-1)
        of_x = (gradient * weight).addcmul_(normalized, along).mul_(scale)
        return of_x, product.flatten(0, -2).sum(0), None
