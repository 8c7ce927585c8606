"""Embeds bags: the embeddings of a bag's s tokens become one vector, their mean (paper, section 3)
or another pooling of them.

To add a pooling, write it in `pool`, and its name in `Pooling` of `loss_kinds.py`.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tst_study.superposition.loss_kinds import Pooling
from tst_study.superposition.vocabulary_shard import to_local


def bag_embedding(
    weight: Tensor,
    token_ids: Tensor,
    *,
    pooling: Pooling = "mean",
    vocabulary_start: int = 0,
    reduce: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Embed each bag as the mean of its s embeddings, summed in float32 (float64 for a float64
    weight).

    A `pooling` other than "mean" keeps all B·l·s embeddings in memory, and needs the whole table on
    each rank.

    For bags of one token and the whole table, the result is that of `F.embedding`, bit for bit. On
    a CPU, gradients have the same bits in every run.

    If the vocabulary is sharded over ranks, each rank holds the rows [vocabulary_start,
    vocabulary_start + V). Tokens of other shards contribute zero to its sums, and `reduce` adds up
    B·l float32 vectors (not B·l·s) over the shards.

    Args:
        weight: (V, d), this rank's rows of the embedding table.
        token_ids: (B, l, s) integer ids of the whole vocabulary. The first two axes may be swapped,
            as in Megatron's layout.
        pooling: how the vectors of a bag become one; for bags of one token it has no effect.
        vocabulary_start: the id of the first row of `weight`; used only with `reduce`.
        reduce: maps this shard's sums (B, l, d) in float32 to the sums over all shards,
            differentiably: an all-reduce (`sum_over_group`), or a reduce-scatter along l under
            sequence parallelism. None if `weight` is the whole table.

    Returns:
        (B, l, d), or the shape that `reduce` returns, in the dtype of `weight`.

    Raises:
        ValueError: token ids without a bag axis, or a `pooling` other than "mean" together with
            `reduce` for bags of several tokens.
        IndexError or RuntimeError (from torch, on a CPU): an id outside the vocabulary, without
            `reduce`. On a GPU a device assertion fails instead.
    """
    if token_ids.dim() != 3 or token_ids.shape[2] == 0:
        raise ValueError(
            f"token_ids must be (batch, latent positions, bag size), got {tuple(token_ids.shape)}"
        )
    batch, positions, bag_size = token_ids.shape
    if pooling != "mean" and bag_size > 1:
        if reduce is not None:
            raise ValueError(f"pooling {pooling!r} needs the whole vocabulary on a rank")
        return pool(F.embedding(token_ids, weight), pooling)
    bags = token_ids.reshape(-1, bag_size)
    if reduce is None:
        if bag_size == 1:
            return F.embedding(token_ids.squeeze(2), weight)
        sums = _bag_sums(weight, bags, None)
        return (sums / bag_size).to(weight.dtype).view(batch, positions, -1)
    rows, is_local = to_local(bags, vocabulary_start, weight.shape[0])
    sums = _bag_sums(weight, rows, is_local).view(batch, positions, -1)
    return (reduce(sums) / bag_size).to(weight.dtype)


def pool(vectors: Tensor, pooling: Pooling) -> Tensor:
    """Pool the s vectors of each bag into one: (B, l, s, d) -> (B, l, d). A mean is summed in
    float32 (float64 for float64 vectors)."""
    if pooling == "max":
        return vectors.amax(dim=2)
    wide = torch.promote_types(vectors.dtype, torch.float32)
    return vectors.mean(dim=2, dtype=wide).to(vectors.dtype)


def _bag_sums(weight: Tensor, bags: Tensor, mask: Tensor | None) -> Tensor:
    """Sum the weight's rows for each bag: (N, s) row numbers -> (N, d), in float32, or float64 for
    a float64 weight. Rows where `mask` (N, s) is False are left out.

    `F.embedding_bag` reads each row once and never writes the (N, s, d) embeddings. But its result
    has the dtype of the weight, so a sum in bfloat16 would be rounded before it is divided or
    reduced. Half-precision weights therefore have a forward pass of our own.
    """
    if weight.dtype in (torch.float32, torch.float64):
        return _embedding_bag_sum(weight, bags, mask)
    sums: Tensor = _WidenedBagSum.apply(weight, bags, mask)  # type: ignore[no-untyped-call]
    return sums


def _embedding_bag_sum(weight: Tensor, bags: Tensor, mask: Tensor | None) -> Tensor:
    per_sample_weights = None if mask is None else mask.to(weight.dtype)
    return F.embedding_bag(bags, weight, mode="sum", per_sample_weights=per_sample_weights)


class _WidenedBagSum(torch.autograd.Function):
    """Bag sums of a half-precision table in float32. The gradient is that of `F.embedding_bag`."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bags: Tensor, mask: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight, bags, mask)
        sums = weight.new_zeros(bags.shape[0], weight.shape[1], dtype=torch.float32)
        for i in range(bags.shape[1]):  # s passes over (N, d) instead of one over (N, s, d)
            rows = F.embedding(bags[:, i], weight)
            sums += rows if mask is None else rows.masked_fill_(~mask[:, i, None], 0.0)
        return sums

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        weight, bags, mask = ctx.saved_tensors
        # This second forward pass costs little, and avoids a call of torch's private kernel for the
        # gradient.
        with torch.enable_grad():
            table = weight.detach().requires_grad_()
            sums = _embedding_bag_sum(table, bags, mask)
        (grad_weight,) = torch.autograd.grad(sums, table, grads[0].to(weight.dtype))
        return grad_weight, None, None
