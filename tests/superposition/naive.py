"""The losses written down as their definitions read: slow, and what the fast ones must equal."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORE = -100


def targets_of_raw_tokens(raw: Tensor, bag_size: int, stride: int) -> Tensor:
    """(B, l·stride) raw tokens -> (B, l, s): the s tokens after what position k has read."""
    batch, length = raw.shape
    targets = torch.full((batch, length // stride, bag_size), IGNORE)
    for k in range(length // stride):
        for i in range(bag_size):
            if (k + 1) * stride + i < length:
                targets[:, k, i] = raw[:, (k + 1) * stride + i]
    return targets


def targets_of_labels(labels: Tensor, bag_size: int, stride: int) -> Tensor:
    """The same from next-token labels (B, l·stride), whose last one lies after the input."""
    unread = torch.zeros_like(labels[:, :1])
    return targets_of_raw_tokens(torch.cat([unread, labels], dim=1), bag_size, stride)[
        :, : labels.shape[1] // stride
    ]


def multi_hot_loop(
    logits: Tensor, labels: Tensor, weights: Sequence[float], stride: int | None = None
) -> Tensor:
    """One cross-entropy per offset, each over its own valid positions; then the weighted mean."""
    bag_size = len(weights)
    targets = targets_of_labels(labels, bag_size, bag_size if stride is None else stride)
    total, weight_sum = logits.new_zeros(()), 0.0
    for i, weight in enumerate(weights):
        if (targets[..., i] != IGNORE).any():
            total = total + weight * F.cross_entropy(
                logits.flatten(0, 1), targets[..., i].flatten(), ignore_index=IGNORE
            )
            weight_sum += weight
    return total / weight_sum


def bag_set_loop(logits: Tensor, labels: Tensor, bag_size: int, kind: str) -> Tensor:
    """Position by position, with the bag as a Python set."""
    targets = targets_of_labels(labels, bag_size, bag_size).flatten(0, 1)
    logits = logits.flatten(0, 1)
    valid = targets != IGNORE
    counts = valid.sum(dim=0).to(logits.dtype)
    offsets_in_use = int((counts > 0).sum())
    total = logits.new_zeros(())
    for n in range(len(logits)):
        bag = sorted(set(targets[n][valid[n]].tolist()))
        if not bag:
            continue
        sign = logits.new_full((logits.shape[1],), -1.0)
        sign[bag] = 1.0
        if kind == "sum_to_one":
            loss = -logits[n].softmax(dim=0)[bag].sum().log()
        elif kind == "hinge":
            loss = (1.0 - sign * logits[n]).clamp(min=0.0).mean()
        elif kind == "binary_cross_entropy":
            loss = F.binary_cross_entropy_with_logits(logits[n], (sign + 1.0) / 2.0)
        else:
            raise NotImplementedError(f"{kind}: write its formula here, as plainly as you can")
        total = total + loss * (1.0 / counts[valid[n]]).sum() / offsets_in_use
    return total
