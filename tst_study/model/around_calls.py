"""Steps around a module's call that stay outside of the compiled graph.

**New weights may arrive while the forward pass is already on its way.** With a distributed
optimizer a rank updates its share of every bucket of weights and is sent the rest. Megatron waits
for a bucket in hooks of modules. Inside a compiled layer these would break its graph, and the
embedding and the head are used here without a call of their modules. So the model waits for its
embedding, each layer for its own weights, and the last layer for all that is left, because the
norm and the head come after it.

**Recomputation trades time for memory**: the backward pass computes parts of a layer again.
Megatron's own version restores random generators that exist only on GPUs; nothing here draws
random numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.checkpoint import checkpoint


class AwaitsWeights:
    """A mixin for modules that wait for their weights before each call."""

    await_weights: Callable[[], None] | None = None

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        if self.await_weights is not None:
            self.await_weights()
        return super().__call__(*inputs, **named)  # type: ignore[misc]


class Recomputable:
    """A mixin for modules that keep only the inputs of a call where `recomputed` is set."""

    recomputed = False

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        call = super().__call__  # type: ignore[misc]
        if not self.recomputed:
            return call(*inputs, **named)
        return checkpoint(call, *inputs, use_reentrant=False, preserve_rng_state=False, **named)
