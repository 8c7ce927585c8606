"""Less memory for more work: parts of a layer that the backward pass computes again."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from megatron.core.transformer.transformer_layer import TransformerLayer
from torch.utils.checkpoint import checkpoint

from tst_study.config import Recompute


def keep_less_for_backward(layers: Iterable[TransformerLayer], recompute: Recompute) -> None:
    """`feed_forward`: keeps its input alone. `layer`: keeps the residual stream alone.

    In the place of Megatron's own, which restores random generators that exist only on GPUs;
    nothing here draws random numbers.
    """
    for layer in layers:
        if recompute == "layer":
            _recompute(layer)
        elif recompute == "feed_forward":
            _recompute(layer.mlp)


def _recompute(module: torch.nn.Module) -> None:
    forward = module.forward
    inside = list(module.modules())
    dispatchers = [m.token_dispatcher for m in inside if hasattr(m, "token_dispatcher")]

    def forgetful_forward(*inputs: Any, **named: Any) -> Any:
        try:
            return forward(*inputs, **named)
        finally:
            # Dispatchers keep tensors for the second half of a forward pass, and since 0.19 layers
            # wrap those that they might offload. What they keep of a second forward pass would hold
            # on to everything that it computed.
            for holder in (*inside, *dispatchers):
                for name, value in vars(holder).items():
                    kept = getattr(value, "tensor", value)
                    if isinstance(kept, torch.Tensor) and kept.requires_grad:
                        setattr(holder, name, None)

    module.forward = partial(
        checkpoint, forgetful_forward, use_reentrant=False, preserve_rng_state=False
    )
