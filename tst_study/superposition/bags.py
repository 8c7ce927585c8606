"""Cuts sequences into bags of s contiguous tokens, and finds the targets of each position (paper,
section 3).

A latent position is a position of the model. It reads one token in an ordinary step, and a whole
bag in a superposed step (but one token there, too, if the mode is `output_only`). Shapes are given
for B sequences of l latent positions.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tst_study.superposition.loss_kinds import IGNORE


def bag_inputs(token_ids: Tensor, bag_size: int) -> Tensor:
    """Split token ids (B, l·s) into non-overlapping bags of s contiguous tokens: (B, l, s).

    The result is a view: nothing is copied. Raises ValueError if the ids are not (B, l·s) with at
    least one bag per sequence, or if `bag_size` is below 1.
    """
    _check_rows(token_ids, "token_ids", bag_size, bag_size)
    return token_ids.view(token_ids.shape[0], -1, bag_size)


def document_numbers(documents: Tensor, tokens: Tensor) -> Tensor:
    """Number the documents that are packed into rows: (B, n), one number for each token, which
    grows from document to document; −1 for padding.

    Args:
        documents: whose each token is: (B, n) ids, of which neighbouring documents have different
            ones, negative for padding; or (B, n + 1), which says it for the last label, too; or
            `cu_seqlens`, one axis of the places 0 … B·n in the flattened batch at which documents
            begin or end, with padding behind the last one.
        tokens: (B, n), the ids of the tokens or their labels.

    Returns:
        (B, n + 1): the last column is that of the last label. If `documents` do not say it, it is
        the document of the last token.

    Raises:
        ValueError: `documents` of another shape, or that are not integers.
    """
    batch, length = tokens.shape
    if documents.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"documents are {documents.dtype}: give ids or cu_seqlens as integers")
    if documents.dim() == 1:
        places = torch.arange(batch * length, device=documents.device)
        ids = torch.bucketize(places, documents[1:], right=True)
        documents = ids.masked_fill(places >= documents[-1], -1).view(batch, length)
    if documents.shape == (batch, length):
        documents = torch.cat([documents, documents[:, -1:]], dim=1)
    if documents.shape != (batch, length + 1):
        raise ValueError(
            f"documents must be {(batch, length)} ids, {(batch, length + 1)} with that of the last "
            f"label, or cu_seqlens in one axis, got {tuple(documents.shape)}"
        )
    begins = documents[:, 1:] != documents[:, :-1]
    numbers = torch.cat([torch.zeros_like(documents[:, :1]), begins.cumsum(1)], dim=1)
    return numbers.masked_fill(documents < 0, -1)


def bag_documents(numbers: Tensor, stride: int) -> Tensor:
    """Return the document of each latent position, that of the last token in its bag: (B, l·stride)
    numbers of `document_numbers` -> (B, l). It is −1 for a bag of padding alone."""
    return bag_inputs(numbers, stride).amax(dim=2)


def own_tokens(numbers: Tensor, stride: int) -> Tensor:
    """Mark the tokens of each bag that are of its document: (B, l·stride) numbers of
    `document_numbers` -> (B, l, stride) bool. In a bag of padding alone all are."""
    return bag_inputs(numbers, stride) == bag_documents(numbers, stride).unsqueeze(2)


@dataclass(frozen=True)
class LatentDocuments:
    """Whose each latent position is, for the masks of attention."""

    ids: Tensor
    """(B, l) int64: equal within a document of a row, −1 for padding."""

    @property
    def cu_seqlens(self) -> Tensor:
        """The places in the B·l flattened positions at which documents and rows begin, and the end:
        (documents + 1,) int32, as flash-attention takes them. A run of padding counts as one. Its
        size depends on the data, so on a GPU the host waits."""
        begins = torch.ones_like(self.ids, dtype=torch.bool)
        begins[:, 1:] = self.ids[:, 1:] != self.ids[:, :-1]
        places = begins.flatten().nonzero().flatten()
        return torch.cat([places, places.new_tensor([self.ids.numel()])]).to(torch.int32)


def bag_targets(
    labels: Tensor, bag_size: int, stride: int | None = None, documents: Tensor | None = None
) -> Tensor:
    """Gather the s targets of each latent position: the tokens that follow what it has read.

    Latent position k has read `stride` raw tokens more than position k - 1, so its targets are
    `target[:, k, i] = labels[:, k·stride + (stride - 1) + i]` for i = 0 … s-1: the ordinary
    next-token labels shifted left by `stride - 1`. Targets beyond the end of the sequence are
    `IGNORE`.

    * `stride = s` (default; bags in, next bag out): labels are (B, l·s). Bag k predicts raw tokens
      (k+1)·s … (k+2)·s - 1. The last bag has one valid target, the last label.
    * `stride = 1` (tokens in, next s tokens out; the mode `output_only`): labels are (B, l).

    Args:
        labels: (B, l·stride) next-token labels of the raw sequence: `labels[:, j]` is the token
            after raw token j.
        bag_size: s, tokens per bag.
        stride: raw tokens per latent position: `bag_size` or 1.
        documents: whose each token is, as for `document_numbers`, where several documents are
            packed into a row. A target in another document than the last token of its position is
            then `IGNORE`, and so is padding.

    Returns:
        (B, l, s) of the dtype of `labels`.

    Raises:
        ValueError: labels that are not (B, l·stride), a stride other than 1 and `bag_size`, a bag
            size below 1, or `documents` that do not fit.
    """
    stride = bag_size if stride is None else stride
    _check_rows(labels, "labels", bag_size, stride)
    if documents is not None:
        numbers = document_numbers(documents, labels)
        of_targets = bag_targets(numbers[:, 1:], bag_size, stride)
        of_position = bag_documents(numbers[:, :-1], stride).unsqueeze(2)
        others = (of_targets != of_position) | (of_position < 0)
        return bag_targets(labels, bag_size, stride).masked_fill(others, IGNORE)
    # A bag of one token needs no padding: its targets are the labels themselves.
    if bag_size > 1:
        beyond = labels.new_full((labels.shape[0], bag_size - 1), IGNORE)
        labels = torch.cat([labels[:, stride - 1 :], beyond], dim=1)
    return labels.unfold(1, bag_size, stride)


def document_labels(labels: Tensor, documents: Tensor, bag_size: int) -> Tensor:
    """Set the labels of packed documents to `IGNORE` where no bag may predict them: for those who
    prepare labels once, and give none of the losses `documents`.

    This works where bags are read (`stride = s`), because a label is then a target once. In the
    mode `output_only` it is one of s positions, and only `documents` can tell them apart.

    labels: (B, l·s); documents: as for `bag_targets`. Returns (B, l·s).
    """
    targets = bag_targets(labels, bag_size, documents=documents).flatten(1)
    first_bag = labels[:, : bag_size - 1]  # which nothing predicts
    return torch.cat([torch.full_like(first_bag, IGNORE), targets], dim=1)[:, : labels.shape[1]]


def count_valid_targets(
    labels: Tensor, bag_size: int, stride: int | None = None, documents: Tensor | None = None
) -> Tensor:
    """Count the valid targets at each of the s offsets in a bag: (s,) int64, on the device of
    `labels`.

    The sum of these counts over all micro-batches and data-parallel ranks of a step is the argument
    `valid_counts` of `bag_loss`. With it, the losses of the micro-batches add up to the loss of the
    whole step. Arguments and errors are those of `bag_targets`.
    """
    return (bag_targets(labels, bag_size, stride, documents) != IGNORE).sum(dim=(0, 1))


def shuffle_bags(labels: Tensor, bag_size: int, order: Tensor) -> Tensor:
    """Move the target bags of a batch to other positions: a control in which a position's targets
    do not follow the text that it has read.

    Each position but the last of each sequence gets the whole next bag of another position in the
    batch. The labels before the first target bag and after the last whole one stay where they are.

    Args:
        labels: (B, l·s) next-token labels of the raw sequence.
        bag_size: s. The bags are those of `bag_targets` with `stride = s`.
        order: (B·(l - 1),) a permutation of the whole bags. Bag `order[i]` goes to the place of bag
            `order[i + 1]`, and the last one to that of the first. So no bag stays where it was,
            unless there is only one.

    Returns:
        (B, l·s), a copy of the labels with the bags moved.
    """
    batch, length = labels.shape
    shuffled = labels.clone()
    whole = labels[:, bag_size - 1 : length - 1].reshape(-1, bag_size)
    moved = torch.empty_like(whole)
    moved[order] = whole[order.roll(1)]
    shuffled[:, bag_size - 1 : length - 1] = moved.view(batch, -1)
    return shuffled


def distinct_members(targets: Tensor, valid: Tensor) -> Tensor:
    """Mark the members of each bag as a set: True at the first valid occurrence of each token.

    targets, valid: (N, s), integer and bool. Returns (N, s) bool.
    """
    same = targets.unsqueeze(2) == targets.unsqueeze(1)  # [n, i, j]
    repeats = (same & valid.unsqueeze(1)).tril(diagonal=-1).any(dim=2)  # of a valid target j < i
    return valid & ~repeats


def add_at_targets_(rows: Tensor, targets: Tensor, values: Tensor) -> None:
    """Add `values[n, i]` to `rows[n, targets[n, i]]` in place, with the same bits in every run.

    rows (N, V); targets (N, s) int64, repeats allowed; values (N, s).
    """
    if rows.is_cuda:
        # On a GPU, scatter_add_ adds in an order that changes from run to run. So the values of a
        # repeated target are merged first, and each repeat writes the same sum.
        rows.scatter_(1, targets, rows.gather(1, targets) + merge_repeats(targets, values))
    else:
        rows.scatter_add_(1, targets, values)  # on a CPU, one thread adds up a row, in order


def merge_repeats(targets: Tensor, values: Tensor) -> Tensor:
    """Sum the values of repeated targets: (N, s) targets and values -> (N, s), at each place the
    sum of all values in the row that have the same target."""
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
