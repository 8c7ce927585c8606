"""The unit of work of a preparation: some megabytes of documents, tokenised into one file.

Cutting depends on the text alone, never on workers or time; so shards finished before an
interruption are the ones that an uninterrupted preparation would have made.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tst_study.atomic_files import written_atomically
from tst_study.data.manifest import SPLITS
from tst_study.data.preparation.text_sources import Source, text_of_record
from tst_study.data.preparation.text_tokenizers import Tokenizer
from tst_study.data.token_file import dtype_for_vocabulary

SHARD_BYTES = 4 << 20


@dataclass(frozen=True)
class Work:
    """Records of one source, to become one shard."""

    path: Path
    source: Source
    first_record: int
    records: tuple[bytes, ...]
    text_field: str
    validation_share: float | None
    """None: all go to `split`; else this share of the documents is held out, by their hash."""
    split: str


@dataclass(frozen=True)
class Part:
    """What one shard adds to one split."""

    tokens: NDArray[Any]
    """Ids of all documents, (T,), each followed by an end-of-document id."""
    lengths: NDArray[np.int32]
    """Tokens per document, (D,)."""
    digests: NDArray[np.uint8]
    """sha256 of each document's text, (D, 32)."""
    text_bytes: int
    empty: int
    """Documents without text, left out."""


def is_held_out(digest: bytes, share: float) -> bool:
    """Whether a document belongs to the held-out share, by the sha256 of its text.

    The same text always falls on the same side, in whatever file, order or company it comes: a
    corpus that grows keeps its held-out documents, and copies do not straddle the split. (Of a
    corpus so small that the share holds out none, the document with the lowest hash is.)
    """
    return _hash(digest) < share * 2**64


def _hash(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "little")


def lowest_hash(path: Path) -> int:
    """Of a finished shard's training documents, as `is_held_out` compares them with a share;
    2**64 where it has none."""
    digests = read_part(path, "train").digests
    return min((_hash(digest.tobytes()) for digest in digests), default=2**64)


def make_shard(work: Work, tokenizer: Tokenizer) -> None:
    """Parse and tokenise the records and write the shard, whole or not at all.

    Raises `UserError` where a record is damaged, or the disk is full.
    """
    texts: dict[str, list[str]] = {split: [] for split in SPLITS}
    digests: dict[str, list[bytes]] = {split: [] for split in SPLITS}
    text_bytes = dict.fromkeys(SPLITS, 0)
    empty = 0
    for number, record in enumerate(work.records, start=work.first_record):
        text = text_of_record(record, work.source, work.text_field, number)
        if not text:
            empty += 1
            continue
        encoded = text.encode()
        digest = hashlib.sha256(encoded).digest()
        split = work.split
        if work.validation_share is not None and is_held_out(digest, work.validation_share):
            split = "validation"
        texts[split].append(text)
        digests[split].append(digest)
        text_bytes[split] += len(encoded)
    arrays: dict[str, NDArray[Any]] = {
        "counts": np.array([len(work.records), sum(map(len, work.records))])
    }
    for split in texts:
        ids = tokenizer.encode_batch(texts[split])
        lengths = np.array([one.size + 1 for one in ids], dtype=np.int32)
        tokens = np.full(lengths.sum(), tokenizer.end_of_document, dtype=np.int64)
        for one, end in zip(ids, np.cumsum(lengths), strict=True):
            tokens[end - 1 - one.size : end - 1] = one
        arrays[f"{split}_tokens"] = tokens.astype(dtype_for_vocabulary(tokenizer.vocabulary_size))
        arrays[f"{split}_lengths"] = lengths
        joined = b"".join(digests[split])
        arrays[f"{split}_digests"] = np.frombuffer(joined, dtype=np.uint8).reshape(-1, 32)
        arrays[f"{split}_counts"] = np.array([text_bytes[split], empty * (split == work.split)])
    with written_atomically(work.path) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # numpy's own stubs confuse the keywords


def read_counts(path: Path) -> tuple[int, int]:
    """How many records a shard was made of, and how many bytes they had."""
    with np.load(path) as arrays:
        records, record_bytes = arrays["counts"].tolist()
    return records, record_bytes


def count_documents(path: Path) -> dict[str, int]:
    """How many documents a finished shard has for each split."""
    with np.load(path) as arrays:
        return {split: arrays[f"{split}_lengths"].size for split in SPLITS}


def read_part(path: Path, split: str) -> Part:
    """What a finished shard adds to a split."""
    with np.load(path) as arrays:
        return Part(
            arrays[f"{split}_tokens"],
            arrays[f"{split}_lengths"],
            arrays[f"{split}_digests"],
            *arrays[f"{split}_counts"].tolist(),
        )
