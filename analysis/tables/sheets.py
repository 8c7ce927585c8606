"""Text files as other programs and people write them: lines, and tables of named columns.

Every table that a person may fill in or export is read here: CSV with commas, semicolons or tabs,
as UTF-8 or UTF-16, packed or not, and parquet. What cannot be read is one line with file and row.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from tst_study.errors import UserError, first_line
from tst_study.text import short

PACKED: Mapping[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".xz": lzma.open,
    ".bz2": bz2.open,
    ".zst": zstandard.open,
}
TABLES = (".csv", ".tsv", ".parquet")
_LONGEST_LINE = 1 << 26
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+(e[+-]?\d+)?", re.IGNORECASE)


@dataclass(frozen=True)
class Sheet:
    """A table whose cells are not interpreted yet; what is missing is None."""

    path: Path
    columns: dict[str, list[Any]]
    lines: list[int]
    """The line of the file that each row ends in."""

    def where(self, row: int) -> str:
        return f"{self.path}, line {self.lines[row]}"

    def rows(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the place of each row, and its cells that are not empty."""
        for place, cells in enumerate(zip(*self.columns.values(), strict=True)):
            named = zip(self.columns, cells, strict=True)
            yield self.where(place), {name: cell for name, cell in named if cell is not None}


def ending(path: Path) -> str:
    """The suffix that says what a file holds, whether it is packed or not."""
    return Path(path.stem).suffix if path.suffix in PACKED else path.suffix


@contextmanager
def unpacked(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading. Raises `UserError` for what the disk or the packer refuses."""
    try:
        with PACKED.get(path.suffix, Path.open)(path, "rb") as file:
            yield file
    except (OSError, EOFError, lzma.LZMAError, zlib.error, zstandard.ZstdError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise UserError(f"{path}: cannot be read ({reason})") from None


def lines(path: Path, errors: str = "replace") -> Iterator[str]:
    """The lines of a text. `errors`: what to do with bytes that are no text, as in `open`.

    Raises `UserError` for a line of more than 64 MiB, and for such bytes where they are not
    replaced.
    """
    with unpacked(path) as packed:
        file = io.BufferedReader(packed)  # type: ignore[type-var]
        utf16 = file.peek(2)[:2] in (b"\xff\xfe", b"\xfe\xff")
        text = io.TextIOWrapper(file, "utf-16" if utf16 else "utf-8-sig", errors, newline=None)
        number = 0
        try:
            while line := text.readline(_LONGEST_LINE):
                number += 1
                if len(line) == _LONGEST_LINE:
                    raise UserError(f"{path}, line {number}: is too long for a log")
                yield line
        except UnicodeError:
            raise UserError(f"{path}, line {number + 1}: is not UTF-8; save it as UTF-8") from None


def read_sheet(path: Path) -> Sheet:
    """Read a table. Raises `UserError` that names file and line where it is damaged."""
    if ending(path) == ".parquet":
        return _parquet(path)
    text = lines(path, "strict")
    header = next(text, "")
    between = max(",;\t", key=header.count)
    reader = csv.reader(chain([header], text), delimiter=between)
    try:
        names = _unique([name.strip() for name in next(reader, [])], path)
        rows = [(reader.line_num, row) for row in reader if any(map(str.strip, row))]
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: is no CSV ({error})") from None
    for number, row in rows:
        if len(row) > len(names):
            raise UserError(f"{path}, line {number}: has more cells than columns")
    columns = zip_longest(names, *(row for _, row in rows), fillvalue="")
    cells = {name: [_cell(text, between) for text in column] for name, *column in columns if name}
    return Sheet(path, cells, [number for number, _ in rows])


def _cell(text: str, between: str) -> str | None:
    text = text.strip()
    if between != "," and _DECIMAL_COMMA.fullmatch(text):  # where it is no separator
        text = text.replace(",", ".")
    return text or None


def _parquet(path: Path) -> Sheet:
    try:
        with unpacked(path) as file:
            table = pq.ParquetFile(pa.BufferReader(file.read())).read()
    except (pa.ArrowException, UnicodeError) as error:
        raise UserError(f"{path}: cannot be read ({first_line(error)})") from None
    _unique(table.column_names, path)
    return Sheet(path, table.to_pydict(), list(range(1, len(table) + 1)))


def _unique(names: list[str], path: Path) -> list[str]:
    if twice := [name for name in names if name and names.count(name) > 1]:
        raise UserError(f"{path}: column {short(twice[0])} is there twice; rename one of them")
    return names
