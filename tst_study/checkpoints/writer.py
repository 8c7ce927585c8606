"""Checkpoint files are written by the training process itself, in a thread if it trains on.

megatron.core 0.16 writes them in forked processes, also when the save is not asynchronous, and
collects their results through a manager in a spawned one. That takes seconds at the first save,
leaves an orphan when a launch is killed, and waits for ever when a writer is. From 0.17 on
it writes in threads, but still with the manager, and of an error it keeps the type alone.
A thread ends with its process, whatever ends that; ours takes part in no message between ranks.
"""

from __future__ import annotations

import inspect
import queue
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import tst_study.model  # noqa: F401  # before megatron.core, which it prepares

# isort: split
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.mapping import ShardedStateDict
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync

from tst_study.checkpoints.places import digests_of


def _write(
    transforms: list[Any], use_msc: bool, rank: int, buckets: list[Any], results: Any
) -> None:
    """Same contract as Megatron's: put results by bucket, or the exception, into `results`."""
    written: dict[int, Any] = {}
    for number, bucket in enumerate(buckets):
        outcome: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        at_work: queue.Queue[None] = queue.Queue()
        at_work.put(None)  # which is taken off at the end
        FileSystemWriterAsync.write_preloaded_data(
            transforms, number, bucket, outcome, at_work, use_fsync=True, use_msc=use_msc
        )
        _, items = outcome.get()
        if isinstance(items, Exception):
            results.put(items)
            return
        written[number] = items
    results.put(written)


def plan_save(state: ShardedStateDict, place: Path, strategy: Any) -> Any:
    """What each rank is to write into `place`, by Megatron's plan and its request; all ranks
    together. `strategy`: None for Megatron's own."""
    for kind in ("multiproc", "multithread"):  # before 0.17, and since
        setattr(FileSystemWriterAsync, f"write_preloaded_data_{kind}", staticmethod(_write))
    filesystem_async._results_queue = queue.SimpleQueue()  # a save before may have been given up
    named: dict[str, Any] = {"validate_access_integrity": False, "async_sharded_save": True}
    if "async_strategy" in inspect.signature(dist_checkpointing.save).parameters:
        named["async_strategy"] = "mcore"  # the other one is a package of its own
    return dist_checkpointing.save(state, str(place), strategy, **named)


class FilesBeingWritten:
    """This rank's files of one checkpoint, on their way to the disk."""

    def __init__(self, plan: Any, place: Path, *, while_training: bool) -> None:
        """Of what `plan_save` has planned for `place`. `while_training`: a thread writes a copy,
        since the next step changes the state where it lies; else `finish` writes."""
        self._plan, self._place = plan, place
        self._thread: Future[dict[str, str]] | None = None
        if plan.async_fn is not None:  # else this rank has nothing to write
            buckets = plan.async_fn_args[1]
            # In place: the plan holds on to this list, and would hold a GPU's memory with it.
            buckets[:] = _copied(buckets) if while_training else plan.preload_fn()
        if while_training:
            threads = ThreadPoolExecutor(1, "checkpoint")
            self._thread = threads.submit(self._write_all)
            threads.shutdown(wait=False)  # which ends with its work

    @property
    def done(self) -> bool:
        """Whether no thread writes any more."""
        return self._thread is None or self._thread.done()

    def wait(self) -> None:
        """For the thread, whatever became of its files."""
        wait([self._thread] if self._thread else [])

    def finish(self) -> dict[str, str]:
        """Once they are written, describe those of all ranks, together with them.

        Returns the digests of this rank's files. Raises what writing has raised, on all ranks.
        """
        digests = self._thread.result() if self._thread else self._write_all()
        for finalize in self._plan.finalize_fns:
            finalize()
        return digests

    def _write_all(self) -> dict[str, str]:
        if self._plan.async_fn is not None:
            self._plan.async_fn(*self._plan.async_fn_args)
        names = [path.name for path in self._place.glob(f"__{dist.get_rank()}_*")]
        return digests_of(self._place, names)


def _copied(buckets: list[Any]) -> list[Any]:
    """Buckets of (file, name, (objects, tensors)), the tensors copied into the host's memory."""
    copies = [
        (
            *file_and_name,
            (objects, [(item, x.to("cpu", copy=True, non_blocking=True)) for item, x in tensors]),
        )
        for *file_and_name, (objects, tensors) in buckets
    ]
    torch.cuda.synchronize()
    return copies
