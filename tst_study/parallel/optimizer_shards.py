"""The shard of each parameter that a data-parallel rank updates, if each rank keeps only its share
of the optimizer state (`execution.parallel.optimizer = "distributed"`).

Megatron lays parameters and gradients out in buffers, which are divided into buckets. Each rank has
an equal share of every bucket. A reduce-scatter gives it the sum of the gradients in its share, and
an all-gather gives all ranks the new weights.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import torch.distributed as dist
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from megatron.core.distributed import DistributedDataParallel
from torch import Tensor


def shards_of_parameters(model: DistributedDataParallel) -> dict[Tensor, slice]:
    """Return this rank's shard of each parameter, as a slice of the flattened parameter. It may be
    empty."""
    shards: dict[Tensor, slice] = {}
    for buffer in (*model.buffers, *model.expert_parallel_buffers):
        rank = dist.get_rank(buffer.data_parallel_group)
        for parameter, (start, stop, bucket_index) in buffer.param_index_map.items():
            bucket = buffer.buckets[bucket_index]
            size = bucket.grad_data.numel() // buffer.data_parallel_world_size
            first = bucket.offset + rank * size
            ends = (min(max(place, start), stop) - start for place in (first, first + size))
            shards[parameter] = slice(*ends)
    return shards


def parts_of(
    parameter: Tensor,
    sharded: ShardedTensor | ShardedTensorFactory,
    flat: Tensor,
    prefix: str,
    share: slice | None,
) -> Iterator[ShardedTensor]:
    """Describe this rank's part of an optimizer state, or of the main weights, for a checkpoint.

    Checkpoints hold rectangles. A range of elements of a matrix is up to three of them: the rest of
    its first row, whole rows, and the beginning of its last row.

    Args:
        parameter: the parameter to which the state belongs; both have the same shape.
        sharded: Megatron's description of the parameter itself.
        flat: the elements `share` of the flattened state.
        prefix: what stands before the parameter's name in the state's name.
        share: a range of the flattened parameter; None for all of it.

    Yields the parts in order. Their data are views of `flat`, so that nothing is copied.
    """
    wholes = sharded.build() if isinstance(sharded, ShardedTensorFactory) else [sharded]
    for whole in wholes:
        assert whole.data.is_contiguous()  # a factory splits only between rows
        start, size = whole.data.storage_offset() - parameter.storage_offset(), whole.data.numel()
        named = replace(whole, key=f"{prefix}.{whole.key}", dtype=flat.dtype, data=None)
        if share is None:
            yield replace(named, data=flat[start : start + size].view(whole.local_shape))
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
                data=flat[begin : begin + length].view(*ones, *shape),
                local_shape=(*ones, *shape),
                global_offset=tuple(a + b for a, b in own),
                # The pieces form no regular grid, and only one data-parallel rank holds each.
                axis_fragmentations=None,
                prepend_axis_num=0,
                replica_id=(*whole.replica_id[:-1], 0),
            )


def _rectangles(
    start: int, stop: int, shape: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield offset and shape of the rectangles that together hold the elements `start` … `stop - 1`
    of a flattened vector or matrix, in order."""
    if stop <= start:
        return
    if len(shape) == 1:
        yield (start,), (stop - start,)
        return
    _, width = shape
    row, column = divmod(start, width)
    if column:
        end = min(stop, (row + 1) * width)
        yield (row, column), (1, end - start)
        start, row = end, row + 1
    rows, rest = divmod(max(0, stop - start), width)
    if rows:
        yield (row, 0), (rows, width)
    if rest:
        yield (row + rows, 0), (1, rest)
