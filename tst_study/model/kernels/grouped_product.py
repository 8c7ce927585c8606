"""One matrix product per group of rows, all in one kernel: the experts of a rank."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def grouped_product(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """rows (n, in) of consecutive groups that end at `ends` (groups,) int32, weights
    (groups, out, in) -> (n, out)."""
    if rows.shape[0] == 0:  # the grouped kernel takes no empty input
        return rows @ weights.sum(dim=0).T
    product: Tensor = _GroupedProduct.apply(rows, weights, ends)
    return product


class _GroupedProduct(torch.autograd.Function):
    """torch's grouped product; its own backward refuses gradients that are not laid out in rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weights, ends)
        return F.grouped_mm(rows.contiguous(), weights.transpose(1, 2), offs=ends)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        rows, weights, ends = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        of_rows = F.grouped_mm(gradient, weights, offs=ends)
        of_weights = F.grouped_mm(gradient.T, rows, offs=ends)
        # On some GPUs the kernel leaves a group without rows whatever its memory held before.
        empty = torch.diff(ends, prepend=ends.new_zeros(1)) == 0
        of_weights.masked_fill_(empty.view(-1, 1, 1), 0.0)
        return of_rows, of_weights, None
