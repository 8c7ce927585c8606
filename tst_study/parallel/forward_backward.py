"""Micro-batches through the model: alone, or over pipeline stages by Megatron's 1F1B schedule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel
from megatron.core.pipeline_parallel.schedules import (
    forward_backward_pipelining_without_interleaving,
)
from torch import Tensor

from tst_study.model.megatron_patches import cuda_means_cpu
from tst_study.model.model import SuperposedGPT, Targets
from tst_study.superposition.steps import Objective

MicroBatch = tuple[Tensor, Targets]


def micro_batches(
    ids: Tensor, labels: Tensor, objective: Objective, valid_counts: Tensor, size: int
) -> list[MicroBatch]:
    """A rank's sequences, ids and labels (b, l·stride), in bags and by `size`."""
    return [
        (objective.fold(some_ids), Targets(some_labels, valid_counts, objective))
        for some_ids, some_labels in zip(ids.split(size), labels.split(size), strict=True)
    ]


def forward_backward(model: DistributedDataParallel, micro_batches: Sequence[MicroBatch]) -> Tensor:
    """Gradients into the model's buffers; returns this rank's summand of the step's loss.

    On a pipeline stage that is not the last the summand is zero.
    """
    if parallel_state.get_pipeline_model_parallel_world_size() > 1:
        return _pipelined(model, micro_batches)
    total = torch.zeros((), device=micro_batches[0][0].device)
    for number, (bags, targets) in enumerate(micro_batches, start=1):
        # Only the last one's backward pass may start to sum gradients over ranks.
        with model.no_sync() if number < len(micro_batches) else nullcontext():
            part = model(bags, targets)
            part.backward()
        total += part.detach()
    return total


def _pipelined(model: DistributedDataParallel, micro_batches: Sequence[MicroBatch]) -> Tensor:
    def forward_step(batches: Iterable[MicroBatch], model: Any) -> tuple[Tensor, Any]:
        bags, targets = next(iter(batches))
        return model(bags, targets), _summand

    bags = micro_batches[0][0]
    with cuda_means_cpu():
        parts = forward_backward_pipelining_without_interleaving(
            forward_step_func=forward_step,
            data_iterator=iter(micro_batches),
            model=model,
            num_microbatches=len(micro_batches),
            seq_length=bags.shape[1],
            micro_batch_size=bags.shape[0],
        )
    return sum(parts, torch.zeros((), device=bags.device))


def _summand(loss: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Loss to differentiate, tokens to divide by (none: it is a summand already), loss to keep."""
    return loss, torch.zeros((), dtype=torch.int, device=loss.device), loss.detach().clone()


@torch.no_grad()
def next_token_losses(model: SuperposedGPT, ids: Tensor, labels: Tensor) -> Tensor:
    """(b, l) token ids and labels -> (b, l) losses in nats, 0 where a label is negative.

    On a pipeline stage that is not the last: zeros.
    """
    if parallel_state.get_pipeline_model_parallel_world_size() == 1:
        return model.next_token_losses(ids, labels)

    def forward_step(_: None, model: SuperposedGPT) -> tuple[Tensor, Any]:
        return model.next_token_losses(ids, labels), lambda losses, non_loss_data: losses

    with cuda_means_cpu():
        losses = forward_backward_pipelining_without_interleaving(
            forward_step_func=forward_step,
            data_iterator=None,
            model=model,
            num_microbatches=1,
            seq_length=ids.shape[1],
            micro_batch_size=ids.shape[0],
            forward_only=True,
            collect_non_loss_data=True,
        )
    return losses[0] if losses else torch.zeros(ids.shape, device=ids.device)
