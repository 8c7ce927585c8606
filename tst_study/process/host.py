"""The process and its machine: cores, GPUs, the allocator, signals that ask it to stop, and a quick
exit."""

import ctypes
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

# The numbers by which glibc's mallopt(3) knows its parameters.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
MEBIBYTE = 2**20
GPU_DRIVERS = "/dev/nvidiactl", "/dev/dxg", "/dev/kfd"
"""Device files of GPU drivers: NVIDIA's, that of Windows Subsystem for Linux, and AMD's."""
CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")
"""A container's limit, with control groups of version 2: the microseconds of CPU time that it may
take in each period, or "max", and the length of the period."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
"""Signals that ask the process to stop: from `kill` or a scheduler, from Ctrl-C, or because the
terminal was closed (SIGHUP)."""


def signal_in_words(number: int) -> str:
    """Name a signal that ended a process, and the usual cause of SIGKILL."""
    cause = ", as when memory runs out: raise its limit, or train fewer runs or ranks at a time"
    return signal.Signals(number).name + cause * (number == signal.SIGKILL)


def cores() -> int:
    """Number of cores that this process may use: those of the machine, or fewer where its affinity
    or its container's limit of CPU time says so."""
    known = os.cpu_count() or 1
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else known
    with suppress(OSError, ValueError):
        quota, period = map(int, CPU_LIMIT.read_text().split())
        count = min(count, math.ceil(quota / period))
    return count


def has_gpu() -> bool:
    """Return whether torch can use a GPU. Importing torch is slow, so it is imported only if there
    is one of the device files `GPU_DRIVERS`."""
    if not any(map(os.path.exists, GPU_DRIVERS)):
        return False
    import torch

    return torch.cuda.is_available()


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory, because every step allocates the same large tensors again.

    By default glibc returns this memory to the kernel, and getting it back costs about 1,000 page
    faults a step, which took a tenth of the time in the laptop study. The call has no effect with
    other C libraries.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(M_MMAP_THRESHOLD, 32 * MEBIBYTE)  # the largest that glibc accepts
    mallopt(M_TRIM_THRESHOLD, 2047 * MEBIBYTE)
    mallopt(M_TOP_PAD, 64 * MEBIBYTE)


def leave(status: int) -> NoReturn:
    """End the process without the interpreter's shutdown, in which threads of a library could hang
    or fail."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


class StopRequest:
    """Remembers that a signal has asked a running loop to stop. The loop reads `signal` between its
    steps."""

    signal: str | None = None
    """The name of the last signal that asked for a stop; None if there was none."""

    def ask(self, number: int, frame: FrameType | None = None) -> None:
        """Handle the signal `number`: remember its name. Raises KeyboardInterrupt for Ctrl-C if a
        stop has been asked for before."""
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt  # a second Ctrl-C ends the run without a checkpoint
        self.signal = signal.Signals(number).name


@contextmanager
def listening() -> Iterator[StopRequest]:
    """Yield a `StopRequest` that remembers any of `SIGNALS` while the block runs."""
    request = StopRequest()
    with signals_handled(request.ask):
        yield request


@contextmanager
def signals_handled(
    handle: Callable[[int, FrameType | None], None], signals: Iterable[signal.Signals] = SIGNALS
) -> Iterator[None]:
    """Call `handle` for each of `signals` that arrives while the block runs; then restore the
    handlers from before.

    SIGHUP stays ignored if it was before, as under `nohup`. Python lets only the main thread set
    handlers; in any other thread the block runs and nothing else happens.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    handled = [number for number in signals if number != signal.SIGHUP or not ignored]
    before = {number: signal.signal(number, handle) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
