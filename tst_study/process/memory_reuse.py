"""Keep freed memory in the process, where the C library would give it back after every step."""

import ctypes

# Parameters of glibc's mallopt(3).
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
MEBIBYTE = 2**20


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
