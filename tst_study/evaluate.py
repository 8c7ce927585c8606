"""Held-out next-token loss: the only quantity by which methods are compared (invariant 5)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from tst_study.data.held_out import HeldOut
from tst_study.megatron.model import SuperposedGPT
from tst_study.megatron.process_groups import Ranks

POSITIONS_AT_ONCE = 4096


@dataclass(frozen=True)
class HeldOutLoss:
    nats_per_token: float
    standard_error: float
    """Of nats per token, over held-out sequences (tokens of one sequence are not independent)."""
    tokens: int


@torch.no_grad()
def evaluate(
    model: SuperposedGPT, held_out: HeldOut, ranks: Ranks, micro_batch: int
) -> HeldOutLoss:
    """Mean next-token loss over all held-out tokens, each counted once whatever the layout.

    `micro_batch`: sequences that fit into memory at once when training; small ones are put
    together, since nothing is kept for a backward pass.
    """
    model.eval()
    sequences_at_once = max(micro_batch, POSITIONS_AT_ONCE // held_out.ids.shape[1])
    count = len(held_out.ids)
    # Per sequence: sum of losses and number of tokens. Ranks fill in their sequences; the sum over
    # ranks adds zeros only, so the result does not depend on how many there are.
    sums = torch.zeros(count, 2, dtype=torch.float64)
    stride = ranks.data_size * sequences_at_once
    for start in range(ranks.data_rank * sequences_at_once, count, stride):
        rows = slice(start, min(start + sequences_at_once, count))
        ids = torch.from_numpy(held_out.ids[rows]).to(ranks.device)
        labels = torch.from_numpy(held_out.labels[rows]).to(ranks.device)
        with torch.compiler.set_stance("force_eager"):  # its shapes are not worth compiling for
            losses = model.next_token_losses(ids, labels)
        sums[rows] = torch.stack([losses.sum(1), (labels >= 0).sum(1)], dim=1).double().cpu()
    sums = ranks.sum_over_data(sums.to(ranks.device)).cpu()
    model.train()
    losses, tokens = sums.unbind(1)
    total = float(tokens.sum())
    mean = float(losses.sum()) / total
    # Ratio estimator: sequences are the sampling units.
    deviations = losses - mean * tokens
    variance = float(deviations.square().sum()) * count / max(count - 1, 1)
    return HeldOutLoss(mean, math.sqrt(variance) / total, int(total))
