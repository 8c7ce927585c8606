"""The projections of attention and feed-forward layers within the tensors that Megatron keeps.

One tensor holds queries, keys and values, group by group of heads; one the gate and the upward
projection; and one those of several experts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor


@dataclass(frozen=True)
class Projections:
    """A tensor as (`blocks`, sum of `rows`, columns): every block has rows of every projection."""

    blocks: int
    rows: tuple[int, ...]
    joined: bool
    """Whether a projection's rows of all blocks are one matrix (groups of heads) or each block's
    are one (experts)."""

    def split(self, tensor: Tensor) -> list[Tensor]:
        """A tensor in any shape -> a view (blocks, rows, columns) per projection."""
        blocks = tensor.view(self.blocks, sum(self.rows), -1)
        return list(blocks.split(self.rows, dim=1))

    def matrices(self, part: Tensor) -> Tensor:
        """One of `split`'s views -> (matrices, rows, columns), copied where it has to be."""
        return part.reshape(1, -1, part.shape[-1]) if self.joined else part


def projections_of(
    name: str, shape: tuple[int, ...], config: TransformerConfig
) -> Projections | None:
    """Of a parameter by its name in the model; None for what is no hidden projection."""
    found = re.search(r"\.linear_(qkv|proj|fc1|fc2)\b", name)
    if found is None:
        return None
    rows, experts = shape[-2], shape[0] if len(shape) == 3 else 1
    if found[1] == "qkv":
        key, groups = config.kv_channels, config.num_query_groups
        assert key is not None
        return Projections(groups, (rows // groups - 2 * key, key, key), joined=True)
    parts = 2 if found[1] == "fc1" else 1
    return Projections(experts, (rows // parts,) * parts, joined=False)
