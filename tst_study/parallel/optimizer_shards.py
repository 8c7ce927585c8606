"""The shard of each parameter that a data-parallel rank updates, under a distributed optimizer.

Megatron lays parameters and gradients out in buffers of buckets; a reduce-scatter leaves each rank
the sum of its equal share of every bucket, and an all-gather gives all ranks the new weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch.distributed as dist
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from megatron.core.distributed import DistributedDataParallel
from torch import Tensor


def shards_of_buffers(model: DistributedDataParallel) -> dict[Tensor, slice]:
    """This rank's shard of each parameter, as a range of its flattened numbers; maybe empty."""
    shards: dict[Tensor, slice] = {}
    for buffer in (*model.buffers, *model.expert_parallel_buffers):
        rank = dist.get_rank(buffer.data_parallel_group)
        for parameter, (start, stop, number) in buffer.param_index_map.items():
            bucket = buffer.buckets[number]
            size = bucket.grad_data.numel() // buffer.data_parallel_world_size
            first = bucket.offset + rank * size
            ends = (min(max(place, start), stop) - start for place in (first, first + size))
            shards[parameter] = slice(*ends)
    return shards


def parts_of(
    parameter: Tensor,
    sharded: ShardedTensor | ShardedTensorFactory,
    row: Tensor,
    prefix: str,
    share: slice | None,
) -> Iterator[ShardedTensor]:
    """Describe this rank's part of a tensor as large as a parameter, for a checkpoint.

    `sharded`: the parameter's own description; `row`: the numbers of its range `share`, in a row,
    or all of them where it is None. Gives views of `row` in its order; nothing is copied. Part of
    a matrix is up to three rectangles: the rest of its first row, whole rows, the beginning of its
    last.
    """
    wholes = sharded.build() if isinstance(sharded, ShardedTensorFactory) else [sharded]
    for whole in wholes:
        assert whole.data.is_contiguous()  # a factory cuts between rows
        start, size = whole.data.storage_offset() - parameter.storage_offset(), whole.data.numel()
        named = replace(whole, key=f"{prefix}.{whole.key}", dtype=row.dtype, data=None)
        if share is None:
            yield replace(named, data=row[start : start + size].view(whole.local_shape))
            continue
        first, last = max(start, share.start), min(start + size, share.stop)
        ones = (1,) * whole.prepend_axis_num
        for offset, shape in _rectangles(first - start, last - start, whole.local_shape):
            length = math.prod(shape)
            begin = first - share.start
            first += length
            own = zip(whole.global_offset, (*(0 for _ in ones), *offset), strict=True)
            yield replace(
                named,
                data=row[begin : begin + length].view(*ones, *shape),
                local_shape=(*ones, *shape),
                global_offset=tuple(a + b for a, b in own),
                # No grid of equal parts; and no other data-parallel rank holds the same numbers.
                axis_fragmentations=None,
                prepend_axis_num=0,
                replica_id=(*whole.replica_id[:-1], 0),
            )


def _rectangles(
    first: int, last: int, shape: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Offset and shape of the parts of a vector or matrix that hold its numbers `first` to `last`
    in a row, in their order."""
    if last <= first:
        return
    if len(shape) == 1:
        yield (first,), (last - first,)
        return
    _, width = shape
    row, column = divmod(first, width)
    if column:
        end = min(last, (row + 1) * width)
        yield (row, column), (1, end - first)
        first, row = end, row + 1
    rows, rest = divmod(max(0, last - first), width)
    if rows:
        yield (row, 0), (rows, width)
    if rest:
        yield (row + rows, 0), (1, rest)
