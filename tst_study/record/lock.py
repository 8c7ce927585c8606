"""One process per run: a lock on the run folder that dies with whoever holds it.

A study has one of the same kind (`experiments/launcher.py`).
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
    """Another live process trains or measures this run."""


def take(descriptor: int, path: Path, kind: int, *, wait: bool = False) -> bool:
    """Take a lock (`EXCLUSIVE` or `SHARED`) on the open file at `path`; False where another
    process is in the way, unless that is waited for. Raises `UserError` where the file system
    has no locks."""
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
    """Hold the run for as long as the block lasts. Raises `RunHeldError` where someone else does
    and has not let go of it after `seconds`, `UserError` where there are no locks.

    The kernel gives the lock up when the process ends, however it ends, so none is ever stale.
    """
    path = lock_path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        deadline = time.monotonic() + seconds
        while not take(descriptor, path, EXCLUSIVE):  # maybe of an onlooker, for an instant
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
    """Who holds this run at this moment; None where no one does."""
    if not is_held(folder):
        return None
    process, _, host = lock_path(folder).read_text().strip().partition(" on ")
    return Owner(int(process), host) if process.isdigit() else None


def is_held(folder: Path) -> bool:
    """Whether a live process trains or measures this run at this moment."""
    path = lock_path(folder)
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        # A shared lock, so that two onlookers never take each other for a holder.
        return not take(descriptor, path, SHARED)
    finally:
        os.close(descriptor)
