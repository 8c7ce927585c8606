"""The next step's batch, read by a thread while the device works on this one."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")


class ReadAhead(Generic[T]):
    """Calls `read(step)` in a thread, for each step as soon as the one before it is taken.

    An exception of `read` is raised when its step is asked for.
    """

    def __init__(
        self, read: Callable[[int], T], end: int, prepare: Callable[[], None] = lambda: None
    ) -> None:
        """`end`: the step before which to stop. `prepare`: is called first, in the thread."""
        self._read, self._end = read, end
        self._thread = ThreadPoolExecutor(1, "batches", initializer=prepare)
        self._begun: dict[int, Future[T]] = {}

    def __call__(self, step: int) -> T:
        begun = self._begun.pop(step, None) or self._thread.submit(self._read, step)
        if step + 1 < self._end:
            self._begun = {step + 1: self._thread.submit(self._read, step + 1)}
        return begun.result()

    def close(self) -> None:
        """Wait until the thread has ended, and drop what it has read ahead."""
        self._thread.shutdown(cancel_futures=True)
