"""Sets up torch.distributed and Megatron's process groups, in the same way for one process and for
many, and chooses the device and the layout of ranks of a launch."""

import gc
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from threading import Thread
from typing import Any, TypeVar

import psutil
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch._C._distributed_c10d import HashStore, TCPStore

from tst_study.config.schema import Config, Execution
from tst_study.cost.auto_layout import ChosenLayout, resolve
from tst_study.cost.parallel_layout import check, layout_of
from tst_study.errors import OtherRankError, UserError, first_line
from tst_study.model.megatron_patches import forget_groups, one_group_for_the_same_ranks, working_on
from tst_study.process.host import StopRequest
from tst_study.process.rank_environment import LOOPBACK, check_rank_variables, rank_variable

T = TypeVar("T")
SILENT_SECONDS = 2.0
"""Ranks that wait for others longer than this say so."""
AGENTS_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""The variable that torchrun sets if its own process hosts the store through which the ranks
meet."""


class StoppedError(Exception):
    """A signal has asked this process to stop while it waited for other ranks."""


@dataclass(frozen=True)
class Ranks:
    """The place of this process among all: its rank, its part of the batch, its device."""

    rank: int
    world_size: int
    data_rank: int
    """This process' number among the data-parallel ranks, which says which sequences of a batch it
    reads. Tensor ranks that share a part of the batch have the same number."""
    data_size: int
    """The number of data-parallel ranks."""
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes the run's record."""
        return self.rank == 0

    def sum_over_data(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over the data-parallel ranks, in place, and return it. Every rank gets the
        sum."""
        if self.data_size > 1:
            dist.all_reduce(tensor, group=parallel_state.get_data_parallel_group())
        return tensor

    def largest(self, numbers: list[int]) -> list[int]:
        """Return, for each place in the list, the largest number that any rank has there."""
        if self.world_size == 1:
            return numbers
        tensor = torch.tensor(numbers, dtype=torch.int64, device=self.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        largest: list[int] = tensor.tolist()
        return largest

    def from_first(self, read: Callable[[], T]) -> T:
        """Have the first rank call `read` and send the result to all ranks. A `UserError` in `read`
        is raised on all ranks."""
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
    """Wait until all ranks have called this. With NCCL the device is named, because NCCL would
    otherwise warn that it has to guess the device."""
    on_gpus = dist.get_backend() == "nccl"
    dist.barrier(device_ids=[torch.cuda.current_device()] if on_gpus else None)


@dataclass(frozen=True)
class Launch:
    """The settings with which this launch computes its steps; they are complete before the trainer
    is built."""

    config: Config
    """The run's config. Layout, micro-batch and recomputation are filled in if they were to be
    chosen automatically."""
    ranks: Ranks
    attention: str
    """The kernel of attention, a key of `layers.ATTENTION`."""
    why_layout: str
    """The reason for the layout, in words for the record."""

    @property
    def share(self) -> int:
        """The number of sequences of a step that this rank computes."""
        return self.config.batch.sequences // self.ranks.data_size

    @property
    def micro_batch(self) -> int:
        """The number of sequences of a micro-batch; by default the rank's whole share."""
        return self.config.execution.micro_batch or self.share

    @property
    def on_gpu(self) -> bool:
        """Whether this launch runs on GPUs."""
        return self.ranks.device.type == "cuda"

    @property
    def compiles(self) -> bool:
        """Whether the model's layers are compiled."""
        return self.config.execution.compiles(on_gpu=self.on_gpu)

    def record(self) -> dict[str, str]:
        """Return what was decided when the launch started, for its row in the run's record."""
        return {"layout_chosen": self.why_layout, "attention": self.attention}


@contextmanager
def process_groups(config: Config, stop: StopRequest | None = None) -> Iterator[Ranks]:
    """Set up the process groups of `execution.parallel`, and yield this process' place in them.

    First all ranks must have started; a line on stderr says which of them are awaited. `stop`: ends
    this wait by a `StoppedError`.

    The groups are taken down at the end of the block. If the block raises an exception on GPUs, the
    end of the process frees them instead.

    The variables that torchrun sets (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR,
    MASTER_PORT) say which rank this is. Without them, this process is the only one. If torch
    already has a default process group, it is used and not taken down.

    Raises `UserError` for a layout or batch that cannot work on these ranks, if ranks have
    different layouts, and as `choose_device` does; and `OtherRankError` if ranks do not start
    within `execution.timeout_seconds`.
    """
    device = choose_device(config.execution)
    joined = not dist.is_initialized()
    if joined:
        _join(device, timedelta(seconds=config.execution.timeout_seconds), stop)
    try:
        with working_on(device):
            parallel = layout_of(config)
            chosen: list[Any] = [None] * dist.get_world_size()
            of_layout = {"parallel", "micro_batch", "recompute"}
            dist.all_gather_object(chosen, config.execution.model_dump(include=of_layout))
            if any(one != chosen[0] for one in chosen):
                raise UserError(
                    "execution.parallel: ranks chose different layouts, as their nodes differ in "
                    "memory or number of ranks; name the layout, micro_batch and recompute"
                )
            check(config, dist.get_world_size())
            with one_group_for_the_same_ranks() if device.type == "cpu" else nullcontext():
                parallel_state.initialize_model_parallel(
                    tensor_model_parallel_size=parallel.tensor,
                    expert_model_parallel_size=parallel.expert,
                    expert_tensor_parallel_size=parallel.expert_tensor_ranks,
                    distributed_timeout_minutes=config.execution.timeout_seconds / 60,
                    create_gloo_process_groups=False,  # copies of groups that nothing here uses
                )
            # A rank whose groups are connected may be done, or fail, while a slower one still
            # connects to it; the slower one would then report a connection closed by its peer.
            barrier()
            yield Ranks(
                rank=dist.get_rank(),
                world_size=dist.get_world_size(),
                data_rank=parallel_state.get_data_parallel_rank(),
                data_size=parallel_state.get_data_parallel_world_size(),
                device=device,
            )
    except BaseException:
        # Taking down NCCL's groups would wait for other ranks, which may themselves wait for this
        # one in a collective. The exception ends this process, which frees the groups.
        joined = joined and device.type != "cuda"
        raise
    finally:
        forget_groups()
        if joined:
            dist.destroy_process_group()
            gc.collect()  # models, which are reference cycles, hold groups and thus their threads


def with_layout(config: Config) -> ChosenLayout:
    """Choose the layout, micro-batch and recomputation that a config leaves open, by the number and
    the memory of the ranks at hand. See `auto_layout.resolve`.

    Raises `UserError` as `choose_device` and `resolve` do.
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
    """Choose this rank's device. A GPU also becomes torch's current device. If the config asks for
    a CPU, CUDA is not even asked whether there is a GPU.

    Raises `UserError` if a GPU is asked for and there is none, or if ranks would have to share one.
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
    # Slurm may show each of its tasks only the task's own GPU, which then is number 0 in each.
    if gpus < ranks and not (gpus == 1 and "SLURM_PROCID" in os.environ):
        raise UserError(
            f"{ranks} ranks on this node, but GPUs: {gpus}; start as many ranks as there are "
            "GPUs, or set execution.device to 'cpu'"
        )
    device = torch.device("cuda", rank % gpus)
    torch.cuda.set_device(device)
    return device


def _join(device: torch.device, timeout: timedelta, stop: StopRequest | None = None) -> None:
    """Set up torch's default process group: NCCL on a GPU, gloo on a CPU."""
    settings: dict[str, Any] = {"backend": "gloo", "timeout": timeout}
    alone = rank_variable("WORLD_SIZE") == 1
    if device.type == "cuda":
        # Given `device_id`, NCCL makes the communicators of all groups at once: on 512 ranks there
        # are thousands, and most of them never send anything. So `device_id` is given only if a
        # rank is alone; without it, NCCL would then warn that it has to guess the device.
        settings |= {"backend": "nccl", "device_id": device if alone else None}
    if alone:
        # No port is opened, so that nothing can collide with other runs on this machine.
        settings |= {"store": HashStore(), "rank": 0, "world_size": 1}
    else:
        settings |= _meet(timeout, stop)
    dist.init_process_group(**settings)


def _meet(timeout: timedelta, stop: StopRequest | None) -> dict[str, Any]:
    """Wait until all ranks have started, and return settings with which they meet.

    What blocks runs in a thread, since Python handles signals in the main thread alone, and between
    two of its own instructions.
    """
    rank, ranks = check_rank_variables(), rank_variable("WORLD_SIZE")
    address, port = os.environ["MASTER_ADDR"], rank_variable("MASTER_PORT")
    wait = _Wait(f"{address}:{port}", timeout, stop)
    found: list[TCPStore | Exception] = []

    def connect() -> None:
        try:
            found.append(_store(address, port, rank, ranks, timeout))
        except Exception as error:
            found.append(error)

    Thread(target=connect, daemon=True).start()
    while not found:
        wait.goes_on("rank 0")
    if isinstance(found[0], Exception):
        here = f"{address}:{port}: rank {rank} cannot"
        what = "listen there" if rank == 0 else "reach rank 0 there"
        raise UserError(
            f"{here} {what} ({first_line(found[0])}); set MASTER_ADDR and MASTER_PORT to a free "
            "port of rank 0's machine"
        ) from None
    store = found[0]
    store.set(f"here/{rank}", "")
    store.add("here", 1)
    while store.add("here", 0) < ranks:
        missing = (str(other) for other in range(ranks) if not store.check([f"here/{other}"]))
        wait.goes_on(f"rank {', '.join(islice(missing, 8))}" if wait.speaks() else "")
    return {"store": store, "rank": rank, "world_size": ranks}


def _store(address: str, port: int, rank: int, ranks: int, timeout: timedelta) -> TCPStore:
    """Open the store through which ranks meet; rank 0 hosts it, unless torchrun does."""
    hosts, listening = rank == 0 and AGENTS_STORE not in os.environ, None
    if address == LOOPBACK and AGENTS_STORE not in os.environ:
        # torch's own store would listen on every network interface, and anyone who can reach it can
        # make the ranks load a pickle, which may run any code.
        loopback = "lo" if sys.platform == "linux" else "lo0"
        for library in ("GLOO", "NCCL"):
            os.environ.setdefault(f"{library}_SOCKET_IFNAME", loopback)
        listening = socket.create_server((LOOPBACK, port)).detach() if hosts else None
    return TCPStore(
        address, port, ranks, hosts, timeout, wait_for_workers=False, master_listen_fd=listening
    )


class _Wait:
    """The wait of a rank for others: it speaks once, ends when asked to, and gives up."""

    def __init__(self, place: str, timeout: timedelta, stop: StopRequest | None) -> None:
        self.place, self.seconds, self.stop = place, timeout.total_seconds(), stop
        self.began, self.since = time.monotonic(), time.strftime("%H:%M:%S")
        self.has_spoken = False

    def speaks(self) -> bool:
        """Return whether the next call of `goes_on` needs to know who is awaited."""
        waited = time.monotonic() - self.began
        return (waited > SILENT_SECONDS and not self.has_spoken) or waited > self.seconds

    def goes_on(self, awaited: str) -> None:
        """Wait for a moment. Raises `StoppedError` if a signal asked this process to stop, and
        `OtherRankError` if the time is over."""
        waited = time.monotonic() - self.began
        if self.stop is not None and self.stop.signal is not None:
            raise StoppedError(f"{self.stop.signal} while waiting for other ranks")
        if waited > self.seconds:
            raise OtherRankError(
                f"{awaited} did not come to {self.place} within {self.seconds:,.0f} s "
                "(execution.timeout_seconds)"
            )
        if self.speaks():
            self.has_spoken = True
            ours, all_ranks = rank_variable("RANK"), rank_variable("WORLD_SIZE")
            print(
                f"rank {ours} of {all_ranks} waits for {awaited} at {self.place} since "
                f"{self.since}, for at most {self.seconds:,.0f} s; to train in one process, unset "
                "WORLD_SIZE and RANK",
                file=sys.stderr,
                flush=True,
            )
        time.sleep(0.05 if waited < SILENT_SECONDS else 0.5)


@contextmanager
def other_ranks_failing(rank: int) -> Iterator[None]:
    """Turn an exception of torch.distributed within the block, or one that it has caused, into
    `OtherRankError`. Other exceptions pass unchanged. `rank`: this rank, for the message."""
    try:
        yield
    except (RuntimeError, UserError) as error:
        cause: BaseException | None = error
        while cause is not None and not _is_of_collectives(cause):
            cause = cause.__cause__
        if cause is None:
            raise
        # The first sentence of the cause, without the source line that torch puts before it, and
        # without the advice that follows.
        reason = re.sub(r"^\[[^]]*\] ", "", first_line(cause)).split(". ")[0]
        raise OtherRankError(
            f"rank {rank}: waited in vain for another rank, which has failed or hangs; read that "
            f"rank's message first (this one saw: {reason})"
        ) from error


def _is_of_collectives(error: BaseException) -> bool:
    """Return whether an exception comes from a collective operation of torch.distributed."""
    # The messages of UserError and OSError name files, and a folder may be called "gloo" or "NCCL".
    own = isinstance(error, UserError | OSError)
    named = any(library in str(error) for library in ("gloo", "NCCL"))
    return isinstance(error, dist.DistError) or (named and not own)
