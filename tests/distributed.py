"""Run a function on several processes that talk over gloo, as a distributed test needs.

    def sum_of_ranks() -> float:
        total = torch.tensor(float(dist.get_rank()))
        dist.all_reduce(total)
        return total.item()

    assert run_ranks(2, sum_of_ranks) == [1.0, 1.0]

The workers are forked from the test process, so that torch is imported once: about 0.4 s a call
where a torchrun takes more than ten. Closures and test-local functions work.
"""

import gc
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

HANG_SECONDS = 3600.0
"""Where ranks hang, a test fails after this time, whatever the load of the machine."""


def run_ranks(world_size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """`function(*args)` on `world_size` ranks of a gloo group; their results in rank order.

    The function asks `torch.distributed` for its rank. Results travel through `torch.save`:
    tensors (detached, on the CPU), numbers, strings and containers of them.

    Raises:
        torch.multiprocessing.ProcessRaisedException: with the traceback of the first rank that
            failed; ProcessExitedException where it has none.
        TimeoutError: some ranks did not end in `HANG_SECONDS`. All have ended by then.
    """
    # A process group that is freed after the fork waits for threads that are not there.
    gc.collect()
    with tempfile.TemporaryDirectory() as folder:
        work = (world_size, folder, function, args)
        context = start_processes(_work, work, world_size, False, True, "fork")
        deadline = time.monotonic() + HANG_SECONDS
        try:
            while not context.join(max(0.0, deadline - time.monotonic()), grace_period=0.5):
                if time.monotonic() >= deadline:
                    raise TimeoutError(f"{len(context.sentinels)} ranks without an answer in time")
        finally:
            for process in context.processes:
                process.kill()
                process.join()
        return [torch.load(f"{folder}/{rank}", weights_only=False) for rank in range(world_size)]


def _work(
    rank: int, world_size: int, folder: str, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    # OpenMP's threads do not survive a fork: a second one here would be waited for, for ever.
    torch.set_num_threads(1)
    gc.freeze()
    os.environ["OMP_NUM_THREADS"] = "1"
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
    torch.save(function(*args), f"{folder}/{rank}")
    # A rank that leaves closes its connections, even one that a slower rank is about to make.
    dist.barrier()
    dist.destroy_process_group()
