"""Log-probabilities of the s targets of every position, from one softmax over the vocabulary.

The losses `mce` and `sum_to_one` of a bag are small functions of these (N, s) numbers, apart from
label smoothing. So these losses need the logits only here, where one reading serves all s targets;
a loop over the targets would read the logits s times.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tst_study.superposition.bags import add_at_targets_
from tst_study.superposition.derivatives import (
    SPLIT,
    gradient_of,
    in_torch_func,
    refuse_second_derivative,
    refuse_torch_func,
)
from tst_study.superposition.row_chunks import chunk_rows, row_chunks
from tst_study.superposition.vocabulary_shard import VocabularyShard


def bag_log_probabilities(
    logits: Tensor, targets: Tensor, *, shard: VocabularyShard | None = None
) -> Tensor:
    """Compute log softmax(logits) at the targets, in float32 (float64 for float64 logits).

    Besides the result this takes the memory of a few chunks of rows, and in the backward pass that
    of the gradient of the logits.

    Args:
        logits: (N, V) for the whole vocabulary; with `shard`, this rank's columns.
        targets: (N, s) int64 ids in the whole vocabulary, repeats allowed. The caller replaces
            ignored labels by any valid id and does not use their results.
        shard: the part of the vocabulary to which the columns of `logits` belong; None for the
            whole vocabulary. A shard takes two all-reduces: one of N row maxima, and one of N sums
            of exponentials and N·s target logits.

    Returns:
        (N, s); with `shard` the same on every rank of its group.
    """
    if shard is not None:
        refuse_torch_func(SPLIT)
    elif in_torch_func():
        return _plain(logits, targets)
    kernel = _LogProbabilities if shard is None else _ShardedLogProbabilities
    result: Tensor = kernel.apply(logits, targets, shard)  # type: ignore[no-untyped-call]
    return result


def _plain(logits: Tensor, targets: Tensor) -> Tensor:
    """The same by torch's own operations, which can be differentiated any number of times."""
    dtype = torch.promote_types(logits.dtype, torch.float32)
    return torch.log_softmax(logits, dim=1, dtype=dtype).gather(1, targets)


class _LogProbabilities(torch.autograd.Function):
    """Runs the kernels of `F.cross_entropy` (log-softmax and its gradient) on chunks of rows.

    With one target per row, result and gradient therefore have the bits of `F.cross_entropy`, which
    `bag_loss` promises for bags of one token. Apart from the logits, no tensor of their size is
    kept: the backward pass computes each chunk's log-softmax again.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, shard: VocabularyShard | None) -> Tensor:
        dtype = torch.promote_types(logits.dtype, torch.float32)
        result = logits.new_empty(targets.shape, dtype=dtype)
        scratch = logits.new_empty(chunk_rows(logits), logits.shape[1], dtype=dtype)
        for rows in row_chunks(logits):
            log_softmax = scratch[: rows.stop - rows.start]
            torch.log_softmax(logits[rows], dim=1, dtype=dtype, out=log_softmax)
            torch.gather(log_softmax, 1, targets[rows], out=result[rows])
        ctx.save_for_backward(logits, targets)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        logits, targets = ctx.saved_tensors
        (grad,) = grads
        if torch.is_grad_enabled():
            return gradient_of(_plain(logits, targets), logits, grad), None, None
        # The kernel writes row by row, whatever the strides of its output.
        grad_logits = torch.empty_like(logits, memory_format=torch.contiguous_format)
        dtype = grad.dtype
        shape = chunk_rows(logits), logits.shape[1]
        scratch = logits.new_empty(shape, dtype=dtype)
        zeros = logits.new_zeros(shape, dtype=dtype)  # zero again after every chunk
        for rows in row_chunks(logits):
            size = rows.stop - rows.start
            log_softmax, grad_log_softmax = scratch[:size], zeros[:size]
            torch.log_softmax(logits[rows], dim=1, dtype=dtype, out=log_softmax)
            add_at_targets_(grad_log_softmax, targets[rows], grad[rows])
            _log_softmax_backward(grad_log_softmax, log_softmax, out=grad_logits[rows])
            grad_log_softmax.scatter_(1, targets[rows], 0.0)
        return grad_logits, None, None


def _log_softmax_backward(grad: Tensor, log_softmax: Tensor, out: Tensor) -> None:
    """Compute `out = grad - softmax · sum(grad)` per row, by the kernel that autograd itself
    runs."""
    if out.dtype == grad.dtype:
        torch._log_softmax_backward_data(grad, log_softmax, 1, grad.dtype, out=out)
    else:
        out.copy_(torch._log_softmax_backward_data(grad, log_softmax, 1, grad.dtype))


class _ShardedLogProbabilities(torch.autograd.Function):
    """The same for a vocabulary that is split over ranks. The backward pass needs no communication
    between them."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, shard: VocabularyShard) -> Tensor:
        dtype = torch.promote_types(logits.dtype, torch.float32)
        local_targets, is_local = shard.to_local(targets)
        maximum = logits.amax(dim=1, keepdim=True).to(dtype)
        dist.all_reduce(maximum, op=dist.ReduceOp.MAX, group=shard.group)

        # Column 0: sum of exponentials. Columns 1 … s: target logits, zero if another shard holds
        # the target. Both are relative to the row's maximum, and one all-reduce sums both.
        packed = logits.new_empty(targets.shape[0], 1 + targets.shape[1], dtype=dtype)
        scratch = logits.new_empty(chunk_rows(logits), logits.shape[1], dtype=dtype)
        for rows in row_chunks(logits):
            shifted = torch.sub(logits[rows], maximum[rows], out=scratch[: rows.stop - rows.start])
            target_logits = shifted.gather(1, local_targets[rows])
            packed[rows, 1:] = torch.where(is_local[rows], target_logits, 0.0)
            packed[rows, 0] = shifted.exp_().sum(dim=1)
        dist.all_reduce(packed, group=shard.group)

        log_sum = packed[:, :1].log()
        ctx.save_for_backward(logits, local_targets, is_local, maximum + log_sum)
        return packed[:, 1:] - log_sum

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        refuse_second_derivative(SPLIT)
        logits, local_targets, is_local, log_normalizer = ctx.saved_tensors
        (grad,) = grads
        grad_logits = torch.empty_like(logits)
        row_total = grad.sum(dim=1, keepdim=True).neg_()
        local_grad = torch.where(is_local, grad, 0.0)
        scratch = logits.new_empty(chunk_rows(logits), logits.shape[1], dtype=grad.dtype)
        for rows in row_chunks(logits):
            chunk = scratch[: rows.stop - rows.start]
            torch.sub(logits[rows], log_normalizer[rows], out=chunk).exp_()
            chunk.mul_(row_total[rows])
            add_at_targets_(chunk, local_targets[rows], local_grad[rows])
            grad_logits[rows] = chunk
        return grad_logits, None, None
