"""Checkpoint files are written by the training process itself.

megatron.core 0.16 writes them in forked processes, also when the save is not asynchronous, and
collects their results through a manager in a spawned one. That takes seconds at the first save,
leaves an orphan when a launch is killed, and waits for ever when a writer is. From 0.17 on
it writes in threads, but still with the manager, and of an error it keeps the type alone.
"""

from __future__ import annotations

import queue
from typing import Any

from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync

from tst_study.configuration.megatron_version import WRITES_IN_THREADS, megatron_version


class _NothingToCount:
    """In the place of the queue by which a writing process says that it is over."""

    def get(self) -> None:
        pass

    def task_done(self) -> None:
        pass


def _write(
    transforms: list[Any], use_msc: bool, rank: int, buckets: list[Any], results: Any
) -> None:
    """Same contract as Megatron's: put results by bucket, or the exception, into `results`."""
    written: dict[int, Any] = {}
    for number, bucket in enumerate(buckets):
        outcome: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        FileSystemWriterAsync.write_preloaded_data(
            transforms, number, bucket, outcome, _NothingToCount(), use_fsync=True, use_msc=use_msc
        )
        _, items = outcome.get()
        if isinstance(items, Exception):
            results.put(items)
            return
        written[number] = items
    results.put(written)


def write_in_this_process() -> None:
    """Replace Megatron's writing processes or threads, for the whole program."""
    kind = "multithread" if megatron_version() >= WRITES_IN_THREADS else "multiproc"
    setattr(FileSystemWriterAsync, f"write_preloaded_data_{kind}", staticmethod(_write))
    filesystem_async._results_queue = queue.SimpleQueue()
