"""Files that appear whole or not at all, and disks that refuse in one line."""

import errno
import json
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from tst_study.errors import UserError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What a disk without room for more says."""


@contextmanager
def disk_errors_named(path: Path) -> Iterator[None]:
    """Turn whatever the disk refuses while `path` is being written into a `UserError`."""
    try:
        yield
    except OSError as error:
        remedy = "choose another place"
        if error.errno in FULL:
            remedy = "free some space and run the same command again"
        raise UserError(f"{path}: cannot be written ({error.strerror}); {remedy}") from error


@contextmanager
def written_atomically(path: Path) -> Iterator[BinaryIO]:
    """Open a file beside `path` for writing and rename it to `path` when the block succeeds.

    Whatever goes wrong inside the block, the file that was at `path` before stays untouched and
    the temporary one is removed. Through a link the file that it points to is written.

    Raises `UserError` where the disk is full, or `path` cannot be a file there; a device, a pipe
    and a folder are not replaced by one.
    """
    with disk_errors_named(path):
        target = Path(os.path.realpath(path))
        if not _ordinary(target):
            raise UserError(f"{path}: is a folder, pipe or device; name an ordinary file")
        # Nobody can guess the name and put a link there, and a link there would not be followed.
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
    """Write a value as indented JSON, whole or not at all."""
    with written_atomically(path) as file:
        file.write((json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def _ordinary(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return True
