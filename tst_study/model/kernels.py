"""Operations of which the layers are made: RMSNorm, the rotary embedding, SwiGLU, matrix products
by groups of rows (one group for each expert), and copying rows and adding the copies up again.

An operation has a backward pass of our own where autograd's reads memory more often, refuses some
inputs, or adds in an order that changes between runs. `tests/model/test_kernels.py` compares each
with autograd.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, epsilon: float | None) -> Tensor:
    """x (…, d), weight (d,) -> (…, d): x over its root mean square, times weight.

    `_RMSNorm` computes it for float32 on a CPU outside compiled code, and torch in all other cases.
    """
    if x.is_cuda or x.dtype != torch.float32 or torch.compiler.is_compiling():
        return F.rms_norm(x, weight.shape, weight, epsilon)
    result: Tensor = _RMSNorm.apply(x, weight, epsilon)
    return result


class _RMSNorm(torch.autograd.Function):
    """RMSNorm for a CPU. There, torch's own is a chain of small operations whose backward pass
    walks over memory twice as often as this one. On a GPU torch's is one kernel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale = size.square_().div_(x.shape[-1]).add_(epsilon).rsqrt_()
        normalized = x * scale
        ctx.save_for_backward(normalized, weight, scale)
        return normalized * weight

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        (gradient,), (normalized, weight, scale) = gradients, ctx.saved_tensors
        product = gradient * normalized
        # Scaling a row does not change the normalized row (but for epsilon), so the gradient's
        # component along the row is removed.
        along = (product @ weight).div_(-normalized.shape[-1]).unsqueeze(-1)
        of_x = (gradient * weight).addcmul_(normalized, along).mul_(scale)
        return of_x, product.flatten(0, -2).sum(0), None


class RotaryTable(torch.nn.Module):
    """Cosines and sines of the rotary angles, computed once for each sequence length.

    Megatron's RotaryEmbedding returns the angles, from which every layer would compute cosines and
    sines anew.
    """

    def __init__(self, head_size: int, theta: float) -> None:
        super().__init__()
        self.head_size, self.theta = head_size, theta
        self._tables: dict[tuple[int, torch.device], Tensor] = {}

    def forward(self, length: int) -> Tensor:
        """Return (2, l, head_size) float32: the cosines, then the sines. The sines of the first
        half of the features have the opposite sign."""
        device = torch.device(torch.cuda.current_device())
        if (length, device) not in self._tables:
            exponents = torch.arange(0, self.head_size, 2, dtype=torch.float32) / self.head_size
            angles = torch.outer(torch.arange(length).float(), self.theta**-exponents)
            cosines, sines = angles.cos(), angles.sin()
            table = torch.stack([torch.cat([cosines, cosines], 1), torch.cat([-sines, sines], 1)])
            self._tables[length, device] = table.to(device)
        return self._tables[length, device]


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Rotary position embedding in Llama's layout: the features of a pair lie half a head apart.

    x (b, heads, l, head_size), in any memory order, and a table that `RotaryTable` made -> the same
    shape and dtype, computed in float32. The result lies in memory head by head, which attention
    reads faster than Megatron's order (l, b, heads, head_size).
    """
    if torch.compiler.is_compiling():  # the compiler fuses both passes of this by itself
        return _rotated(x, table[0], table[1])
    result: Tensor = _Rotation.apply(x, table)
    return result


class _Rotation(torch.autograd.Function):
    """A rotation whose backward pass rotates the gradient back by the same angle, in as few passes
    over memory as the forward pass."""

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


def swiglu(gate_and_up: Tensor) -> Tensor:
    """(…, 2·f), first the gate, then the upward projection -> (…, f): SiLU of the gate, times the
    upward projection."""
    gate, up = gate_and_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def weighted_swiglu(gate_and_up: Tensor, weights: Tensor) -> Tensor:
    """(n, 2·f) and weights (n,) float32 -> (n, f): SwiGLU of each row, times its weight."""
    inner = swiglu(gate_and_up)
    return (inner * weights.unsqueeze(1)).to(inner.dtype)


class Groups(NamedTuple):
    """A division of rows into consecutive groups, some of which may be empty."""

    ends: Tensor
    """(groups,) int32: the number of rows up to the end of each group."""
    empty: Tensor
    """(groups,) bool: True for a group without rows."""


def groups_of(counts: Tensor) -> Groups:
    """counts (groups,), the number of rows in each group -> the groups, one after another."""
    return Groups(counts.cumsum(0, dtype=torch.int32), counts == 0)


def grouped_product(rows: Tensor, weights: Tensor, groups: Groups) -> Tensor:
    """rows (n, in) in consecutive groups, weights (groups, out, in) -> (n, out): each row times the
    transposed weight of its group."""
    # The grouped kernel refuses an empty input. This product has the right shape, and gives all
    # weights a gradient of zero.
    if rows.shape[0] == 0:
        return rows @ weights.sum(dim=0).T
    product: Tensor = _GroupedProduct.apply(rows, weights, *groups)
    return product


class _GroupedProduct(torch.autograd.Function):
    """torch's grouped product, whose own backward pass refuses gradients that are not
    contiguous."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weights: Tensor, ends: Tensor, empty: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weights, ends, empty)
        return F.grouped_mm(rows.contiguous(), weights.transpose(1, 2), offs=ends)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        rows, weights, ends, empty = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        of_rows = F.grouped_mm(gradient, weights, offs=ends)
        of_weights = F.grouped_mm(gradient.T, rows, offs=ends)
        # On some GPUs the kernel leaves the gradient of a group without rows uninitialized.
        of_weights.masked_fill_(empty.view(-1, 1, 1), 0.0)
        return of_rows, of_weights, None, None


class Copied(torch.autograd.Function):
    """Copies rows. The backward pass adds the gradients of a row's copies in a fixed order. On a
    GPU, the backward pass of torch's gather would add them in a different order every time."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, of_copy: Tensor, copies_of: Tensor) -> Tensor:
        """rows (n, d) -> (n·k, d): k copies of each row. `of_copy` (n·k,): for each copy, the index
        of its row. `copies_of` (n, k): for each row, the indices of its copies."""
        ctx.save_for_backward(copies_of)
        return rows.index_select(0, of_copy)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (copies_of,) = ctx.saved_tensors
        return sum_of_copies(gradients[0], copies_of), None, None


class Combined(torch.autograd.Function):
    """Adds up the copies of each row: (n·k, d) -> (n, d). The indices `of_copy` and `copies_of` are
    those of `Copied`. `summed` is `sum_of_copies` or its compiled form."""

    @staticmethod
    def forward(
        ctx: Any, copies: Tensor, of_copy: Tensor, copies_of: Tensor, summed: Any
    ) -> Tensor:
        ctx.save_for_backward(of_copy)
        total: Tensor = summed(copies, copies_of)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (of_copy,) = ctx.saved_tensors
        return gradients[0].index_select(0, of_copy), None, None, None


def sum_of_copies(copies: Tensor, copies_of: Tensor) -> Tensor:
    """copies (n·k, d), and the indices (n, k) of each row's copies -> the sum of each row's copies
    (n, d)."""
    own = copies.index_select(0, copies_of.view(-1)).view(*copies_of.shape, -1)
    if own.device.type != "cpu":
        return own.sum(dim=1)
    # On a CPU they are added one after another, to give the same bits as the runs in docs/records.
    total = own[:, 0].clone()
    for nth in own.unbind(dim=1)[1:]:
        total += nth
    return total
