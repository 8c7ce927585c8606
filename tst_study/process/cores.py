"""How many cores there are to work with."""

import os


def cores() -> int:
    """Those that this process may use (not those of a node that a job has a part of)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
