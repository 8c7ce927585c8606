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
    """Wrap a model in Megatron's data parallelism: gradients in float32 buffers, summed over
    micro-batches and ranks."""
    weights = sum(p.numel() for p in model.parameters())
    over = parallel_state.get_data_parallel_world_size()
    settings = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        # Megatron's own grows by a million a rank: one bucket at 512, and nothing overlaps.
        bucket_size=bucket_weights(weights, over),
        use_distributed_optimizer=parallel.optimizer == "distributed",
        # Alone, nothing is sent that could be overlapped.
        overlap_grad_reduce=parallel.overlap_gradients and dist.get_world_size() > 1,
    )
    return DistributedDataParallel(model.config, settings, model)


def micro_batches(
    ids: Tensor, labels: Tensor, objective: Objective, valid_counts: Tensor, size: int
) -> list[MicroBatch]:
    """A rank's sequences, ids and labels (b, l·stride), in bags and by `size`."""
    return [
        (objective.fold(some_ids), Targets(some_labels, valid_counts, objective))
        for some_ids, some_labels in zip(ids.split(size), labels.split(size), strict=True)
    ]


def forward_backward(model: DistributedDataParallel, micro_batches: Sequence[MicroBatch]) -> Tensor:
    """Gradients into the model's buffers; returns this rank's summand of the step's loss."""
    total = torch.zeros((), device=micro_batches[0][0].device)
    for number, (bags, targets) in enumerate(micro_batches, start=1):
        # Only the last one's backward pass may start to sum gradients over ranks.
        with model.no_sync() if number < len(micro_batches) else nullcontext():
            part = model(bags, targets)
            part.backward()
        total += part.detach()
    return total
