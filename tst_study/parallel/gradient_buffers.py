"""Megatron's data parallelism, with one pass less over all gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.distributed.param_and_grad_buffer import dist_all_gather_func, shard_buffer

from tst_study.config.schema import Parallel
from tst_study.cost.parallel_layout import bucket_weights
from tst_study.model.model import SuperposedGPT


class _Gathered:
    """Weights on their way, bucket by bucket.

    Megatron's own is coalesced, and several coalesced gathers at a time corrupt the heap in gloo
    (torch 2.13; a short script without Megatron and this package shows it).
    """

    def __init__(self, buckets: Iterable[Any], group: dist.ProcessGroup) -> None:
        self._on_their_way = []
        for bucket in buckets:
            own = shard_buffer(bucket.param_data, group.size())[group.rank()]
            gather = dist_all_gather_func(bucket.param_data, own, group=group, async_op=True)
            self._on_their_way.append(gather)

    def wait(self) -> None:
        for gather in self._on_their_way:
            gather.wait()


class GradientBuffers(DistributedDataParallel):
    """Gradients in float32 buffers, summed over micro-batches and ranks.

    The stock class fills its buffers with zeros and adds every gradient to them. Here the first
    gradient of a step is written in their place.
    """

    def __init__(self, model: SuperposedGPT, parallel: Parallel) -> None:
        self._written: set[Any] = set()
        several = dist.get_world_size() > 1  # alone, nothing is sent that could be overlapped
        weights = sum(p.numel() for p in model.parameters())
        over = parallel_state.get_data_parallel_world_size()
        settings = DistributedDataParallelConfig(
            grad_reduce_in_fp32=True,
            # Megatron's own grows by a million a rank: one bucket at 512, and nothing overlaps.
            bucket_size=bucket_weights(weights, over),
            use_distributed_optimizer=parallel.optimizer == "distributed",
            overlap_grad_reduce=several and parallel.overlap_gradients,
        )
        super().__init__(model.config, settings, model)
        if several and parallel.overlap_weights:
            # Only now: from the start, it would have registered Megatron's hooks.
            settings.overlap_param_gather = True
            self._await_on_the_way(model)

    def _await_on_the_way(self, model: SuperposedGPT) -> None:
        *layers, last = model.decoder.layers
        for layer in layers:
            layer.await_weights = partial(self.await_weights, list(layer.parameters()))
        last.await_weights = self.await_weights
        if model.pre_process:
            model.await_weights = partial(self.await_weights, list(model.embedding.parameters()))

    def start_param_sync(self, *unused: Any, **also_unused: Any) -> None:
        """Send new weights to the ranks that do not have them; where that is overlapped, a part of
        the model is not to be read before `await_weights`."""
        # Buckets are filled from the model's end, and a forward pass reads its beginning first.
        for group in reversed(self.bucket_groups + self.expert_parallel_bucket_groups):
            over = group.intra_distributed_optimizer_instance_group
            if self.ddp_config.overlap_param_gather and dist.get_backend(over) == "gloo":
                group.param_gather_handle = _Gathered(group.buckets, over)
                group.param_gather_dispatched = True
            else:
                group.start_param_sync()

    def await_weights(self, parameters: Iterable[torch.Tensor] | None = None) -> None:
        """Wait until these parameters, by default all, have their new weights."""
        wanted = self.param_to_bucket_group if parameters is None else parameters
        for group in {self.param_to_bucket_group[parameter]: None for parameter in wanted}:
            if group.param_gather_handle is not None:
                group.finish_param_sync(skip_next_bucket_dispatch=True)

    def zero_grad_buffer(self) -> None:
        self._written.clear()
        for group in self.bucket_groups + self.expert_parallel_bucket_groups:
            group.reset()

    def fill_unwritten(self) -> None:
        """Fill in zeros where a step brought no gradient, before ranks sum their gradients."""
        for parameter in self.params_with_grad:
            if parameter not in self._written:
                parameter.main_grad.zero_()

    def _make_backward_post_hook(self, param: Any) -> Callable[..., None]:
        """Megatron's hook, called once a parameter's gradient has been accumulated."""

        def hook(*unused: Any) -> None:
            if param in self._written:
                param.main_grad.add_(param.grad)
            else:
                param.main_grad.copy_(param.grad)
            self._written.add(param)
            param.grad = None
            if self.ddp_config.overlap_grad_reduce:
                self.param_to_bucket_group[param].register_grad_ready(param, self.force_all_reduce)

        return hook
