"""Micro-batches through the model, and their gradients into Megatron's buffers."""

from __future__ import annotations

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


def gradient_buffers(model: SuperposedGPT, parallel: Parallel) -> DistributedDataParallel:
    """Wrap a model in Megatron's data parallelism: gradients go into float32 buffers, and are
    summed over micro-batches and data-parallel ranks."""
    weights = sum(p.numel() for p in model.parameters())
    over = parallel_state.get_data_parallel_world_size()
    settings = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        # Megatron's default is a million weights for each rank, at least 40 million. With 512 ranks
        # a model of up to 512 million weights would be one bucket, and nothing would overlap.
        bucket_size=bucket_weights(weights, over),
        use_distributed_optimizer=parallel.optimizer == "distributed",
        # A single rank sends nothing that could be overlapped.
        overlap_grad_reduce=parallel.overlap_gradients and dist.get_world_size() > 1,
    )
    return DistributedDataParallel(model.config, settings, model)


def micro_batches(
    ids: Tensor, labels: Tensor, objective: Objective, valid_counts: Tensor, size: int
) -> list[MicroBatch]:
    """Split a rank's sequences, ids and labels (b, l·stride), into micro-batches of `size`
    sequences, the ids folded into bags. `valid_counts`: those of the whole step."""
    return [
        (objective.fold(some_ids), Targets(some_labels, valid_counts, objective))
        for some_ids, some_labels in zip(ids.split(size), labels.split(size), strict=True)
    ]


def forward_backward(model: DistributedDataParallel, micro_batches: Sequence[MicroBatch]) -> Tensor:
    """Add the gradients of all micro-batches to the model's buffers, and return this rank's summand
    of the step's loss."""
    total = torch.zeros((), device=micro_batches[0][0].device)
    for number, (bags, targets) in enumerate(micro_batches, start=1):
        # Only the backward pass of the last micro-batch may start to sum gradients over ranks.
        with model.no_sync() if number < len(micro_batches) else nullcontext():
            part = model(bags, targets)
            part.backward()
        total += part.detach()
    return total
