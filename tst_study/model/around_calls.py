"""What is done around a module's call, outside of what is compiled.

**New weights may arrive while the forward pass is already on its way.** With a distributed
optimizer a rank updates its share of every bucket of weights and is sent the rest. Megatron waits
for a bucket in hooks of modules: inside a compiled layer they would break its one graph, and
embedding and head are used here without a call of their modules. So the model waits for its
embedding, a layer for its own weights, and the last layer for all that is left, as norm and head
come after it.

**Less memory for more work**: parts of a layer that the backward pass computes again. In the place
of Megatron's own, which restores random generators that exist only on GPUs; nothing here draws
random numbers. Inside, a function of its own for each layer would have to be compiled for each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from megatron.core.transformer.transformer_layer import TransformerLayer
from torch.utils.checkpoint import checkpoint


class AwaitsWeights:
    """Mixed into a module: waits for weights before its call."""

    await_weights: Callable[[], None] | None = None

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        if self.await_weights is not None:
            self.await_weights()
        return super().__call__(*inputs, **named)  # type: ignore[misc]


class Recomputable:
    """Mixed into a module: keeps the inputs of its call alone where `recomputed` is set."""

    recomputed = False

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        call = super().__call__  # type: ignore[misc]
        if not self.recomputed:
            return call(*inputs, **named)

        def forgetful_call(*inputs: Any, **named: Any) -> Any:
            try:
                return call(*inputs, **named)
            finally:
                _forget(self)  # type: ignore[arg-type]

        again = call if torch.compiler.is_compiling() else forgetful_call
        return checkpoint(again, *inputs, use_reentrant=False, preserve_rng_state=False, **named)


class RecomputableLayer(AwaitsWeights, Recomputable, TransformerLayer):
    """Megatron's layer."""


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
