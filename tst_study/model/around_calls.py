"""What is done around a module's call, outside of what is compiled.

**New weights may arrive while the forward pass is already on its way.** With a distributed
optimizer a rank updates its share of every bucket of weights and is sent the rest. Megatron waits
for a bucket in hooks of modules: inside a compiled layer they would break its one graph, and
embedding and head are used here without a call of their modules. So the model waits for its
embedding, a layer for its own weights, and the last layer for all that is left, as norm and head
come after it.

**Less memory for more work**: parts of a layer that the backward pass computes again. In the place
of Megatron's own, which restores random generators that exist only on GPUs; nothing here draws
random numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
        return checkpoint(call, *inputs, use_reentrant=False, preserve_rng_state=False, **named)
