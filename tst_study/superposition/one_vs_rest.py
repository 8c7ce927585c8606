"""V independent yes/no questions per position, "is token v in the next bag?": BCE and hinge.

Both did worse than the baseline in the paper's ablation; they are here to repeat it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tst_study.superposition.bags import add_at_targets_
from tst_study.superposition.row_chunks import chunk_rows, row_chunks
from tst_study.superposition.vocabulary_shard import VocabularyShard, sum_over_group


@dataclass(frozen=True)
class YesNoLoss:
    """phi(t · z) of a logit z and its answer t, +1 for the tokens of the bag and -1 for others."""

    absent: Callable[[Tensor], Tensor]
    """phi(-z)."""
    change: Callable[[Tensor], Tensor]
    """phi(z) - phi(-z): what being in the bag adds."""
    absent_slope_: Callable[[Tensor, Tensor], Any]
    """The slope of `absent` at the first, written into the second."""
    change_slope: Callable[[Tensor], Tensor]


BINARY_CROSS_ENTROPY = YesNoLoss(  # phi(x) = log(1 + exp(-x))
    absent=F.softplus,
    change=torch.neg,
    absent_slope_=lambda z, out: torch.sigmoid(out.copy_(z), out=out),
    change_slope=lambda z: torch.full_like(z, -1.0),
)
HINGE = YesNoLoss(  # phi(x) = max(0, 1 - x)
    absent=lambda z: (z + 1.0).relu_(),
    change=lambda z: (1.0 - z).relu() - (1.0 + z).relu(),
    absent_slope_=lambda z, out: torch.gt(z, -1.0, out=out),
    change_slope=lambda z: -(z < 1.0).float() - (z > -1.0).float(),
)


def one_vs_rest_means(
    loss: YesNoLoss,
    logits: Tensor,
    targets: Tensor,
    members: Tensor,
    shard: VocabularyShard | None = None,
    inplace: bool = False,
) -> Tensor:
    """The mean over the vocabulary of `loss`, for each position.

    Args:
        logits: (N, V), or this rank's V columns under `shard`.
        targets: (N, s) int64 ids of the whole vocabulary.
        members: (N, s) bool, True at one occurrence of each token of the bag: what else
            `targets` holds is not in the bag.
        inplace: let the backward pass overwrite `logits` by their gradient.

    Returns:
        (N,) in float32 (float64 for float64 logits).
    """
    vocabulary = logits.shape[1]
    if shard is not None:
        targets, here = shard.to_local(targets)
        members, vocabulary = members & here, shard.vocabulary_size
    sums: Tensor = _OneVsRestSums.apply(  # type: ignore[no-untyped-call]
        logits, targets, members, loss, inplace
    )
    return (sums if shard is None else sum_over_group(sums, shard.group)) / vocabulary


class _OneVsRestSums(torch.autograd.Function):
    """Every token as an absent one, then the tokens of the bag corrected."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, members: Tensor, loss: YesNoLoss, inplace: bool
    ) -> Tensor:
        ctx.save_for_backward(logits, targets, members)
        ctx.loss, ctx.inplace = loss, inplace
        sums = logits.new_empty(
            logits.shape[0], dtype=torch.promote_types(logits.dtype, torch.float32)
        )
        for rows in row_chunks(logits):
            z = logits[rows].to(sums.dtype)
            change = loss.change(z.gather(1, targets[rows]))
            sums[rows] = loss.absent(z).sum(dim=1) + torch.where(members[rows], change, 0.0).sum(
                dim=1
            )
        return sums

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        logits, targets, members = ctx.saved_tensors
        grad = grads[0].unsqueeze(1)
        grad_logits = logits.detach() if ctx.inplace else torch.empty_like(logits)
        scratch = logits.new_empty(chunk_rows(logits), logits.shape[1], dtype=grad.dtype)
        for rows in row_chunks(logits):
            z = logits[rows]
            slopes = scratch[: rows.stop - rows.start]
            ctx.loss.absent_slope_(z, slopes)
            change = ctx.loss.change_slope(z.gather(1, targets[rows])).to(slopes.dtype)
            add_at_targets_(slopes, targets[rows], torch.where(members[rows], change, 0.0))
            grad_logits[rows] = slopes.mul_(grad[rows])
        return grad_logits, None, None, None, None
