"""Contiguous bags of tokens: the input and the targets of each latent position (section 3)."""

import torch
from torch import Tensor

from tst_study.superposition.loss_kinds import IGNORE


def bag_inputs(token_ids: Tensor, bag_size: int) -> Tensor:
    """Split token ids (B, l·s) into non-overlapping bags of s contiguous tokens: (B, l, s).

    A view: nothing is copied. Raises ValueError where the length is not a multiple of `bag_size`.
    """
    _check_rows(token_ids, "token_ids", bag_size, bag_size)
    return token_ids.view(token_ids.shape[0], -1, bag_size)


def bag_targets(labels: Tensor, bag_size: int, stride: int | None = None) -> Tensor:
    """Gather the s targets of each latent position: the tokens that follow what it has read.

    Latent position k has read `stride` raw tokens more than position k - 1, so its targets are
    `target[:, k, i] = labels[:, k·stride + (stride - 1) + i]` for i = 0 … s-1: the ordinary
    next-token labels shifted left by `stride - 1`. What lies beyond the end of the sequence is
    `IGNORE`.

    * `stride = s` (default; bags in, next bag out): labels (B, l·s). Bag k predicts raw tokens
      (k+1)·s … (k+2)·s - 1; the last bag keeps one valid target.
    * `stride = 1` (tokens in, next s tokens out; the output-only ablation): labels (B, l).

    Args:
        labels: (B, l·stride) next-token labels of the raw sequence: `labels[:, j]` is the token
            after raw token j.
        bag_size: s, tokens per bag.
        stride: raw tokens per latent position: `bag_size` or 1.

    Returns:
        (B, l, s) of the dtype of `labels`.

    Raises:
        ValueError: labels that are not (B, l·stride), or a stride other than 1 and `bag_size`.
    """
    stride = bag_size if stride is None else stride
    _check_rows(labels, "labels", bag_size, stride)
    # A bag of one token needs no padding: its targets are the labels themselves.
    if bag_size > 1:
        beyond = labels.new_full((labels.shape[0], bag_size - 1), IGNORE)
        labels = torch.cat([labels[:, stride - 1 :], beyond], dim=1)
    return labels.unfold(1, bag_size, stride)


def count_valid_targets(labels: Tensor, bag_size: int, stride: int | None = None) -> Tensor:
    """Count the valid targets of each of the s offsets: (s,) int64, on the device of `labels`.

    Summed over all micro-batches and data-parallel ranks of a step, this is the `valid_counts`
    with which the shards' `bag_loss` values add up to the loss of the whole batch.
    Arguments and errors as in `bag_targets`.
    """
    return (bag_targets(labels, bag_size, stride) != IGNORE).sum(dim=(0, 1))


def shuffle_bags(labels: Tensor, bag_size: int, order: Tensor) -> Tensor:
    """Move the target bags of a batch to other positions: a control in which the text that a
    position has read tells nothing of its target.

    Each position gets the whole next bag of another position of the batch. The labels before the
    first bag and after the last whole one stay where they are.

    Args:
        labels: (B, l·s) next-token labels of the raw sequence.
        bag_size: s. The bags are those of `bag_targets` with `stride = s`.
        order: (B·(l - 1),) a permutation, read as a cycle: each bag goes to the place of the next
            one, so that none stays where it was.

    Returns:
        (B, l·s), a copy.
    """
    batch, length = labels.shape
    shuffled = labels.clone()
    whole = labels[:, bag_size - 1 : length - 1].reshape(-1, bag_size)
    moved = torch.empty_like(whole)
    moved[order] = whole[order.roll(1)]
    shuffled[:, bag_size - 1 : length - 1] = moved.view(batch, -1)
    return shuffled


def distinct_members(targets: Tensor, valid: Tensor) -> Tensor:
    """Mark the members of each bag as a set: True at the first valid occurrence of a token.

    targets, valid: (N, s), integer and bool. Returns (N, s) bool.
    """
    same = targets.unsqueeze(2) == targets.unsqueeze(1)  # [n, i, j]
    repeats = (same & valid.unsqueeze(1)).tril(diagonal=-1).any(dim=2)  # of some valid j < i
    return valid & ~repeats


def add_at_targets_(rows: Tensor, targets: Tensor, values: Tensor) -> None:
    """Add `values[n, i]` to `rows[n, targets[n, i]]` in place, with the same bits in every run.

    rows (N, V); targets (N, s) int64, repeats allowed; values (N, s).
    """
    if rows.is_cuda:
        # Atomic additions to one address come in any order. So repeats of a target are merged
        # first, and all of them write the same value.
        rows.scatter_(1, targets, rows.gather(1, targets) + merge_repeats(targets, values))
    else:
        rows.scatter_add_(1, targets, values)  # one thread per row on a CPU: ordered


def merge_repeats(targets: Tensor, values: Tensor) -> Tensor:
    """(N, s) targets and values -> (N, s): at each target the sum of all values of that target."""
    same = targets.unsqueeze(2) == targets.unsqueeze(1)
    return (same * values.unsqueeze(1)).sum(dim=2)


def _check_rows(rows: Tensor, name: str, bag_size: int, stride: int) -> None:
    if bag_size < 1:
        raise ValueError(f"bag_size must be at least 1, got {bag_size}")
    if stride not in (1, bag_size):
        raise ValueError(f"stride must be 1 or bag_size = {bag_size}, got {stride}")
    if rows.dim() != 2 or rows.shape[1] == 0 or rows.shape[1] % stride:
        raise ValueError(
            f"{name} must be (batch, latent positions · {stride}) without a bag axis, "
            f"got {tuple(rows.shape)}"
        )
