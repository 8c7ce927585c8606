"""Measures the held-out next-token loss, the only quantity by which methods are compared.

Both training and `tst-study evaluate` call `evaluate`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tst_study.data.held_out import HeldOut
from tst_study.model.model import SuperposedGPT
from tst_study.parallel.process_groups import Ranks

POSITIONS_AT_ONCE = 4096
"""The most positions in one forward pass on a rank; a sequence with more makes a pass by itself.
This limits memory: a pass holds the logits of all its positions at once, which training avoids."""


@dataclass(frozen=True)
class HeldOutLoss:
    """The loss of a model on a held-out text."""

    nats_per_token: float
    """The mean over all predicted tokens."""
    standard_error: float
    """Standard error of `nats_per_token`. The sampling units are the held-out sequences, because
    the tokens of one sequence are not independent."""
    tokens: int
    """The number of predicted tokens."""
    document_losses: list[float] | None = None
    """Nats per token for each document number in `HeldOut.documents`. A number stands for one
    document or for a few neighbouring ones. None if sequences straddle documents."""
    document_tokens: list[int] | None = None
    """The number of predicted tokens behind each of `document_losses`."""


@torch.no_grad()
def evaluate(
    model: SuperposedGPT,
    held_out: HeldOut,
    ranks: Ranks,
    say: Callable[[int], None] = lambda tokens: None,
) -> HeldOutLoss:
    """Compute the mean next-token loss over all held-out tokens. Each counts once, whatever the
    layout of ranks.

    All ranks call this together, and all get the result. Afterwards the model is in training mode.
    `say` is called before each pass with the number of held-out tokens that are done on all ranks.
    """
    model.eval()
    count = len(held_out.ids)
    at_once = max(1, POSITIONS_AT_ONCE // held_out.ids.shape[1])
    # One entry per held-out sequence. Each rank fills in those of its own sequences and leaves the
    # others at zero. The sum over ranks thus adds only zeros to each entry, so that the result does
    # not depend on the number of ranks.
    sums = torch.zeros(count, dtype=torch.float64)
    tokens = torch.from_numpy((held_out.labels >= 0).sum(1)).double()
    for first in range(0, count, ranks.data_size * at_once):
        say(int(tokens[:first].sum()))
        start = first + ranks.data_rank * at_once
        rows = np.arange(start, start + at_once)
        if ranks.data_size == 1:
            rows = rows[rows < count]
        # Ranks that share experts exchange positions in each pass, so all must make equally many
        # passes of the same size. At the end of the text, a pass is filled up with sequences from
        # the beginning of the text, which are not counted again.
        ids, labels = (
            torch.from_numpy(array[rows % count]).to(ranks.device)
            for array in (held_out.ids, held_out.labels)
        )
        # Evaluation has other shapes than training, and compiling for them would not pay off.
        with torch.compiler.set_stance("force_eager"):
            losses = model.next_token_losses(ids, labels)
        new = int((rows < count).sum())
        sums[start : start + new] = losses.sum(1)[:new].double().cpu()
    sums = ranks.sum_over_data(sums.to(ranks.device)).cpu()
    model.train()
    total = int(tokens.sum())
    by_document: dict[str, list[Any]] = {}
    if held_out.documents is not None:
        document_sums = np.bincount(held_out.documents, sums.numpy())
        counts = np.bincount(held_out.documents, tokens.numpy())
        by_document["document_losses"] = (document_sums / counts).tolist()
        by_document["document_tokens"] = counts.astype(int).tolist()
    return HeldOutLoss(float(sums.sum()) / total, error_of_mean(sums, tokens), total, **by_document)


def error_of_mean(sums: Tensor, counts: Tensor) -> float:
    """Return the standard error of the mean loss over tokens, by the ratio estimator; 0 if there is
    only one sampling unit.

    `sums`, `counts` (n,): the nats and the tokens of each sampling unit, which is a sequence or a
    document.
    """
    number, total = len(sums), float(counts.sum())
    deviations = sums - float(sums.sum()) / total * counts
    variance = float(deviations.square().sum()) * number / max(number - 1, 1)
    return math.sqrt(variance) / total
