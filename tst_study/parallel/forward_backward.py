"""Runs micro-batches through the model, and adds their gradients to Megatron's buffers."""

from collections.abc import Sequence
from contextlib import nullcontext

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from torch import Tensor

from tst_study.config.schema import Parallel
from tst_study.cost.parallel_layout import bucket_weights
from tst_study.model.model import SuperposedGPT, Targets
from tst_study.superposition.steps import Objective

MicroBatch = tuple[Tensor, Targets]
"""The bags of token ids that a micro-batch reads, (b, l, stride), and what its loss needs."""


def gradient_buffers(model: SuperposedGPT, parallel: Parallel) -> DistributedDataParallel:
    """Wrap a model in Megatron's data parallelism, which adds gradients up in float32 buffers, over
    micro-batches and over data-parallel ranks."""
    weights = sum(p.numel() for p in model.parameters())
    over = parallel_state.get_data_parallel_world_size()
    settings = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        # By default, Megatron's buckets hold a million weights for each data-parallel rank, and at
        # least 40 million. On 512 ranks, a model of up to 512 million weights would be one bucket,
        # so that summing over ranks could not overlap with the backward pass.
        bucket_size=bucket_weights(weights, over),
        use_distributed_optimizer=parallel.optimizer == "distributed",
        # A single rank sends nothing that could be overlapped.
        overlap_grad_reduce=parallel.overlap_gradients and dist.get_world_size() > 1,
    )
    return DistributedDataParallel(model.config, settings, model)


def micro_batches(
    ids: Tensor, labels: Tensor, objective: Objective, valid_counts: Tensor, size: int
) -> list[MicroBatch]:
    """Split the sequences of a rank, ids and labels (b, l·stride), into micro-batches of `size`
    sequences, and fold the ids into bags. `valid_counts`: as in `Targets`."""
    return [
        (objective.fold(some_ids), Targets(some_labels, valid_counts, objective))
        for some_ids, some_labels in zip(ids.split(size), labels.split(size), strict=True)
    ]


def forward_backward(model: DistributedDataParallel, micro_batches: Sequence[MicroBatch]) -> Tensor:
    """Add the gradients of all micro-batches to the model's buffers, and return this rank's summand
    of the step's loss."""
    total = torch.zeros((), device=micro_batches[0][0].device)
    for number, (bags, targets) in enumerate(micro_batches, start=1):
        # Gradients are complete only in the backward pass of the last micro-batch, so only this one
        # may begin to sum them over ranks.
        with model.no_sync() if number < len(micro_batches) else nullcontext():
            part = model(bags, targets)
            part.backward()
        total += part.detach()
    return total
