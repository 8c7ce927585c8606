"""An archive holds the results of runs, for instance those of a study. It is a folder of three
parquet files, which any tool can open (`docs/tables.md`).

| file | a row |
| --- | --- |
| `runs.parquet` | a run; if not imported, with its config and its text's fingerprints as JSON |
| `curves.parquet` | a logged step |
| `evaluations.parquet` | a held-out loss, or a number that a task measured |

The column `run_id` joins them. All three state the digest of what was written together, so that
none is read beside those of another archive. The questions of a study may lie beside them in
`questions.json`.

One process writes at a time. It writes all new files into a subfolder, `.staged`, renames that to
`.ready`, and only then moves the files over the old ones. Until the rename the archive is the old
one. If the writer is killed after the rename, the next command that reads or writes the archive
finishes the move.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from tst_study.analysis.tables.columns import (
    CURVES,
    EVALUATIONS,
    RUNS,
    Column,
    Tables,
    columns_of,
    typed,
)
from tst_study.analysis.tables.run_folders import of_config
from tst_study.atomic_files import disk_errors_named, written_atomically
from tst_study.config.schema import from_record
from tst_study.config.superposition_setting import SuperpositionSetting
from tst_study.errors import UserError, first_line, first_problem
from tst_study.file_lock import EXCLUSIVE, take
from tst_study.record.reader import DataFacts, State
from tst_study.text import is_file_name, short

SCHEMA_VERSION = 1
"""Version of the columns and types, which every file states in its metadata; files of any other
version are refused."""
_VERSION, _DIGEST = b"tst_study_schema_version", b"tst_study_digest"
"""Keys of a file's metadata. Archives of earlier versions have no digest."""
_TYPES = {
    "text": pa.string(),
    "json": pa.string(),
    "whole": pa.int64(),
    "number": pa.float64(),
    "truth": pa.bool_(),
}
_WANTED = {
    "text": "text of at most 10,000 characters",
    "json": "JSON",
    "whole": "a whole number of at least 0",
    "number": "a finite number",
    "truth": "true or false",
}
_LONGEST_TEXT = 10_000
_MANY_ROWS = 200_000
_LOGS = ("curves", "evaluations")
_FILES: dict[str, tuple[Column, ...]] = {
    "runs": RUNS,
    "curves": (RUNS[0], *CURVES),
    "evaluations": (RUNS[0], *EVALUATIONS),
}
_STAGED, _READY, _LOCK = ".staged", ".ready", ".lock"
_CONFIG: TypeAdapter[Any] = TypeAdapter(dict[str, Any])
_DATA: TypeAdapter[Any] = TypeAdapter(DataFacts)


def find_archives(root: Path) -> list[Path]:
    """Return the folders of all archives at or below `root`, sorted."""
    folders = {path.parent for path in root.rglob("*.parquet") if path.stem in _LOGS}
    found = {folder.parent if folder.name == _READY else folder for folder in folders}
    return sorted(folder for folder in found if folder.name != _STAGED)


def read_archive(folder: Path) -> Tables:
    """Read an archive. Raises `UserError` for a missing or damaged file, another schema version,
    and a cell that the schema does not allow."""
    parts = _parts(folder)
    rows = []
    for number, row in enumerate(parts["runs"].to_pylist(), 1):
        try:
            rows.append(_recomputed(row))
        except UserError as error:
            raise UserError(f"{folder / 'runs.parquet'}, row {number}, {error}") from None
        row = rows[-1]
        row["folder"] = str(folder / row["run_id"])
        if row["flops"] is not None:
            row["flops"] = int(row["flops"])  # stored as a float: FLOPs outgrow 64-bit integers
    curves, evaluations = (_joined(parts[name], name, folder) for name in _LOGS)
    return Tables.of(rows, curves, evaluations)


def _recomputed(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row in which the columns that follow from others are computed anew, by this version
    of the package. Raises `UserError`, which names the column, for a wrong config or for wrong
    facts about the data."""
    if row["config"] is not None:
        recorded = {}
        for column, schema in (("config", _CONFIG), ("data", _DATA)):
            try:
                recorded[column] = schema.validate_json(row[column] or "null")
            except ValidationError as error:
                raise UserError(f"column {column}: {first_problem(error)}") from None
        from_record(recorded["config"], "column config")  # raises where it is wrong
        return {**row, **of_config(**recorded)}
    return {**row, **columns_of(SuperpositionSetting.of_row(row))}


def _joined(part: pa.Table, name: str, folder: Path) -> pd.DataFrame:
    table = typed(part.to_pandas(), _FILES[name]).rename(columns={"run_id": "folder"})
    place = "" if folder == Path() else f"{folder}/"  # as `read_archive` joins it
    table["folder"] = (place + table["folder"]).astype("category")
    return table


def add_to_archive(
    folder: Path, tables: Tables, beside: Callable[[Path], None] | None = None
) -> int:
    """Add runs to the archive in a folder, which is made if there is none. A run whose id is
    already in the archive is replaced. Either all runs are written, or none is. Returns the number
    of runs that were replaced.

    beside: a function that is called with a folder and writes into it what is to lie beside the
    tables, such as questions.

    Raises `UserError` if two of the new runs have one id, if a cell cannot be stored, if the
    archive that is there cannot be read, and for errors of the disk.
    """
    ids = dict(zip(tables.runs["folder"], tables.runs["run_id"], strict=True))
    parts = {"runs": _stored(tables.runs, "runs")}
    for name, table in (("curves", tables.curves), ("evaluations", tables.evaluations)):
        parts[name] = _stored(table.assign(run_id=table["folder"].map(ids)), name)
    with disk_errors_named(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            there = any((folder / f"{name}.parquet").exists() for name in _FILES)
            empty = {name: _schema(name).empty_table() for name in _FILES}
            old = _parts(folder) if there else empty
            staged = folder / _STAGED
            shutil.rmtree(staged, ignore_errors=True)
            staged.mkdir()
            replaced = parts["runs"]["run_id"]
            for name, part in parts.items():
                again = pc.is_in(old[name]["run_id"], replaced)
                part = pa.concat_tables([old[name].filter(pc.invert(again)), part])
                by = [("run_id", "ascending")] + [("step", "ascending")] * (name != "runs")
                order = pc.sort_indices(part, sort_keys=by)
                in_order = order.to_pandas().is_monotonic_increasing  # as a long log is
                parts[name] = part if in_order else part.take(order)
            digest = _digest(parts.values())
            for name, part in parts.items():
                part = part.replace_schema_metadata({**part.schema.metadata, _DIGEST: digest})
                with written_atomically(staged / f"{name}.parquet") as file:
                    how = _encodings(name, len(part))
                    pq.write_table(part, file, _MANY_ROWS, write_page_checksum=True, **how)
            if beside is not None:
                beside(staged)
            staged.rename(folder / _READY)
            _finish(folder)
    return len({*old["runs"]["run_id"].to_pylist()} & {*ids.values()})


def _digest(parts: Iterable[pa.Table]) -> str:
    """Return the sha256 of the rows of tables, in Arrow's own format."""
    digest = hashlib.sha256()
    for part in parts:
        for batch in part.to_batches(max_chunksize=1 << 16):  # each is copied whole
            digest.update(batch.serialize())
    return digest.hexdigest()


def _encodings(name: str, rows: int) -> dict[str, Any]:
    """Return the options with which `write_table` encodes a table. A column of numbers is stored as
    the first bytes of all its numbers, then their second bytes, and so on. Curves stored like this
    compress to about two thirds of the size, and no number changes. A table of more than
    `_MANY_ROWS` is compressed less, as a log of a million rows would take half a minute."""
    numbers = [column.name for column in _FILES[name] if column.kind == "number"]
    others = [column.name for column in _FILES[name] if column.kind != "number"]
    how = {"use_byte_stream_split": numbers, "use_dictionary": others}
    return {**how, "compression": "zstd", "compression_level": 19 if rows <= _MANY_ROWS else 3}


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Wait until no other process writes, keep the others out, and finish the move of a writer that
    was killed."""
    with (folder / _LOCK).open("a") as file:
        take(file.fileno(), folder, EXCLUSIVE, wait=True)
        _finish(folder)
        yield


def _finish(folder: Path) -> None:
    ready = folder / _READY
    if ready.is_dir():
        for path in sorted(ready.iterdir()):
            os.replace(path, folder / path.name)
        ready.rmdir()


def _parts(folder: Path) -> dict[str, pa.Table]:
    """Read the three tables, as one and the same writer left them, with the columns of this
    version.

    The move of a writer that was killed is finished first. If another process replaces the files
    while they are read, they are read again."""
    paths = {name: folder / f"{name}.parquet" for name in _FILES}
    contents: dict[str, bytes] = {}
    read: list[tuple[int, int]] = []
    while True:
        if (folder / _READY).is_dir():
            with disk_errors_named(folder), _locked(folder):
                pass
        try:
            there = [(path.stat().st_ino, path.stat().st_mtime_ns) for path in paths.values()]
            if there == read:  # no other process has replaced them while they were read
                found = {name: _read(contents[name], path, name) for name, path in paths.items()}
                _check_joined(folder, found)
                return {name: table for name, (table, _) in found.items()}
            contents, read = {name: path.read_bytes() for name, path in paths.items()}, there
        except OSError as error:
            raise UserError(f"{error.filename}: cannot be read ({error.strerror})") from None


def _check_joined(folder: Path, found: Mapping[str, tuple[pa.Table, bytes]]) -> None:
    """Raise `UserError` if the tables, each with its digest, were not written together, if a row is
    of a run that is not in `runs`, or if a run's curve or losses are missing."""
    if len({digest for _, digest in found.values()}) > 1:
        raise UserError(
            f"{folder}: its {len(found)} parquet files were not written together; restore all of "
            "them from one copy"
        )
    runs = found["runs"][0]
    for name, column in (("curves", "last_train_loss"), ("evaluations", "nats_per_token")):
        there = pc.unique(found[name][0]["run_id"])
        unknown = there.filter(pc.invert(pc.is_in(there, runs["run_id"])))
        bare = runs["run_id"].filter(
            pc.and_(pc.is_valid(runs[column]), pc.invert(pc.is_in(runs["run_id"], there)))
        )
        for odd, what in ((unknown, "which runs.parquet lacks"), (bare, "which has no row there")):
            if len(odd):
                run = f"run {odd[0].as_py()}, {what}"
                raise UserError(f"{folder / name}.parquet: {run}; restore all files from one copy")


def _read(content: bytes, path: Path, name: str) -> tuple[pa.Table, bytes]:
    """Return the table in the content of a file, with the columns of this version, and the digest
    that it states; an optional column that an older file lacks is empty. Raises `UserError` for a
    damaged file, another schema version, a column that is missing or of another type, and a cell
    that is not allowed."""
    try:
        source = pa.BufferReader(content)
        table = pq.ParquetFile(source, page_checksum_verification=True).read()
        table.validate(full=True)
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({first_line(error)}); restore it") from None
    stated = table.schema.metadata or {}
    version = stated.get(_VERSION, b"").decode()
    if version != str(SCHEMA_VERSION):
        raise UserError(
            f"{path}: schema version {version or 'not stated'}, but this version of tst_study "
            f"knows {SCHEMA_VERSION}; use the version that wrote it"
        )
    for column in _FILES[name]:
        if column.optional and column.name not in table.column_names:
            table = table.append_column(column.name, pa.nulls(len(table), _TYPES[column.kind]))
    try:
        table = table.select(_schema(name).names)
    except KeyError as error:
        raise UserError(f"{path}: {error.args[0]}; restore the file") from None
    for stored, wanted in zip(table.schema, _schema(name), strict=True):
        if stored.type != wanted.type:
            raise UserError(f"{path}: column {stored.name} holds {stored.type}, not {wanted.type}")
    return _checked(table.cast(_schema(name)), name, path), stated.get(_DIGEST, b"")


def _stored(table: pd.DataFrame, name: str) -> pa.Table:
    """Return a table as an archive stores it. Raises `UserError` for a cell that cannot be
    stored."""
    cells = {}
    for column in _FILES[name]:
        values: Any = table[column.name]
        try:
            if column.kind == "number":  # FLOPs are whole numbers, but outgrow 64-bit integers
                values = values.astype(float)
            elif values.dtype == object:
                values = values.tolist()
            cells[column.name] = pa.array(values, from_pandas=True).cast(_TYPES[column.kind])
        except (pa.ArrowException, OverflowError, ValueError) as error:
            raise UserError(f"{name}, column {column.name}: {first_line(error)}") from None
    return _checked(pa.table(cells, schema=_schema(name)), name, name)


def _checked(table: pa.Table, name: str, path: Path | str) -> pa.Table:
    """Return the table. Raises `UserError`, which names file, row, column and value, if a cell is
    not allowed."""
    for column in _FILES[name]:
        values = table[column.name]
        allowed = pc.fill_null(_ALLOWED[column.kind](values), column.optional)
        if (row := pc.index(allowed, False).as_py()) >= 0:
            cell = values[row].as_py()
            wanted = f"{short(cell)} is not {_WANTED[column.kind]}"
            problem = "is empty; fill it in" if cell is None else wanted
            raise UserError(f"{path}, row {row + 1}, column {column.name}: {problem}")
    if name == "runs":
        _check_runs(table, path)
    return table


def _is_json(text: str) -> bool:
    try:
        from_json(text)
    except ValueError:
        return False
    return True


_ALLOWED: dict[str, Callable[[Any], Any]] = {
    "whole": lambda values: pc.greater_equal(values, 0),
    "number": pc.is_finite,
    "text": lambda values: pc.less_equal(pc.utf8_length(values), _LONGEST_TEXT),
    "json": lambda values: pa.array(
        [None if text is None else _is_json(text) for text in values.to_pylist()], pa.bool_()
    ),
    "truth": lambda values: pc.equal(values, values),
}
"""A function for each kind of column. It takes the cells, and returns for each cell whether it is
allowed, or null if the cell is missing."""


def _check_runs(table: pa.Table, path: Path | str) -> None:
    """Raise `UserError` for a run id that is not a valid file name or appears twice, and for an
    unknown state."""
    runs, states = table["run_id"].to_pylist(), table["state"].to_pylist()
    again = pd.Series(runs, dtype=object).duplicated()
    for row, (run, state, twice) in enumerate(zip(runs, states, again, strict=True), 1):
        if not is_file_name(run):
            problem = f"run_id: {short(run)} is not a valid folder name"
        elif twice:
            problem = f"run_id: {run!r} appears twice; rename one"
        elif state not in get_args(State):
            problem = f"state: {short(state)} is not a run state"
        else:
            continue
        raise UserError(f"{path}, row {row}, column {problem}")


def _schema(name: str) -> pa.Schema:
    fields = [(column.name, _TYPES[column.kind]) for column in _FILES[name]]
    return pa.schema(fields, metadata={_VERSION: str(SCHEMA_VERSION).encode()})
