"""Megatron's data parallelism, with one pass less over all gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig

from tst_study.config import Parallel


class GradientBuffers(DistributedDataParallel):
    """Gradients in float32 buffers, summed over micro-batches and ranks.

    The stock class fills its buffers with zeros and adds every gradient to them. Here the first
    gradient of a step is written in their place; and in a process that is alone, from whose
    buffers nothing is sent, it stays where the backward pass has left it.
    """

    def __init__(self, model: torch.nn.Module, parallel: Parallel) -> None:
        self._written: set[Any] = set()
        settings = DistributedDataParallelConfig(
            grad_reduce_in_fp32=True,
            use_distributed_optimizer=parallel.optimizer == "distributed",
            overlap_grad_reduce=parallel.overlap_gradients,
        )
        super().__init__(model.config, settings, model)
        self._without_buffers = (
            dist.get_world_size() == 1
            and not (settings.use_distributed_optimizer or settings.overlap_grad_reduce)
            and all(parameter.dtype == torch.float32 for parameter in self.params_with_grad)
        )
        if self._without_buffers:
            for buffer in self.buffers + self.expert_parallel_buffers:
                buffer.grad_data.untyped_storage().resize_(0)
            for parameter in self.params_with_grad:
                parameter.main_grad = None  # until there is one

    def zero_grad_buffer(self) -> None:
        if self._without_buffers:
            for parameter in self._written:
                parameter.main_grad = None
        self._written.clear()
        for group in self.bucket_groups + self.expert_parallel_bucket_groups:
            group.reset()

    def fill_unwritten(self) -> None:
        """Zeros where a step brought no gradient; before gradients are summed over ranks."""
        for parameter in self.params_with_grad:
            if parameter in self._written:
                continue
            if self._without_buffers:
                parameter.main_grad = torch.zeros_like(parameter)
                self._written.add(parameter)
            else:
                parameter.main_grad.zero_()

    def _make_backward_post_hook(self, param: Any) -> Callable[..., None]:
        """Megatron's hook, called once a parameter's gradient has been accumulated."""

        def hook(*unused: Any) -> None:
            if param in self._written:
                param.main_grad.add_(param.grad)
            elif self._without_buffers:
                param.main_grad = param.grad
            else:
                param.main_grad.copy_(param.grad)
            self._written.add(param)
            param.grad = None
            if self.ddp_config.overlap_grad_reduce:
                self.param_to_bucket_group[param].register_grad_ready(param, self.force_all_reduce)

        return hook
