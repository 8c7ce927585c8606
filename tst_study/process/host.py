"""The process and its machine: cores, GPUs, the allocator, signals that ask it to stop, and a quick
exit."""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

# Parameters of glibc's mallopt(3).
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
MEBIBYTE = 2**20
GPU_DRIVERS = "/dev/nvidiactl", "/dev/dxg", "/dev/kfd"
"""Device files of NVIDIA, of Windows Subsystem for Linux, and of AMD."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)


def cores() -> int:
    """Number of cores that this process may use, which may be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def has_gpu() -> bool:
    """Return True where torch can use a GPU. torch is imported only if there is a driver."""
    if not any(map(os.path.exists, GPU_DRIVERS)):
        return False
    import torch

    return torch.cuda.is_available()


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory, as a step allocates the same large tensors every time.

    By default glibc returns them to the kernel, and getting them back costs about 1,000 page faults
    a step: a tenth of the time in the laptop study. This has no effect on other C libraries.
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
    """A request to stop a running loop at its next step, made by a signal."""

    signal: str | None = None
    """The name of the signal that asked for a stop; None: none has."""

    def ask(self, number: int, frame: FrameType | None = None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt  # a second Ctrl-C does not wait for the checkpoint
        self.signal = signal.Signals(number).name


@contextmanager
def listening() -> Iterator[StopRequest]:
    """Yield a request that signals set while the block runs."""
    request = StopRequest()
    with signals_handled(request.ask):
        yield request


@contextmanager
def signals_handled(
    handle: Callable[[int, FrameType | None], None], signals: Iterable[signal.Signals] = SIGNALS
) -> Iterator[None]:
    """Call `handle` for signals that ask the process to stop, while the block runs. SIGHUP stays
    ignored if `nohup` has turned it off. Only the main thread can handle signals; in any other
    thread nothing changes."""
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
