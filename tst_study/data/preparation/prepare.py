"""From text to token files: `tst-study data prepare`.

The folder that is written holds `train.bin/.idx`, `validation.bin/.idx`, `tokenizer.json` and, as
the last file, `manifest.json`: a folder with a manifest is complete. Until then finished shards
lie in `.unfinished/`; the same call continues from them, and gives the same bytes as one that was
never interrupted, whatever the number of workers.
"""

import functools
import hashlib
import math
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

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
from tst_study.data.preparation.shards import (
    SHARD_BYTES,
    Work,
    count_documents,
    is_held_out,
    lowest_hash,
    read_counts,
    read_part,
)
from tst_study.data.preparation.text_sources import Reading, Source, records, text_of_record
from tst_study.data.preparation.text_tokenizers import Tokenizer
from tst_study.data.preparation.workers import Submit, shard_workers
from tst_study.data.token_file import dtype_for_vocabulary, writing_tokens
from tst_study.errors import UserError
from tst_study.process.cores import cores

TRAINING_BYTES_PER_WORD = 4096
MOST_WORDS = 1_000_000


def prepare(
    request: Request, to: str | Path, *, workers: int | None = None, progress: bool = True
) -> Manifest:
    """Tokenise a corpus into a folder of Megatron token files; says what is there then.

    `workers`: processes; by default one per core. Raises `UserError` where an input cannot be
    read, the folder holds something else, the disk is full, or no document is left for one of the
    splits. Finished shards are kept. Of two calls at once the second waits for the first.
    """
    request, to = request.resolved(), Path(to)
    # A folder of text may be where it is prepared; what that writes is no text.
    jobs = [job for job in request.jobs() if not job[1].lies_in(to)]
    with held(to):
        return _prepare(request, jobs, to, workers or cores(), progress)


def _prepare(
    request: Request, jobs: Sequence[Job], folder: Path, workers: int, progress: bool
) -> Manifest:
    asked = request.as_recorded(jobs)
    manifest = finished(folder, asked, jobs)
    if manifest is not None:
        shutil.rmtree(folder / UNFINISHED, ignore_errors=True)  # if killed while deleting it
        return manifest
    unfinished = open_unfinished(folder, asked, jobs)
    sizes = [source.bytes for _, source in jobs]
    with _progress(progress) as bar:
        # Bytes as they lie on disk; how many a stream has, nobody knows before its end.
        total = None if None in sizes else sum(filter(None, sizes))
        task = bar.add_task("tokenizer", total=total)

        def tokenised(request: Request) -> tuple[Tokenizer, list[Path], list[SourceRecord | None]]:
            bar.reset(task, description="tokenizer")
            tokenizer = _make_tokenizer(request, unfinished, jobs)
            bar.update(task, description="tokenising")
            with shard_workers(workers, tokenizer) as submit:
                reader = _Reader(request, unfinished, submit, functools.partial(bar.advance, task))
                sources = [reader.read(split, source) for split, source in jobs]
            return tokenizer, reader.shards, sources

        tokenizer, shards, sources = tokenised(request)
        share = _share_of_one(shards) if request.validation_share is not None else None
        if share is not None:  # held-out text trains no tokenizer, so that is made again, too
            for path in [*shards, unfinished / TOKENIZER]:
                path.unlink()
            tokenizer, shards, sources = tokenised(replace(request, validation_share=share))
        bar.update(task, description="writing")
        manifest = Manifest(
            schema_version=SCHEMA_VERSION,
            request=asked,
            sources=tuple(source for source in sources if source is not None),
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
        shutil.rmtree(unfinished)
    return manifest


def _progress(shown: bool) -> Progress:
    columns = (BarColumn(), DownloadColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    return Progress(TextColumn("{task.description}"), *columns, console=console, disable=not shown)


def _share_of_one(shards: list[Path]) -> float | None:
    """The share that holds out the one document whose hash is lowest, where none is held out so
    far and there are two at least."""
    if any(count_documents(path)["validation"] for path in shards):
        return None  # most corpora have one in their first shard
    if sum(count_documents(path)["train"] for path in shards) < 2:
        return None
    lowest = min(lowest_hash(path) for path in shards)
    return math.nextafter(lowest / 2**64, 1.0)


class _Reader:
    """Cuts sources into shards and has those made that are not there yet."""

    def __init__(
        self, request: Request, folder: Path, submit: Submit, advance: Callable[[int], None]
    ) -> None:
        self.shards: list[Path] = []
        self._request = request
        self._folder = folder
        self._training_bytes_left = request.limit_bytes or math.inf
        self._submit = submit
        self._advance = advance
        self._source_number = 0

    def read(self, split: str, source: Source) -> SourceRecord | None:
        """Read a source; None if the byte limit was reached before it."""
        if split == "train" and self._training_bytes_left <= 0:
            return None
        self._source_number += 1
        reading = Reading()
        # What a stream has already given need not be fetched again. Files are read in any case:
        # unpacking is cheap, and their hash is wanted.
        first = number = advanced = 0
        if source.kind == "huggingface":
            while self._path(number).exists():
                count, size = read_counts(self._path(number))
                self.shards.append(self._path(number))
                first, number = first + count, number + 1
                self._training_bytes_left -= size if split == "train" else 0
        lines = records(source, reading, self._request.text_field, skip=first)
        for batch in self._cut(lines, split):
            self.shards.append(self._path(number))
            self._advance(reading.bytes_read - advanced if source.path else sum(map(len, batch)))
            advanced = reading.bytes_read
            if not self.shards[-1].exists():
                self._make(split, source, first, batch)
            first, number = first + len(batch), number + 1
        if source.path is None:
            return SourceRecord(name=source.name, split=split)
        return SourceRecord(
            name=source.name,
            split=split,
            bytes=source.bytes,
            # Even where the limit cut the reading short, the hash is that of the whole file.
            sha256=reading.sha256 or file_sha256(source.path),
            modified_ns=source.path.stat().st_mtime_ns,
        )

    def _make(self, split: str, source: Source, first: int, batch: tuple[bytes, ...]) -> None:
        share = self._request.validation_share if split == "train" else None
        field = self._request.text_field
        self._submit(Work(self.shards[-1], source, first, batch, field, share, split))

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._source_number:06d}-{number:06d}.npz"

    def _cut(self, lines: Iterator[bytes], split: str) -> Iterator[tuple[bytes, ...]]:
        batch: list[bytes] = []
        size = 0
        for line in lines:
            if split == "train":
                if self._training_bytes_left <= 0:
                    break
                self._training_bytes_left -= len(line)
            batch.append(line)
            size += len(line)
            if size >= SHARD_BYTES:
                yield tuple(batch)
                batch, size = [], 0
        if batch:
            yield tuple(batch)


def _make_tokenizer(request: Request, unfinished: Path, jobs: Sequence[Job]) -> Tokenizer:
    """The tokenizer of a request; written to the unfinished folder, so that resuming keeps it."""
    name = request.tokenizer
    kind, _, size = name.partition(":")
    trained = kind == "bpe" and ":" in name
    kept, kept_end = unfinished / TOKENIZER, unfinished / "end_of_document"
    if kept.exists():
        kind = "bpe" if trained else "huggingface"
        return text_tokenizers.read_tokenizer(kept, kind, kept_end.read_text(encoding="utf8"))
    made: Tokenizer
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
        for number, record in enumerate(records(source, Reading(), request.text_field)):
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
    counts = [count_documents(path) for path in shards]
    for split in SPLITS:
        if not any(count[split] for count in counts):
            shutil.rmtree(unfinished)  # the remedy is another request, to which it is useless
            raise UserError(
                f"{folder}: no document is left for {split}; give --validation files, another"
                " --validation-share, or more text"
            )
    return {split: _join_split(folder, shards, split, tokenizer) for split in SPLITS}


def _join_split(folder: Path, shards: list[Path], split: str, tokenizer: Tokenizer) -> SplitRecord:
    text_bytes = empty = 0
    texts = hashlib.sha256()
    with writing_tokens(folder / split, dtype_for_vocabulary(tokenizer.vocabulary_size)) as writer:
        for path in shards:
            part = read_part(path, split)
            writer.add_documents(part.tokens, part.lengths)
            texts.update(part.digests.data)
            text_bytes += part.text_bytes
            empty += part.empty
    of_the_text = {"text_sha256": texts.hexdigest(), "empty_documents": empty}
    return record_of(folder / split, tokenizer.vocabulary_size, text_bytes, **of_the_text)
