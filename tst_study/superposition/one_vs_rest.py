"""Binary cross-entropy and hinge loss: V independent yes/no questions per position, "is token v in
the next bag?".

Both did worse than the baseline in the paper's ablation. They are here to reproduce it.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from tst_study.superposition.bags import add_at_targets_
from tst_study.superposition.derivatives import gradient_of, in_torch_func
from tst_study.superposition.row_chunks import chunk_rows, row_chunks
from tst_study.superposition.vocabulary_shard import VocabularyShard, sum_over_group


def one_vs_rest_means(
    kind: Literal["binary_cross_entropy", "hinge"],
    logits: Tensor,
    targets: Tensor,
    members: Tensor,
    shard: VocabularyShard | None = None,
) -> Tensor:
    """Compute 1/V sum_v phi(t_v · z_v) for each row of logits z, with t_v = +1 for the tokens of
    the bag and -1 for all others.

    phi(x) is log(1 + exp(-x)) for `binary_cross_entropy` and max(0, 1 - x) for `hinge`.

    Args:
        logits: (N, V) for the whole vocabulary; with `shard`, this rank's columns.
        targets: (N, s) int64 ids of the whole vocabulary.
        members: (N, s) bool, True at exactly one occurrence of each token of the bag. The other
            entries of `targets` are not counted.
        shard: which columns these are; None for the whole vocabulary.

    Returns:
        (N,) in float32 (float64 for float64 logits).
    """
    vocabulary = logits.shape[1]
    if shard is not None:
        targets, is_local = shard.to_local(targets)
        members, vocabulary = members & is_local, shard.vocabulary_size
    if in_torch_func():
        sums = _plain(logits, targets, members, kind == "hinge")
    else:
        sums = _OneVsRestSums.apply(  # type: ignore[no-untyped-call]
            logits, targets, members, kind == "hinge"
        )
    return (sums if shard is None else sum_over_group(sums, shard.group)) / vocabulary


def _plain(logits: Tensor, targets: Tensor, members: Tensor, hinge: bool) -> Tensor:
    """The sums of `_OneVsRestSums` by torch's own operations, for any number of derivatives."""
    z = logits.to(torch.promote_types(logits.dtype, torch.float32))
    z_members = z.gather(1, targets)
    if hinge:
        absent, present = (1.0 + z).relu(), (1.0 - z_members).relu() - (1.0 + z_members).relu()
    else:
        absent, present = F.softplus(z), -z_members
    return absent.sum(dim=1) + torch.where(members, present, 0.0).sum(dim=1)


class _OneVsRestSums(torch.autograd.Function):
    """Sums of phi over the columns of each row. They are computed as if every token were absent
    from the bag, and then corrected for the tokens that are in it."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, members: Tensor, hinge: bool) -> Tensor:
        ctx.save_for_backward(logits, targets, members)
        ctx.hinge = hinge
        dtype = torch.promote_types(logits.dtype, torch.float32)
        sums = logits.new_empty(logits.shape[0], dtype=dtype)
        for rows in row_chunks(logits):
            z = logits[rows].to(dtype)
            z_members = z.gather(1, targets[rows])
            if hinge:
                absent = (z + 1.0).relu_()
                correction = (1.0 - z_members).relu() - (1.0 + z_members).relu()
            else:
                absent = F.softplus(z)
                correction = -z_members  # softplus(-z) - softplus(z)
            sums[rows] = absent.sum(dim=1) + torch.where(members[rows], correction, 0.0).sum(dim=1)
        return sums

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        logits, targets, members = ctx.saved_tensors
        if torch.is_grad_enabled():
            plain = _plain(logits, targets, members, ctx.hinge)
            return gradient_of(plain, logits, grads[0]), None, None, None
        grad = grads[0].unsqueeze(1)
        grad_logits = torch.empty_like(logits)
        scratch = logits.new_empty(chunk_rows(logits), logits.shape[1], dtype=grad.dtype)
        for rows in row_chunks(logits):
            z = logits[rows]
            chunk = scratch[: rows.stop - rows.start]
            if ctx.hinge:
                z_members = z.gather(1, targets[rows])
                correction = -(z_members < 1.0).to(grad.dtype) - (z_members > -1.0).to(grad.dtype)
                torch.gt(z, -1.0, out=chunk)
            else:
                correction = grad.new_full(targets[rows].shape, -1.0)
                torch.sigmoid(chunk.copy_(z), out=chunk)
            add_at_targets_(chunk, targets[rows], torch.where(members[rows], correction, 0.0))
            grad_logits[rows] = chunk.mul_(grad[rows])
        return grad_logits, None, None, None
