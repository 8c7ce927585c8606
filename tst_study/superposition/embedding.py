"""Embeds bags: the embeddings of a bag's s tokens become one vector, their mean (paper, section
3)."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from tst_study.superposition.derivatives import in_torch_func
from tst_study.superposition.vocabulary_shard import to_local

FULL = torch.float32, torch.float64
"""The types of a table whose gradient torch may add up on a CPU, where it adds in the table's own
type. In bfloat16 the sum of a token that occurs a thousand times in a batch stops growing."""


def bag_embedding(
    weight: Tensor,
    token_ids: Tensor,
    *,
    mask: Tensor | None = None,
    vocabulary_start: int = 0,
    reduce: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Embed each bag as the mean of its s embeddings, summed in float32 (float64 for a float64
    weight).

    For bags of one token and the whole table, the result is that of `F.embedding`, bit for bit.
    Gradients are summed in float32, too. On a CPU, they have the same bits in every run.

    If the vocabulary is sharded over ranks, each rank holds the rows [vocabulary_start,
    vocabulary_start + V). Tokens of other shards contribute zero to its sums, and `reduce` adds up
    B·l float32 vectors (not B·l·s) over the shards.

    Args:
        weight: (V, d), this rank's rows of the embedding table.
        token_ids: (B, l, s) integer ids of the whole vocabulary. The first two axes may be swapped,
            as in Megatron's layout.
        mask: (B, l, s) bool, which tokens a bag has; the others, such as padding, are left out of
            its mean. Each bag must have one. None: all.
        vocabulary_start: the id of the first row of `weight`; used only with `reduce`.
        reduce: maps this shard's sums (B, l, d) in float32 to the sums over all shards,
            differentiably: an all-reduce (`sum_over_group`), or a reduce-scatter along l under
            sequence parallelism. None if `weight` is the whole table.

    Returns:
        (B, l, d), or the shape that `reduce` returns, in the dtype of `weight`.

    Raises:
        ValueError: token ids without a bag axis, or a `mask` together with `reduce`.
        IndexError or RuntimeError (from torch, on a CPU): an id outside the vocabulary, without
            `reduce`. On a GPU a device assertion fails instead.
    """
    if token_ids.dim() != 3 or token_ids.shape[2] == 0:
        raise ValueError(
            f"token_ids must be (batch, latent positions, bag size), got {tuple(token_ids.shape)}"
        )
    batch, positions, bag_size = token_ids.shape
    if reduce is not None and mask is not None:
        raise ValueError("a mask: give a rank the whole vocabulary")
    bags = token_ids.reshape(-1, bag_size)
    members = None if mask is None else mask.reshape(-1, bag_size)
    size = bag_size if mask is None else mask.sum(dim=2, keepdim=True)
    if reduce is None:
        if bag_size == 1 and (weight.is_cuda or weight.dtype in FULL):
            return F.embedding(token_ids.squeeze(2), weight)
        sums = _bag_sums(weight, bags, members).view(batch, positions, -1)
        return (sums / size).to(weight.dtype)
    rows, is_local = to_local(bags, vocabulary_start, weight.shape[0])
    sums = _bag_sums(weight, rows, is_local).view(batch, positions, -1)
    return (reduce(sums) / bag_size).to(weight.dtype)


def mean_of_bags(vectors: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the mean of the s vectors of each bag, (B, l, s, d) -> (B, l, d), summed in float32
    (float64 for float64 vectors). `mask`: as for `bag_embedding`."""
    wide = torch.promote_types(vectors.dtype, torch.float32)
    if mask is None:
        return vectors.mean(dim=2, dtype=wide).to(vectors.dtype)
    sums = vectors.masked_fill(~mask.unsqueeze(3), 0.0).sum(dim=2, dtype=wide)
    return (sums / mask.sum(dim=2, keepdim=True)).to(vectors.dtype)


def _bag_sums(weight: Tensor, bags: Tensor, mask: Tensor | None) -> Tensor:
    """Sum the weight's rows for each bag: (N, s) row numbers -> (N, d), in float32, or float64 for
    a float64 weight. Rows where `mask` (N, s) is False are left out.

    `F.embedding_bag` reads each row once and never writes the (N, s, d) embeddings. But its result
    has the dtype of the weight, so a sum in bfloat16 would be rounded before it is divided or
    reduced. Half-precision weights therefore have a forward pass of our own.
    """
    if in_torch_func():
        wide = torch.promote_types(weight.dtype, torch.float32)
        rows = F.embedding(bags, weight).to(wide)
        return (rows if mask is None else rows * mask.unsqueeze(2)).sum(dim=1)
    if torch.compiler.is_compiling() and weight.dtype in FULL:
        return _embedding_bag_sum(weight, bags, mask)
    sums: Tensor = _BagSum.apply(weight, bags, mask)  # type: ignore[no-untyped-call]
    return sums


def _embedding_bag_sum(weight: Tensor, bags: Tensor, mask: Tensor | None) -> Tensor:
    per_sample_weights = None if mask is None else mask.to(weight.dtype)
    return F.embedding_bag(bags, weight, mode="sum", per_sample_weights=per_sample_weights)


class _BagSum(torch.autograd.Function):
    """Bag sums of a table, in float32 for a half-precision one. The gradient is that of
    `F.embedding_bag`, and can be differentiated again, which torch's cannot."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bags: Tensor, mask: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight, bags, mask)
        ctx.graph = None
        if weight.dtype in FULL:
            if not ctx.needs_input_grad[0]:
                return _embedding_bag_sum(weight, bags, mask)
            with torch.enable_grad():
                table = weight.detach().requires_grad_()
                sums = _embedding_bag_sum(table, bags, mask)
            ctx.graph = table, get_gradient_edge(sums)  # which does not keep the sums in memory
            return sums.detach()
        sums = weight.new_zeros(bags.shape[0], weight.shape[1], dtype=torch.float32)
        for i in range(bags.shape[1]):  # s passes over (N, d) instead of one over (N, s, d)
            rows = F.embedding(bags[:, i], weight)
            sums += rows if mask is None else rows.masked_fill_(~mask[:, i, None], 0.0)
        return sums

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        weight, bags, mask = ctx.saved_tensors
        if torch.is_grad_enabled():
            grad = grads[0].to(weight.dtype)
            of_rows = grad.unsqueeze(1).expand(-1, bags.shape[1], -1)
            of_rows = of_rows if mask is None else of_rows * mask.unsqueeze(2)
            return (
                torch.zeros_like(weight).index_add(0, bags.flatten(), of_rows.flatten(0, 1)),
                None,
                None,
            )
        # Torch's own graph avoids a call of its private kernel for the gradient. For half precision
        # it takes a second forward pass, which costs little.
        if ctx.graph is None:
            with torch.enable_grad():
                table = (weight if weight.is_cuda else weight.float()).detach().requires_grad_()
                ctx.graph = table, get_gradient_edge(_embedding_bag_sum(table, bags, mask))
        table, edge = ctx.graph
        grad = grads[0].to(table.dtype)
        (grad_weight,) = torch.autograd.grad(edge, table, grad, retain_graph=True)
        return grad_weight.to(weight.dtype), None, None
