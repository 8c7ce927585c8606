"""Less memory for more work: parts of a layer that the backward pass computes again."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Literal

import torch
from megatron.core.transformer.transformer_layer import TransformerLayer
from torch.utils.checkpoint import checkpoint

Recompute = Literal["none", "feed_forward", "layer"]


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
    module.forward = partial(
        checkpoint, module.forward, use_reentrant=False, preserve_rng_state=False
    )
