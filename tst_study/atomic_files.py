"""Writes a file whole or not at all, reads one against its schema, and turns an error of the disk
or of the content into a `UserError` of one line.

Used for every file that a reader, or the next start after a crash, must not find half-written.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

from tst_study.errors import UserError, first_problem

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a disk that is full, a quota that is used up, and a file that is too large."""
AWAY = (errno.EIO, errno.ENOENT, errno.ENOTCONN, errno.ESTALE, errno.ETIMEDOUT)
"""Error numbers of a file system whose server or network is down. A missing folder (ENOENT) counts,
because that is what an unmounted file system looks like."""
T = TypeVar("T")


class DiskAwayError(UserError):
    """A file system does not answer or has lost a folder. Trying again later may help."""


@contextmanager
def disk_errors_named(path: Path) -> Iterator[None]:
    """Turn any `OSError` in the block into a `UserError` that says that `path` cannot be written.

    It is a `DiskAwayError`, a subclass, for the error numbers in `AWAY`.
    """
    try:
        yield
    except OSError as error:
        kind = DiskAwayError if error.errno in AWAY else UserError
        remedy = "choose another place"
        if error.errno in FULL:
            remedy = "free some space and run the same command again"
        raise kind(f"{path}: cannot be written ({error.strerror}); {remedy}") from error


def insist(do: Callable[[], T], seconds: float, *passing: type[Exception]) -> T:
    """Call `do` once a second until it succeeds, and return its result.

    After an error of one of the types `passing` it is called again, until `seconds` have passed;
    then the error is raised. Other errors are raised at once.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return do()
        except passing:
            if time.monotonic() > deadline:
                raise
        time.sleep(1.0)


def folders_below(root: str | Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Walk as `os.walk` does, but also behind links: into each folder once, and by its own name
    where it has one below `root`. Hidden folders are left out."""
    places, seen = [str(root)], set[str]()
    for place in places:
        for folder, inner, files in os.walk(place):
            known = (real := os.path.realpath(folder)) in seen
            inner[:] = () if known else sorted(name for name in inner if name[0] != ".")
            if not known:
                seen.add(real)
                yield Path(folder), inner, files
            places += filter(os.path.islink, (os.path.join(folder, name) for name in inner))


def files_below(root: Path) -> list[Path]:
    """Return the files at any depth of a folder (`folders_below`), without hidden ones, in any
    order. Raises `UserError` for a link that leads nowhere."""
    inside = ((folder, name) for folder, _, files in folders_below(root) for name in files)
    paths = [folder / name for folder, name in inside if name[0] != "."]
    for path in paths:
        if path.is_symlink() and not path.exists():
            raise UserError(f"{path}: is a link that leads nowhere; mend or delete it")
    return [path for path in paths if path.is_file()]


@contextmanager
def written_atomically(path: Path) -> Iterator[BinaryIO]:
    """Open a file beside `path` for writing, and rename it to `path` when the block succeeds.

    If the block fails, the file that was at `path` stays as it was and the temporary one is
    removed. If `path` is a link, the file that it points to is written.

    Raises `UserError` if the file cannot be written (`disk_errors_named`), or if `path` is a
    folder, a pipe or a device, which a file must not replace.
    """
    with disk_errors_named(path):
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_file():
            raise UserError(f"{path}: is a folder, pipe or device; name an ordinary file")
        # The name cannot be guessed, and a link of this name would not be followed.
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
        try:
            with open(temporary, "xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write a value to a file as indented JSON, whole or not at all."""
    with written_atomically(path) as file:
        file.write((json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def content_of(path: Path, remedy: str = "restore it") -> bytes | None:
    """Return the content of a file, or None if there is none.

    Raises `UserError`, which ends with `remedy`, if it cannot be read, as a folder cannot. It is a
    `DiskAwayError` for the error numbers in `AWAY`.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        kind = DiskAwayError if error.errno in AWAY else UserError
        raise kind(f"{path}: cannot be read ({error.strerror}); {remedy}") from None


def read_json(path: Path, schema: TypeAdapter[T], remedy: str = "restore it") -> T | None:
    """Read a file that holds one JSON value, and check it against its schema; None if there is no
    such file. All state on disk is read by this function, or, if it is a log, line by line by
    `record.reader`.

    Raises `UserError`, which names the file and the first problem and ends with `remedy`.
    """
    content = content_of(path, remedy)
    try:
        return None if content is None else schema.validate_json(content)
    except ValueError as error:
        problem = first_problem(cast("ValidationError", error))
        raise UserError(f"{path}: is damaged ({problem}); {remedy}") from None
