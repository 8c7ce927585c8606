"""Whether token files are what their manifest says: a sample at every start, all on demand."""

import hashlib
import os
import random
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tst_study.data.manifest import MANIFEST, TOKENIZER, Manifest, SplitRecord, read_manifest
from tst_study.data.token_file import (
    BLOCK_BYTES,
    ContentDigests,
    TokenFile,
    TokenWriter,
    bin_path,
    idx_path,
)
from tst_study.errors import UserError

BLOCKS_AT_A_START = 16
FINGERPRINT_PARTS, FINGERPRINT_PART_BYTES = 256, 16_384


def fingerprint(prefix: str | Path) -> str:
    """What tells a token file from another: a sha256 in milliseconds, also for terabytes.

    Of `.idx` and `.bin` each, the size and 256 parts of 16 KiB, evenly spaced from the first byte
    to the last, are hashed (everything, up to 4 MiB). Another text, order, tokenizer or split
    shifts what follows and so changes it; a few altered bytes between the parts would not. For
    those there are the digests in the manifest, which `check_sample` and `verify` look at.

    Raises `UserError` where a file of the pair cannot be read.
    """
    digest = hashlib.sha256()
    for path in (idx_path(prefix), bin_path(prefix)):
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                digest.update(size.to_bytes(8, "little"))
                if size <= FINGERPRINT_PARTS * FINGERPRINT_PART_BYTES:
                    digest.update(file.read())
                    continue
                for number in range(FINGERPRINT_PARTS):
                    file.seek((size - FINGERPRINT_PART_BYTES) * number // (FINGERPRINT_PARTS - 1))
                    digest.update(file.read(FINGERPRINT_PART_BYTES))
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    return digest.hexdigest()


def recorded_fingerprint(prefix: Path, record: SplitRecord | None) -> str:
    """`fingerprint`. Raises `UserError` where there is a record, and it says another one."""
    found = fingerprint(prefix)
    if record is not None and record.fingerprint != found:
        folder = prefix.parent
        raise UserError(
            f"{prefix}: is not what {folder / MANIFEST} describes; restore its .bin and .idx, or "
            f"delete {folder} and prepare it again"
        )
    return found


def file_sha256(path: Path) -> str:
    """sha256 of a whole file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def record_of(prefix: Path, writer: TokenWriter, text_bytes: int | None = None) -> SplitRecord:
    """What a manifest says of a token file that has just been written."""
    return SplitRecord(
        documents=writer.lengths.size,
        tokens=writer.token_count,
        text_bytes=text_bytes,
        dtype=str(writer.dtype),
        fingerprint=fingerprint(prefix),
        sha256=writer.digests.sha256,
        blocks=writer.digests.blocks,
    )


def is_intact(folder: Path, manifest: Manifest) -> bool:
    """Whether all token files are there and have the fingerprints of the manifest."""
    return all(
        idx_path(folder / split).exists()
        and bin_path(folder / split).exists()
        and fingerprint(folder / split) == record.fingerprint
        for split, record in manifest.splits.items()
    )


def check_sample(
    file: TokenFile, record: SplitRecord | None, vocabulary_size: int, sample: str
) -> None:
    """Compare some 64 MiB of a token file, so all of a small one, with its record.

    Args:
        record: of its manifest; without one only the ids are looked at.
        vocabulary_size: ids must be smaller.
        sample: which blocks; different texts pick different ones.

    Raises:
        UserError: bytes have changed, or an id lies outside the vocabulary.
    """
    chosen = random.Random(sample).sample(_blocks(file), min(len(_blocks(file)), BLOCKS_AT_A_START))
    crcs = record.block_crcs if record else None
    if record and crcs is None and len(chosen) == len(_blocks(file)):  # from before there were any
        digests = ContentDigests()
        digests.update(file.tokens)
        if digests.sha256 != record.sha256:
            raise _changed(bin_path(file.prefix))
    for number in sorted(chosen):
        _checked_block(file, number, crcs, vocabulary_size)


def _blocks(file: TokenFile) -> range:
    return range(-(-file.tokens.nbytes // BLOCK_BYTES))


def _checked_block(
    file: TokenFile, number: int, crcs: list[int] | None, vocabulary_size: int
) -> NDArray[Any]:
    ids_per_block = BLOCK_BYTES // file.dtype.itemsize
    first = number * ids_per_block
    ids = file.tokens[first : first + ids_per_block]
    if crcs is not None and crcs[number : number + 1] != [zlib.crc32(ids.data)]:
        place = f"what lies at bytes {number * BLOCK_BYTES:,} to {(number + 1) * BLOCK_BYTES:,} "
        raise _changed(bin_path(file.prefix), place)
    if ids.size and (ids.max() >= vocabulary_size or ids.min() < 0):
        at = int(np.argmax((ids >= vocabulary_size) | (ids < 0)))
        raise UserError(
            f"{bin_path(file.prefix)}: token {first + at:,} is {ids[at]}, outside the vocabulary "
            f"of {vocabulary_size}; another tokenizer made it, or the file is damaged: prepare it "
            "again"
        )
    return ids


def verify(folder: str | Path) -> Manifest:
    """Compare every byte of a prepared folder with its manifest.

    Raises `UserError` where a file is missing, has changed, or holds ids outside the vocabulary.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    for split, record in manifest.splits.items():
        file = TokenFile(folder / split)
        digests = ContentDigests()
        for number in _blocks(file):
            vocabulary = manifest.tokenizer.vocabulary_size
            digests.update(_checked_block(file, number, record.block_crcs, vocabulary))
        if digests.sha256 != record.sha256:
            raise _changed(bin_path(file.prefix))
        file.check_index()
        if (file.token_count, file.document_count) != (record.tokens, record.documents):
            raise UserError(
                f"{folder / MANIFEST}: {split}: says {record.tokens:,} tokens in "
                f"{record.documents:,} documents, there are {file.token_count:,} in "
                f"{file.document_count:,}; restore it, or delete {folder} and prepare it again"
            )
        if fingerprint(file.prefix) != record.fingerprint:
            raise _changed(idx_path(file.prefix))
    if manifest.tokenizer.fingerprint is not None:
        path = folder / TOKENIZER
        if not path.exists() or file_sha256(path) != manifest.tokenizer.fingerprint:
            raise _changed(path)
    return manifest


def _changed(path: Path, where: str = "") -> UserError:
    return UserError(
        f"{path}: {where}is not what {path.with_name(MANIFEST)} describes; restore the file, or "
        f"delete {path.parent} and prepare it again"
    )
