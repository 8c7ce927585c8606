"""What the process asks of its machine: cores and GPUs to work with, memory that stays with it, and
an end."""

import ctypes
import os
import sys
from typing import NoReturn

# Parameters of glibc's mallopt(3).
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
MEBIBYTE = 2**20
GPU_DRIVERS = "/dev/nvidiactl", "/dev/dxg", "/dev/kfd"
"""Of NVIDIA, of Windows beneath Linux, of AMD."""


def cores() -> int:
    """Those that this process may use (not those of a node that a job has a part of)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def has_gpu() -> bool:
    """Whether torch can use a GPU; it is imported only where a driver is."""
    if not any(map(os.path.exists, GPU_DRIVERS)):
        return False
    import torch

    return torch.cuda.is_available()


def keep_freed_memory() -> None:
    """A step allocates the same few large tensors again and again.

    By default glibc returns them to the kernel, which hands them out page by page again: about
    1,000 page faults, a tenth of the time of a step of the laptop study. No effect on other C
    libraries.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(M_MMAP_THRESHOLD, 32 * MEBIBYTE)  # the largest that glibc accepts
    mallopt(M_TRIM_THRESHOLD, 2047 * MEBIBYTE)
    mallopt(M_TOP_PAD, 64 * MEBIBYTE)


def leave(status: int) -> NoReturn:
    """End the process without the interpreter's shutdown: threads of a library must not delay or
    fail what is over."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
