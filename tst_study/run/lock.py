"""One process per run: a lock on the run folder that dies with whoever holds it."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tst_study.errors import UserError


class RunHeldError(UserError):
    """Another live process trains this run."""


def lock_path(folder: Path) -> Path:
    return folder / "job" / "lock"


@contextmanager
def hold(folder: Path, seconds: float = 0.2) -> Iterator[None]:
    """Hold the run for as long as the block lasts. Raises `RunHeldError` where someone else does
    and has not let go of it after `seconds`.

    The kernel gives the lock up when the process ends, however it ends, so none is ever stale.
    """
    path = lock_path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if not _taken(descriptor, seconds):
            owner = os.read(descriptor, 64).decode(errors="replace").strip() or "unknown"
            raise RunHeldError(
                f"{folder}: process {owner} trains this run already; wait for it or stop it"
            )
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
    """Who trains this run at this moment; None where no one does."""
    if not is_held(folder):
        return None
    process, _, host = lock_path(folder).read_text().strip().partition(" on ")
    return Owner(int(process), host) if process.isdigit() else None


def _taken(descriptor: int, seconds: float) -> bool:
    """Take the lock; an onlooker of `is_held` may be in the way for an instant at least."""
    deadline = time.monotonic() + seconds
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)


def is_held(folder: Path) -> bool:
    """Whether a live process trains this run at this moment."""
    try:
        descriptor = os.open(lock_path(folder), os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        # A shared lock, so that two onlookers never take each other for a holder.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
