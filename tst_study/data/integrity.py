"""Compares token files with their manifest: a sample of the ids at every start of a run, and all of
them for `tst-study data verify`. Also makes the records that a manifest holds."""

import hashlib
import os
import random
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tst_study.data.manifest import MANIFEST, TOKENIZER, Manifest, Split, SplitRecord, read_manifest
from tst_study.data.token_file import TokenFile, bin_path, idx_path
from tst_study.errors import UserError

BLOCK_BYTES = 1 << 22
"""Size of a block, that is, of the ids that one checksum in the manifest covers."""
BLOCKS_AT_A_START = 16
"""The number of blocks that the start of a run checks in each token file."""
FINGERPRINT_PARTS, FINGERPRINT_PART_BYTES = 256, 16_384
"""The number of parts of a file that a fingerprint covers, and the size of each."""


def fingerprint(prefix: str | Path) -> str:
    """Return the `sampled_sha256` of a token file's `.idx` and `.bin`.

    Another text, order of documents, tokenizer or split usually shifts all tokens behind the first
    difference, and so changes the fingerprint. A few altered ids between the sampled parts do not
    change it. `verify` finds these by the checksums in the manifest, and `check_sample` finds them
    if they lie in a block that it checks.

    Raises `UserError` if a file of the pair cannot be read.
    """
    return sampled_sha256([idx_path(prefix), bin_path(prefix)])


def sampled_sha256(paths: Iterable[Path]) -> str:
    """Hash a sample of files, which takes milliseconds even for terabytes.

    The hash covers the size of each file and 256 parts of 16 KiB, evenly spaced from the first byte
    to the last. A file of up to 4 MiB is hashed whole.

    Raises `UserError` if a file cannot be read.
    """
    digest = hashlib.sha256()
    for path in paths:
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


def recorded_fingerprint(split: Split) -> str:
    """Return the fingerprint of a split's token file. Raises `UserError` if it is not the one in
    the manifest."""
    if fingerprint(split.file.prefix) != split.record.fingerprint:
        raise _changed(split.file.prefix)
    return split.record.fingerprint


def file_sha256(path: Path) -> str:
    """Return the sha256 of a whole file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def record_of(
    prefix: Path,
    vocabulary_size: int,
    text_bytes: int | None = None,
    before: SplitRecord | None = None,
    **known: Any,
) -> SplitRecord:
    """Describe a token file, as it is on disk, for a manifest.

    Args:
        prefix: the path of the token file without `.bin` or `.idx`.
        text_bytes, known: fields of the record that cannot be read from the file.
        before: an earlier record, with whose checksums the blocks are compared.

    Raises:
        UserError: the file is damaged, an id lies outside the vocabulary, or a checksum differs
            from the one in `before`.
    """
    file = TokenFile(prefix)
    file.check_index()
    whole, crcs = hashlib.sha256(), []
    for number in _blocks(file):
        ids = _check_block(file, number, vocabulary_size, before)
        whole.update(ids.data)
        crcs.append(f"{zlib.crc32(ids.data):08x}")
    return SplitRecord(
        documents=file.document_count,
        tokens=file.token_count,
        text_bytes=text_bytes,
        dtype=str(file.dtype),
        fingerprint=fingerprint(prefix),
        sha256=whole.hexdigest(),
        blocks="".join(crcs),
        **known,
    )


def check_sample(split: Split, sample: str) -> None:
    """Compare a sample of up to 64 MiB of a token file's ids with its manifest. A file that is not
    larger is compared whole.

    `sample`: any text. It selects the blocks, so different texts usually check different ones.

    Raises `UserError` if ids have changed or lie outside the vocabulary.
    """
    blocks, words = _blocks(split.file), split.manifest.tokenizer.vocabulary_size
    chosen = random.Random(sample).sample(blocks, min(len(blocks), BLOCKS_AT_A_START))
    for number in sorted(chosen):
        _check_block(split.file, number, words, split.record)


def verify(folder: str | Path) -> Manifest:
    """Compare all ids of a prepared folder, its indexes and its tokenizer with its manifest, and
    return the manifest.

    Of an index (`.idx`) of more than 4 MiB, only the parts that the fingerprint covers are
    compared. In addition, all its lengths and offsets must agree with each other.

    Raises `UserError` if a file is missing, has changed, or holds ids outside the vocabulary, and
    if the manifest is missing, damaged or describes no token files.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    if not manifest.splits:
        raise UserError(f"{folder / MANIFEST}: describes no token files; restore it")
    for split, record in manifest.splits.items():
        there = record_of(folder / split, manifest.tokenizer.vocabulary_size, before=record)
        for name in ("sha256", "blocks", "fingerprint", "tokens", "documents", "dtype"):
            if getattr(there, name) != getattr(record, name):
                raise _changed(folder / split, f"its {name} ")
    if manifest.tokenizer.fingerprint and not (folder / TOKENIZER).exists():
        raise _changed(folder / TOKENIZER)
    check_tokenizer(folder, manifest)
    return manifest


def check_tokenizer(folder: Path, manifest: Manifest) -> None:
    """Raise `UserError` if the `tokenizer.json` in a folder is not the one in its manifest. It may
    be missing, since token files can be used without it."""
    path, expected = folder / TOKENIZER, manifest.tokenizer.fingerprint
    if expected and path.exists() and (path.is_dir() or file_sha256(path) != expected):
        raise _changed(path)


def _blocks(file: TokenFile) -> range:
    return range(-(-file.tokens.nbytes // BLOCK_BYTES))


def _check_block(
    file: TokenFile, number: int, vocabulary_size: int, record: SplitRecord | None = None
) -> NDArray[Any]:
    """Check that the ids of a block lie in the vocabulary and, if a record is given, that they have
    the checksum in it. Return the ids."""
    size = BLOCK_BYTES // file.dtype.itemsize
    ids = file.tokens[number * size : (number + 1) * size]
    if record and record.blocks[8 * number : 8 * number + 8] != f"{zlib.crc32(ids.data):08x}":
        first = file.header_bytes + number * BLOCK_BYTES
        place = f"what lies at bytes {first:,} to {first + BLOCK_BYTES:,} "
        raise _changed(bin_path(file.prefix), place)
    if ids.size and (ids.max() >= vocabulary_size or ids.min() < 0):
        at = int(np.argmax((ids >= vocabulary_size) | (ids < 0)))
        raise UserError(
            f"{bin_path(file.prefix)}: token {number * size + at:,} is {ids[at]}, outside the "
            f"vocabulary of {vocabulary_size}; another tokenizer made it, the ids follow a header "
            "(`data adopt --header-bytes`), or the file is damaged: prepare it again"
        )
    return ids


def _changed(path: Path, what: str = "") -> UserError:
    return UserError(
        f"{path}: {what}is not what {path.with_name(MANIFEST)} describes; restore the file, or "
        f"delete {path.parent} and prepare it again"
    )
