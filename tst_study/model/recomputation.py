"""Less memory for more work: parts of a layer that the backward pass computes again.

In the place of Megatron's own, which restores random generators that exist only on GPUs; nothing
here draws random numbers. The checkpoint lies around a module's call, compiled or not: inside, a
function of its own for each layer would have to be compiled for each layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from megatron.core.transformer.transformer_layer import TransformerLayer
from torch.utils.checkpoint import checkpoint

from tst_study.config.schema import Recompute
from tst_study.model.arriving_weights import AwaitsWeights


class Recomputable:
    """Mixed into a module: keeps the inputs of its call alone where `recomputed` is set."""

    recomputed = False

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        call = super().__call__  # type: ignore[misc]
        if not self.recomputed:
            return call(*inputs, **named)
        return _keeping_inputs(self, call, *inputs, **named)


class RecomputableLayer(AwaitsWeights, Recomputable, TransformerLayer):
    """Megatron's layer."""


def keep_less_for_backward(layers: Iterable[RecomputableLayer], recompute: Recompute) -> None:
    """`feed_forward`: keeps its input alone. `layer`: keeps the residual stream alone."""
    for layer in layers:
        feed_forward = layer.mlp
        if recompute == "layer":
            layer.recomputed = True
        elif recompute == "feed_forward" and isinstance(feed_forward, Recomputable):
            feed_forward.recomputed = True
        elif recompute == "feed_forward":  # experts: Megatron's class, and never compiled
            feed_forward.forward = partial(_keeping_inputs, feed_forward, feed_forward.forward)


def _keeping_inputs(module: Any, call: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
    def forgetful_call(*inputs: Any, **named: Any) -> Any:
        try:
            return call(*inputs, **named)
        finally:
            _forget(module)

    again = call if torch.compiler.is_compiling() else forgetful_call
    return checkpoint(again, *inputs, use_reentrant=False, preserve_rng_state=False, **named)


def _forget(module: torch.nn.Module) -> None:
    """Dispatchers keep tensors for the second half of a forward pass, and since 0.19 layers wrap
    those that they might offload. What they keep of a second forward pass would hold on to
    everything that it computed."""
    inside = list(module.modules())
    dispatchers = [m.token_dispatcher for m in inside if hasattr(m, "token_dispatcher")]
    for holder in (*inside, *dispatchers):
        for name, value in vars(holder).items():
            kept = getattr(value, "tensor", value)
            if isinstance(kept, torch.Tensor) and kept.requires_grad:
                setattr(holder, name, None)
