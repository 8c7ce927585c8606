"""The loss of one set of logits against a bag of s target tokens (section 3 and its ablations)."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup

from tst_study.superposition.bags import bag_targets, distinct_members
from tst_study.superposition.log_probabilities import bag_log_probabilities
from tst_study.superposition.loss_kinds import IGNORE, BagLossKind, check_loss_kind
from tst_study.superposition.one_vs_rest import one_vs_rest_means
from tst_study.superposition.vocabulary_shard import VocabularyShard, sum_over_group
from tst_study.superposition.weighting import Weighting, offset_weights


def bag_loss(
    logits: Tensor,
    labels: Tensor,
    bag_size: int,
    *,
    kind: BagLossKind = "mce",
    weighting: Weighting | Tensor = "uniform",
    stride: int | None = None,
    valid_counts: Tensor | None = None,
    vocabulary_start: int = 0,
    group: ProcessGroup | None = None,
    inplace: bool = False,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Mean loss, in nats, of predicting the next bag from one set of logits per position.

    With z the logits of a position, y_1 … y_s its targets and Y the set of its valid targets:

    * `mce`, multi-hot cross-entropy: `sum_i g(i) CE_i / sum_i g(i)`, where CE_i is the mean of
      `logsumexp(z) - z[y_i]` over the valid positions of offset i. The constant log s of the
      entropy of the target is dropped: the loss starts near log V whatever s.
    * `sum_to_one`: `-log sum_{y in Y} P(y)`. A token that the bag repeats counts once, so the sum
      is a probability and the loss not negative.
    * `binary_cross_entropy`: `1/V sum_v softplus(-t_v z_v)`, t_v = +1 in Y and -1 elsewhere.
    * `hinge`: `1/V sum_v max(0, 1 - t_v z_v)`.

    The last three are averaged over positions in proportion to their valid targets: position k
    weighs `sum over its valid offsets of 1 / (s N_i)`, N_i being the valid positions of offset i,
    which is the weight it has in the uniform `mce`. A position without a valid target weighs
    nothing.

    An offset without any valid position is left out and the weights g are normalised over the
    others; with no valid target at all the loss is nan, as that of `F.cross_entropy`.
    `bag_size=1` with `mce` is `F.cross_entropy` of float32 or float64 logits, bit for bit, values
    and gradients.

    Args:
        logits: (B, l, V) float; this rank's columns if `group` is given. A transposed view of
            contiguous (l, B, V), Megatron's layout, is read in place. Reductions over the
            vocabulary are in float32 for half-precision logits.
        labels: (B, l·stride) ordinary next-token labels of the raw sequence, −100 where a position
            has no target; see `bag_targets`.
        bag_size: s.
        kind: as above.
        weighting: g, see `offset_weights`, or (s,) numbers as a tensor, which may change from step
            to step under `torch.compile`; other than "uniform" for `mce` only.
        stride: raw tokens per latent position: `bag_size` (default; bags in) or 1 (tokens in).
        valid_counts: (s,) valid targets per offset of the whole batch: the sum of
            `count_valid_targets` over all micro-batches and data-parallel ranks. The result is
            then this shard's summand: added up (not averaged) over them it is the loss of the
            whole batch.
        vocabulary_start: id of this rank's first column, if the vocabulary is sharded.
        group: the ranks that hold the other columns (equally many each). All of them get the
            same loss; each gets the gradient of its own columns.
        inplace: let the backward pass overwrite `logits` by their gradient, which saves a buffer
            of their size. Only where nothing else reads them after the loss.
        label_smoothing: as of `F.cross_entropy`: each target keeps 1 − ε of its weight, and the
            whole vocabulary shares ε. Of `mce` only, and not with `inplace`.

    Returns:
        A scalar, float32 (float64 for float64 logits).

    Raises:
        ValueError: in one line, for shapes that do not fit together, an unknown kind or weighting,
            or a weighting for a kind that has none.
    """
    check_loss_kind(kind, () if isinstance(weighting, Tensor) else weighting)
    targets = bag_targets(labels, bag_size, stride)
    if logits.dim() != 3 or logits.shape[:2] != targets.shape[:2]:
        raise ValueError(
            f"logits must be (batch, latent positions, vocabulary) = ({targets.shape[0]}, "
            f"{targets.shape[1]}, V) for labels {tuple(labels.shape)}, bag_size {bag_size} and "
            f"stride {bag_size if stride is None else stride}, got {tuple(logits.shape)}"
        )
    if logits.transpose(0, 1).is_contiguous():
        logits, targets = logits.transpose(0, 1), targets.transpose(0, 1)
    logits = logits.flatten(0, 1)
    targets, valid, share, counts = weighted_targets(
        targets.flatten(0, 1), weighting, valid_counts, logits.dtype
    )

    shard = VocabularyShard.of(vocabulary_start, logits.shape[1], group)
    if label_smoothing and (kind != "mce" or inplace):
        raise ValueError(
            f"label_smoothing = {label_smoothing} needs kind 'mce' and inplace = False, "
            f"got {kind!r} and {inplace}"
        )
    if kind == "mce":
        log_probabilities = bag_log_probabilities(logits, targets, shard=shard, inplace=inplace)
        means = _negative_sum_per_offset(log_probabilities, valid) / counts
        loss = means[0] * share[0] if means.shape[0] == 1 else torch.dot(means, share)
        if label_smoothing:
            row_weights = torch.where(valid, share / counts, 0.0)
            above = _above_mean(logits, targets, shard).to(row_weights.dtype)
            loss = loss + label_smoothing * (row_weights * above).sum()
        return loss
    row_losses = SET_LOSSES[kind](logits, targets, distinct_members(targets, valid), shard, inplace)
    row_weights = torch.where(valid, share / counts, 0.0).sum(dim=1)
    return torch.dot(row_losses, row_weights) + 0.0 * share.sum()  # nan without a valid target


def weighted_targets(
    targets: Tensor,
    weighting: Weighting | Tensor,
    valid_counts: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What every bag loss makes of its targets (N, s), for logits of `dtype`.

    Returns:
        targets (N, s') int64, 0 where ignored; valid (N, s') bool; share (s',), g(i) / sum g over
        the offsets that have a valid target somewhere in the batch; counts (s',), valid targets
        per offset, at least 1. Offsets of weight zero are left out: s' of s.

    Raises:
        ValueError: an unknown weighting, or `valid_counts` that is not (s,).
    """
    bag_size = targets.shape[1]
    if valid_counts is not None and valid_counts.shape != (bag_size,):
        raise ValueError(
            f"valid_counts must have one count per offset, ({bag_size},), "
            f"got {tuple(valid_counts.shape)}"
        )
    dtype, targets = torch.promote_types(dtype, torch.float32), targets.long()
    if isinstance(weighting, Tensor):
        g = weighting.to(targets.device, dtype)
    else:
        weights = offset_weights(weighting, bag_size)
        weighted_offsets = [i for i, weight in enumerate(weights) if weight > 0.0]
        if len(weighted_offsets) < bag_size:
            targets = targets[:, weighted_offsets]
            valid_counts = None if valid_counts is None else valid_counts[weighted_offsets]
        g = torch.tensor([weights[i] for i in weighted_offsets], dtype=dtype)
        g = g.to(targets.device, non_blocking=True)  # made there, the host would wait for it
    valid = targets != IGNORE
    targets = torch.where(valid, targets, 0)
    counts = valid.sum(dim=0) if valid_counts is None else valid_counts.to(targets.device)
    g = torch.where(counts > 0, g, 0.0)
    return targets, valid, g / g.sum(), counts.clamp(min=1).to(dtype)


def _above_mean(logits: Tensor, targets: Tensor, shard: VocabularyShard | None) -> Tensor:
    """The logits (N, s) of the targets less the mean over the vocabulary: what smoothing adds to
    -log P of a target, per unit of ε."""
    if shard is None:
        return logits.gather(1, targets) - logits.mean(dim=1, keepdim=True)
    local, here = shard.to_local(targets)
    of_targets = torch.where(here, logits.gather(1, local), 0.0)
    of_all = logits.sum(dim=1, keepdim=True) / shard.vocabulary_size
    return sum_over_group(of_targets - of_all, shard.group)


def _negative_sum_per_offset(log_probabilities: Tensor, valid: Tensor) -> Tensor:
    """(N, s) -> (s,): minus the sum over the valid positions of each offset."""
    if log_probabilities.shape[1] == 1:
        # In the order in which F.cross_entropy sums: a bag of one token has its bits.
        class_or_ignore = valid.squeeze(1).long() - 1  # the only class is 0
        return F.nll_loss(
            log_probabilities, class_or_ignore, ignore_index=-1, reduction="sum"
        ).unsqueeze(0)
    return -torch.where(valid, log_probabilities, 0.0).sum(dim=0)


def _sum_to_one(
    logits: Tensor, targets: Tensor, members: Tensor, shard: VocabularyShard | None, inplace: bool
) -> Tensor:
    """-log of the probability of the set `members`."""
    log_probabilities = bag_log_probabilities(logits, targets, shard=shard, inplace=inplace)
    # An empty set has loss inf and gradient nan, which a weight of zero would not remove.
    keep = members.clone()
    keep[:, 0] |= ~members.any(dim=1)
    return -torch.where(keep, log_probabilities, -torch.inf).logsumexp(dim=1)


SET_LOSSES: dict[
    BagLossKind, Callable[[Tensor, Tensor, Tensor, VocabularyShard | None, bool], Tensor]
] = {
    "sum_to_one": _sum_to_one,
    "binary_cross_entropy": partial(one_vs_rest_means, "binary_cross_entropy"),
    "hinge": partial(one_vs_rest_means, "hinge"),
}
"""Losses that see a bag as a set. Of logits (N, V or this rank's part of it), targets (N, s),
members (N, s) bool: one occurrence of each token of the set, the shard, and whether the backward
pass may overwrite the logits, they make the loss (N,) of each position."""
