"""Where documents come from: text files, JSONL files (plain or packed), Hugging Face datasets.

Reading is split in two. The reader (one process) unpacks a source into records, one per document;
workers parse the records. Both halves are here.
"""

import bz2
import glob
import hashlib
import io
import json
import lzma
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import zstandard

from tst_study.errors import UserError, first_line
from tst_study.text import is_whole

HUGGING_FACE = "hf://"


class Frame(Protocol):
    """One stretch of packed bytes that can be unpacked by itself; a file may hold several."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


PACKED: dict[str, Callable[[], Frame]] = {
    ".gz": lambda: zlib.decompressobj(wbits=zlib.MAX_WBITS | 16),
    ".xz": lzma.LZMADecompressor,
    ".bz2": bz2.BZ2Decompressor,
    # The largest window that its command makes (`--long=31`), beyond the library's own limit.
    ".zst": lambda: zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj(),
}
BYTES_AT_ONCE = 1 << 14
"""Packed, a few bytes can stand for a thousand times as many."""
JSONL = (".jsonl", ".ndjson", ".json")
Kind = Literal["text", "jsonl", "huggingface"]


@dataclass(frozen=True)
class Source:
    """One file or one Hugging Face dataset.

    `name` is what manifests and errors call it: the file's name, or `hf://…` in full.
    """

    name: str
    kind: Kind
    path: Path | None = None

    @property
    def bytes(self) -> int | None:
        """Bytes on disk; None where nobody knows before reading."""
        return None if self.path is None else self.path.stat().st_size

    @property
    def place(self) -> str:
        """The same for the same file or dataset, however it was named."""
        return self.name if self.path is None else str(self.path.resolve())

    def lies_in(self, folder: Path) -> bool:
        """Whether it is a file at or below a folder."""
        return self.path is not None and self.path.resolve().is_relative_to(folder.resolve())


def find_sources(names: list[str]) -> list[Source]:
    """The sources that some names stand for, in the order given; globs and folders sorted.

    A name is a file (`.txt`, `.md`: one document; `.jsonl`, `.ndjson`, `.json`: one per line; each
    also as `.gz`, `.xz`, `.bz2` or `.zst`), a folder or glob of such files, or
    `hf://owner/dataset[/configuration][:split]`, streamed by `datasets`; `hf:///a/folder` is a
    dataset on this machine.

    Raises `UserError` for a name of nothing, or of a file that cannot be read as text.
    """
    found: list[Source] = []
    for name in names:
        if name.startswith(HUGGING_FACE):
            found.append(Source(name, "huggingface"))
            continue
        path = Path(name).expanduser()
        if not name:
            paths = []
        elif path.is_dir():
            paths = sorted(p for p in path.rglob("*") if p.is_file() and _kind(p) is not None)
        elif path.exists():
            paths = [path]
        else:
            paths = [Path(p) for p in sorted(glob.glob(str(path), recursive=True))]
        if not paths:
            raise UserError(
                f"source {name}: no such file, or a folder without text; give text or JSONL files,"
                " or hf://owner/dataset"
            )
        found += [_file_source(path) for path in paths]
    return found


def _file_source(path: Path) -> Source:
    kind = _kind(path)
    if not is_whole(str(path)):
        raise UserError(f"source {path}: its name is not UTF-8; rename it")
    if not path.is_file():
        raise UserError(f"source {path}: is a pipe or device; give an ordinary file")
    if kind is None:
        raise UserError(
            f"source {path}: its ending is none of .txt, .md, .jsonl, .ndjson, .json (also .gz,"
            " .xz, .bz2, .zst); rename it"
        )
    return Source(path.name, kind, path)


def _kind(path: Path) -> Kind | None:
    name = path.with_suffix("") if path.suffix in PACKED else path
    if name.suffix in JSONL:
        return "jsonl"
    return "text" if name.suffix in (".txt", ".md", ".text") else None


@dataclass
class Reading:
    """What a reader has seen of its source so far."""

    bytes_read: int = 0
    """Bytes taken from disk, packed."""
    sha256: str | None = None
    """Of the file as it lies on disk; known when everything was read."""
    _hash: Any = field(default_factory=hashlib.sha256)


def records(source: Source, reading: Reading, text_field: str, skip: int = 0) -> Iterator[bytes]:
    """The records of a source: a JSONL line, or the UTF-8 text of one document.

    Args:
        reading: is kept up to date; its hash is complete when the iteration is.
        text_field: the column of a Hugging Face dataset that holds the text.
        skip: leave out this many records of a Hugging Face dataset at the beginning (files must
            be read anyway, for their hash).

    Raises:
        UserError: the source cannot be read or unpacked.
    """
    if source.kind == "huggingface":
        yield from _hugging_face_records(source.name, text_field, skip)
        return
    assert source.path is not None
    try:
        parts = _hashed(source.path, reading)
        if source.path.suffix in PACKED:
            parts = _unpacked(parts, source.path)
        file = io.BufferedReader(_Joined(parts), 1 << 20)
        if source.kind == "text":
            yield file.read()
        else:
            yield from file
    except OSError as error:
        raise UserError(f"{source.path}: cannot be read ({error.strerror})") from error
    reading.sha256 = reading._hash.hexdigest()


def text_of_record(record: bytes, source: Source, text_field: str, number: int) -> str:
    """The text of record `number` of a source; an empty line has none.

    Raises `UserError` where the record is not UTF-8, not JSON, or lacks the field.
    """
    place = f"{source.path or source.name}"
    if source.kind != "text":
        place += f", line {number + 1}"
    try:
        if source.kind != "jsonl":
            return record.decode()
        if not record.strip():
            return ""
        document = json.loads(record)
    except UnicodeDecodeError as error:
        raise UserError(f"{place}: is not UTF-8 text ({error})") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: is not JSON ({error})") from error
    if not isinstance(document, dict) or not isinstance(document.get(text_field), str):
        has = ", ".join(document) if isinstance(document, dict) else type(document).__name__
        raise UserError(
            f"{place}: has no text in the field {text_field!r} (it has: {has});"
            " name the field with --text-field"
        )
    text = str(document[text_field])
    if not is_whole(text):
        raise UserError(
            f"{place}: its text holds half a character (a lone surrogate), which has no UTF-8; "
            "remove it"
        )
    return text


def _hugging_face_records(name: str, text_field: str, skip: int) -> Iterator[bytes]:
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            f"source {name}: needs the `datasets` package; pip install 'tst-study[datasets]'"
        ) from error
    where, _, split = name.removeprefix(HUGGING_FACE).partition(":")
    parts = where.split("/")
    configuration = None
    if not where.startswith("/") and len(parts) > 2:
        where, configuration = "/".join(parts[:2]), "/".join(parts[2:])
    try:
        stream = datasets.load_dataset(where, configuration, split=split or "train", streaming=True)
        for row in stream.skip(skip) if skip else stream:
            text = row.get(text_field)
            if not isinstance(text, str):
                raise UserError(
                    f"source {name}: has no text in the field {text_field!r} (it has:"
                    f" {', '.join(row)}); name the field with --text-field"
                )
            yield text.encode()
    except UserError:
        raise
    except Exception as error:  # network, unknown names, broken files: the library has many
        raise UserError(f"source {name}: cannot be streamed ({first_line(error)})") from error


def _hashed(path: Path, reading: Reading) -> Iterator[bytes]:
    """The content of a file, which is counted and hashed on the way."""
    with open(path, "rb") as file:
        while part := file.read(BYTES_AT_ONCE):
            reading.bytes_read += len(part)
            reading._hash.update(part)
            yield part


def _unpacked(parts: Iterator[bytes], path: Path) -> Iterator[bytes]:
    """The content of a packed file. Raises `UserError` where it is damaged or ends too early.

    The libraries' own readers pass over what follows a whole frame and is none, and zstandard's
    over a frame that is cut off: text would be missing and no one would know.
    """
    frame: Frame | None = None
    frame_begin = end = 0
    for packed in parts:
        end += len(packed)
        while packed:
            if frame is None:
                packed = packed.lstrip(b"\0")  # padding, which gzip and xz allow
                if not packed:
                    break
                frame, frame_begin = PACKED[path.suffix](), end - len(packed)
            try:
                content = frame.decompress(packed)
            except (OSError, EOFError, lzma.LZMAError, zlib.error, zstandard.ZstdError) as error:
                raise UserError(
                    f"{path}: cannot be unpacked from byte {end - len(packed):,} on ({error}); it "
                    "is damaged or no such file, get it again"
                ) from error
            yield content
            packed = frame.unused_data if frame.eof else b""
            frame = None if frame.eof else frame
    if end == 0:
        raise UserError(f"{path}: is empty, so no packed file; get it again or leave it out")
    if frame is not None:
        raise UserError(
            f"{path}: is cut off: it ends at byte {end:,}, inside what is packed from byte "
            f"{frame_begin:,} on; get the whole file"
        )


class _Joined(io.RawIOBase):
    """Parts of a content as one file."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready and (part := next(self._parts, None)) is not None:
            self._ready = memoryview(part)
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count
