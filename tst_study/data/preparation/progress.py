"""The progress bar of a preparation: how much of the sources is done."""

from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn


class PreparationProgress(Progress):
    """Counts bytes of sources, as they lie on disk, whose shards are under way or finished.

    Args:
        shown: whether to draw anything.
        sizes: bytes of each source, in reading order; None where unknown (streams), which makes
            the end unknown too.
    """

    def __init__(self, shown: bool, sizes: Sequence[int | None]) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not shown,
        )
        self._all, self._sizes = sizes, list(sizes)
        known = [size for size in sizes if size is not None]
        self._total = sum(known) if len(known) == len(sizes) else None
        self._done = 0
        self._bar = self.add_task("prepare", total=self._total)

    def begin_again(self) -> None:
        """All sources are read a second time."""
        self._sizes, self._done = list(self._all), 0

    def say(self, what: str) -> None:
        """Name what is going on."""
        self.update(self._bar, description=what)

    def read(self, record_bytes: int, bytes_read: int) -> None:
        """The reader has got another `record_bytes` and is `bytes_read` into its source."""
        if self._total is None:
            self._done, bytes_read = self._done + record_bytes, 0
        self.update(self._bar, completed=self._done + bytes_read)

    def source_done(self) -> None:
        """The reader is through with its source."""
        size = self._sizes.pop(0)
        if self._total is not None and size is not None:
            self._done += size
            self.update(self._bar, completed=self._done)
