"""New weights may arrive while the forward pass is already on its way.

With a distributed optimizer a rank updates its share of every bucket of weights and is sent the
rest. Megatron waits for a bucket in hooks of modules: inside a compiled layer they would break its
one graph, and embedding and head are used here without a call of their modules. So the waiting lies
around the calls of layers and model: the model waits for its embedding, a layer for its own
weights, and the last layer for all that is left, as norm and head come after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class AwaitsWeights:
    """Mixed into a module: what has to happen before its call, outside of what is compiled."""

    await_weights: Callable[[], None] | None = None

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        if self.await_weights is not None:
            self.await_weights()
        return super().__call__(*inputs, **named)  # type: ignore[misc]
