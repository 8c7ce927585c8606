"""torch.distributed and Megatron's process groups, alike for one process and for many."""

from __future__ import annotations

import gc
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import psutil
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch._C._distributed_c10d import HashStore, TCPStore

from tst_study.config.schema import Config, Execution
from tst_study.cost.auto_layout import Choice, resolve
from tst_study.cost.parallel_layout import check, layout_of
from tst_study.errors import OtherRankError, UserError, first_line
from tst_study.model.megatron_patches import (
    forget_groups,
    one_group_for_the_same_ranks,
    working_on,
)
from tst_study.process.rank_environment import LOOPBACK, rank_variable

T = TypeVar("T")
AGENTS_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""Set by torchrun where its own process hosts the store at which the ranks meet."""


@dataclass(frozen=True)
class Ranks:
    """The place of this process among all: its rank, its slice of the batch, its device."""

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

    def largest(self, numbers: list[int]) -> list[int]:
        """The largest value of each number over all ranks."""
        if self.world_size == 1:
            return numbers
        tensor = torch.tensor(numbers, dtype=torch.int64, device=self.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        largest: list[int] = tensor.tolist()
        return largest

    def from_first(self, read: Callable[[], T]) -> T:
        """Have the first rank read something and send it to all; a `UserError` there is raised on
        all ranks."""
        if self.world_size == 1:
            return read()
        sent: list[Any] = [None, None]
        if self.is_first:
            try:
                sent[0] = read()
            except UserError as error:
                sent[1] = error
        dist.broadcast_object_list(sent, src=0, device=self.device)
        if sent[1] is not None:
            raise sent[1]
        value: T = sent[0]
        return value


def barrier() -> None:
    """Wait until all ranks are here. NCCL warns that it has to guess the device, unless told."""
    on_gpus = dist.get_backend() == "nccl"
    dist.barrier(device_ids=[torch.cuda.current_device()] if on_gpus else None)


@dataclass(frozen=True)
class Launch:
    """The settings by which this launch computes its steps, made before the trainer is built."""

    config: Config
    """The run's config with layout, micro-batch and recomputation filled in."""
    ranks: Ranks
    attention: str
    why_layout: str

    @property
    def share(self) -> int:
        """Sequences of a step that this rank computes."""
        return self.config.batch.sequences // self.ranks.data_size

    @property
    def micro_batch(self) -> int:
        """Sequences of a micro-batch: by default the rank's whole share."""
        return self.config.execution.micro_batch or self.share

    @property
    def on_gpu(self) -> bool:
        return self.ranks.device.type == "cuda"

    @property
    def compiles(self) -> bool:
        return self.config.execution.compiles(on_gpu=self.on_gpu)

    def record(self) -> dict[str, str]:
        """Return what the launch has decided by itself, for the run's record."""
        return {"layout_chosen": self.why_layout, "attention": self.attention}


@contextmanager
def process_groups(config: Config) -> Iterator[Ranks]:
    """Set up the groups of `execution.parallel`, and yield this process' place in them. They are
    taken down at the end, on GPUs only if no exception is raised.

    Ranks come from the environment (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT: what
    torchrun sets); without it, this process is the only one. A default process group that is there
    already is used and left alone.

    Raises `UserError` for a layout or batch that cannot work on these ranks, or a device that is
    not there.
    """
    device = choose_device(config.execution)
    joined = not dist.is_initialized()
    if joined:
        _join(device, timedelta(seconds=config.execution.timeout_seconds))
    try:
        with working_on(device):
            check(config, dist.get_world_size())
            parallel = layout_of(config)
            with one_group_for_the_same_ranks() if device.type == "cpu" else nullcontext():
                parallel_state.initialize_model_parallel(
                    tensor_model_parallel_size=parallel.tensor,
                    expert_model_parallel_size=parallel.expert,
                    expert_tensor_parallel_size=parallel.expert_tensor_ranks,
                    distributed_timeout_minutes=config.execution.timeout_seconds / 60,
                    create_gloo_process_groups=False,  # second copies, which nothing here uses
                )
            yield Ranks(
                rank=dist.get_rank(),
                world_size=dist.get_world_size(),
                data_rank=parallel_state.get_data_parallel_rank(),
                data_size=parallel_state.get_data_parallel_world_size(),
                device=device,
            )
    except BaseException:
        # Taking down NCCL's groups would wait for ranks that wait for this one in a collective. The
        # end of this process, which its error brings about, frees them.
        joined = joined and device.type != "cuda"
        raise
    finally:
        forget_groups()
        if joined:
            dist.destroy_process_group()
            gc.collect()  # models are reference cycles that hold groups and so their threads


def with_layout(config: Config) -> Choice:
    """Resolve the config's layout for the ranks that are there: their number and device memory.

    Raises `UserError` as `choose_device`, or where no layout fits.
    """
    ranks = dist.get_world_size() if dist.is_initialized() else rank_variable("WORLD_SIZE")
    device = choose_device(config.execution)
    if device.type == "cuda":
        gpu = torch.cuda.get_device_properties(device)
        per_node = rank_variable("LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in os.environ else None
        memory, name = gpu.total_memory, gpu.name
        return resolve(config, ranks, memory, on_gpu=True, device=name, per_node=per_node)
    per_node = rank_variable("LOCAL_WORLD_SIZE", ranks)
    memory = psutil.virtual_memory().total // per_node
    return resolve(config, ranks, memory, on_gpu=False, per_node=per_node)


def choose_device(execution: Execution) -> torch.device:
    """Choose this rank's device; a GPU becomes torch's current device. A run on a CPU asks CUDA
    nothing.

    Raises `UserError` where a GPU is asked for and none is there, or ranks would have to share one.
    """
    gpus = torch.cuda.device_count() if execution.device != "cpu" else 0
    if not gpus:
        if execution.device == "cuda":
            raise UserError(
                "execution.device = 'cuda': no GPU here, or torch does not see it: look at the "
                "driver, at torch's build and at how a container is told of GPUs (--nv); to train "
                "on processors, say 'cpu'"
            )
        return torch.device("cpu")
    rank = rank_variable("LOCAL_RANK")
    ranks = rank_variable("LOCAL_WORLD_SIZE")
    # Slurm may show each of its tasks the one GPU that is the task's own, and call all of them 0.
    if gpus < ranks and not (gpus == 1 and "SLURM_PROCID" in os.environ):
        raise UserError(
            f"{ranks} ranks on this node, but GPUs: {gpus}; start as many ranks as there are "
            "GPUs, or set execution.device to 'cpu'"
        )
    device = torch.device("cuda", rank % gpus)
    torch.cuda.set_device(device)
    return device


def _join(device: torch.device, timeout: timedelta) -> None:
    settings: dict[str, Any] = {"backend": "gloo", "timeout": timeout}
    alone = rank_variable("WORLD_SIZE") == 1
    if device.type == "cuda":
        # Given `device_id`, NCCL makes the communicators of all groups at once: thousands of them
        # over 512 ranks, most of which send nothing. So only a single rank gives it, to whom NCCL
        # would otherwise warn that it has to guess the device.
        settings |= {"backend": "nccl", "device_id": device if alone else None}
    if alone:
        # No port is opened: nothing can collide with other runs on this machine.
        settings |= {"store": HashStore(), "rank": 0, "world_size": 1}
    elif os.environ.get("MASTER_ADDR") == LOOPBACK and AGENTS_STORE not in os.environ:
        settings |= _meet_on_loopback(timeout)
    dist.init_process_group(**settings)


def _meet_on_loopback(timeout: timedelta) -> dict[str, Any]:
    """Let ranks that are all on this machine listen on its loopback alone.

    torch's own store would listen on every interface, and anyone who reaches it can make ranks load
    a pickle.
    """
    loopback = "lo" if sys.platform == "linux" else "lo0"
    for library in ("GLOO", "NCCL"):
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", loopback)
    rank, ranks = rank_variable("RANK"), rank_variable("WORLD_SIZE")
    port = int(os.environ["MASTER_PORT"])
    listening = socket.create_server((LOOPBACK, port)).detach() if rank == 0 else None
    store = TCPStore(LOOPBACK, port, ranks, rank == 0, timeout, master_listen_fd=listening)
    return {"store": store, "rank": rank, "world_size": ranks}


@contextmanager
def other_ranks_failing(rank: int) -> Iterator[None]:
    """Turn an exception from torch.distributed, or one caused by it, into `OtherRankError`; others
    pass."""
    try:
        yield
    except (RuntimeError, UserError) as error:
        cause: BaseException | None = error
        while cause is not None and not _is_of_collectives(cause):
            cause = cause.__cause__
        if cause is None:
            raise
        # Its first sentence, without the source line that torch puts before it, and without advice.
        reason = re.sub(r"^\[[^]]*\] ", "", first_line(cause)).split(". ")[0]
        raise OtherRankError(
            f"rank {rank}: waited in vain for another rank, which has failed or hangs; what that "
            f"one said comes first ({reason})"
        ) from error


def _is_of_collectives(error: BaseException) -> bool:
    # UserError and OSError name files, and a folder may be called "gloo" or "NCCL".
    own = isinstance(error, UserError | OSError)
    named = any(library in str(error) for library in ("gloo", "NCCL"))
    return isinstance(error, dist.DistError) or (named and not own)
