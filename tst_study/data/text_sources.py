"""Where documents come from: text files, JSONL files (plain or packed), Hugging Face datasets.

Reading is split in two. The reader (one process) unpacks a source into records, one per document;
workers parse the records. Both halves are here.
"""

import bz2
import glob
import gzip
import hashlib
import io
import json
import lzma
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from tst_study.errors import UserError

HUGGING_FACE = "hf://"
PACKED = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
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


def find_sources(names: list[str]) -> list[Source]:
    """The sources that some names stand for, in the order given; globs and folders sorted.

    A name is a file (`.txt`, `.md`: one document; `.jsonl`, `.ndjson`, `.json`: one per line; each
    also as `.gz`, `.xz`, `.bz2` or `.zst`), a folder or glob of such files, or
    `hf://owner/dataset[/configuration][:split]`, streamed by `datasets`; `hf:///a/folder` is a
    dataset on this machine.

    Raises:
        UserError: a name stands for nothing, or for a file that cannot be read as text.
    """
    found: list[Source] = []
    for name in names:
        if name.startswith(HUGGING_FACE):
            found.append(Source(name, "huggingface"))
            continue
        path = Path(name).expanduser()
        if path.is_dir():
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
    if kind is None:
        raise UserError(
            f"source {path}: its ending is none of .txt, .md, .jsonl, .ndjson, .json (also .gz,"
            " .xz, .bz2, .zst); rename it"
        )
    return Source(path.name, kind, path)


def _kind(path: Path) -> Kind | None:
    name = path.with_suffix("") if path.suffix in (*PACKED, ".zst") else path
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
        with open(source.path, "rb") as raw:
            hashed = _HashedFile(raw, reading)
            with _unpacked(source.path, io.BufferedReader(hashed, 1 << 20)) as file:
                if source.kind == "text":
                    yield file.read()
                else:
                    yield from file
            while hashed.read(1 << 20):  # a reader may stop before the last packed byte
                pass
    except (OSError, EOFError, lzma.LZMAError, ValueError) as error:
        raise UserError(f"{source.path}: cannot be read or unpacked ({error})") from error
    except Exception as error:
        if type(error).__name__ != "ZstdError":  # importing it needs zstandard
            raise
        raise UserError(f"{source.path}: cannot be unpacked ({error})") from error
    reading.sha256 = reading._hash.hexdigest()


def text_of_record(record: bytes, kind: Kind, text_field: str, place: str) -> str:
    """The text of one record; an empty line has none.

    Args:
        place: file and line, for errors.

    Raises:
        UserError: the record is not UTF-8, not JSON, or lacks the field.
    """
    try:
        if kind != "jsonl":
            return record.decode()
        if not record.strip():
            return ""
        document = json.loads(record)
    except UnicodeDecodeError as error:
        raise UserError(f"{place}: is not UTF-8 text ({error})") from error
    except json.JSONDecodeError as error:
        raise UserError(f"{place}: is not JSON ({error})") from error
    if not isinstance(document, dict) or not isinstance(document.get(text_field), str):
        has = ", ".join(document) if isinstance(document, dict) else type(document).__name__
        raise UserError(
            f"{place}: has no text in the field {text_field!r} (it has: {has});"
            " name the field with --field"
        )
    return str(document[text_field])


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
                    f" {', '.join(row)}); name the field with --field"
                )
            yield text.encode()
    except UserError:
        raise
    except Exception as error:  # network, unknown names, broken files: the library has many
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise UserError(f"source {name}: cannot be streamed ({reason})") from error


def _unpacked(path: Path, file: io.BufferedReader) -> IO[bytes]:
    if path.suffix == ".zst":
        import zstandard

        reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        return io.BufferedReader(reader, 1 << 20)
    if path.suffix in PACKED:
        return PACKED[path.suffix](file, "rb")  # type: ignore[no-any-return, operator]
    return file


class _HashedFile(io.RawIOBase):
    """A file that hashes and counts whatever is read from it."""

    def __init__(self, file: IO[bytes], reading: Reading) -> None:
        self._file = file
        self._reading = reading

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self._reading.bytes_read += len(data)
        self._reading._hash.update(data)
        return len(data)
