"""One at a time decides what of a study is queued, and what of it may be deleted."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAME = ".submit.lock"


@contextmanager
def the_only_submitter(root: Path) -> Iterator[int]:
    """Waits for whoever holds the study's lock; yields the lock's descriptor."""
    root.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(root / NAME, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)
