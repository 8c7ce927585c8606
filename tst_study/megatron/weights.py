"""Weights of a whole model into this rank's part of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from tst_study.megatron.initialization import shards


class GlobalTensors(Protocol):
    """Weights by Megatron's global names, with layers and experts as leading axes."""

    def read(self, name: str, offsets: Sequence[int], sizes: Sequence[int]) -> Tensor:
        """The part that begins at `offsets`, of shape `sizes`."""


@torch.no_grad()
def load_weights(model: torch.nn.Module, source: GlobalTensors) -> None:
    """Fill a model in place, tensor by tensor. Raises whatever the source does."""
    for shard in shards(model):
        sizes = (*(1,) * shard.prepend_axis_num, *shard.data.shape)
        part = source.read(shard.key, shard.global_offset, sizes)
        shard.data.copy_(part.view(shard.data.shape))
