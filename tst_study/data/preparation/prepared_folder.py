"""Whether a folder holds a request's corpus already, or the beginning of it."""

import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tst_study.atomic_files import disk_errors_named, write_json
from tst_study.data.integrity import file_sha256, recorded_fingerprint
from tst_study.data.manifest import (
    MANIFEST,
    SPLITS,
    TOKENIZER,
    UNFINISHED,
    Manifest,
    read_manifest,
)
from tst_study.data.preparation.request import Job
from tst_study.errors import UserError
from tst_study.record.lock import EXCLUSIVE, take

OURS = {UNFINISHED, MANIFEST, TOKENIZER, *(f"{s}{e}" for s in SPLITS for e in (".bin", ".idx"))}


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other processes of this machine from preparing the folder, which is made, for as long
    as the block lasts; where one does so already, wait for its end, however it comes.

    Raises `UserError` where the folder is a file, or cannot be made or locked.
    """
    with disk_errors_named(folder):
        if not folder.is_dir():
            refuse_other_files(folder)
            folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    try:
        if not take(descriptor, folder, EXCLUSIVE):
            print(f"{folder}: another process prepares it; waiting for its end", file=sys.stderr)
            take(descriptor, folder, EXCLUSIVE, wait=True)
        yield
    finally:
        os.close(descriptor)


def finished(folder: Path, asked: dict[str, Any], jobs: Sequence[Job]) -> Manifest | None:
    """The manifest of an intact folder of the same request; None if there is work to do.

    Raises `UserError` where the folder is of another request, or a source has changed since.
    """
    if not (folder / MANIFEST).exists():
        return None
    manifest = read_manifest(folder)
    if manifest.request != asked:
        raise _other_request(folder, manifest.request, asked)
    # In the order of the jobs: files of several folders may have one name.
    recorded = {split: iter([r for r in manifest.sources if r.split == split]) for split in SPLITS}
    for split, source in jobs:
        record = next(recorded[split], None)
        if source.path is None or record is None:  # a stream, or beyond the limit
            continue
        if record.modified_ns != source.path.stat().st_mtime_ns and (
            record.sha256 != file_sha256(source.path)
        ):
            raise UserError(
                f"{folder}: was prepared from another version of {source.path}; choose another"
                " folder, or delete this one to prepare it again"
            )
    if manifest.tokenizer.fingerprint is not None and not (folder / TOKENIZER).exists():
        return None
    try:
        for split, of_split in manifest.splits.items():
            recorded_fingerprint(folder / split, of_split)
    except UserError:
        return None
    return manifest


def open_unfinished(folder: Path, asked: dict[str, Any], jobs: Sequence[Job]) -> Path:
    """The folder of finished shards of this request, new or from an interrupted call.

    Raises `UserError` where the folder holds something else, or cannot be written.
    """
    unfinished = folder / UNFINISHED
    stamps = [source.path and source.path.stat().st_mtime_ns for _, source in jobs]
    asked = {**asked, "modified_ns": stamps}
    path = unfinished / "request.json"
    with disk_errors_named(folder):
        if unfinished.exists():
            for left_by_a_killed_call in folder.glob(".*.tmp"):
                left_by_a_killed_call.unlink()
        if path.exists():
            begun = json.loads(path.read_bytes())
            if begun == asked:
                return unfinished
            if any(unfinished.glob("*.npz")):
                raise _other_request(unfinished, begun, asked)
        refuse_other_files(folder)
        if unfinished.exists():  # it failed before anything was finished, or was being deleted
            shutil.rmtree(unfinished)
        unfinished.mkdir(parents=True)
    write_json(path, asked)
    return unfinished


def refuse_other_files(folder: Path) -> None:
    """Raises `UserError` unless the folder is new, empty, or of a preparation."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is a file; choose a folder to prepare into")
    there = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if there - OURS or (there and not {UNFINISHED, MANIFEST} & there):
        one = min(there - OURS or there)
        raise UserError(
            f"{folder}: holds files that are not a prepared corpus ({one}, …); choose an empty or"
            " new folder"
        )


def _other_request(folder: Path, had: dict[str, Any], wants: dict[str, Any]) -> UserError:
    key = next(key for key in {**wants, **had} if had.get(key) != wants.get(key))
    return UserError(
        f"{folder}: belongs to another preparation ({key}: {_short(had.get(key))}, now"
        f" {_short(wants.get(key))}); choose another folder, or delete this one to prepare anew"
    )


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
