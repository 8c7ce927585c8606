"""The shard of each parameter that a data-parallel rank updates, under a distributed optimizer.

Megatron lays parameters and gradients out in buffers of buckets; a reduce-scatter leaves each rank
the sum of its equal share of every bucket, and an all-gather gives all ranks the new weights.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from megatron.core.distributed import DistributedDataParallel
from megatron.core.distributed.param_and_grad_buffer import _ParamAndGradBuffer
from torch import Tensor


def shards_of_buffers(model: DistributedDataParallel) -> dict[Tensor, slice]:
    """Of each parameter, as a range of its numbers in a row; empty ranges where it has none."""
    return {
        parameter: _overlap(range(start, stop), _share(buffer, bucket))
        for buffer in _buffers(model)
        for parameter, (start, stop, bucket) in buffer.param_index_map.items()
    }


def gather_shards(model: DistributedDataParallel, shards: dict[Tensor, Tensor]) -> list[Tensor]:
    """Each rank's shards of one float32 number per weight -> tensors in the shape of the
    parameters, in the order of `shards`. All data-parallel ranks together."""
    whole: dict[Tensor, Tensor] = {}
    ranges = shards_of_buffers(model)
    for buffer in _buffers(model):
        flat = torch.zeros(
            buffer.grad_data.numel(), dtype=torch.float32, device=buffer.grad_data.device
        )
        for parameter, (start, stop, _) in buffer.param_index_map.items():
            whole[parameter] = flat[start:stop].view(parameter.shape)
            whole[parameter].view(-1)[ranges[parameter]] = shards[parameter]
        for number, bucket in enumerate(buffer.buckets):
            share = _share(buffer, number)
            dist.all_gather_into_tensor(
                flat[bucket.offset : bucket.offset + bucket.grad_data.numel()],
                flat[share.start : share.stop].clone(),
                group=buffer.data_parallel_group,
            )
    return [whole[parameter] for parameter in shards]


def _buffers(model: DistributedDataParallel) -> Iterator[_ParamAndGradBuffer]:
    yield from model.buffers
    yield from model.expert_parallel_buffers


def _share(buffer: _ParamAndGradBuffer, bucket_number: int) -> range:
    """This rank's equal share of a bucket, in positions of the buffer."""
    bucket = buffer.buckets[bucket_number]
    size = bucket.grad_data.numel() // buffer.data_parallel_world_size
    start = bucket.offset + dist.get_rank(buffer.data_parallel_group) * size
    return range(start, start + size)


def _overlap(parameter: range, share: range) -> slice:
    start = max(parameter.start, share.start)
    stop = max(start, min(parameter.stop, share.stop))
    if start >= parameter.stop:  # the share lies after the parameter
        return slice(0, 0)
    return slice(start - parameter.start, stop - parameter.start)
