"""Finds the sources of a corpus and reads the documents in them.

A source is a text or JSONL file, compressed or not, a parquet file, or a dataset of the Hugging
Face hub. `request.py` calls `find_sources`, and `prepare.py` calls `documents`.
"""

import bz2
import glob
import gzip
import io
import json
import lzma
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import pyarrow
import pyarrow.parquet

from tst_study.atomic_files import files_below
from tst_study.data.manifest import MANIFEST, TOKENIZER, SourceRecord
from tst_study.data.token_file import idx_path
from tst_study.errors import UserError, first_line, one_of
from tst_study.text import is_whole

HUGGING_FACE = "hf://"


def _unpacked_zst(file: BinaryIO) -> BinaryIO:
    # Unlike zstandard's own reader, this one notices that a file is cut off.
    packed = pyarrow.CompressedInputStream(pyarrow.PythonFile(file, mode="r"), "zstd")
    return io.BufferedReader(packed)


PACKED: dict[str, Callable[[BinaryIO], Any]] = {
    ".gz": gzip.open,
    ".xz": lzma.open,
    ".bz2": bz2.open,
    ".zst": _unpacked_zst,
}
"""The function that opens a compressed file for reading, by the ending of the file's name."""
Kind = Literal["text", "jsonl", "parquet", "huggingface"]
"""The kinds of source: `text` is one document, `jsonl` has a document in each line, and the others
have one in each row."""
TEXTS: dict[str, Kind] = {
    **dict.fromkeys((".txt", ".md", ".text"), "text"),
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl"),
}
KINDS: dict[str, Kind] = {
    **TEXTS,
    ".parquet": "parquet",
    **{f"{end}{packed}": kind for end, kind in TEXTS.items() for packed in PACKED},
}
"""The kind of a file by the ending of its name."""


@dataclass(frozen=True)
class Source:
    """One file, or one dataset of the Hugging Face hub."""

    record: SourceRecord
    """The source as it was found, for the manifest. `prepare` adds the sha256 of a file once it has
    been read."""
    kind: Kind
    path: Path | None = None
    """The path of the file; None for a dataset of the hub."""

    @property
    def place(self) -> str:
        """The absolute path of the file, with links resolved, or the name of the dataset. Two names
        of one file have the same place."""
        return self.record.name if self.path is None else str(self.path.resolve())


def find_sources(names: Sequence[str], split: str, besides: Path) -> list[Source]:
    """Find the sources of a split by their names, in the order given.

    A name is one of:

    - a file: `.txt`, `.text` or `.md` is one document; `.jsonl`, `.ndjson` or `.json` has one
      document in each line; `.parquet` has one in each row. All but parquet may be compressed, with
      `.gz`, `.xz`, `.bz2` or `.zst` after the ending.
    - a glob of such files, or a folder, of which all such files at any depth are read, also behind
      links, except hidden ones and the JSON of prepared folders in it. The files of one name are
      sorted.
    - `hf://owner/dataset[/configuration][:split]`, a dataset that the `datasets` library streams
      from the hub; `hf:///a/folder` is one on this machine. The default split is `train`.

    Files in the folder `besides` are left out.

    Raises `UserError` for a name that matches no file, for a link in a folder that leads nowhere,
    and for a file whose path is not UTF-8, whose ending is unknown, or which is not an ordinary
    file (a pipe, a device, or a folder that a glob matches). In a folder, files with unknown
    endings are passed over instead.
    """
    sources: list[Source] = []
    for name in names:
        path = Path(os.path.expanduser(name))  # leaves the name of an unknown user as it is
        if name.startswith(HUGGING_FACE):
            sources.append(Source(SourceRecord(name=name, split=split), "huggingface"))
            continue
        for file in _files(name, path):
            kind, there = _kind(file), file.stat()
            size, time = there.st_size, there.st_mtime_ns
            record = SourceRecord(name=file.name, split=split, bytes=size, modified_ns=time)
            sources.append(Source(record, kind, file))
    return [s for s in sources if not Path(s.place).is_relative_to(besides.resolve())]


def _files(name: str, path: Path) -> list[Path]:
    paths = []
    if name and path.is_dir():
        found = (p for p in files_below(path) if _ending(p) in KINDS)
        paths = [p for p in found if not _is_of_prepared_folder(p)]
    elif name:
        paths = [path] if path.exists() else [Path(p) for p in glob.glob(str(path), recursive=True)]
    if not paths:
        raise UserError(
            f"source {name}: no such file, or a folder without text; give files of text, JSONL or"
            " parquet, or hf://owner/dataset"
        )
    return sorted(paths)


def _is_of_prepared_folder(path: Path) -> bool:
    return path.name in (MANIFEST, TOKENIZER) and idx_path(path.with_name("train")).exists()


def _ending(path: Path) -> str:
    """Return the ending that tells the kind of a file, such as `.txt` or `.jsonl.gz`."""
    endings = [ending.lower() for ending in path.suffixes[-2:]]
    return "".join(endings if endings and endings[-1] in PACKED else endings[-1:])


def _kind(path: Path) -> Kind:
    if not is_whole(str(path)):
        raise UserError(f"source {path}: its name is not UTF-8; rename it")
    if not path.is_file():
        raise UserError(f"source {path}: is a folder, pipe or device; give an ordinary file")
    if path.suffix == ".bin":
        raise UserError(
            f"source {path}: holds token ids, which need no preparation: `tst-study data adopt"
            f" {path} --dtype uint16 --vocabulary-size V` makes them a corpus where they lie"
        )
    return KINDS[one_of(_ending(path), KINDS, f"source {path}: the ending")]


def documents(
    source: Source, text_field: str, *, skip_empty: bool = False
) -> Iterator[tuple[int, str]]:
    """Yield the size in bytes and the text of each record: a line of JSON, a row, or a text file.

    The size of a line is that of its uncompressed JSON, and the size of a row that of its text
    alone. An empty line gives an empty text, and with `skip_empty` so does a text that is null.
    `text_field` names the field or column that holds the text.

    Raises `UserError` if the source cannot be read or unpacked, and for a record that is not UTF-8,
    is not JSON, or has no text in the field.
    """
    place = f"{source.path or source.record.name}"
    try:
        if source.path is None or source.kind == "parquet":
            for number, row in enumerate(_rows(source.path or place, text_field), start=1):
                text = _field(row, text_field, f"source {place}, row {number}", skip_empty)
                yield len(text.encode()), text
            return
        with open(source.path, "rb") as file:
            unpack = PACKED.get(source.path.suffix.lower())
            if unpack and not file.peek(1):  # which gzip takes for a packed text of no bytes
                raise EOFError("the file is empty")
            unpacked = unpack(file) if unpack else file
            if source.kind == "text":
                content = unpacked.read()
                yield len(content), content.decode("utf-8-sig")
                return
            number = 0  # `enumerate` would keep the line
            for line in unpacked:
                number += 1  # noqa: SIM113
                at = f"{place}, line {number}"
                size, document = len(line), _parsed(line, text_field, at)
                del line  # which may be large, while its text is used
                yield size, _field(document, text_field, at, skip_empty)
    except UserError:
        raise
    except UnicodeDecodeError as error:
        raise UserError(f"{place}: is not UTF-8 text ({error})") from error
    except Exception as error:  # the libraries raise many classes: network, names, broken files
        raise UserError(f"source {place}: cannot be read ({first_line(error)})") from error


def _parsed(line: bytes, text_field: str, place: str) -> Any:
    try:
        return json.loads(line) if line.strip() else {text_field: ""}
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: is not JSON ({error})") from error


def _field(document: Any, name: str, place: str, skip_empty: bool) -> str:
    fields = document if isinstance(document, dict) else {}
    text = fields.get(name)
    if text is None and name in fields:
        if skip_empty:
            return ""
        raise UserError(f"{place}: {name!r} is null; --skip-empty leaves such documents out")
    if isinstance(text, bytes):
        raise UserError(f"{place}: {name!r} holds bytes, not text; convert the column to strings")
    if not isinstance(text, str):
        kinds = (f"{field}: {type(value).__name__}" for field, value in fields.items())
        raise UserError(
            f"{place}: has no text in the field {name!r} (it has:"
            f" {', '.join(kinds) or type(document).__name__}); name the field with --text-field"
        )
    if not is_whole(text):
        raise UserError(f"{place}: holds half a surrogate pair, which is no character; remove it")
    return text


def _rows(place: Path | str, text_field: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a parquet file, or of the dataset of a name that begins with `hf://`. Of a
    file that has the column `text_field`, the other columns are not read."""
    if isinstance(place, Path):
        file = pyarrow.parquet.ParquetFile(place)
        columns = [text_field] if text_field in file.schema_arrow.names else None
        for batch in file.iter_batches(batch_size=1024, columns=columns):
            yield from batch.to_pylist()
        return
    import datasets

    # The library prints its errors as well as raising them. The printing is turned off, because the
    # command line reports errors itself, in one line.
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    where, _, split = place.removeprefix(HUGGING_FACE).partition(":")
    parts, configuration = where.split("/"), None
    if not where.startswith("/") and len(parts) > 2:
        where, configuration = "/".join(parts[:2]), "/".join(parts[2:])
    yield from datasets.load_dataset(where, configuration, split=split or "train", streaming=True)
