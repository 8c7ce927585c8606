"""Rotary position embedding: one table per length, and a rotation in three passes either way."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor


class RotaryTable(torch.nn.Module):
    """Cosines and sines of the rotary angles, made once per sequence length.

    In the place of Megatron's RotaryEmbedding, which leaves their computation to every layer.
    """

    def __init__(self, head_size: int, theta: float) -> None:
        super().__init__()
        self.head_size, self.theta = head_size, theta
        self._tables: dict[tuple[int, torch.device], Tensor] = {}

    def get_rotary_seq_len(
        self, context: Any, block: Any, hidden: Tensor | None, config: TransformerConfig, *more: Any
    ) -> int:
        """Positions of a whole sequence, of which this rank's input may be a part."""
        hidden = hidden if hidden is not None else block.input_tensor
        parts = config.tensor_model_parallel_size if config.sequence_parallel else 1
        return hidden.shape[0] * parts

    def forward(self, length: int, **unused: Any) -> Tensor:
        """(2, l, head_size) float32: cosines, and sines that are negative in the first half."""
        device = torch.device(torch.cuda.current_device())
        if (length, device) not in self._tables:
            exponents = torch.arange(0, self.head_size, 2, dtype=torch.float32) / self.head_size
            angles = torch.outer(torch.arange(length).float(), self.theta**-exponents)
            cosines, sines = angles.cos(), angles.sin()
            table = torch.stack([torch.cat([cosines, cosines], 1), torch.cat([-sines, sines], 1)])
            self._tables[length, device] = table.to(device)
        return self._tables[length, device]


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Rotary position embedding in Llama's layout: pairs are a half of the head size apart.

    x (b, heads, l, head_size), in any memory order; table as `RotaryTable` makes it. Computed in
    float32 where x is not. The result lies in memory head by head, which attention reads faster
    than Megatron's order (l, b, heads, head_size).
    """
    if torch.compiler.is_compiling():  # which fuses this, forward and backward
        return _rotated(x, table[0], table[1])
    result: Tensor = _Rotation.apply(x, table)
    return result


class _Rotation(torch.autograd.Function):
    """The gradient is turned back by the same angle, in as few passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(table)
        return _rotated(x, table[0], table[1])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (table,) = ctx.saved_tensors
        return _rotated(gradients[0], table[0], -table[1]), None


def _rotated(x: Tensor, cosines: Tensor, signed_sines: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat([second, first], dim=-1).to(cosines.dtype)
    return turned.mul_(signed_sines).addcmul_(x, cosines).to(x.dtype)
