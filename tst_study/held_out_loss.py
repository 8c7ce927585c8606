"""Held-out next-token loss: the only quantity by which methods are compared."""

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
"""The most positions of a forward pass on one rank; a longer sequence makes a pass by itself. A
pass holds the logits of all its positions at once, which training avoids."""


@dataclass(frozen=True)
class HeldOutLoss:
    nats_per_token: float
    standard_error: float
    """Standard error of nats per token, over held-out sequences: tokens of one sequence are not
    independent."""
    tokens: int
    document_losses: list[float] | None = None
    """Nats per token of each document number in `HeldOut.documents`, which stands for one document
    or a few neighbouring ones; None where sequences straddle documents."""
    document_tokens: list[int] | None = None
    """Predicted tokens of each of them."""


@torch.no_grad()
def evaluate(
    model: SuperposedGPT,
    held_out: HeldOut,
    ranks: Ranks,
    say: Callable[[int], None] = lambda tokens: None,
) -> HeldOutLoss:
    """Compute the mean next-token loss over all held-out tokens, each counted once whatever the
    layout. All ranks call it together, and all get the result.

    `say` is called before each pass with the number of positions done so far, padding included.
    """
    model.eval()
    count = len(held_out.ids)
    at_once = max(1, POSITIONS_AT_ONCE // held_out.ids.shape[1])
    # Each rank fills in the losses of its own sequences. The sum over ranks then adds zeros to each
    # of them, so that the result does not depend on the number of ranks.
    sums = torch.zeros(count, dtype=torch.float64)
    for first in range(0, count, ranks.data_size * at_once):
        say(first * held_out.ids.shape[1])
        start = first + ranks.data_rank * at_once
        rows = np.arange(start, start + at_once)
        if ranks.data_size == 1:
            rows = rows[rows < count]
        # Ranks that share experts exchange positions in each pass, so all must make as many passes
        # of the same size. Past the end, sequences from the beginning fill them up and are not
        # counted.
        ids, labels = (
            torch.from_numpy(array[rows % count]).to(ranks.device)
            for array in (held_out.ids, held_out.labels)
        )
        with torch.compiler.set_stance("force_eager"):  # its shapes are not worth compiling for
            losses = model.next_token_losses(ids, labels)
        new = int((rows < count).sum())
        sums[start : start + new] = losses.sum(1)[:new].double().cpu()
    sums = ranks.sum_over_data(sums.to(ranks.device)).cpu()
    model.train()
    tokens = torch.from_numpy((held_out.labels >= 0).sum(1)).double()
    total = int(tokens.sum())
    by_document: dict[str, list[Any]] = {}
    if held_out.documents is not None:
        document_sums = np.bincount(held_out.documents, sums.numpy())
        counts = np.bincount(held_out.documents, tokens.numpy())
        by_document["document_losses"] = (document_sums / counts).tolist()
        by_document["document_tokens"] = counts.astype(int).tolist()
    return HeldOutLoss(float(sums.sum()) / total, error_of_mean(sums, tokens), total, **by_document)


def error_of_mean(sums: Tensor, counts: Tensor) -> float:
    """Return the standard error of the mean over tokens, by the ratio estimator; 0 for a single
    unit.

    `sums`, `counts` (n,): nats and tokens of each sampling unit, a sequence or a document.
    """
    number, total = len(sums), float(counts.sum())
    deviations = sums - float(sums.sum()) / total * counts
    variance = float(deviations.square().sum()) * number / max(number - 1, 1)
    return math.sqrt(variance) / total
