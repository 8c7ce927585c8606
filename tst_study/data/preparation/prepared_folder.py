"""The folder into which a corpus is prepared: whether it is complete, belongs to another request,
or holds the work of an interrupted call.

In this module a "request" is a dictionary of JSON values that determines the corpus. The manifest
of a complete folder records it.
"""

import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from tst_study.atomic_files import disk_errors_named, read_json, write_json
from tst_study.data.integrity import file_sha256
from tst_study.data.manifest import MANIFEST, UNFINISHED, Manifest, read_manifest
from tst_study.data.preparation.text_sources import Source
from tst_study.errors import UserError
from tst_study.file_lock import EXCLUSIVE, take
from tst_study.text import short

LOCK = ".lock"


def prepared(
    folder: Path,
    asked: dict[str, Any],
    make: Callable[[Path], Manifest],
    sources: Sequence[Source] = (),
) -> Manifest:
    """Return the manifest of the folder that was prepared for the request `asked`. If it has not
    been prepared yet, call `make` to do so.

    `make` is given a subfolder for the pieces that it has finished; if this call is killed, the
    next call finds them there. A call waits for another one that prepares the same folder.

    Raises `UserError` if `folder` is a file, holds something else or the corpus of another request,
    was made or begun from a source that has changed since, or cannot be written or locked.
    """
    with locked(folder):
        manifest = _finished(folder, asked, sources) or make(_unfinished(folder, asked, sources))
        shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
    return manifest


def begun(folder: Path, asked: dict[str, Any], sources: Sequence[Source]) -> Path | None:
    """Return the subfolder for finished pieces, in which several calls may work at the same time;
    None if the folder is already complete.

    Raises `UserError` as `prepared` does.
    """
    with locked(folder):
        finished = _finished(folder, asked, sources)
        return None if finished else _unfinished(folder, asked, sources)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make a folder if there is none, and keep other preparations out of it while the block runs;
    wait first until none is in it.

    The lock is on a file in it, because on NFS and Lustre the lock of a folder holds within one
    machine only. A folder that cannot be written is locked itself; only a complete one is of use
    then.
    """
    with disk_errors_named(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
            # Whoever may write in the folder may lock it. Only the file's owner can allow that.
            with suppress(PermissionError):
                os.fchmod(descriptor, folder.stat().st_mode & 0o666)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            descriptor = os.open(folder, os.O_RDONLY)
    try:
        if not take(descriptor, folder, EXCLUSIVE):
            print(f"{folder}: another process prepares it; waiting for its end", file=sys.stderr)
            take(descriptor, folder, EXCLUSIVE, wait=True)
        yield
    finally:
        os.close(descriptor)


def _finished(folder: Path, asked: dict[str, Any], sources: Sequence[Source]) -> Manifest | None:
    """Return the manifest of a complete folder; None if the folder is not complete. Raises
    `UserError` if it was prepared for another request, or a source has changed since."""
    if not (folder / MANIFEST).exists():
        return None
    manifest = read_manifest(folder)
    if other := _other_request(folder, manifest.request, asked):
        raise other
    if asked.get("limit_bytes") is not None:  # a trial may not have read all sources
        return manifest
    for source, record in zip(sources, manifest.sources, strict=True):
        touched = record.modified_ns != source.record.modified_ns
        if touched and source.path and record.sha256 != file_sha256(source.path):
            raise UserError(
                f"{folder}: was prepared from another version of {source.path}; choose another"
                " folder, or delete this one to prepare it again"
            )
    return manifest


def _unfinished(folder: Path, asked: dict[str, Any], sources: Sequence[Source]) -> Path:
    """Return the subfolder for finished pieces: that of an interrupted call for the same request,
    or a new one.

    Raises `UserError` if the subfolder holds pieces of another request or of sources that have
    changed since, or if there is none and the folder holds other files.
    """
    unfinished = folder / UNFINISHED
    asked = {**asked, "modified_ns": [source.record.modified_ns for source in sources]}
    path = unfinished / "request.json"
    with disk_errors_named(folder):
        if unfinished.exists():
            for temporary in folder.glob(".*.tmp"):  # left by a killed call
                temporary.unlink()
        remedy = f"delete {unfinished} and prepare the folder again"
        if (begun := read_json(path, TypeAdapter(dict[str, Any]), remedy)) is not None:
            if (other := _other_request(unfinished, begun, asked)) is None:
                return unfinished
            if any(unfinished.glob("*.npz")):
                raise other
        if unfinished.exists():  # without pieces: the call that made it ended early
            shutil.rmtree(unfinished)
        elif any(path.name != LOCK for path in folder.iterdir()):
            (folder / LOCK).unlink(missing_ok=True)
            raise UserError(f"{folder}: holds other files; choose an empty or new folder")
        unfinished.mkdir()
    write_json(path, asked)
    return unfinished


def _other_request(folder: Path, had: dict[str, Any], wants: dict[str, Any]) -> UserError | None:
    """Return why two requests differ; None if they do not. A key may be null or missing alike."""
    key = next((key for key in {**wants, **had} if had.get(key) != wants.get(key)), None)
    if key is None:
        return None
    return UserError(
        f"{folder}: belongs to another preparation ({key}: {short(had.get(key))}, now"
        f" {short(wants.get(key))}); choose another folder, or delete this one to prepare anew"
    )
