"""Run a function on several processes that talk over gloo, as a distributed test needs.

    def sum_of_ranks() -> float:
        total = torch.tensor(float(dist.get_rank()))
        dist.all_reduce(total)
        return total.item()

    assert run_ranks(2, sum_of_ranks) == [1.0, 1.0]

The workers are forked from the test process, so that torch is imported once: about 0.4 s a call
where a torchrun takes more than ten. Closures and test-local functions work.
"""

from __future__ import annotations

import gc
import io
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any

import torch
import torch.distributed as dist


class WorkerError(Exception):
    """A worker failed; the message holds its rank and its traceback."""


def run_ranks(
    world_size: int, function: Callable[..., Any], *args: Any, timeout: float = 60.0
) -> list[Any]:
    """`function(*args)` on `world_size` ranks of a gloo group; their results in rank order.

    The function asks `torch.distributed` for its rank. Results travel through `torch.save`:
    tensors (detached, on the CPU), numbers, strings and containers of them.

    Raises:
        WorkerError: with the traceback of the first rank that failed, or the ranks that had not
            answered after `timeout` seconds. All workers have ended by then.
    """
    context = multiprocessing.get_context("fork")
    # A process group that is freed after the fork waits for threads that are not there.
    gc.collect()
    with tempfile.TemporaryDirectory() as folder:
        workers: list[ForkProcess] = []
        pending: dict[Connection, int] = {}
        for rank in range(world_size):
            receiver, sender = context.Pipe(duplex=False)
            worker = context.Process(
                target=_work,
                args=(rank, world_size, f"{folder}/store", sender, function, args),
                daemon=True,
            )
            worker.start()
            sender.close()  # so that a worker that dies is seen as the end of its pipe
            workers.append(worker)
            pending[receiver] = rank
        try:
            results = _collect(pending, time.monotonic() + timeout)
        finally:
            for worker in workers:
                worker.join(timeout=0.0 if pending else 5.0)
                if worker.is_alive():  # waits in a collective for a rank that failed
                    worker.kill()
                    worker.join()
    return [results[rank] for rank in range(world_size)]


def _collect(pending: dict[Connection, int], deadline: float) -> dict[int, Any]:
    """Receive from every pipe; what is left in `pending` afterwards did not end well."""
    results: dict[int, Any] = {}
    while pending:
        ready = wait(list(pending), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            raise WorkerError(f"no answer in time from ranks {sorted(pending.values())}")
        for pipe in ready:
            assert isinstance(pipe, Connection)
            try:
                succeeded, payload = pipe.recv()
            except EOFError:
                raise WorkerError(f"rank {pending[pipe]} ended without an answer") from None
            if not succeeded:
                raise WorkerError(f"rank {pending[pipe]} failed:\n{payload}")
            results[pending.pop(pipe)] = torch.load(io.BytesIO(payload), weights_only=False)
    return results


def _work(
    rank: int,
    world_size: int,
    store: str,
    sender: Connection,
    function: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    # OpenMP's threads do not survive a fork: a second one here would be waited for, for ever.
    torch.set_num_threads(1)
    gc.freeze()
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=world_size
        )
        payload = io.BytesIO()
        torch.save(function(*args), payload)
        sender.send((True, payload.getvalue()))
        dist.destroy_process_group()
    except BaseException:
        sender.send((False, traceback.format_exc()))
    finally:
        sender.close()
