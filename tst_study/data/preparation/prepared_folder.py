"""Folders that hold a requested corpus, or the beginning of one."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tst_study.atomic_files import disk_errors_named, write_json
from tst_study.data.integrity import file_sha256
from tst_study.data.manifest import MANIFEST, UNFINISHED, Manifest, read_manifest
from tst_study.data.preparation.text_sources import Source
from tst_study.errors import UserError
from tst_study.file_lock import EXCLUSIVE, take
from tst_study.text import short


def prepared(
    folder: Path,
    asked: dict[str, Any],
    make: Callable[[Path], Manifest],
    sources: Sequence[Source] = (),
) -> Manifest:
    """Return the manifest of a folder that answers a request; make it first where it does not yet.

    `make` gets a folder for what it has finished. A call after a kill finds that folder again,
    unless a source has changed. The second of two calls at once waits for the end of the first.

    Raises `UserError` where the folder is a file, is of another request, was made from a source
    that has changed since, or cannot be written or locked.
    """
    with locked(folder):
        manifest = _finished(folder, asked, sources) or make(_unfinished(folder, asked, sources))
        shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
    return manifest


def begun(folder: Path, asked: dict[str, Any], sources: Sequence[Source]) -> Path | None:
    """Return the folder of what is finished, in which several calls work at once.

    None where the whole folder answers the request already. Raises `UserError` as `prepared` does.
    """
    with locked(folder):
        finished = _finished(folder, asked, sources)
        return None if finished else _unfinished(folder, asked, sources)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder, made if need be, against other preparations while the block lasts."""
    with disk_errors_named(folder):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    try:
        if not take(descriptor, folder, EXCLUSIVE):
            print(f"{folder}: another process prepares it; waiting for its end", file=sys.stderr)
            take(descriptor, folder, EXCLUSIVE, wait=True)
        yield
    finally:
        os.close(descriptor)


def _finished(folder: Path, asked: dict[str, Any], sources: Sequence[Source]) -> Manifest | None:
    """Return the manifest of a whole folder; None if there is work to do."""
    if not (folder / MANIFEST).exists():
        return None
    manifest = read_manifest(folder)
    if manifest.request != asked:
        raise _other_request(folder, manifest.request, asked)
    if asked.get("limit_bytes") is not None:  # a trial, which need not have read all sources
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
    """Return the folder of finished pieces, a new one or that of an interrupted call."""
    unfinished = folder / UNFINISHED
    asked = {**asked, "modified_ns": [source.record.modified_ns for source in sources]}
    path = unfinished / "request.json"
    with disk_errors_named(folder):
        if unfinished.exists():
            for temporary in folder.glob(".*.tmp"):  # of a killed call
                temporary.unlink()
        if path.exists():
            begun = json.loads(path.read_bytes())
            if begun == asked:
                return unfinished
            if any(unfinished.glob("*.npz")):
                raise _other_request(unfinished, begun, asked)
        if unfinished.exists():  # it failed before anything was finished, or was being deleted
            shutil.rmtree(unfinished)
        elif any(folder.iterdir()):
            raise UserError(f"{folder}: holds other files; choose an empty or new folder")
        unfinished.mkdir()
    write_json(path, asked)
    return unfinished


def _other_request(folder: Path, had: dict[str, Any], wants: dict[str, Any]) -> UserError:
    key = next(key for key in {**wants, **had} if had.get(key) != wants.get(key))
    return UserError(
        f"{folder}: belongs to another preparation ({key}: {short(had.get(key))}, now"
        f" {short(wants.get(key))}); choose another folder, or delete this one to prepare anew"
    )
