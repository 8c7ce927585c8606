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
        """Return the shard, or None where this rank holds the whole vocabulary: there is no group,
        or a group of one."""
        if group is None or dist.get_world_size(group) == 1:
            return None
        return cls(start, size, group)

    @property
    def vocabulary_size(self) -> int:
        """The size of all shards together, which are equally large: our layouts require it, and in
        other trainers Megatron pads the vocabulary for it. Padding counts."""
        return self.size * dist.get_world_size(self.group)

    def to_local(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return row numbers in this shard (0 for tokens of other shards), and whether each token
        is in this shard."""
        return to_local(token_ids, self.start, self.size)


def to_local(token_ids: Tensor, start: int, size: int) -> tuple[Tensor, Tensor]:
    """Return token ids as row numbers in the vocabulary's [start, start + size), 0 for ids outside,
    and whether each id is inside."""
    local = token_ids - start
    is_local = (local >= 0) & (local < size)
    return torch.where(is_local, local, 0), is_local


class _SumOverGroup(torch.autograd.Function):
    """An all-reduce whose backward pass is the identity, as in Megatron's
    `reduce_from_tensor_model_parallel_region`.

    Every rank of the group continues with the same sum, and so computes the same gradient of it,
    which is also the gradient of its own summand.
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
