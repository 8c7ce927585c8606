"""One rank's share of the vocabulary under tensor parallelism (Megatron's vocabulary-parallel)."""

from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


@dataclass(frozen=True)
class VocabularyShard:
    """Rows [start, start + size) of the vocabulary; the other rows are on the ranks of `group`."""

    start: int
    size: int
    group: ProcessGroup

    @classmethod
    def of(cls, start: int, size: int, group: ProcessGroup | None) -> Self | None:
        """Return None where this rank holds the whole vocabulary: no group, or a group of one."""
        if group is None or dist.get_world_size(group) == 1:
            return None
        return cls(start, size, group)

    @property
    def vocabulary_size(self) -> int:
        """The size of all shards together; they are equal, as Megatron pads them to be."""
        return self.size * dist.get_world_size(self.group)

    def to_local(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Row numbers in this shard (0 for tokens of other shards), and which tokens are here."""
        return to_local(token_ids, self.start, self.size)


def to_local(token_ids: Tensor, start: int, size: int) -> tuple[Tensor, Tensor]:
    """Token ids as row numbers of [start, start + size), 0 where outside; and which are inside."""
    local = token_ids - start
    is_local = (local >= 0) & (local < size)
    return torch.where(is_local, local, 0), is_local


class _SumOverGroup(torch.autograd.Function):
    """Forward all-reduce, backward identity: Megatron's reduce-from-tensor-parallel-region.

    Every rank of the group continues with the same sum and so computes the same gradient of it;
    that gradient is the one of each rank's summand.
    """

    @staticmethod
    def forward(ctx: Any, summand: Tensor, group: ProcessGroup) -> Tensor:
        total = summand.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


def sum_over_group(summand: Tensor, group: ProcessGroup) -> Tensor:
    """The sum of `summand` over the ranks of `group`; its gradient passes through unchanged."""
    total: Tensor = _SumOverGroup.apply(summand, group)  # type: ignore[no-untyped-call]
    return total
