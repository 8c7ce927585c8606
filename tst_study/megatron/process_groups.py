"""torch.distributed and Megatron's process groups, alike for one process and for many."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.transformer.moe.moe_utils import get_moe_layer_wise_logging_tracker
from torch._C._distributed_c10d import HashStore

from tst_study.config import Execution, Parallel
from tst_study.errors import UserError


@dataclass(frozen=True)
class Ranks:
    """Where this process stands: which device, and which slice of the batch."""

    rank: int
    world_size: int
    data_rank: int
    data_size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sum_over_data(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over data-parallel ranks, in place; every rank gets it."""
        if self.data_size > 1:
            dist.all_reduce(tensor, group=parallel_state.get_data_parallel_group())
        return tensor

    def any(self, flag: bool) -> bool:
        """Whether it is true on any rank."""
        if self.world_size == 1:
            return flag
        flags = torch.tensor(int(flag), device=self.device)
        dist.all_reduce(flags, op=dist.ReduceOp.MAX)
        return bool(flags)

    def barrier(self) -> None:
        dist.barrier()


@contextmanager
def process_groups(execution: Execution) -> Iterator[Ranks]:
    """Set up the groups of `execution.parallel`, and take them down at the end.

    Ranks come from the environment (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT: what
    torchrun sets); without it, this process is the only one. A default process group that is there
    already is used and left alone.

    Raises `UserError` for a layout that does not divide the world, or a device that is not there.
    """
    device = choose_device(execution)
    mine = not dist.is_initialized()
    if mine:
        _join(device)
    try:
        _divide(execution.parallel, device)
        yield Ranks(
            rank=dist.get_rank(),
            world_size=dist.get_world_size(),
            data_rank=parallel_state.get_data_parallel_rank(),
            data_size=parallel_state.get_data_parallel_world_size(),
            device=device,
        )
    finally:
        parallel_state.destroy_model_parallel()
        # Megatron holds on to some groups; freed behind a fork, they would hang the process.
        parallel_state._INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP = None
        parallel_state._INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP_GLOO = None
        get_moe_layer_wise_logging_tracker().clear()
        if mine:
            dist.destroy_process_group()
            gc.collect()  # models are reference cycles that hold groups and so their threads


def _divide(parallel: Parallel, device: torch.device) -> None:
    """Divide the world into Megatron's groups."""
    world_size = dist.get_world_size()
    model_ranks = parallel.tensor * parallel.pipeline
    if world_size % model_ranks:
        raise UserError(
            f"execution.parallel: tensor · pipeline = {model_ranks} does not divide the "
            f"{world_size} processes; start a multiple of {model_ranks}"
        )
    if world_size // parallel.pipeline % parallel.expert:
        raise UserError(
            f"execution.parallel.expert = {parallel.expert} does not divide the "
            f"{world_size // parallel.pipeline} processes of a pipeline stage"
        )
    with _groups_shared_by_ranks() if device.type == "cpu" else nullcontext():
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=parallel.tensor,
            pipeline_model_parallel_size=parallel.pipeline,
            expert_model_parallel_size=parallel.expert,
            # gloo has no uneven all-gather over expert-tensor ranks, and with one expert rank
            # Megatron 0.16 gets expert gradients wrong unless expert and dense tensor sizes agree.
            expert_tensor_parallel_size=1 if parallel.expert > 1 else parallel.tensor,
            create_gloo_process_groups=False,  # second copies, which nothing here uses
        )


@contextmanager
def _groups_shared_by_ranks() -> Iterator[None]:
    """While it lasts, Megatron gets one and the same group wherever it asks for the same ranks.

    It makes some 20 groups, most of them of the same ranks. With gloo each has a thread that wakes
    a hundred times a second and two more, which a small model's training feels; nccl wants
    communicators of their own for what overlaps.
    """
    original = parallel_state.create_group
    groups = {tuple(range(dist.get_world_size())): dist.group.WORLD}

    def create_group(ranks: list[int], **settings: Any) -> Any:
        key = tuple(ranks)
        if key not in groups:
            groups[key] = original(ranks, **settings)
        return groups[key]

    parallel_state.create_group = create_group
    try:
        yield
    finally:
        parallel_state.create_group = original


def choose_device(execution: Execution) -> torch.device:
    there = torch.cuda.is_available()
    if execution.device == "cuda" and not there:
        raise UserError("execution.device = 'cuda': no GPU here; set it to 'cpu' or 'auto'")
    if execution.device == "cpu" or not there:
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    torch.cuda.set_device(device)
    return device


def _join(device: torch.device) -> None:
    backend = "nccl" if device.type == "cuda" else "gloo"
    timeout = timedelta(minutes=10)
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        dist.init_process_group(backend, timeout=timeout)
    else:
        # No port is opened: nothing can collide with the runs beside this one.
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1, timeout=timeout)
