"""One rank's share of the vocabulary under tensor parallelism: Megatron splits embedding and head
over tensor ranks by rows of the vocabulary."""

from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from tst_study.superposition.derivatives import SPLIT, refuse_second_derivative, refuse_torch_func


@dataclass(frozen=True)
class VocabularyShard:
    """Rows [start, start + size) of the vocabulary. The other rows are on the other ranks of
    `group`."""

    start: int
    size: int
    group: ProcessGroup

    @classmethod
    def of(cls, start: int, size: int, group: ProcessGroup | None) -> Self | None:
        """Return the shard, or None if this rank holds the whole vocabulary, because `group` is
        None or has one rank."""
        if group is None or dist.get_world_size(group) == 1:
            return None
        return cls(start, size, group)

    @property
    def vocabulary_size(self) -> int:
        """The size of all shards together, with any padding of the vocabulary.

        All shards are taken to be equally large. Our layouts require this; in other trainers that
        use Megatron's layers, Megatron pads the vocabulary to make it so.
        """
        return self.size * dist.get_world_size(self.group)

    def to_local(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return each token's row number in this shard (0 for tokens of other shards), and whether
        the token is in this shard."""
        return to_local(token_ids, self.start, self.size)


def to_local(token_ids: Tensor, start: int, size: int) -> tuple[Tensor, Tensor]:
    """Return each token's row number in the shard [start, start + size) of the vocabulary (0 for
    ids outside), and whether the id is inside."""
    local = token_ids - start
    is_local = (local >= 0) & (local < size)
    return torch.where(is_local, local, 0), is_local


class _SumOverGroup(torch.autograd.Function):
    """An all-reduce whose backward pass is the identity, as in Megatron's
    `reduce_from_tensor_model_parallel_region`.

    Every rank of the group continues with the same sum and computes the same gradient for it. The
    gradient of a rank's own summand equals this one, so nothing is communicated.
    """

    @staticmethod
    def forward(ctx: Any, summand: Tensor, group: ProcessGroup) -> Tensor:
        total = summand.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        refuse_second_derivative(SPLIT)
        return grads[0], None


def sum_over_group(summand: Tensor, group: ProcessGroup) -> Tensor:
    """Return the sum of `summand` over the ranks of `group`; its gradient passes through
    unchanged."""
    refuse_torch_func(SPLIT)
    total: Tensor = _SumOverGroup.apply(summand, group)  # type: ignore[no-untyped-call]
    return total
