"""Where documents come from: text and JSONL files, packed or not, and all that `datasets` reads."""

import bz2
import glob
import json
import lzma
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import zstandard

from tst_study.errors import UserError, first_line
from tst_study.text import is_whole

HUGGING_FACE = "hf://"


PACKED: dict[str, Callable[[], Any]] = {
    ".gz": lambda: zlib.decompressobj(wbits=zlib.MAX_WBITS | 16),
    ".xz": lzma.LZMADecompressor,
    ".bz2": bz2.BZ2Decompressor,
    # The largest window that its command makes (`--long=31`), beyond the library's own limit.
    ".zst": lambda: zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj(),
}
BYTES_AT_ONCE = 1 << 14
"""Packed, a few bytes can stand for a thousand times as many."""
Kind = Literal["text", "jsonl", "parquet", "arrow", "mds", "huggingface"]
KINDS: dict[str, Kind] = {
    **dict.fromkeys((".txt", ".md", ".text"), "text"),
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl"),
    ".parquet": "parquet",
    ".arrow": "arrow",
}
BESIDE_ARROW = ("dataset_info.json", "state.json")


@dataclass(frozen=True)
class Source:
    """One file, or one dataset of the Hugging Face hub.

    `name` is what manifests and errors call it: the file's name, or `hf://…` in full. The file of
    an MDS dataset is its `index.json`.
    """

    name: str
    kind: Kind
    path: Path | None = None

    @property
    def has_rows(self) -> bool:
        """Whether a library reads it, which can begin in its middle."""
        return self.kind not in ("text", "jsonl")

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
    also as `.gz`, `.xz`, `.bz2` or `.zst`; `.parquet`, `.arrow`: one per row), a folder or glob of
    such files (one of `Dataset.save_to_disk` is a folder of `.arrow` files), a folder of MosaicML's
    MDS, or `hf://owner/dataset[/configuration][:split]`, streamed by `datasets`; `hf:///a/folder`
    is a dataset on this machine.

    Raises `UserError` for a name of nothing, or of a file that cannot be read as text.
    """
    found: list[Source] = []
    for name in names:
        path = Path(name).expanduser()
        if name.startswith(HUGGING_FACE):
            found.append(Source(name, "huggingface"))
        elif name and path.is_dir() and (path / "index.json").is_file():
            found.append(Source(path.name, "mds", path / "index.json"))
        else:
            found += map(_file_source, _files(name, path))
    return found


def _files(name: str, path: Path) -> list[Path]:
    paths = []
    if name and path.is_dir():
        if (path / "dataset_dict.json").exists():
            raise UserError(f"source {path}: holds several splits; name one, such as {path}/train")
        of_arrow = BESIDE_ARROW if (path / "state.json").exists() else ()
        inside = (p for p in path.rglob("*") if p.is_file() and p.name not in of_arrow)
        paths = sorted(p for p in inside if _kind(p) is not None)
    elif name:
        paths = [path] if path.exists() else [Path(p) for p in glob.glob(str(path), recursive=True)]
    if not paths:
        raise UserError(
            f"source {name}: no such file, or a folder without text; give files of text, JSONL or"
            " parquet, or hf://owner/dataset"
        )
    return sorted(paths)


def _file_source(path: Path) -> Source:
    kind = _kind(path)
    if not is_whole(str(path)):
        raise UserError(f"source {path}: its name is not UTF-8; rename it")
    if not path.is_file():
        raise UserError(f"source {path}: is a pipe or device; give an ordinary file")
    if path.suffix == ".bin":
        raise UserError(
            f"source {path}: holds token ids, which need no preparation: `tst-study data adopt"
            f" {path} --dtype uint16 --vocabulary-size V` makes them a corpus where they lie"
        )
    if kind is None:
        raise UserError(
            f"source {path}: its ending is none of {', '.join(KINDS)} (the text ones also"
            f" {', '.join(PACKED)}); rename it"
        )
    return Source(path.name, kind, path)


def _kind(path: Path) -> Kind | None:
    packed = path.suffix in PACKED
    kind = KINDS.get(path.with_suffix("").suffix if packed else path.suffix)
    return None if packed and kind not in ("text", "jsonl") else kind


def records(source: Source, text_field: str, skip: int = 0) -> Iterator[bytes]:
    """The records of a source: a JSONL line, or the UTF-8 text of one document.

    Args:
        text_field: the column with the text, where the source has rows.
        skip: leave out this many rows at the beginning; lines are read in any case.

    Raises:
        UserError: the source cannot be read or unpacked.
    """
    if source.has_rows:
        yield from _rows(source, text_field, skip)
        return
    assert source.path is not None
    try:
        parts = _parts(source.path)
        if source.path.suffix in PACKED:
            parts = _unpacked(parts, source.path)
        if source.kind == "text":
            yield b"".join(parts)
        else:
            yield from _lines(parts)
    except OSError as error:
        raise UserError(f"{source.path}: cannot be read ({error.strerror})") from error


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
    text = _field(document, text_field, place)
    if not is_whole(text):
        raise UserError(
            f"{place}: its text holds half a character (a lone surrogate), which has no UTF-8; "
            "remove it"
        )
    return text


def _field(document: Any, name: str, place: str) -> str:
    text = document.get(name) if isinstance(document, dict) else None
    if not isinstance(text, str):
        has = ", ".join(document) if isinstance(document, dict) else type(document).__name__
        raise UserError(
            f"{place}: has no text in the field {name!r} (it has: {has});"
            " name the field with --text-field"
        )
    return text


def _rows(source: Source, text_field: str, skip: int) -> Iterator[bytes]:
    place = f"source {source.path or source.name}"
    try:
        for row in _mds(source) if source.kind == "mds" else _dataset(source):
            if skip > 0:
                skip -= 1
                continue
            yield _field(row, text_field, place).encode()
    except UserError:
        raise
    except Exception as error:  # network, unknown names, broken files: the library has many
        raise UserError(f"{place}: cannot be streamed ({first_line(error)})") from error


def _dataset(source: Source) -> Iterator[dict[str, Any]]:
    import datasets

    split, configuration = "train", None
    if source.kind == "huggingface":
        where, _, named = source.name.removeprefix(HUGGING_FACE).partition(":")
        split, parts = named or split, where.split("/")
        if not where.startswith("/") and len(parts) > 2:
            where, configuration = "/".join(parts[:2]), "/".join(parts[2:])
        files = None
    else:
        where, files = source.kind, [str(source.path)]
    yield from datasets.load_dataset(
        where, configuration, data_files=files, split=split, streaming=True
    )


def _mds(source: Source) -> Iterator[dict[str, Any]]:
    assert source.path is not None
    try:
        from streaming import LocalDataset
    except ImportError as error:
        raise UserError(
            f"source {source.path.parent}: is MosaicML's MDS; pip install mosaicml-streaming, or"
            " write its rows as JSONL where that is installed"
        ) from error
    yield from LocalDataset(local=str(source.path.parent))


def _parts(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while part := file.read(BYTES_AT_ONCE):
            yield part


def _lines(parts: Iterator[bytes]) -> Iterator[bytes]:
    begun: list[bytes] = []
    for part in parts:
        *ends, rest = part.split(b"\n")
        for end in ends:
            yield b"".join([*begun, end, b"\n"])
            begun = []
        begun.append(rest)
    if last := b"".join(begun):
        yield last


def _unpacked(parts: Iterator[bytes], path: Path) -> Iterator[bytes]:
    """The content of a packed file. Raises `UserError` where it is damaged or ends too early.

    The libraries' own readers ignore garbage after a whole frame, and zstandard's ignores that a
    frame is cut off. Text would be missing, and no one would know.
    """
    frame: Any = None  # a stretch that can be unpacked by itself; a file may hold several
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
