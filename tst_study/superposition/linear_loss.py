"""Output head and multi-hot cross-entropy in one pass that never holds the logits of a batch.

Rows are taken chunk by chunk: logits, loss, gradient of the logits, gradients of hidden states
and head, all while the chunk is in the cache (on a GPU: without the memory of N·V logits). The
backward pass of the model then finds both gradients ready.

Where it may be compiled, a chunk's softmax and gradient are one kernel, which reads the logits
twice and writes their gradient.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from tst_study.superposition.bags import add_at_targets_, bag_targets, merge_repeats
from tst_study.superposition.losses import weighted_targets
from tst_study.superposition.row_chunks import row_chunks, rows_with_head
from tst_study.superposition.weighting import Weighting

CrossEntropy: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A function of hidden states (N, d), head (V, d) and targets (N,) that returns the cross-entropy
of each row, (N,), in nats."""


def linear_bag_loss(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    bag_size: int,
    *,
    weighting: Weighting | Tensor = "uniform",
    stride: int | None = None,
    valid_counts: Tensor | None = None,
    batch_first: bool = False,
    cross_entropy: CrossEntropy | None = None,
    compiled: bool = False,
) -> Tensor:
    """`bag_loss(hidden @ weight.T, …)` of kind "mce", up to the order of additions.

    Under autocast, hidden states and head are cast as `F.linear` casts them.

    Args:
        hidden: (l, B, d), Megatron's layout: positions first; (B, l, d) with `batch_first`.
        weight: (V, d), the whole vocabulary.
        labels, bag_size, weighting, stride, valid_counts: as for `bag_loss`.
        cross_entropy: a fused kernel to use in place of ours: from hidden (N, d), weight (V, d) and
            targets (N,) it returns the loss (N,) of each row.
        compiled: softmax and gradient by a kernel that torch.compile makes. It pays on a GPU; on a
            CPU the chunk is in the cache anyway.

    Returns:
        A scalar in nats, float32 (float64 for float64 inputs).

    Raises:
        ValueError: shapes that do not fit together, or an unknown weighting.
    """
    targets = bag_targets(labels, bag_size, stride)
    order = "(batch, latent positions, d)" if batch_first else "(latent positions, batch, d)"
    targets = targets if batch_first else targets.transpose(0, 1)
    fits = hidden.dim() == 3 and weight.dim() == 2 and hidden.shape[-1] == weight.shape[1]
    if not fits or targets.shape[:2] != hidden.shape[:2]:
        raise ValueError(
            f"hidden must be {order} = ({targets.shape[0]}, {targets.shape[1]}, d) for labels "
            f"{tuple(labels.shape)}, and the head (vocabulary, d); got {tuple(hidden.shape)} and "
            f"{tuple(weight.shape)}"
        )
    # Torch raises when asked for the autocast of meta tensors, which follow that of the CPU here.
    device = "cpu" if hidden.is_meta else hidden.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
    targets, valid, share, counts = weighted_targets(
        targets.flatten(0, 1), weighting, valid_counts, hidden.dtype
    )
    # The loss is linear in the log-probabilities: -sum over rows and offsets of c · log P.
    coefficients = torch.where(valid, share / counts, torch.where(share.isnan(), share, 0.0))
    rows = hidden.reshape(-1, hidden.shape[-1])
    with torch.autocast(device, enabled=False):
        if cross_entropy is not None:
            return _by_first_target(rows, weight, targets, coefficients, cross_entropy)
        loss: Tensor = _LinearMultiHot.apply(  # type: ignore[no-untyped-call]
            rows, weight, targets, coefficients, compiled
        )
    return loss


def _by_first_target(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    coefficients: Tensor,
    cross_entropy: CrossEntropy,
) -> Tensor:
    """The bag loss from a kernel that takes one target a row.

    With z = W h the logits, y(i) the targets, c(i) their coefficients and C = sum c(i):
    sum c(i) (logsumexp(z) - z[y(i)]) is C (logsumexp(z) - z[y(1)])
    + h · (C W[y(1)] - sum c(i) W[y(i)]); `F.embedding_bag` computes the last bracket.
    """
    totals = coefficients.sum(dim=1)
    losses = cross_entropy(hidden, weight, targets[:, 0])
    if targets.shape[1] == 1:
        return torch.dot(losses.to(totals.dtype), totals)
    apart = -coefficients
    apart[:, 0] += totals
    rows = F.embedding_bag(targets, weight, mode="sum", per_sample_weights=apart.to(weight.dtype))
    return torch.dot(losses.to(totals.dtype), totals) + (hidden * rows).sum(dtype=totals.dtype)


def log_probabilities_and_softmax(
    logits: Tensor, targets: Tensor, totals: Tensor
) -> tuple[Tensor, Tensor]:
    """logits (n, V), targets (n, s), totals (n, 1) -> log-probabilities at the targets (n, s) in
    the type of `totals`, and the probabilities times `totals` (n, V) in that of the logits."""
    log_probabilities = torch.log_softmax(logits, dim=1, dtype=totals.dtype)
    gradient = (log_probabilities.exp() * totals).to(logits.dtype)
    return log_probabilities.gather(1, targets), gradient


@cache
def _in_one_kernel() -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    # A run has few shapes: of a chunk and of a shorter last one, with s targets and with one.
    return torch.compile(log_probabilities_and_softmax, dynamic=False)


class _LinearMultiHot(torch.autograd.Function):
    """hidden (N, d), weight (V, d), targets and coefficients (N, s) -> scalar."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        coefficients: Tensor,
        compiled: bool,
    ) -> Tensor:
        wants_gradients = any(ctx.needs_input_grad[:2])
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        vocabulary = weight.shape[0]
        size = rows_with_head(hidden.shape[0], vocabulary, on_gpu=hidden.is_cuda)
        loss = hidden.new_zeros((), dtype=dtype)
        grad_hidden = torch.empty_like(hidden) if wants_gradients else None
        grad_weight = torch.zeros_like(weight, dtype=dtype) if wants_gradients else None
        row_totals = coefficients.sum(dim=1, keepdim=True)
        logits = hidden.new_empty(size, vocabulary)
        reuses_logits = compiled or dtype == hidden.dtype
        work = logits if reuses_logits else hidden.new_empty(size, vocabulary, dtype=dtype)
        for rows in row_chunks(hidden, size):
            count = rows.stop - rows.start
            some_targets, some_coefficients = targets[rows], coefficients[rows]
            chunk = torch.mm(hidden[rows], weight.t(), out=logits[:count])
            if compiled:
                totals = row_totals[rows]
                at_targets, gradient = _in_one_kernel()(chunk, some_targets, totals)
                loss -= (at_targets * some_coefficients).sum()
                # The gradient at the targets is computed anew: a subtraction from the rounded one
                # would round twice.
                merged = merge_repeats(some_targets, some_coefficients)
                of_targets = at_targets.exp() * totals - merged
                gradient.scatter_(1, some_targets, of_targets.to(gradient.dtype))
            else:
                largest = chunk.amax(dim=1, keepdim=True).to(dtype)
                at_targets = chunk.gather(1, some_targets).to(dtype)
                probabilities = torch.softmax(chunk, dim=1, dtype=dtype, out=work[:count])
                # logsumexp = largest logit - log(largest probability), which is at least 1/V, so
                # that no digits are lost: the exponentials of the softmax serve loss and gradient.
                logsumexp = largest - probabilities.amax(dim=1, keepdim=True).log()
                loss -= ((at_targets - logsumexp) * some_coefficients).sum()
                gradient = probabilities.mul_(row_totals[rows])
                add_at_targets_(gradient, some_targets, -some_coefficients)
                if gradient.dtype != hidden.dtype:
                    gradient = logits[:count].copy_(gradient)
            if grad_hidden is None or grad_weight is None:
                continue
            torch.mm(gradient, weight, out=grad_hidden[rows])
            if grad_weight.dtype == gradient.dtype:
                grad_weight.addmm_(gradient.t(), hidden[rows])
            elif grad_weight.is_cuda:  # there addmm adds a bfloat16 product to a float32 sum
                product = gradient.t(), hidden[rows]
                torch.addmm(grad_weight, *product, out_dtype=dtype, out=grad_weight)
            else:
                grad_weight += gradient.t() @ hidden[rows]
        ctx.gradients = grad_hidden, grad_weight
        ctx.weight_dtype = weight.dtype
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        (grad_loss,) = grads
        grad_hidden, grad_weight = ctx.gradients
        ctx.gradients = None
        return (
            grad_hidden.mul_(grad_loss),
            grad_weight.mul_(grad_loss).to(ctx.weight_dtype),
            None,
            None,
            None,
        )
