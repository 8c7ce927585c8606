"""The loss of one set of logits against a bag of s target tokens (section 3 and its ablations)."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup

from tst_study.superposition.bags import bag_targets, distinct_members
from tst_study.superposition.log_probabilities import bag_log_probabilities
from tst_study.superposition.loss_kinds import IGNORE, LossSetting, check_loss_kind, loss_of
from tst_study.superposition.one_vs_rest import one_vs_rest_means
from tst_study.superposition.vocabulary_shard import VocabularyShard, sum_over_group
from tst_study.superposition.weighting import Weighting, offset_weights


def bag_loss(
    logits: Tensor,
    labels: Tensor,
    bag_size: int,
    *,
    kind: LossSetting = "mce",
    weighting: Weighting | Tensor = "uniform",
    stride: int | None = None,
    valid_counts: Tensor | None = None,
    vocabulary_start: int = 0,
    group: ProcessGroup | None = None,
) -> Tensor:
    """Mean loss, in nats, of predicting the next bag from one set of logits per position. (The
    hinge loss has no unit.)

    The classes of `loss_kinds.py` give the formulas, in which z are the logits of a position,
    y_1 … y_s its targets, and Y the set of its valid targets.

    Losses that take the bag as a set are averaged over positions, each with the weight that it has
    in the uniform `mce`: position k weighs `sum over its valid offsets i of 1 / (s N_i)`, N_i being
    the number of positions at which offset i is valid. A position without a valid target weighs
    nothing.

    An offset that is valid at no position is left out, and the weights g are normalised over the
    others; with no valid target at all the loss is nan, as in `F.cross_entropy`.
    `bag_size=1` with `mce` is `F.cross_entropy` of float32 or float64 logits, bit for bit, values
    and gradients.

    Args:
        logits: (B, l, V) float; this rank's columns if `group` is given. A transposed view of
            contiguous (l, B, V), Megatron's layout, is read in place. Reductions over the
            vocabulary are in float32 for half-precision logits.
        labels: (B, l·stride) ordinary next-token labels of the raw sequence, −100 where a position
            has no target; see `bag_targets`.
        bag_size: s.
        kind: a loss, its name, or its name and parameters.
        weighting: g, see `offset_weights`, or (s,) numbers as a tensor, which may change from step
            to step under `torch.compile` and are not checked. Only "uniform" for a loss that takes
            no weights.
        stride: raw tokens per latent position: `bag_size` (default; bags in) or 1 (tokens in).
        valid_counts: (s,) valid targets per offset of the whole batch: the sum of
            `count_valid_targets` over all micro-batches and data-parallel ranks. The result is
            then a summand: added up (not averaged) over them, it is the loss of the whole batch.
        vocabulary_start: id of this rank's first column, if the vocabulary is sharded.
        group: the ranks that hold the other columns (equally many each). All of them get the
            same loss; each gets the gradient of its own columns.

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
    weighted = weighted_targets(targets.flatten(0, 1), weighting, valid_counts, logits.dtype)
    shard = VocabularyShard.of(vocabulary_start, logits.shape[1], group)
    return loss_of(kind)(Bags(logits, *weighted, shard))


@dataclass(frozen=True)
class Bags:
    """N positions with their logits and targets, as a loss sees them: s' of the s offsets. Those
    that a weighting gives no weight are left out, unless it is a tensor."""

    logits: Tensor
    """(N, V), or this rank's columns under `shard`."""
    targets: Tensor
    """(N, s') int64, 0 where ignored."""
    valid: Tensor
    """(N, s') bool."""
    share: Tensor
    """(s',) g(i) / sum g over the offsets that have a valid target somewhere in the batch; 0 for
    the others, nan if there is no such offset."""
    counts: Tensor
    """(s',) valid targets per offset in the whole batch, at least 1."""
    shard: VocabularyShard | None = None

    @property
    def weights(self) -> Tensor:
        """The weight (N, s') of each target in the batch's mean; 0 where it is ignored."""
        return torch.where(self.valid, self.share / self.counts, 0.0)

    def log_probabilities(self) -> Tensor:
        """log P of each target, (N, s'), from one softmax over the vocabulary."""
        return bag_log_probabilities(self.logits, self.targets, shard=self.shard)

    def one_vs_rest(self, kind: Literal["binary_cross_entropy", "hinge"]) -> Tensor:
        """Return the mean over the vocabulary, (N,), of the yes/no losses "is this token in the
        bag?"."""
        return one_vs_rest_means(kind, self.logits, self.targets, self.members(), self.shard)

    def members(self) -> Tensor:
        """The bag as a set, (N, s') bool: True at the first valid occurrence of each token."""
        return distinct_members(self.targets, self.valid)

    def mean(self, losses: Tensor) -> Tensor:
        """The weighted mean of a loss (N, s') for each target: over the valid positions of each
        offset, then over the offsets."""
        if losses.shape[1] == 1:
            # F.nll_loss adds in the order of F.cross_entropy: a bag of one token has the same bits.
            class_or_ignore = self.valid.squeeze(1).long() - 1  # the only class is 0
            total = -F.nll_loss(losses, class_or_ignore, ignore_index=-1, reduction="sum")
            return total / self.counts[0] * self.share[0]
        totals = torch.where(self.valid, losses, 0.0).sum(dim=0)
        return torch.dot(totals / self.counts, self.share)

    def mean_of_positions(self, losses: Tensor) -> Tensor:
        """The mean of one loss per position, (N,), weighted by the weights of all its targets."""
        mean = torch.dot(losses, self.weights.sum(dim=1))
        return mean + 0.0 * self.share.sum()  # nan without a valid target

    def mean_above_vocabulary(self) -> Tensor:
        """Return the term that label smoothing adds to the loss, per unit of ε: the weighted mean
        of the targets' logits less the mean logit of the vocabulary."""
        if self.shard is None:
            above = self.logits.gather(1, self.targets) - self.logits.mean(dim=1, keepdim=True)
        else:
            local, is_local = self.shard.to_local(self.targets)
            of_targets = torch.where(is_local, self.logits.gather(1, local), 0.0)
            of_all = self.logits.sum(dim=1, keepdim=True) / self.shard.vocabulary_size
            above = sum_over_group(of_targets - of_all, self.shard.group)
        weights = self.weights
        return (weights * above.to(weights.dtype)).sum()


def weighted_targets(
    targets: Tensor,
    weighting: Weighting | Tensor,
    valid_counts: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Prepare the targets (N, s) of any bag loss, for logits of `dtype`.

    Returns:
        targets, valid, share and counts, as `Bags` describes them.

    Raises:
        ValueError: an unknown weighting, or a `weighting` or `valid_counts` that is not (s,).
    """
    bag_size = targets.shape[1]
    for name, given in (("valid_counts", valid_counts), ("weighting", weighting)):
        if isinstance(given, Tensor) and given.shape != (bag_size,):
            shape = tuple(given.shape)
            raise ValueError(f"{name} must have one number per offset, ({bag_size},), got {shape}")
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
        g = g.to(targets.device, non_blocking=True)  # torch.tensor(…, device) would wait for it
    valid = targets != IGNORE
    targets = torch.where(valid, targets, 0)
    counts = valid.sum(dim=0) if valid_counts is None else valid_counts.to(targets.device)
    g = torch.where(counts > 0, g, 0.0)
    return targets, valid, g / g.sum(), counts.clamp(min=1).to(dtype)
