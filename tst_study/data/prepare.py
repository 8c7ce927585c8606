"""From text to token files: `tst-study data prepare`.

The folder that is written holds `train.bin/.idx`, `validation.bin/.idx`, `tokenizer.json` and, as
the last file, `manifest.json`: a folder with a manifest is complete. Until then finished shards
lie in `.unfinished/`; the same call goes on from them, and ends in the same bytes as one that was
never interrupted, whatever the number of workers.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tst_study.atomic_files import disk_errors_named, written_atomically
from tst_study.data import text_tokenizers
from tst_study.data.manifest import (
    MANIFEST,
    SCHEMA_VERSION,
    SPLITS,
    TOKENIZER,
    Manifest,
    SourceRecord,
    SplitRecord,
    TokenizerRecord,
    file_sha256,
    fingerprint,
    read_manifest,
    write_manifest,
)
from tst_study.data.named_sources import named_corpus
from tst_study.data.preparation_progress import PreparationProgress
from tst_study.data.shards import (
    SHARD_BYTES,
    Work,
    count_documents,
    is_held_out,
    read_counts,
    read_part,
)
from tst_study.data.text_sources import Reading, Source, find_sources, records, text_of_record
from tst_study.data.text_tokenizers import Tokenizer
from tst_study.data.token_file import (
    TokenFileWriter,
    bin_path,
    dtype_for_vocabulary,
    idx_path,
)
from tst_study.data.workers import Submit, shard_workers
from tst_study.errors import UserError

UNFINISHED = ".unfinished"
DEFAULT_VALIDATION_SHARE = 0.01
TRAINING_BYTES_PER_WORD = 4096


@dataclass(frozen=True)
class Prepared:
    """A prepared folder, and whether this call had anything to do."""

    folder: Path
    manifest: Manifest
    was_there: bool


def prepare(
    sources: Sequence[str],
    to: str | Path,
    tokenizer: str = "bpe:1024",
    *,
    validation: Sequence[str] = (),
    validation_share: float | None = None,
    text_field: str = "text",
    end_of_document: str | None = None,
    limit_bytes: int | None = None,
    workers: int | None = None,
    licence: str | None = None,
    notes: str | None = None,
    progress: bool = True,
) -> Prepared:
    """Tokenise a corpus into a folder of Megatron token files.

    Args:
        sources: training text: what `find_sources` takes, or "books", the bundled corpus, which
            brings its own validation text.
        to: the folder; made if need be.
        tokenizer: "bytes"; "bpe:V", trained on the first 4,096·V bytes of the training text; a
            `tokenizer.json` or a folder with one; or an id of the Hugging Face hub.
        validation: held-out text. Without it `validation_share` of the documents are held out.
        validation_share: between 0 and 1, 0.01 by default; documents are picked by the hash of
            their text (see `is_held_out`).
        text_field: the JSON field or dataset column with the text.
        end_of_document: the token that ends a document, if a Hugging Face tokenizer's usual one is
            not meant.
        limit_bytes: stop after about so many bytes of training records; for quick trials.
        workers: processes; by default one per core.
        licence, notes: of the text, for the manifest.
        progress: draw a progress bar.

    Raises:
        UserError: an input cannot be read, the folder holds something else, the disk is full, or
            no document is left for one of the splits. Finished shards are kept.
    """
    folder = Path(to)
    train_names, validation_names = list(sources), list(validation)
    for name in sources:
        named = named_corpus(name)
        if named is not None:
            at = train_names.index(name)
            train_names[at : at + 1] = named.train
            validation_names += [] if validation else named.validation
            licence, notes = licence or named.licence, notes or named.notes
    if validation_names and validation_share is not None:
        raise UserError(
            f"validation share {validation_share}: cannot be combined with validation sources;"
            " give one of the two"
        )
    if not validation_names:
        validation_share = (
            DEFAULT_VALIDATION_SHARE if validation_share is None else validation_share
        )
        if not 0 < validation_share < 1:
            raise UserError(f"validation share {validation_share}: must lie between 0 and 1")
    jobs = [("train", source) for source in find_sources(train_names)]
    jobs += [("validation", source) for source in find_sources(validation_names)]
    request: dict[str, Any] = {
        "sources": [[split, source.name, source.bytes] for split, source in jobs],
        "tokenizer": _stable_name(tokenizer),
        "validation_share": validation_share,
        "text_field": text_field,
        "end_of_document": end_of_document,
        "limit_bytes": limit_bytes,
        "licence": licence,
        "notes": notes,
    }
    finished = _finished(folder, request, jobs)
    if finished is not None:
        shutil.rmtree(folder / UNFINISHED, ignore_errors=True)  # if killed while deleting it
        return Prepared(folder, finished, was_there=True)
    unfinished = _open_unfinished(folder, request, jobs)
    workers = max(1, workers or _cores())
    with PreparationProgress(progress, [source.bytes for _, source in jobs]) as bar:
        bar.say("tokenizer")
        made = _make_tokenizer(
            tokenizer, end_of_document, unfinished, jobs, text_field, validation_share
        )
        bar.say("tokenising")
        with shard_workers(workers, made) as submit:
            reader = _Reader(unfinished, text_field, validation_share, limit_bytes, submit, bar)
            source_records = [reader.read(split, source) for split, source in jobs]
        bar.say("writing")
        splits = _join(folder, unfinished, reader.shards, made)
        manifest = Manifest(
            schema_version=SCHEMA_VERSION,
            request=request,
            sources=tuple(record for record in source_records if record is not None),
            tokenizer=TokenizerRecord(
                kind=made.kind,
                fingerprint=made.fingerprint,
                vocabulary_size=made.vocabulary_size,
                end_of_document=made.end_of_document,
                end_of_document_token=made.end_of_document_token,
            ),
            splits=splits,
            licence=licence,
            notes=notes,
        )
        with written_atomically(folder / TOKENIZER) as file:
            file.write(made.json)
        write_manifest(folder, manifest)
        shutil.rmtree(unfinished)
    return Prepared(folder, manifest, was_there=False)


def tokenizer_of(folder: str | Path) -> Tokenizer:
    """The tokenizer that a prepared folder was made with.

    Raises:
        UserError: the folder is not a prepared one, or holds a generated language without text.
    """
    record = read_manifest(folder).tokenizer
    if record.fingerprint is None:
        raise UserError(f"{folder}: is a generated language, its tokens stand for no text")
    return text_tokenizers.read_tokenizer(folder, record.kind, record.end_of_document_token)


def _cores() -> int:
    """Cores that this process may use (not those of the node that a job has a part of)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Reader:
    """Cuts sources into shards and has those made that are not there yet."""

    def __init__(
        self,
        folder: Path,
        text_field: str,
        validation_share: float | None,
        limit_bytes: int | None,
        submit: Submit,
        bar: PreparationProgress,
    ) -> None:
        self.shards: list[Path] = []
        self._folder = folder
        self._text_field = text_field
        self._validation_share = validation_share
        self._bytes_left = limit_bytes
        self._submit = submit
        self._bar = bar
        self._source_number = 0

    def read(self, split: str, source: Source) -> SourceRecord | None:
        """Read a source; None if the byte limit was reached before it."""
        limited = split == "train" and self._bytes_left is not None
        if limited and self._bytes_left == 0:
            return None
        self._source_number += 1
        reading = Reading()
        # What a stream has already given need not be fetched again. Files are read in any case:
        # unpacking is cheap, and their hash is wanted.
        skipped, number = 0, 0
        if source.kind == "huggingface":
            while self._path(number).exists():
                count, size = read_counts(self._path(number))
                self.shards.append(self._path(number))
                skipped, number = skipped + count, number + 1
                if limited and self._bytes_left is not None:
                    self._bytes_left = max(0, self._bytes_left - size)
        first = skipped
        lines = records(source, reading, self._text_field, skipped)
        for batch in self._cut(lines, limited):
            path = self._path(number)
            self.shards.append(path)
            self._bar.read(sum(map(len, batch)), reading.bytes_read)
            if not path.exists():
                share = self._validation_share if split == "train" else None
                place = str(source.path or source.name)
                work = Work(path, place, source.kind, first, batch, self._text_field, share, split)
                self._submit(work, self._bar.tick)
            first, number = first + len(batch), number + 1
        self._bar.source_done()
        if source.path is None:
            return SourceRecord(name=source.name, split=split)
        return SourceRecord(
            name=source.name,
            split=split,
            bytes=source.bytes,
            # Where the limit cut the reading short, the hash is still that of the whole file.
            sha256=reading.sha256 or file_sha256(source.path),
            modified_ns=source.path.stat().st_mtime_ns,
        )

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._source_number:06d}-{number:06d}.npz"

    def _cut(self, lines: Iterator[bytes], limited: bool) -> Iterator[tuple[bytes, ...]]:
        batch: list[bytes] = []
        size = 0
        for line in lines:
            if limited and self._bytes_left == 0:
                break
            batch.append(line)
            size += len(line)
            if limited and self._bytes_left is not None:
                self._bytes_left = max(0, self._bytes_left - len(line))
            if size >= SHARD_BYTES:
                yield tuple(batch)
                batch, size = [], 0
        if batch:
            yield tuple(batch)


def _finished(
    folder: Path, request: dict[str, Any], jobs: list[tuple[str, Source]]
) -> Manifest | None:
    """The manifest of an intact folder of the same request; None if there is work to do."""
    if not (folder / MANIFEST).exists():
        return None
    manifest = read_manifest(folder)
    if manifest.request != json.loads(json.dumps(request)):
        raise _other_request(folder, manifest.request, request)
    recorded = {(record.split, record.name): record for record in manifest.sources}
    for split, source in jobs:
        record = recorded.get((split, source.name))
        if source.path is None or record is None:  # a stream, or beyond the limit
            continue
        if record.modified_ns != source.path.stat().st_mtime_ns and (
            record.sha256 != file_sha256(source.path)
        ):
            raise UserError(
                f"{folder}: was prepared from another version of {source.path}; choose another"
                " folder, or delete this one to prepare it again"
            )
    intact = (folder / TOKENIZER).exists() and all(
        idx_path(folder / split).exists()
        and bin_path(folder / split).exists()
        and fingerprint(folder / split) == record.fingerprint
        for split, record in manifest.splits.items()
    )
    return manifest if intact else None


def _open_unfinished(folder: Path, request: dict[str, Any], jobs: list[tuple[str, Source]]) -> Path:
    """The folder of finished shards of this request, new or from an interrupted call."""
    unfinished = folder / UNFINISHED
    stamps = [source.path and source.path.stat().st_mtime_ns for _, source in jobs]
    content = json.dumps({**request, "modified_ns": stamps, "shard_bytes": SHARD_BYTES})
    path = unfinished / "request.json"
    with disk_errors_named(folder):
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder}: is a file; choose a folder to prepare into")
        if path.exists():
            begun = json.loads(path.read_text())
            if begun == json.loads(content):
                return unfinished
            if any(unfinished.glob("*.npz")):
                raise _other_request(unfinished, begun, json.loads(content))
            shutil.rmtree(unfinished)  # it failed before anything was finished
        strangers = [] if not folder.exists() else [p.name for p in folder.iterdir()]
        ours = {UNFINISHED, MANIFEST, TOKENIZER, *(f"{s}{e}" for s in SPLITS for e in _ENDINGS)}
        if set(strangers) - ours or (strangers and not {UNFINISHED, MANIFEST} & set(strangers)):
            raise UserError(
                f"{folder}: holds files that are no prepared corpus ({sorted(strangers)[0]}, …);"
                " choose an empty or new folder"
            )
        unfinished.mkdir(parents=True, exist_ok=True)
    with written_atomically(path) as file:
        file.write(content.encode())
    return unfinished


_ENDINGS = (".bin", ".idx")


def _other_request(folder: Path, had: dict[str, Any], wants: dict[str, Any]) -> UserError:
    key = next(key for key in {**wants, **had} if had.get(key) != wants.get(key))
    return UserError(
        f"{folder}: belongs to another preparation ({key}: {_short(had.get(key))}, now"
        f" {_short(wants.get(key))}); choose another folder, or delete this one to prepare anew"
    )


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _stable_name(tokenizer: str) -> str:
    """How a request names its tokenizer: a local file by its content, else as the user does."""
    path = Path(tokenizer)
    if path.is_dir():
        path = path / TOKENIZER
    return f"sha256:{file_sha256(path)}" if path.is_file() else tokenizer


def _make_tokenizer(
    name: str,
    end: str | None,
    unfinished: Path,
    jobs: list[tuple[str, Source]],
    text_field: str,
    validation_share: float | None,
) -> Tokenizer:
    """The tokenizer of a name; written to the unfinished folder, so that resuming keeps it."""
    kept = unfinished / TOKENIZER
    kind, _, size = name.partition(":")
    trained = kind == "bpe" and bool(size)
    kept_end = unfinished / "end_of_document"
    if kept.exists():
        kind = "bpe" if trained else "huggingface"
        return text_tokenizers.read_tokenizer(kept, kind, kept_end.read_text())
    made: Tokenizer
    if name == "bytes":
        made = text_tokenizers.ByteTokenizer()
    elif trained:
        if not size.isdecimal():
            raise UserError(f"tokenizer {name}: after 'bpe:' the size of the vocabulary is missing")
        words = int(size)
        sample = _training_sample(
            jobs, text_field, validation_share, words * TRAINING_BYTES_PER_WORD
        )
        made = text_tokenizers.train_byte_pair_tokenizer(sample, words)
    elif Path(name).exists():
        made = text_tokenizers.read_tokenizer(name, end=end)
    else:
        made = text_tokenizers.download_tokenizer(name, end)
    # The configuration beside a downloaded file is not kept, so resuming needs the name.
    kept_end.write_text(made.end_of_document_token)
    with written_atomically(kept) as file:
        file.write(made.json)
    return made


def _training_sample(
    jobs: list[tuple[str, Source]],
    text_field: str,
    validation_share: float | None,
    most_bytes: int,
) -> Iterator[str]:
    """The first training documents, held-out ones left out, up to about so many bytes."""
    for split, source in jobs:
        if split != "train":
            continue
        for number, record in enumerate(records(source, Reading(), text_field)):
            place = f"{source.path or source.name}, line {number + 1}"
            text = text_of_record(record, source.kind, text_field, place)
            encoded = text.encode(errors="surrogatepass")
            digest = hashlib.sha256(encoded).digest()
            if validation_share is not None and is_held_out(digest, validation_share):
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
            shutil.rmtree(unfinished)  # the remedy is another request, for which it is no use
            raise UserError(
                f"{folder}: no document is left for {split}; give --validation files, another"
                " --validation-share, or more text"
            )
    return {split: _join_split(folder, shards, split, tokenizer) for split in SPLITS}


def _join_split(folder: Path, shards: list[Path], split: str, tokenizer: Tokenizer) -> SplitRecord:
    dtype = dtype_for_vocabulary(tokenizer.vocabulary_size)
    documents = tokens = text_bytes = empty = 0
    texts, content = hashlib.sha256(), hashlib.sha256()
    with TokenFileWriter(folder / split, dtype) as writer:
        for path in shards:
            part = read_part(path, split)
            writer.add_documents(part.tokens, part.lengths)
            content.update(part.tokens.data)
            texts.update(part.digests.data)
            documents += part.lengths.size
            tokens += part.tokens.size
            text_bytes += part.text_bytes
            empty += part.empty
    return SplitRecord(
        documents=documents,
        tokens=tokens,
        text_bytes=text_bytes,
        dtype=str(dtype),
        fingerprint=fingerprint(folder / split),
        sha256=content.hexdigest(),
        text_sha256=texts.hexdigest(),
        empty_documents=empty,
    )
