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
    dispatchers = [m.token_dispatcher for m in module.modules() if hasattr(m, "token_dispatcher")]

    def forgetful_forward(*inputs: Any, **named: Any) -> Any:
        try:
            return forward(*inputs, **named)
        finally:
            # Dispatchers keep tensors for the second half of a forward pass. What they keep of a
            # second forward pass would hold on to everything that it computed.
            for dispatcher in dispatchers:
                for name, value in vars(dispatcher).items():
                    if isinstance(value, torch.Tensor) and value.requires_grad:
                        setattr(dispatcher, name, None)

    module.forward = partial(
        checkpoint, forgetful_forward, use_reentrant=False, preserve_rng_state=False
    )
