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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tst_study.atomic_files import written_atomically
from tst_study.data.integrity import file_sha256, record_of
from tst_study.data.manifest import SPLITS, Manifest, SourceRecord, SplitRecord
from tst_study.data.preparation import text_tokenizers
from tst_study.data.preparation.prepared_folder import prepared
from tst_study.data.preparation.request import Request
from tst_study.data.preparation.text_sources import Source, documents
from tst_study.data.preparation.text_tokenizers import Tokenizer
from tst_study.data.token_file import dtype_for_vocabulary, write_tokens
from tst_study.errors import UserError

SHARD_BYTES = 4 << 20
TRAINING_BYTES_PER_WORD = 4096
LEAST_WORDS, MOST_WORDS = 257, 1_000_000
"""Of a vocabulary: the bytes and the end of a document at least."""
DOCUMENT = np.dtype([("sha256", "V32"), ("text_bytes", "i8"), ("tokens", "i4"), ("held_out", "?")])
"""What a shard knows of a document; `tokens` is 0 where it is empty, which leaves it out."""


def prepare(request: Request, to: str | Path, *, progress: bool = True) -> Manifest:
    """Tokenise a corpus into a folder of Megatron token files; says what is there then.

    Raises `UserError` where an input cannot be read or changes meanwhile, the folder holds
    something else, the disk is full, or no document is left for one of the splits. Finished shards
    are kept. Of two calls at once the second waits for the first.
    """
    request, to = request.resolved(), Path(to)
    sources = request.found(to)
    asked = request.as_recorded(sources)
    return prepared(to, asked, partial(_prepare, request, sources, asked, progress), sources)


def _prepare(
    request: Request,
    sources: Sequence[Source],
    asked: dict[str, Any],
    progress: bool,
    unfinished: Path,
) -> Manifest:
    share = _share_held_out(request, sources)
    tokenizer = _make_tokenizer(request, sources, share)
    of_a_kind = f"{tokenizer.fingerprint}-{tokenizer.end_of_document}-{SHARD_BYTES}"
    read: list[SourceRecord] = []
    shards: list[Path] = []
    seen = 0
    columns = TextColumn("tokenising, {task.fields[seen]} MB"), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), disable=not progress) as bar:
        task = bar.add_task("", total=len(sources), seen=0)
        for source, found in _within_limit(request, sources):
            for size, texts in _batches(found):
                # Another tokenizer makes other shards; another request has another `unfinished`.
                shards.append(unfinished / f"{of_a_kind}-{len(shards):06d}.npz")
                if not shards[-1].exists():
                    rows, ids = _make_shard(texts, source.record.split, share, tokenizer)
                    with written_atomically(shards[-1]) as file:
                        np.savez(file, documents=rows, ids=ids)
                seen += size
                bar.update(task, seen=seen >> 20)
            bar.advance(task)
            sha256 = _digest(source, unfinished)
            read.append(source.record.model_copy(update={"sha256": sha256}))
    manifest = Manifest(
        request=asked,
        sources=tuple(read),
        tokenizer=tokenizer.as_recorded(),
        splits=_join(unfinished, shards, tokenizer),
        licence=request.licence,
        notes=request.notes,
    )
    return manifest.write(unfinished.parent, tokenizer.json)


def _digest(source: Source, unfinished: Path) -> str | None:
    """The sha256 of the file that has been read; None for a stream, which has no file.

    Raises `UserError` where the file is no longer as it was found: what was read may be a mixture
    of both versions. Shards of such a mixture are deleted.
    """
    if source.path is None:
        return None
    found, sha256 = (source.record.bytes, source.record.modified_ns), ""
    with suppress(OSError):  # it has been deleted
        sha256, now = file_sha256(source.path), source.path.stat()
        if (now.st_size, now.st_mtime_ns) == found:
            return sha256
    shutil.rmtree(unfinished)
    raise UserError(
        f"source {source.path}: has been changed or deleted while it was read; wait until nothing "
        "writes to it, then run the same command again"
    )


def _within_limit(
    request: Request, sources: Sequence[Source]
) -> Iterator[tuple[Source, Iterator[tuple[int, str]]]]:
    """The sources, each with the size and text of its documents, up to the limit for training
    text."""
    left = request.limit_bytes or math.inf

    def limited(source: Source) -> Iterator[tuple[int, str]]:
        nonlocal left
        for size, text in documents(source, request.text_field):
            yield size, text
            left -= size
            if left <= 0:
                break

    for source in sources:
        if source.record.split == "validation":
            left = math.inf
        if left > 0:
            yield source, limited(source)


def _training_texts(request: Request, sources: Sequence[Source]) -> Iterator[str]:
    for source, found in _within_limit(request, sources):
        if source.record.split == "train":
            yield from (text for _, text in found)


def is_held_out(text: bytes, share: float | None) -> bool:
    """Whether a document belongs to the held-out share, by the sha256 of its text.

    The same text always falls on the same side, in whatever file, order or company it comes: a
    corpus that grows keeps its held-out documents, and copies do not straddle the split. (Of a
    corpus so small that the share holds out none, the document with the lowest hash is.)
    """
    return share is not None and _mark(text) < share * 2**64


def _mark(text: bytes) -> int:
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little")


def _share_held_out(request: Request, sources: Sequence[Source]) -> float | None:
    """The share of the request; where it holds out no document and there are two at least, one
    that holds out the document whose hash is lowest."""
    share = request.validation_share
    if share is None:
        return None
    count, lowest = 0, 2**64
    for text in filter(None, _training_texts(request, sources)):
        if is_held_out(text.encode(), share):
            return share  # most corpora have one at their beginning
        count, lowest = count + 1, min(lowest, _mark(text.encode()))
    return math.nextafter(lowest / 2**64, 1.0) if count > 1 else share


def _batches(found: Iterable[tuple[int, str]]) -> Iterator[tuple[int, list[str]]]:
    """The texts of some megabytes at a time, and their size."""
    texts: list[str] = []
    size = 0
    for more, text in found:
        texts.append(text)
        size += more
        if size >= SHARD_BYTES:
            yield size, texts
            texts, size = [], 0
    if texts:
        yield size, texts


def _make_shard(
    texts: Sequence[str], split: str, share: float | None, tokenizer: Tokenizer
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Documents (D,), as `DOCUMENT` says, and the ids of all, one document after the other, each
    with an end-of-document id; an empty one has none."""
    rows, ids = [], [np.empty(0, np.int64)]
    for text, found in zip(texts, tokenizer.encode_batch(texts), strict=True):
        content = text.encode()
        held_out = split == "validation" or (text != "" and is_held_out(content, share))
        if text:
            ids += [found, np.array([tokenizer.end_of_document])]
        length = found.size + 1 if text else 0
        rows.append((hashlib.sha256(content).digest(), len(content), length, held_out))
    dtype = dtype_for_vocabulary(tokenizer.vocabulary_size)
    return np.array(rows, DOCUMENT), np.concatenate(ids).astype(dtype)


def _make_tokenizer(request: Request, sources: Sequence[Source], share: float | None) -> Tokenizer:
    name = request.tokenizer
    if name == "bytes":
        return text_tokenizers.byte_tokenizer()
    if name.startswith("bpe:"):
        size = name.removeprefix("bpe:")
        if not re.fullmatch("[0-9]{1,9}", size) or not LEAST_WORDS <= int(size) <= MOST_WORDS:
            raise UserError(
                f"tokenizer {name}: the size of the vocabulary, {LEAST_WORDS} to {MOST_WORDS:,}, "
                "belongs after 'bpe:'"
            )
        sample = _training_sample(request, sources, share, int(size) * TRAINING_BYTES_PER_WORD)
        return text_tokenizers.train_byte_pair_tokenizer(sample, int(size))
    if Path(name).exists():
        return text_tokenizers.read_tokenizer(name, end=request.end_of_document)
    return text_tokenizers.download_tokenizer(name, request.end_of_document)


def _training_sample(
    request: Request, sources: Sequence[Source], share: float | None, most_bytes: int
) -> Iterator[str]:
    """The first training documents, held-out ones left out, up to about this many bytes."""
    for text in _training_texts(request, sources):
        content = text.encode()
        if not is_held_out(content, share):
            yield text
            most_bytes -= len(content)
            if most_bytes <= 0:
                return


def _read(path: Path, split: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Documents and ids of a shard, those of a split."""
    with np.load(path) as shard:
        rows, ids = shard["documents"], shard["ids"]
    chosen = rows["held_out"] == (split == "validation")
    return rows[chosen], ids[np.repeat(chosen, rows["tokens"])]


def _join(unfinished: Path, shards: list[Path], tokenizer: Tokenizer) -> dict[str, SplitRecord]:
    """Put the shards together, in order, into the token files of both splits."""
    folder = unfinished.parent
    for split in SPLITS:
        if not any(_read(path, split)[0]["tokens"].any() for path in shards):
            shutil.rmtree(unfinished)  # the remedy is another request, to which it is useless
            raise UserError(
                f"{folder}: no document is left for {split}; give --validation files, another"
                " --validation-share, or more text"
            )
    return {split: _join_split(folder, shards, split, tokenizer) for split in SPLITS}


def _join_split(folder: Path, shards: list[Path], split: str, tokenizer: Tokenizer) -> SplitRecord:
    text_bytes = empty = 0
    texts = hashlib.sha256()

    def documents_of_split() -> Iterator[tuple[NDArray[Any], NDArray[np.int32]]]:
        nonlocal text_bytes, empty
        for path in shards:
            rows, ids = _read(path, split)
            whole = rows[rows["tokens"] > 0]
            empty += rows.size - whole.size
            text_bytes += int(whole["text_bytes"].sum())
            texts.update(whole["sha256"].tobytes())
            yield ids, whole["tokens"]

    words = tokenizer.vocabulary_size
    write_tokens(folder / split, dtype_for_vocabulary(words), documents_of_split())
    digest = texts.hexdigest()
    return record_of(folder / split, words, text_bytes, text_sha256=digest, empty_documents=empty)
