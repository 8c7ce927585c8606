"""The progress bar of a preparation: how much of the sources is done."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn


class PreparationProgress:
    """Counts bytes of sources, as they lie on disk, whose shards are under way or finished.

    Args:
        shown: whether to draw anything.
        sizes: bytes of each source, in reading order; None where unknown (streams), which makes
            the end unknown too.
    """

    def __init__(self, shown: bool, sizes: Sequence[int | None]) -> None:
        known = [size for size in sizes if size is not None]
        self._sizes = list(sizes)
        self._total = sum(known) if len(known) == len(sizes) else None
        self._done = 0
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not shown,
        )
        self._task = self._bar.add_task("prepare", total=self._total)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def say(self, what: str) -> None:
        """Name what is going on."""
        self._bar.update(self._task, description=what)

    def read(self, record_bytes: int, bytes_read: int) -> None:
        """The reader is so far into its source."""
        if self._total is None:
            self._done += record_bytes
            self._bar.update(self._task, completed=self._done)
        else:
            self._bar.update(self._task, completed=self._done + bytes_read)

    def source_done(self) -> None:
        """The reader is through with its source."""
        size = self._sizes.pop(0)
        if self._total is not None and size is not None:
            self._done += size
            self._bar.update(self._task, completed=self._done)

    def tick(self) -> None:
        """A shard is finished."""
        self._bar.refresh()
