"""The losses of each position's logits against its bag of s target tokens (paper, section 3 and
ablations).

`bag_loss` is the function that the model and other trainers call. It puts a batch into the form
`Bags`, from which the classes of `loss_kinds.py` compute the loss.
"""

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
    documents: Tensor | None = None,
    vocabulary_start: int = 0,
    group: ProcessGroup | None = None,
) -> Tensor:
    """Mean loss, in nats, of predicting the next bag from one set of logits per position. (The
    hinge loss has no unit.)

    The classes of `loss_kinds.py` give the formulas, in which z are the logits of a position,
    y_1 … y_s its targets, and Y the set of its valid targets.

    Losses that take the bag as a set are averaged over positions. Each position has the weight that
    its targets have together in the `mce` with uniform weights: the sum of `1 / (s N_i)` over the
    offsets i at which it has a valid target, where N_i is the number of positions with a valid
    target at offset i. A position without a valid target weighs nothing.

    An offset at which no position has a valid target is left out, and the weights g are normalised
    over the others. With no valid target at all the loss is nan, as in `F.cross_entropy`. With
    `bag_size=1`, the default `mce` is `F.cross_entropy` of float32 or float64 logits, bit for bit,
    in value and gradient.

    Args:
        logits: (B, l, V) float; this rank's columns if `group` is given. A transposed view of
            contiguous (l, B, V), Megatron's layout, is read in place. Reductions over the
            vocabulary are in float32 for half-precision logits.
        labels: (B, l·stride) ordinary next-token labels of the raw sequence, −100 where there is no
            target; see `bag_targets`.
        bag_size: s.
        kind: a loss, its name, or a table of its name and parameters.
        weighting: the weights g: a name or numbers as for `offset_weights`, or a tensor (s,). A
            tensor may change from step to step under `torch.compile`, and its values are not
            checked. A loss that takes no weights accepts "uniform" only.
        stride: raw tokens per latent position: `bag_size` (default; bags in) or 1 (tokens in).
        valid_counts: (s,) valid targets at each offset in the whole step: the sum of
            `count_valid_targets` over all micro-batches and data-parallel ranks. The result is
            then a summand: the loss of the whole step is the sum, not the mean, of the results of
            all micro-batches and ranks. None if this call has the whole step.
        documents: whose each token is, where rows hold several documents; see `bag_targets`.
        vocabulary_start: id of this rank's first column, if the vocabulary is sharded.
        group: the ranks over which the vocabulary is sharded, with equally many columns on each;
            None if it is not. All these ranks get the same loss, and each gets the gradient of its
            own columns.

    Returns:
        A scalar, float32 (float64 for float64 logits).

    Raises:
        ValueError: in one line, for shapes that do not fit together, a stride other than 1 and
            `bag_size`, an unknown kind or weighting, or a weighting that the kind does not take.
    """
    refuse_dtensor(logits, "logits")
    check_loss_kind(kind, () if isinstance(weighting, Tensor) else weighting)
    targets = bag_targets(labels, bag_size, stride, documents)
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


def refuse_dtensor(given: Tensor, name: str) -> None:
    """Raise ValueError for a tensor of torch's tensor parallelism, which hides its shards."""
    if hasattr(given, "to_local"):
        raise ValueError(
            f"{name}: a DTensor: give {name}.to_local(), and loss() vocabulary_start and group "
            "where its vocabulary is split (or full_tensor())"
        )


@dataclass(frozen=True)
class Bags:
    """The logits and targets of N positions, in the form from which a loss is computed.

    The targets are those at s' of the s offsets: offsets to which the weighting gives weight zero
    are left out, unless the weighting is a tensor.
    """

    logits: Tensor
    """(N, V); with `shard`, this rank's columns."""
    targets: Tensor
    """(N, s') int64 ids, 0 where there is no valid target."""
    valid: Tensor
    """(N, s') bool, whether there is a valid target."""
    share: Tensor
    """(s',) each offset's share of the weights: g(i) divided by the sum of g over all offsets that
    have a valid target in the whole step. It is 0 for an offset without one; if all offsets are
    without one, all shares are nan."""
    counts: Tensor
    """(s',) the number of valid targets at each offset in the whole step, but at least 1."""
    shard: VocabularyShard | None = None

    @property
    def weights(self) -> Tensor:
        """(N, s') the weight of each target in the mean loss; 0 where it is not valid."""
        return torch.where(self.valid, self.share / self.counts, 0.0)

    def log_probabilities(self) -> Tensor:
        """The log-probability of each target, (N, s'), from one softmax over the vocabulary."""
        return bag_log_probabilities(self.logits, self.targets, shard=self.shard)

    def one_vs_rest(self, kind: Literal["binary_cross_entropy", "hinge"]) -> Tensor:
        """Return, for each position, the loss of the yes/no question "is this token in the bag?",
        averaged over the tokens of the vocabulary: (N,)."""
        return one_vs_rest_means(kind, self.logits, self.targets, self.members(), self.shard)

    def members(self) -> Tensor:
        """The bag as a set, (N, s') bool: True at the first valid occurrence of each token."""
        return distinct_members(self.targets, self.valid)

    def mean(self, losses: Tensor) -> Tensor:
        """The mean of losses (N, s'), one for each target: first over the valid targets at each
        offset, then over the offsets, weighted by `share`."""
        if losses.shape[1] == 1:
            # F.nll_loss adds in the same order as F.cross_entropy, so that the loss of bags of one
            # token has the same bits.
            class_or_ignore = self.valid.squeeze(1).long() - 1  # the only class is 0
            total = -F.nll_loss(losses, class_or_ignore, ignore_index=-1, reduction="sum")
            return total / self.counts[0] * self.share[0]
        totals = torch.where(self.valid, losses, 0.0).sum(dim=0)
        return torch.dot(totals / self.counts, self.share)

    def mean_of_positions(self, losses: Tensor) -> Tensor:
        """The mean of losses (N,), one for each position, weighted by the sum of the weights of its
        targets."""
        mean = torch.dot(losses, self.weights.sum(dim=1))
        return mean + 0.0 * self.share.sum()  # nan if no target is valid

    def mean_above_vocabulary(self) -> Tensor:
        """Return what label smoothing adds to the loss, divided by ε: the weighted mean, over the
        targets, of the target's logit minus the mean logit of the vocabulary."""
        weights, logits = self.weights, self.logits
        if self.shard is None:
            of_targets = logits.gather(1, self.targets)
            above = of_targets - logits.mean(dim=1, keepdim=True, dtype=weights.dtype)
        else:
            local, is_local = self.shard.to_local(self.targets)
            of_targets = torch.where(is_local, logits.gather(1, local), 0.0)
            of_all = logits.sum(dim=1, keepdim=True, dtype=weights.dtype)
            above = of_targets - of_all / self.shard.vocabulary_size
            above = sum_over_group(above, self.shard.group)
        return (weights * above).sum()


def weighted_targets(
    targets: Tensor, weighting: Weighting | Tensor, valid_counts: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Prepare the targets (N, s) for any loss of bags. `dtype`: that of the logits.

    Returns:
        The fields targets, valid, share and counts of `Bags`.

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
        g = g.to(targets.device, non_blocking=True)  # torch.tensor(…, device) would block
    valid = targets != IGNORE
    targets = torch.where(valid, targets, 0)
    counts = valid.sum(dim=0) if valid_counts is None else valid_counts.to(targets.device)
    g = torch.where(counts > 0, g, 0.0)
    return targets, valid, g / g.sum(), counts.clamp(min=1).to(dtype)
