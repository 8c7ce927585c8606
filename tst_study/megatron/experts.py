"""What Megatron's mixture of experts needs of a training loop."""

from __future__ import annotations

import torch
from megatron.core.transformer.moe.moe_utils import (
    MoEAuxLossAutoScaler,
    clear_aux_losses_tracker,
    get_moe_layer_wise_logging_tracker,
)


def begin_step(positions: int, device: torch.device) -> None:
    """`positions`: latent positions of a whole step, over all ranks and micro-batches.

    Megatron weighs auxiliary losses by the positions of a micro-batch; this scale makes their sum
    over a step a mean, like that of the loss.
    """
    MoEAuxLossAutoScaler.set_loss_scale(torch.tensor(1.0 / positions, device=device))
    clear_aux_losses_tracker()


def auxiliary_losses() -> dict[str, float]:
    """By name, mean over layers, of this rank's part of the step so far."""
    return {
        name: float(entry["values"].mean())
        for name, entry in get_moe_layer_wise_logging_tracker().items()
    }
