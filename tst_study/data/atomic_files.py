"""Files that appear whole or not at all."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from tst_study.errors import UserError


@contextmanager
def disk_errors_named(path: Path) -> Iterator[None]:
    """Turn a full disk or a forbidden folder met while writing `path` into a `UserError`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"{path}: the disk is full; free some space and run the same command again,"
                " what is finished is kept"
            ) from error
        if isinstance(error, PermissionError) or error.errno == errno.EROFS:
            raise UserError(
                f"{path}: cannot be written ({error.strerror}); choose another folder"
            ) from error
        raise


@contextmanager
def written_atomically(path: Path) -> Iterator[BinaryIO]:
    """Open a file beside `path` for writing and rename it to `path` when the block succeeds.

    Whatever goes wrong inside the block, the file that was at `path` before stays untouched and
    the temporary one is removed.

    Raises:
        UserError: the disk is full or the folder cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with disk_errors_named(path):
        try:
            with open(temporary, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
