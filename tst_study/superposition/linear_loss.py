"""Output head and multi-hot cross-entropy in one pass that never holds the logits of a whole batch.

The pass takes the N positions of a batch chunk by chunk. For each chunk it computes logits, loss,
the gradient of the logits, and from it the gradients of hidden states and head. On a CPU the chunk
stays in the cache meanwhile, and on a GPU no memory for all N·V logits is needed. The backward pass
of the model then finds both gradients ready.

With `compiled`, softmax and gradient of a chunk are a single kernel, which reads the logits twice
and writes their gradient.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from tst_study.superposition.bags import add_at_targets_, bag_targets, merge_repeats
from tst_study.superposition.derivatives import (
    ONE_PASS,
    refuse_second_derivative,
    refuse_torch_func,
)
from tst_study.superposition.losses import refuse_dtensor, weighted_targets
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
    documents: Tensor | None = None,
    batch_first: bool = False,
    cross_entropy: CrossEntropy | None = None,
    compiled: bool = False,
) -> Tensor:
    """Return `bag_loss(hidden @ weight.T, …)` of kind "mce", up to rounding, without holding all
    logits at once.

    Under autocast, hidden states and head are cast as `F.linear` casts them.

    Args:
        hidden: (l, B, d), Megatron's layout with positions first; (B, l, d) with `batch_first`.
        weight: (V, d), the head's rows for the whole vocabulary.
        labels, bag_size, weighting, stride, valid_counts, documents: as for `bag_loss`.
        cross_entropy: a fused kernel to use in place of our pass over chunks. From hidden (N, d),
            weight (V, d) and targets (N,) it returns the loss of each row, (N,).
        compiled: whether torch.compile makes the kernel for softmax and gradient. This pays on a
            GPU; on a CPU the chunk is in the cache anyway. It has no effect with `cross_entropy`.

    Returns:
        A scalar in nats, float32 (float64 for float64 inputs).

    Raises:
        ValueError: shapes that do not fit together, an unknown weighting, or a stride other than 1
            and `bag_size`.
    """
    refuse_dtensor(hidden, "hidden")
    refuse_dtensor(weight, "head")
    targets = bag_targets(labels, bag_size, stride, documents)
    order = "(batch, latent positions, d)" if batch_first else "(latent positions, batch, d)"
    targets = targets if batch_first else targets.transpose(0, 1)
    fits = hidden.dim() == 3 and weight.dim() == 2 and hidden.shape[-1] == weight.shape[1]
    if not fits or targets.shape[:2] != hidden.shape[:2]:
        raise ValueError(
            f"hidden must be {order} = ({targets.shape[0]}, {targets.shape[1]}, d) for labels "
            f"{tuple(labels.shape)}, and the head (vocabulary, d); got {tuple(hidden.shape)} and "
            f"{tuple(weight.shape)}"
        )
    # Torch raises an error when it is asked whether autocast is on for the meta device. So meta
    # tensors follow the CPU's autocast here.
    device = "cpu" if hidden.is_meta else hidden.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
    targets, valid, share, counts = weighted_targets(
        targets.flatten(0, 1), weighting, valid_counts, hidden.dtype
    )
    # The loss is linear in the log-probabilities: -sum over rows and offsets of c · log P. If the
    # whole batch has no valid target, the share is nan, and so are the coefficients c.
    coefficients = torch.where(valid, share / counts, torch.where(share.isnan(), share, 0.0))
    if not torch.is_grad_enabled():  # which the pass over chunks cannot see
        hidden, weight = hidden.detach(), weight.detach()
    rows = hidden.reshape(-1, hidden.shape[-1])
    with torch.autocast(device, enabled=False):
        # The gradient of a logit is about P / N. In float16 many would become 0 before a gradient
        # scaler could enlarge them, so there the largest coefficient is taken out first.
        scale: Tensor | float = 1.0
        if rows.dtype == torch.float16:
            scale = coefficients.sum(dim=1).amax().clamp(min=1e-30)
        coefficients = coefficients / scale
        if cross_entropy is not None:
            loss = _by_first_target(rows, weight, targets, coefficients, cross_entropy)
        else:
            refuse_torch_func(ONE_PASS)
            loss = _LinearMultiHot.apply(  # type: ignore[no-untyped-call]
                rows, weight, targets, coefficients, compiled
            )
    return loss * scale


def _by_first_target(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    coefficients: Tensor,
    cross_entropy: CrossEntropy,
) -> Tensor:
    """Compute the bag loss by a cross-entropy kernel that takes one target per row.

    For a row with hidden state h, let z = W h be the logits, y(i) the targets, c(i) their
    coefficients and C = sum c(i). Then its loss, sum c(i) (logsumexp(z) - z[y(i)]), is
    C (logsumexp(z) - z[y(1)]) + h · (C W[y(1)] - sum c(i) W[y(i)]). The kernel computes the first
    bracket, `F.embedding_bag` the last one.
    """
    totals = coefficients.sum(dim=1)
    losses = cross_entropy(hidden, weight, targets[:, 0])
    if targets.shape[1] == 1:
        return torch.dot(losses.to(totals.dtype), totals)
    apart = -coefficients
    apart[:, 0] += totals
    parts = [apart.to(weight.dtype)]
    if weight.dtype != apart.dtype:
        # Rounded coefficients do not add up to 0, which would shift the loss by some thousandths of
        # its logits. So what was rounded off is added, too.
        parts.append((apart - parts[0]).to(weight.dtype))
    rows = F.embedding_bag(
        targets.repeat(1, len(parts)), weight, mode="sum", per_sample_weights=torch.cat(parts, 1)
    )
    return torch.dot(losses.to(totals.dtype), totals) + (hidden * rows).sum(dtype=totals.dtype)


def log_probabilities_and_softmax(
    logits: Tensor, targets: Tensor, totals: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities at the targets, (n, s) in the dtype of `totals`, and the
    probabilities times `totals`, (n, V) in the dtype of the logits.

    logits (n, V); targets (n, s); totals (n, 1), the sum of a row's coefficients.
    """
    log_probabilities = torch.log_softmax(logits, dim=1, dtype=totals.dtype)
    gradient = (log_probabilities.exp() * totals).to(logits.dtype)
    return log_probabilities.gather(1, targets), gradient


@cache
def _in_one_kernel() -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    # Each shape is compiled by itself, because a run has few: whole chunks and a shorter last one,
    # with s targets per row or with one.
    return torch.compile(log_probabilities_and_softmax, dynamic=False)


class _LinearMultiHot(torch.autograd.Function):
    """The pass over chunks: hidden (N, d), weight (V, d), targets and coefficients (N, s) -> the
    loss, a scalar. The forward pass computes the gradients, too, and the backward pass scales
    them."""

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
                # The gradient at the targets is computed again from the log-probabilities, because
                # a subtraction from the kernel's rounded result would round twice.
                merged = merge_repeats(some_targets, some_coefficients)
                of_targets = at_targets.exp() * totals - merged
                gradient.scatter_(1, some_targets, of_targets.to(gradient.dtype))
            else:
                largest = chunk.amax(dim=1, keepdim=True).to(dtype)
                at_targets = chunk.gather(1, some_targets).to(dtype)
                probabilities = torch.softmax(chunk, dim=1, dtype=dtype, out=work[:count])
                # logsumexp = largest logit - log(largest probability). No digits are lost, because
                # the largest probability is at least 1/V. So the exponentials of one softmax serve
                # both the loss and the gradient.
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
            elif grad_weight.is_cuda:  # on a GPU, addmm can add a bfloat16 product to a float32 sum
                product = gradient.t(), hidden[rows]
                torch.addmm(grad_weight, *product, out_dtype=dtype, out=grad_weight)
            else:
                grad_weight += gradient.t() @ hidden[rows]
        ctx.gradients = grad_hidden, grad_weight
        ctx.weight_dtype = weight.dtype
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        refuse_second_derivative(ONE_PASS)
        (grad_loss,) = grads
        if ctx.gradients is None:
            raise RuntimeError(
                "linear_loss has one backward pass: use loss(head(hidden), …) where you need two"
            )
        grad_hidden, grad_weight = ctx.gradients
        ctx.gradients = None
        of_weight = grad_weight.mul_(grad_loss).to(ctx.weight_dtype)
        return grad_hidden.mul_(grad_loss), of_weight, None, None, None
