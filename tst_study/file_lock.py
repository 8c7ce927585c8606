"""The lock of a run folder, which one process holds while it trains or evaluates the run.

The kernel releases it when that process ends. Studies have a lock of the same kind
(`experiments/launcher.py`), and so has the preparation of a corpus.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tst_study.errors import UserError

EXCLUSIVE, SHARED = fcntl.LOCK_EX, fcntl.LOCK_SH


class RunHeldError(UserError):
    """Another process is training or evaluating this run."""


def take(descriptor: int, path: Path, kind: int, *, wait: bool = False) -> bool:
    """Take a lock (`EXCLUSIVE` or `SHARED`) on the open file at `path`, and return True; or False
    if another process has it and `wait` is not set. Raises `UserError` if the file system has no
    locks."""
    try:
        fcntl.flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise UserError(
            f"{path}: cannot be locked ({error.strerror}); mount its file system with locks "
            "(Lustre: -o flock), or choose a folder on another one"
        ) from None
    return True


def lock_path(folder: Path) -> Path:
    return folder / "job" / "lock"


@contextmanager
def hold(folder: Path, seconds: float = 0.2) -> Iterator[None]:
    """Hold the lock of a run while the block runs.

    The kernel releases the lock when the process ends, however it ends, so that a lock is never
    stale. Raises `RunHeldError` if another process still has it after `seconds`, and `UserError` if
    there are no locks.
    """
    path = lock_path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        deadline = time.monotonic() + seconds
        while not take(descriptor, path, EXCLUSIVE):  # `is_held` has it for an instant
            if time.monotonic() > deadline:
                owner = os.read(descriptor, 64).decode(errors="replace").strip() or "unknown"
                raise RunHeldError(
                    f"{folder}: process {owner} trains or measures this run; wait for it or stop it"
                )
            time.sleep(0.05)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()} on {os.uname().nodename}\n".encode())
        yield
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Owner:
    process: int
    host: str


def owner(folder: Path) -> Owner | None:
    """Return the process that holds this run's lock; None if there is none, or it has not written
    its id into the file yet."""
    if not is_held(folder):
        return None
    process, _, host = lock_path(folder).read_text().strip().partition(" on ")
    return Owner(int(process), host) if process.isdigit() else None


def is_held(folder: Path) -> bool:
    """Return whether a process is training or evaluating this run now.

    Raises `UserError` if the file system has no locks.
    """
    path = lock_path(folder)
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        # With a shared lock, two processes that ask at once do not mistake each other for holders.
        return not take(descriptor, path, SHARED)
    finally:
        os.close(descriptor)
