"""SwiGLU whose backward pass writes one gradient, where autograd would join those of two halves."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def swiglu(gate_and_up: Tensor) -> Tensor:
    """(…, 2·f), gate before up -> (…, f): SiLU of gate, times up. To the bit what the formula
    gives, forward and backward."""
    if torch.compiler.is_compiling():  # which fuses the formula, and can't see through `out=`
        gate, up = gate_and_up.chunk(2, dim=-1)
        return F.silu(gate) * up
    result: Tensor = _SwiGLU.apply(gate_and_up)
    return result


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_and_up: Tensor) -> Tensor:
        gate, up = gate_and_up.chunk(2, dim=-1)
        activated = F.silu(gate)
        # A GPU has more arithmetic to spare than memory, a CPU more memory.
        ctx.save_for_backward(gate_and_up, *([] if gate.is_cuda else [activated]))
        return activated * up

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        gate_and_up, *kept = ctx.saved_tensors
        gate, up = gate_and_up.chunk(2, dim=-1)
        activated = kept[0] if kept else F.silu(gate)
        both = torch.empty_like(gate_and_up)
        of_gate, of_up = both.chunk(2, dim=-1)
        torch.ops.aten.silu_backward.grad_input(gradients[0] * up, gate, grad_input=of_gate)
        torch.mul(gradients[0], activated, out=of_up)
        return both
