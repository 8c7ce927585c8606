"""The lock of a run folder, which one process holds while it trains or evaluates the run.

The kernel releases it when that process ends. With `take`, the launcher of studies
(`experiments/launcher.py`) and the preparation of corpora lock their own files in the same way.
"""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tst_study.errors import UserError

EXCLUSIVE, SHARED = fcntl.LOCK_EX, fcntl.LOCK_SH
"""The kinds of lock. While one process has an exclusive lock on a file, no other process has any
lock on it; several processes can have shared locks on it at the same time."""


class RunHeldError(UserError):
    """Another process is training or evaluating this run."""


def take(descriptor: int, path: Path, kind: int, *, wait: bool = False) -> bool:
    """Take a lock on an open file. Return True when this process has it, and False if a lock of
    another process prevents it.

    `descriptor`: of the open file. `path`: its name for error messages. `kind`: `EXCLUSIVE` or
    `SHARED`. `wait`: wait until the lock is free instead of returning False.

    Raises `UserError` if the file system has no locks, and `OSError` if it fails otherwise.
    """
    try:
        fcntl.flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL):
            error.filename = str(path)
            raise
        raise UserError(
            f"{path}: cannot be locked ({error.strerror}); mount its file system with locks "
            "(Lustre: -o flock), or choose a folder on another one"
        ) from None
    return True


def lock_path(folder: Path) -> Path:
    """Return the path of a run's lock file, whose content names the process that holds it."""
    return folder / "job" / "lock"


@contextmanager
def hold(folder: Path, seconds: float = 0.2) -> Iterator[None]:
    """Hold the lock of a run while the block runs.

    The kernel releases the lock when the process ends, however it ends, so a lock is never stale.
    Raises `RunHeldError` if another process still has it after `seconds`, and `UserError` if the
    file system has no locks.
    """
    path = lock_path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        deadline = time.monotonic() + seconds
        # Several attempts are made, because `is_held` in another process takes the lock for an
        # instant.
        while not take(descriptor, path, EXCLUSIVE):
            if time.monotonic() > deadline:
                owner = os.read(descriptor, 64).decode(errors="replace").strip() or "unknown"
                raise RunHeldError(
                    f"{folder}: process {owner} trains or measures this run; wait for it or stop it"
                )
            time.sleep(0.05)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()} on {os.uname().nodename}\n".encode())
        try:
            yield
        finally:
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def owner(folder: Path) -> int | None:
    """Return the id of the process on this machine that holds the lock of a run; None if there
    is none, or if it has not written its id into the file yet. Raises `UserError` as `is_held`
    does."""
    path = lock_path(folder)
    with suppress(OSError):
        process, _, host = path.read_text().strip().partition(" on ")
        here = is_held(folder) and process.isdigit() and host == os.uname().nodename
        # The file may still name a holder that was killed, whose id may be another process's now.
        if here and any(file.samefile(path) for file in Path(f"/proc/{process}/fd").iterdir()):
            return int(process)
    return None


def is_held(folder: Path) -> bool:
    """Return whether a process holds the lock of this run, that is, trains or evaluates it now.

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
