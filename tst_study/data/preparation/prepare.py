"""From text to token files: `tst-study data prepare` and `data merge`.

The folder that is written holds `train.bin` and `.idx`, `validation.bin` and `.idx`,
`tokenizer.json` and `manifest.json`. The manifest is written last, so a folder with a manifest is
complete. Until then the tokenised documents are kept in the subfolder `.unfinished/`, in pieces of
a few megabytes. The text alone determines where a piece begins. So the pieces may be made by
several calls and on several machines, and the token files into which they are merged are always the
same.

    .unfinished/request.json            what was asked for
    .unfinished/manifest.json           the manifest so far, beside tokenizer.json
    .unfinished/KIND-SOURCE-PIECE.npz   the documents of a piece; KIND names the tokenizer
    .unfinished/KIND-SOURCE.json        the digests of a source's pieces; written after the last one

All of these are compared before they are used, so that the same command makes anew what is lost or
damaged.
"""

import hashlib
import math
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter
from typing_extensions import TypedDict

from tst_study.atomic_files import content_of, read_json, write_json, written_atomically
from tst_study.data.integrity import file_sha256, record_of
from tst_study.data.manifest import (
    MANIFEST,
    SPLITS,
    TOKENIZER,
    UNFINISHED,
    Manifest,
    SourceRecord,
    SplitRecord,
    TokenizerRecord,
    read_manifest,
)
from tst_study.data.preparation import text_tokenizers
from tst_study.data.preparation.prepared_folder import begun, locked, prepared
from tst_study.data.preparation.request import Request
from tst_study.data.preparation.text_sources import Source, documents
from tst_study.data.preparation.text_tokenizers import Tokenizer
from tst_study.data.token_file import dtype_for_vocabulary, write_tokens
from tst_study.errors import UserError
from tst_study.text import memory_size, short
from tst_study.waiting import waiting

PIECE_BYTES = 4 << 20
"""A piece ends with the document that brings it to this many bytes of its source."""
TRAINING_BYTES_PER_WORD = 4096
"""A BPE tokenizer is trained on this many bytes of text for each entry of its vocabulary."""
LEAST_WORDS, MOST_WORDS = 257, 1_000_000
"""Bounds of the size of a BPE's vocabulary, which holds at least one token for each of the 256 byte
values, and the end-of-document token."""
DOCUMENT = np.dtype([("sha256", "V32"), ("text_bytes", "i8"), ("tokens", "i4"), ("held_out", "?")])
"""The type of the record that a piece has of each document. A document without text has 0 tokens
and is left out of the token files."""
AGAIN = "run the same `tst-study data prepare` again, with every --shard; it makes what is missing"


class _Summary(TypedDict):
    """The file that is written when a source is tokenised."""

    pieces: list[str]
    """The sha256 of each piece."""
    source: SourceRecord


_SUMMARY = TypeAdapter(_Summary)


def prepare(request: Request, to: str | Path) -> Manifest:
    """Tokenise a corpus into a folder of Megatron token files, and return its manifest.

    If a call is killed or fails, the next call with the same request continues from the pieces that
    are finished. If a source has changed since the first call, the next call fails as long as there
    are finished pieces, and otherwise starts over. A call waits until another one that prepares the
    same folder has ended.

    Raises `UserError` if a source cannot be read or changes while it is read, the folder holds
    something else or cannot be written, or no document is left for one of the splits. In the last
    case the pieces are deleted.
    """
    request, to = request.resolved(), Path(to)
    sources = request.sources_besides(to)
    _check_splits(request, sources, to)
    asked = request.as_recorded(sources)

    def make(unfinished: Path) -> Manifest:
        return _merge(unfinished, _make_pieces(request, sources, asked, unfinished))

    return prepared(to, asked, make, sources)


def prepare_shard(request: Request, to: str | Path, shard: str) -> Manifest | None:
    """Make one shard of the pieces of a corpus: those of every n-th source. `merge` then joins the
    pieces of all shards.

    The calls for all shards may run at the same time, on machines that see the same folder.

    Args:
        shard: "i/n", with i from 1 to n.

    Returns:
        The manifest if the folder is already complete, else None.

    Raises:
        UserError: as `prepare` does before it joins the pieces; and for a shard that is not one of
            1/n … n/n, and for a request with `limit_bytes`.
    """
    parts = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", shard)
    number, count = (int(parts[1]), int(parts[2])) if parts else (0, 0)
    if not 1 <= number <= count:
        raise UserError(f"--shard {shard}: write it as i/n, with i from 1 to n, such as 1/64")
    if request.limit_bytes is not None:
        raise UserError("--limit-bytes: is for trials, which need no --shard; leave one out")
    request, to = request.resolved(), Path(to)
    sources = request.sources_besides(to)
    _check_splits(request, sources, to)
    asked = request.as_recorded(sources)
    unfinished = begun(to, asked, sources)
    if unfinished is None:
        return read_manifest(to)
    _make_pieces(request, sources, asked, unfinished, (number, count))
    return None


def _check_splits(request: Request, sources: Sequence[Source], to: Path) -> None:
    """Raise `UserError` if a share of the documents is to be held out, but that leaves no document
    for one of the splits. Reads documents until there is one for each. Text on the hub is not
    looked at."""
    share, found = request.validation_share, set[bool]()
    if share is None or request.within_documents or (to / MANIFEST).exists():
        return
    for source, texts in _within_limit(request, sources):
        if source.path is None:
            return
        for _, text in texts:
            if text:
                found.add(is_held_out(text.encode(), share))
            if len(found) == 2:
                return
    raise _none_left(to, "validation" if False in found else "train")


def _none_left(folder: Path, split: str) -> UserError:
    return UserError(
        f"{folder}: no document is left for {split}; give --validation files, another "
        "--validation-share, more text, or --within-documents, which holds out the end of each"
    )


def merge(to: str | Path) -> Manifest:
    """Join the pieces of all shards into token files, and return the manifest.

    Raises `UserError` if pieces are missing, no preparation was begun in this folder, the folder
    cannot be written, or no document is left for one of the splits.
    """
    to = Path(to)
    if (to / MANIFEST).exists():
        return read_manifest(to)
    asked = read_manifest(to / UNFINISHED).request
    with locked(to):
        if (to / MANIFEST).exists():
            return read_manifest(to)  # another call has joined them meanwhile
        manifest = _merge(to / UNFINISHED, len(asked["sources"]))
        shutil.rmtree(to / UNFINISHED)
    return manifest


def _make_pieces(
    request: Request,
    sources: Sequence[Source],
    asked: dict[str, Any],
    unfinished: Path,
    shard: tuple[int, int] = (1, 1),
) -> int:
    """Tokenise a shard (number, count) of the sources, by default all. Return how many sources,
    over all shards, are read within the request's `limit_bytes`."""
    with waiting(f"making the tokenizer, {request.tokenizer}"):
        tokenizer = _make_tokenizer(request, sources)
    record = tokenizer.as_recorded()
    Manifest(
        request=asked, tokenizer=record, splits={}, licence=request.licence, notes=request.notes
    ).write(unfinished, tokenizer.json)
    number, count = shard
    read = characters = 0
    with waiting("tokenising the text") as say:
        for source, texts_of_source in _within_limit(request, sources):
            place, pieces = _summary(unfinished, record, read), list[str]()
            read += 1
            if read % count != number % count:
                continue
            with suppress(UserError):
                if request.limit_bytes is None and _finished(place, asked["sources"][read - 1]):
                    continue
            for texts in _batches(texts_of_source):
                which = f"{source.record.name}, source {read} of {len(sources)}"
                say(f"tokenising {which}; {memory_size(characters)} of text are done")
                characters += sum(map(len, texts))
                path = _piece(place, len(pieces))
                rows = _described(texts, source.record.split, request)
                if not _is_piece_of(path, rows):
                    rows, ids = _make_piece(rows, texts, tokenizer)
                    with written_atomically(path) as file:
                        np.savez(file, documents=rows, ids=ids)
                pieces.append(file_sha256(path))
            described = source.record.model_copy(update={"sha256": _digest(source, place)})
            write_json(place, {"pieces": pieces, "source": described.model_dump()})
    return read


def _digest(source: Source, summary: Path) -> str | None:
    """Return the sha256 of the file that has been read; None for a dataset of the hub.

    If the file has been changed since it was found, its pieces are deleted, because they may mix
    both versions, and `UserError` is raised.
    """
    if source.path is None:
        return None
    with suppress(OSError):  # the file has been deleted
        sha256, now = file_sha256(source.path), source.path.stat()
        if (now.st_size, now.st_mtime_ns) == (source.record.bytes, source.record.modified_ns):
            return sha256
    for piece in summary.parent.glob(f"{summary.stem}-*"):
        piece.unlink(missing_ok=True)
    raise UserError(
        f"source {source.path}: was changed or deleted while it was read; wait until nothing "
        "writes to it, then run the same command again"
    )


def _summary(unfinished: Path, tokenizer: TokenizerRecord, source: int) -> Path:
    """Return the path of the file that says how many pieces a source has."""
    # The tokenizer is part of the name, because another tokenizer makes other pieces. The request
    # need not be part of it, because `unfinished` belongs to a single request.
    kind = f"{tokenizer.fingerprint}-{tokenizer.end_of_document}-{PIECE_BYTES}"
    return unfinished / f"{kind}-{source:06d}.json"


def _piece(summary: Path, number: int) -> Path:
    return summary.with_name(f"{summary.stem}-{number:06d}.npz")


def _merge(unfinished: Path, sources: int) -> Manifest:
    """Join the pieces of the first `sources` sources into token files, and write the manifest of
    the folder that contains `unfinished`."""
    begun, folder = read_manifest(unfinished), unfinished.parent
    summaries = [_summary(unfinished, begun.tokenizer, number) for number in range(sources)]
    missing = sum(not path.exists() for path in summaries)
    if missing:
        raise UserError(
            f"{folder}: {missing} of {sources} sources are not tokenised yet; wait for every "
            f"--shard of `tst-study data prepare`, or {AGAIN}"
        )
    tokenizer = content_of(unfinished / TOKENIZER, AGAIN) or b""
    if hashlib.sha256(tokenizer).hexdigest() != begun.tokenizer.fingerprint:
        raise UserError(f"{unfinished / TOKENIZER}: is not what was written; {AGAIN}")
    pieces: list[Path] = []
    described: list[SourceRecord] = []
    for path, asked in zip(summaries, begun.request["sources"], strict=False):
        # Under a limit, training sources are left out, and the numbers of the others are smaller.
        limited = begun.request["limit_bytes"] is not None
        finished = _finished(path, None if limited else asked)
        pieces += (_piece(path, number) for number in range(len(finished["pieces"])))
        described.append(finished["source"])
    with waiting(f"writing the token files in {folder}"):
        splits = _join(unfinished, pieces, begun.tokenizer.vocabulary_size)
        # A share that is picked by a hash of the text has all copies of a document on one side.
        if begun.request["validation_share"] is None:
            _say_what_is_on_both_sides(folder, pieces)
    manifest = begun.model_copy(update={"sources": tuple(described), "splits": splits})
    return manifest.write(folder, tokenizer)


def _finished(summary: Path, asked: Sequence[Any] | None) -> _Summary:
    """Return the summary of a source that is tokenised. `asked`: the source in the request, with
    which that of the summary is compared.

    Raises `UserError` if it is missing, damaged or of another source, or if a piece is missing or
    not as it was written.
    """
    if (found := read_json(summary, _SUMMARY, AGAIN)) is None:
        raise UserError(f"{summary}: is missing; {AGAIN}")
    source = found["source"]
    if asked is not None and [source.split, source.name, source.bytes] != [*asked]:
        raise UserError(f"{summary}: is of another source, {short(source.name)}; {AGAIN}")
    for number, digest in enumerate(found["pieces"]):
        piece = _piece(summary, number)
        try:
            there = file_sha256(piece)
        except OSError as error:
            raise UserError(f"{piece}: cannot be read ({error.strerror}); {AGAIN}") from None
        if there != digest:
            raise UserError(f"{piece}: is not what was written; {AGAIN}")
    return found


def _is_piece_of(path: Path, rows: NDArray[Any]) -> bool:
    """Return whether a file is a whole piece of the documents that `rows` describe."""
    try:
        with np.load(path) as piece:
            there, ids = piece["documents"], piece["ids"]
    except Exception:  # of a damaged file, which zip, zlib and NumPy notice in many ways
        return False
    same = all(np.array_equal(there[name], rows[name]) for name in ("sha256", "held_out"))
    return same and bool(ids.size == there["tokens"].sum())


def _within_limit(
    request: Request, sources: Sequence[Source]
) -> Iterator[tuple[Source, Iterator[tuple[int, str]]]]:
    """Yield the sources, each with the sizes and texts of its documents.

    Training sources end when together they reach the request's `limit_bytes`. Validation sources,
    which come after them, are read whole. Under `within_documents` every document is yielded as
    two, the second of which is held out; the first has size 0, so that a piece never ends between
    the two.
    """
    remaining = request.limit_bytes or math.inf

    def limited(source: Source) -> Iterator[tuple[int, str]]:
        nonlocal remaining
        for size, text in documents(source, request.text_field, skip_empty=request.skip_empty):
            if request.within_documents:
                cut = len(text) - math.ceil(len(text) * (request.validation_share or 0))
                yield 0, text[:cut]
                yield size, text[cut:]
            else:
                yield size, text
            remaining -= size
            if remaining <= 0:
                break

    for source in sources:
        if source.record.split == "validation":
            remaining = math.inf
        if remaining > 0:
            yield source, limited(source)


def is_held_out(text: bytes, share: float | None) -> bool:
    """Decide by the sha256 of its text whether a document belongs to the held-out share.

    The decision depends on the text and the share alone, not on the file or on other documents. So
    a corpus that grows keeps its held-out documents, and copies of a document are in the same
    split. If `share` is None, nothing is held out.
    """
    mark = int.from_bytes(hashlib.sha256(text).digest()[:8], "little")
    return share is not None and mark < share * 2**64


def _batches(sized_texts: Iterable[tuple[int, str]]) -> Iterator[list[str]]:
    """Group texts into batches, each of which becomes a piece (`PIECE_BYTES`)."""
    texts: list[str] = []
    size = 0
    for more, text in sized_texts:
        texts.append(text)
        size += more
        if size >= PIECE_BYTES:
            yield texts
            texts, size = [], 0
    if texts:
        yield texts


def _held_out(request: Request, number: int, content: bytes) -> bool:
    """Return whether training text number `number` of a source or piece is held out."""
    if request.within_documents:
        return number % 2 == 1
    return content != b"" and is_held_out(content, request.validation_share)


def _described(texts: Sequence[str], split: str, request: Request) -> NDArray[Any]:
    """Return records of type `DOCUMENT`, (D,), of the D texts of a piece, with 0 tokens."""
    rows = []
    for number, text in enumerate(texts):
        content = text.encode()
        held_out = split == "validation" or _held_out(request, number, content)
        rows.append((hashlib.sha256(content).digest(), len(content), 0, held_out))
    return np.array(rows, DOCUMENT)


def _make_piece(
    rows: NDArray[Any], texts: Sequence[str], tokenizer: Tokenizer
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the records of D texts with their numbers of tokens, (D,), and the ids of all texts,
    concatenated.

    Each document ends with an end-of-document id, but an empty one has no ids at all.
    """
    rows, tokens = rows.copy(), tokenizer.encode_batch(texts)
    rows["tokens"] = [of.size + 1 if text else 0 for of, text in zip(tokens, texts, strict=True)]
    ends = rows["tokens"].cumsum()
    # Filled in place, since a text may be as large as the memory allows.
    dtype = dtype_for_vocabulary(tokenizer.vocabulary_size)
    ids = np.full(ends[-1], tokenizer.end_of_document, dtype)
    for end, of, text in zip(ends, tokens, texts, strict=True):
        if text:
            ids[end - 1 - of.size : end - 1] = of
    return rows, ids


def _make_tokenizer(request: Request, sources: Sequence[Source]) -> Tokenizer:
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
        sample = _training_sample(request, sources, int(size) * TRAINING_BYTES_PER_WORD)
        return text_tokenizers.train_byte_pair_tokenizer(sample, int(size))
    if Path(name).exists():
        return text_tokenizers.read_tokenizer(name)
    return text_tokenizers.download_tokenizer(name)


def _training_sample(request: Request, sources: Sequence[Source], most_bytes: int) -> Iterator[str]:
    """Yield the first training documents that are not held out, about `most_bytes` bytes of text
    and none beyond the request's `limit_bytes`. Of a document that is longer than all of this, the
    rest is left out."""
    longest = most_bytes
    train = [source for source in sources if source.record.split == "train"]
    for _, documents_of_source in _within_limit(request, train):
        for number, (_, text) in enumerate(documents_of_source):
            content = text.encode()
            if not _held_out(request, number, content):
                yield text[:longest]
                most_bytes -= len(content)
                if most_bytes <= 0:
                    return


def _read(path: Path, split: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Read the records of one split's documents, and their ids, from a piece."""
    with np.load(path) as shard:
        rows, ids = shard["documents"], shard["ids"]
    chosen = rows["held_out"] == (split == "validation")
    if chosen.all():  # as of a piece that is one long document, of which a copy would be large
        return rows, ids
    return rows[chosen], ids[np.repeat(chosen, rows["tokens"])]


def _join(unfinished: Path, pieces: list[Path], words: int) -> dict[str, SplitRecord]:
    """Join the pieces, in order, into the token files of both splits."""
    folder = unfinished.parent
    for split in SPLITS:
        if not any(_read(path, split)[0]["tokens"].any() for path in pieces):
            shutil.rmtree(unfinished)  # another request is needed, which cannot use these pieces
            raise _none_left(folder, split)
    return {split: _join_split(folder, pieces, split, words) for split in SPLITS}


def _say_what_is_on_both_sides(folder: Path, pieces: Sequence[Path]) -> None:
    """Say on stderr how many held-out documents are training documents, too, if any is. Only the
    digests of the held-out ones are kept in memory."""

    def digests(held_out: bool) -> Iterator[bytes]:
        for path in pieces:
            with np.load(path) as piece:
                rows = piece["documents"]
            chosen = (rows["held_out"] == held_out) & (rows["tokens"] > 0)
            yield from rows["sha256"][chosen].tolist()

    held = {*digests(True)}
    if both := held.intersection(digests(False)):
        count = f"{len(both):,} of {len(held):,} held-out documents are training documents, too"
        print(f"{folder}: {count}, so that losses on them are too low", file=sys.stderr)


def _join_split(folder: Path, pieces: list[Path], split: str, words: int) -> SplitRecord:
    text_bytes = empty = 0
    texts = hashlib.sha256()

    def documents_of_split() -> Iterator[tuple[NDArray[Any], NDArray[np.int32]]]:
        nonlocal text_bytes, empty
        for path in pieces:
            rows, ids = _read(path, split)
            whole = rows[rows["tokens"] > 0]
            empty += rows.size - whole.size
            text_bytes += int(whole["text_bytes"].sum())
            texts.update(whole["sha256"].tobytes())
            yield ids, whole["tokens"]

    write_tokens(folder / split, dtype_for_vocabulary(words), documents_of_split())
    digest = texts.hexdigest()
    return record_of(folder / split, words, text_bytes, text_sha256=digest, empty_documents=empty)
