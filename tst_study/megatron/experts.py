"""What Megatron's mixture of experts needs of a training loop."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.transformer.moe.moe_utils import (
    MoEAuxLossAutoScaler,
    clear_aux_losses_tracker,
    get_moe_layer_wise_logging_tracker,
)
from megatron.core.transformer.moe.router import TopKRouter
from torch import Tensor


class Router(TopKRouter):
    """Megatron's router, with a balance loss that does not depend on the micro-batch."""

    def attach_and_log_load_balancing_loss(
        self, activation: Tensor, *more: Any, valid_token_count: Any = None, **named: Any
    ) -> Tensor:
        # In 0.16 the mean over a micro-batch's sequences comes with the positions of only one of
        # them. Without a count all positions of the micro-batch are its weight.
        return super().attach_and_log_load_balancing_loss(activation, *more, **named)


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
