"""Reads files that people or other programs wrote: lines of logs, and tables with named columns.

Every table that a person may fill in or export is read here: CSV with commas, semicolons or tabs,
and parquet, compressed or not. An error is one line that names the file and, if it is about one
row, the row.
"""

import codecs
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from tst_study.data.preparation.text_sources import PACKED
from tst_study.errors import UserError, first_line
from tst_study.text import short

TABLES = (".csv", ".tsv", ".parquet")
"""Suffixes of files that hold tables."""
_LONGEST_CELL = 100_000


def ending(path: Path) -> str:
    """Return the suffix that says what a file holds: `.csv` for `runs.csv` and `runs.csv.gz`."""
    return Path(path.stem).suffix if path.suffix in PACKED else path.suffix


@contextmanager
def unpacked(path: Path, **text: Any) -> Iterator[IO[Any]]:
    """Open a file for reading, and decompress it if its suffix is in `PACKED`. `text`: how bytes
    are decoded, as `open` takes it; without it they are read as they are. Raises `UserError` if the
    file cannot be opened, read or decompressed, also while the caller reads it."""
    try:
        with open(path, "rb") as file:
            unpack = PACKED.get(path.suffix)
            content = unpack(file) if unpack else file
            yield io.TextIOWrapper(content, **text) if text else content
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise UserError(f"{path}: cannot be read ({reason})") from None


def lines(path: Path) -> Iterator[str]:
    """Yield the lines of a log; bytes that are not UTF-8 are replaced."""
    with unpacked(path, encoding="utf-8-sig", errors="replace") as file:
        yield from file


def blocks(path: Path, size: int = 1 << 21) -> Iterator[tuple[int, bytes]]:
    """Yield a log in blocks of whole lines, each with the number of its first line. Every line ends
    in `\\n`, also where a program wrote over its lines (`\\r`)."""
    number = 1
    with unpacked(path) as file:
        while block := file.read(size) + file.readline():
            block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            yield number, block.removeprefix(codecs.BOM_UTF8)
            number += block.count(b"\n")


def read_sheet(path: Path) -> pd.DataFrame:
    """Read a table without interpreting its cells: those of a CSV stay text.

    The index is the row number that a spreadsheet shows: the first row of data is 2 in a CSV, whose
    header is row 1, and 1 in parquet. An empty cell is None. Empty rows are left out, and so are
    the columns of a CSV that have no heading.

    Raises `UserError`, which names the file, if the file is damaged, is a CSV that is not UTF-8, or
    has two columns of one name.
    """
    with unpacked(path) as file:
        content = file.read()
    try:
        table = (_parquet if ending(path) == ".parquet" else _csv)(content)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}, line {line}: is not UTF-8; save it as UTF-8") from None
    except (pa.ArrowException, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise UserError(f"{path}: cannot be read ({first_line(error)})") from None
    if len(twice := table.columns[table.columns.duplicated()]):
        raise UserError(f"{path}: column {short(twice[0])} is there twice; rename one of them")
    for name in table:
        if table[name].dtype in ("str", object):
            long = (table[name].astype("str").str.len() > _LONGEST_CELL).to_numpy(bool)
            if long.any():
                line, cell = table.index[long][0], table[name][long].iloc[0]
                raise UserError(f"{path}, line {line}, {name}: {short(cell)} is too long")
    empty = table.isna().all(axis=1)
    return table[~empty] if empty.any() else table


def _csv(content: bytes) -> pd.DataFrame:
    header = io.BytesIO(content).readline().decode("utf-8-sig")
    separator = max(",;\t", key=header.count)
    try:
        table = _plain_csv(content, separator, header.count(separator))
    except pa.ArrowInvalid:
        table = _any_csv(content, separator)
    table.index += 1
    first, table = table.iloc[:1].apply(_stripped), table.iloc[1:]
    names = pd.Index(first.iloc[0].to_list())
    again = table[_stripped(table.iloc[:, 0]) == names[0]].apply(_stripped)
    if (again := again[(again == names.to_numpy()[None]).all(axis=1)]).size:
        table = table.drop(index=again.index)  # programs that resume write the header again
    columns = {}
    for place, name in enumerate(names):  # so that no column of a long log is kept twice
        cells = _stripped(table.pop(place))  # type: ignore[arg-type]
        if name != "":
            columns[place] = cells.mask(cells == "")
    return pd.DataFrame(columns, table.index).set_axis(names[names != ""], axis="columns")


def _stripped(cells: pd.Series) -> pd.Series:
    return cells.str.strip()


def _plain_csv(content: bytes, separator: str, separators: int) -> pd.DataFrame:
    """Read a CSV without quotes, ten times as fast as `_any_csv`. Raises `ArrowInvalid` for all
    that is not plain."""
    if b'"' in content or not separators:
        raise pa.ArrowInvalid
    names = [str(column) for column in range(separators + 1)]
    table = csv.read_csv(
        pa.BufferReader(content),
        csv.ReadOptions(column_names=names, use_threads=False),
        csv.ParseOptions(delimiter=separator, ignore_empty_lines=False),
        csv.ConvertOptions(column_types=dict.fromkeys(names, pa.large_string())),
    )
    cells: pd.DataFrame = table.to_pandas(self_destruct=True)
    return cells.set_axis(range(len(names)), axis="columns")


def _any_csv(content: bytes, separator: str) -> pd.DataFrame:
    try:
        return pd.read_csv(
            io.BytesIO(content),
            sep=separator,
            header=None,
            dtype="str",
            keep_default_na=False,
            skip_blank_lines=False,
            encoding="utf-8-sig",
        )
    except UnicodeDecodeError:
        content.decode("utf-8-sig")  # raises it again, with the place in the whole file
        raise


def _parquet(content: bytes) -> pd.DataFrame:
    table = pq.read_table(pa.BufferReader(content))
    rows = pd.DataFrame(
        {
            place: pd.Series(column.to_pandas(types_mapper=pd.ArrowDtype))
            if pa.types.is_floating(column.type) or pa.types.is_integer(column.type)
            else pd.Series(column.to_pylist(), dtype=object)
            for place, column in enumerate(table.columns)
        }
    ).set_axis(table.column_names, axis="columns")
    rows.index += 1
    return rows


def filled_cells(
    table: pd.DataFrame, path: Path, *needed: str
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield for each row of a table of `read_sheet` its number and its cells that are not empty, by
    column name. Raises `UserError` if a `needed` cell is empty."""
    for line, cells in zip(table.index, table.to_dict("records"), strict=True):
        row = {str(name): cell for name, cell in cells.items() if pd.isna(cell) is not True}
        for name in needed:
            if name not in row:
                raise UserError(f"{path}, line {line}, {name}: is empty; fill it in")
        yield line, row
