"""From text to token files: `tst-study data prepare`.

The folder that is written holds `train.bin/.idx`, `validation.bin/.idx`, `tokenizer.json` and, as
the last file, `manifest.json`: a folder with a manifest is complete. Until then the documents lie
in `.unfinished/`, tokenised, in shards of some megabytes. They are cut by the text alone, so the
same call continues after the last one, and gives the same bytes as if it had not been interrupted.
"""

import hashlib
import math
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tst_study.atomic_files import write_json, written_atomically
from tst_study.data.integrity import file_sha256, record_of
from tst_study.data.manifest import (
    MANIFEST,
    SCHEMA_VERSION,
    SPLITS,
    TOKENIZER,
    UNFINISHED,
    Manifest,
    SourceRecord,
    SplitRecord,
    TokenizerRecord,
)
from tst_study.data.preparation import text_tokenizers
from tst_study.data.preparation.prepared_folder import finished, held, open_unfinished
from tst_study.data.preparation.request import Job, Request
from tst_study.data.preparation.text_sources import Source, records, text_of_record
from tst_study.data.preparation.text_tokenizers import Tokenizer
from tst_study.data.token_file import dtype_for_vocabulary, write_tokens
from tst_study.errors import UserError

SHARD_BYTES = 4 << 20
TRAINING_BYTES_PER_WORD = 4096
MOST_WORDS = 1_000_000


def prepare(request: Request, to: str | Path, *, progress: bool = True) -> Manifest:
    """Tokenise a corpus into a folder of Megatron token files; says what is there then.

    Raises `UserError` where an input cannot be read, the folder holds something else, the disk is
    full, or no document is left for one of the splits. Finished shards are kept. Of two calls at
    once the second waits for the first.
    """
    request, to = request.resolved(), Path(to)
    # A folder of text may be where it is prepared; what that writes is no text.
    jobs = [job for job in request.jobs() if not job[1].lies_in(to)]
    asked = request.as_recorded(jobs)
    with held(to):
        manifest = finished(to, asked, jobs)
        if manifest is None:
            unfinished = open_unfinished(to, {**asked, "shard_bytes": SHARD_BYTES}, jobs)
            manifest = _prepare(request, asked, jobs, to, unfinished, progress)
        shutil.rmtree(to / UNFINISHED, ignore_errors=True)
    return manifest


def _prepare(
    request: Request,
    asked: dict[str, Any],
    jobs: Sequence[Job],
    folder: Path,
    unfinished: Path,
    progress: bool,
) -> Manifest:
    tokenizer, shards, sources = _tokenised(request, jobs, unfinished, progress)
    if request.validation_share is not None:
        share = _share_of_one(shards)
        if share is not None:  # held-out text trains no tokenizer, so that is made again, too
            for path in [*shards, unfinished / TOKENIZER]:
                path.unlink()
            request = replace(request, validation_share=share)
            tokenizer, shards, sources = _tokenised(request, jobs, unfinished, progress)
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        request=asked,
        sources=tuple(sources),
        tokenizer=TokenizerRecord(
            kind=tokenizer.kind,
            fingerprint=tokenizer.fingerprint,
            vocabulary_size=tokenizer.vocabulary_size,
            end_of_document=tokenizer.end_of_document,
            end_of_document_token=tokenizer.end_of_document_token,
        ),
        splits=_join(folder, unfinished, shards, tokenizer),
        licence=request.licence,
        notes=request.notes,
    )
    with written_atomically(folder / TOKENIZER) as file:
        file.write(tokenizer.json)
    write_json(folder / MANIFEST, manifest.model_dump())
    return manifest


@dataclass(frozen=True)
class Shard:
    """The documents of some records of one source, tokenised; empty ones are left out."""

    tokens: NDArray[Any]
    """Ids of all documents, (T,), each followed by an end-of-document id."""
    lengths: NDArray[np.int32]
    """Tokens per document, (D,)."""
    digests: NDArray[np.uint8]
    """sha256 of each document's text, (D, 32)."""
    text_bytes: NDArray[np.int64]
    """UTF-8 bytes of each document's text, (D,)."""
    held_out: NDArray[np.bool_]
    """Which documents are for validation, (D,)."""
    source: NDArray[np.int64]
    """(4,): records, their bytes, how many were empty, and 1 if the source is for validation."""

    def empty_of(self, split: str) -> int:
        return int(self.source[2]) if split == SPLITS[self.source[3]] else 0


def _read(path: Path) -> Shard:
    with np.load(path) as arrays:
        return Shard(**arrays)


def is_held_out(digest: bytes, share: float) -> bool:
    """Whether a document belongs to the held-out share, by the sha256 of its text.

    The same text always falls on the same side, in whatever file, order or company it comes: a
    corpus that grows keeps its held-out documents, and copies do not straddle the split. (Of a
    corpus so small that the share holds out none, the document with the lowest hash is.)
    """
    return int.from_bytes(digest[:8], "little") < share * 2**64


def _share_of_one(shards: list[Path]) -> float | None:
    """The share that holds out the one document whose hash is lowest, where none is held out so
    far and there are two at least."""
    documents, lowest = 0, 2**64
    for path in shards:
        shard = _read(path)
        if shard.held_out.any():
            return None  # most corpora have one in their first shard
        documents += shard.lengths.size
        lowest = min([lowest, *shard.digests[:, :8].copy().view("<u8").ravel().tolist()])
    return math.nextafter(lowest / 2**64, 1.0) if documents > 1 else None


def _tokenised(
    request: Request, jobs: Sequence[Job], unfinished: Path, progress: bool
) -> tuple[Tokenizer, list[Path], list[SourceRecord]]:
    """The tokenizer, all shards in order, and what was read of which source."""
    tokenizer = _make_tokenizer(request, unfinished, jobs)
    shards: list[Path] = []
    sources: list[SourceRecord] = []
    left = request.limit_bytes or math.inf
    columns = TextColumn("tokenising, {task.fields[seen]} MB"), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), disable=not progress) as bar:
        # Bytes as they lie on disk; how many a stream has, nobody knows before its end.
        sizes = [source.bytes for _, source in jobs]
        task = bar.add_task("", total=None if None in sizes else sum(filter(None, sizes)), seen=0)
        seen = 0
        for split, source in jobs:
            if split == "train" and left <= 0:
                continue
            place = unfinished / f"{len(sources) + 1:06d}"
            most = left if split == "train" else math.inf
            for path, size in _shards(request, split, source, place, tokenizer, most):
                shards.append(path)
                seen += size
                left -= size if split == "train" else 0
                bar.update(task, seen=seen >> 20)
            bar.advance(task, source.bytes or 0)
            sources.append(_record_of(split, source))
    return tokenizer, shards, sources


def _record_of(split: str, source: Source) -> SourceRecord:
    if source.path is None:
        return SourceRecord(name=source.name, split=split)
    return SourceRecord(
        name=source.name,
        split=split,
        bytes=source.bytes,
        sha256=file_sha256(source.path),
        modified_ns=source.path.stat().st_mtime_ns,
    )


def _shards(
    request: Request, split: str, source: Source, place: Path, tokenizer: Tokenizer, most: float
) -> Iterator[tuple[Path, int]]:
    """Each shard of a source up to a limit of bytes, and how many bytes its records have; those
    that are not there yet are made."""
    number = first = 0
    # Rows need not be fetched again; lines are read in any case, unpacking is cheap.
    while source.has_rows and _shard_path(place, number).exists():
        records_of, size = _read(_shard_path(place, number)).source[:2].tolist()
        yield _shard_path(place, number), size
        number, first, most = number + 1, first + records_of, most - size
    for batch in _batches(records(source, request.text_field, skip=first), most):
        path = _shard_path(place, number)
        if not path.exists():
            shard = _make_shard(request, split, source, first, batch, tokenizer)
            with written_atomically(path) as file:
                np.savez(file, **vars(shard))
        yield path, sum(map(len, batch))
        number, first = number + 1, first + len(batch)


def _shard_path(place: Path, number: int) -> Path:
    return place.with_name(f"{place.name}-{number:06d}.npz")


def _batches(lines: Iterator[bytes], most: float) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for line in lines:
        if most <= 0:
            break
        most -= len(line)
        size += len(line)
        batch.append(line)
        if size >= SHARD_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _make_shard(
    request: Request,
    split: str,
    source: Source,
    first: int,
    batch: Sequence[bytes],
    tokenizer: Tokenizer,
) -> Shard:
    numbered = enumerate(batch, start=first)
    read = [text_of_record(one, source, request.text_field, number) for number, one in numbered]
    texts = [text for text in read if text]
    encoded = [text.encode() for text in texts]
    digests = [hashlib.sha256(text).digest() for text in encoded]
    share = request.validation_share if split == "train" else None
    held_out = [split == "validation" or (share and is_held_out(d, share)) for d in digests]
    ids = tokenizer.encode_batch(texts)
    end = np.array([tokenizer.end_of_document])
    tokens = np.concatenate([part for one in ids for part in (one, end)] or [end[:0]])
    empty = len(read) - len(texts)
    return Shard(
        tokens=tokens.astype(dtype_for_vocabulary(tokenizer.vocabulary_size)),
        lengths=np.array([one.size + 1 for one in ids], dtype=np.int32),
        digests=np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, 32),
        text_bytes=np.array([len(text) for text in encoded], dtype=np.int64),
        held_out=np.array(held_out, dtype=bool),
        source=np.array([len(batch), sum(map(len, batch)), empty, SPLITS.index(split)]),
    )


def _make_tokenizer(request: Request, unfinished: Path, jobs: Sequence[Job]) -> Tokenizer:
    """The tokenizer of a request; written to the unfinished folder, so that resuming keeps it."""
    name = request.tokenizer
    kind, _, size = name.partition(":")
    trained = kind == "bpe" and ":" in name
    kept, kept_end = unfinished / TOKENIZER, unfinished / "end_of_document"
    if kept.exists():
        kind = "bpe" if trained else "huggingface"
        return text_tokenizers.read_tokenizer(kept, kind, kept_end.read_text(encoding="utf8"))
    if name == "bytes":
        made = text_tokenizers.byte_tokenizer()
    elif trained:
        if not re.fullmatch("[0-9]{1,9}", size) or int(size) > MOST_WORDS:
            raise UserError(
                f"tokenizer {name}: the size of the vocabulary, 257 to {MOST_WORDS:,}, belongs "
                "after 'bpe:'"
            )
        sample = _training_sample(request, jobs, int(size) * TRAINING_BYTES_PER_WORD)
        made = text_tokenizers.train_byte_pair_tokenizer(sample, int(size))
    elif Path(name).exists():
        made = text_tokenizers.read_tokenizer(name, end=request.end_of_document)
    else:
        made = text_tokenizers.download_tokenizer(name, request.end_of_document)
    # The configuration beside a downloaded file is not kept, so resuming needs the name.
    with written_atomically(kept_end) as file:
        file.write(made.end_of_document_token.encode())
    with written_atomically(kept) as file:
        file.write(made.json)
    return made


def _training_sample(request: Request, jobs: Sequence[Job], most_bytes: int) -> Iterator[str]:
    """The first training documents, held-out ones left out, up to about this many bytes, none of
    them beyond the request's limit."""
    share, left = request.validation_share, request.limit_bytes or math.inf
    for source in (source for split, source in jobs if split == "train"):
        for number, record in enumerate(records(source, request.text_field)):
            if left <= 0:
                return
            left -= len(record)
            text = text_of_record(record, source, request.text_field, number)
            encoded = text.encode()
            if share is not None and is_held_out(hashlib.sha256(encoded).digest(), share):
                continue
            yield text
            most_bytes -= len(encoded)
            if most_bytes <= 0:
                return


def _join(
    folder: Path, unfinished: Path, shards: list[Path], tokenizer: Tokenizer
) -> dict[str, SplitRecord]:
    """Put the shards together, in order, into the token files of both splits."""
    for held_out, split in enumerate(SPLITS):
        if not any((_read(path).held_out == held_out).any() for path in shards):
            shutil.rmtree(unfinished)  # the remedy is another request, to which it is useless
            raise UserError(
                f"{folder}: no document is left for {split}; give --validation files, another"
                " --validation-share, or more text"
            )
    return {split: _join_split(folder, shards, split, tokenizer) for split in SPLITS}


def _join_split(folder: Path, shards: list[Path], split: str, tokenizer: Tokenizer) -> SplitRecord:
    text_bytes = empty = 0
    texts = hashlib.sha256()

    def documents() -> Iterator[tuple[NDArray[Any], NDArray[np.int32]]]:
        nonlocal text_bytes, empty
        for shard in map(_read, shards):
            chosen = shard.held_out == (split == "validation")
            texts.update(shard.digests[chosen].data)
            text_bytes += int(shard.text_bytes[chosen].sum())
            empty += shard.empty_of(split)
            yield shard.tokens[np.repeat(chosen, shard.lengths)], shard.lengths[chosen]

    words = tokenizer.vocabulary_size
    write_tokens(folder / split, dtype_for_vocabulary(words), documents())
    of_the_text = {"text_sha256": texts.hexdigest(), "empty_documents": empty}
    return record_of(folder / split, words, text_bytes, **of_the_text)
