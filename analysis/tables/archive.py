"""An archive: a folder of three parquet files that any tool opens (`docs/tables.md`).

| file | a row |
| --- | --- |
| `runs.parquet` | a run, with its resolved config and the fingerprints of its text as JSON |
| `curves.parquet` | a logged step |
| `evaluations.parquet` | a held-out loss, or a number that a task measured |

`run_id` joins them. `questions.json` may lie beside them.

One process writes at a time. It puts all new files into a folder beside the old ones, renames that
folder, and only then moves the files over the old ones. Until the rename the archive is the old
one. If the writer is killed after it, the next command that opens the archive finishes the move.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, get_args

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
from tst_study.config.schema import from_dict, of_record
from tst_study.config.superposition_setting import SuperpositionSetting
from tst_study.errors import UserError, first_line, first_problem
from tst_study.file_lock import EXCLUSIVE, take
from tst_study.record.reader import DataFacts, State
from tst_study.text import is_file_name, short

SCHEMA_VERSION = 1
_VERSION = b"tst_study_schema_version"
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
_LOGS = ("curves", "evaluations")
_FILES: dict[str, tuple[Column, ...]] = {
    "runs": RUNS,
    "curves": (RUNS[0], *CURVES),
    "evaluations": (RUNS[0], *EVALUATIONS),
}
_DERIVED = ("method", "arm", "group", "family")
"""Required columns that older files may lack, because reading computes them again."""
_STAGED, _READY, _LOCK = ".staged", ".ready", ".lock"
_CONFIG: TypeAdapter[Any] = TypeAdapter(dict[str, Any])
_DATA: TypeAdapter[Any] = TypeAdapter(DataFacts)


def find_archives(root: Path) -> list[Path]:
    """All archives at or below `root`, sorted."""
    wanted = {f"{name}.parquet" for name in _FILES}
    archives = []
    for path, folders, files in os.walk(root):
        if _READY in folders or wanted <= set(files):
            archives.append(Path(path))
        folders[:] = [name for name in folders if name not in (_STAGED, _READY)]
    return sorted(archives)


def read_archive(folder: Path) -> Tables:
    """Read an archive. Raises `UserError` for a damaged file or another schema version."""
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
            row["flops"] = int(row["flops"])  # whole, though they outgrow 64 bits
    curves, evaluations = (_joined(parts[name], name, folder) for name in _LOGS)
    return Tables.of(_ignore_rates_of_arms(rows), curves, evaluations)


def _ignore_rates_of_arms(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Set the learning rates of imported runs to 0 where they must not keep arms apart: where each
    arm has one rate, and either some rate is unknown or named arms differ in theirs."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        if row["config"] is None:
            groups.setdefault((row["group"], row["eval_set"]), []).append(row)
    for members in groups.values():
        rates: dict[str, set[float | None]] = {}
        for row in members:
            rates.setdefault(row["arm"], set()).add(row["learning_rate"])
        different = set().union(*rates.values())
        named = any(row["named_arm"] for row in members) and len(different) > 1
        if (named or None in different) and all(len(of_arm) == 1 for of_arm in rates.values()):
            for row in members:
                row["learning_rate"] = 0.0
    return rows


def _recomputed(row: dict[str, Any]) -> dict[str, Any]:
    """Compute the derived columns of a row by today's code. Raises `UserError` that names the
    column."""
    if row["config"] is not None:
        recorded = {}
        for column, schema in (("config", _CONFIG), ("data", _DATA)):
            try:
                recorded[column] = schema.validate_json(row[column] or "null")
            except ValidationError as error:
                raise UserError(f"column {column}: {first_problem(error)}") from None
        from_dict(of_record(recorded["config"]), "column config")  # raises where it is wrong
        return {**row, **of_config(**recorded)}
    return {**row, **columns_of(SuperpositionSetting.of_row(row))}


def _joined(part: pa.Table, name: str, folder: Path) -> pd.DataFrame:
    table = typed(part.to_pandas(), _FILES[name]).rename(columns={"run_id": "folder"})
    runs = sorted(table["folder"].unique())
    codes = pd.Categorical(table["folder"], categories=runs)
    table["folder"] = codes.rename_categories({run: str(folder / run) for run in runs})
    return table


def add_to_archive(
    folder: Path, tables: Tables, beside: Callable[[Path], None] | None = None
) -> set[str]:
    """Write runs into an archive, new or there already, and return the ids that it held before.

    A run that is in it is replaced. All of it is written, or nothing is.

    beside: writes what lies beside the tables, such as questions, into the folder that it is given.

    Raises `UserError` where two of the runs have one id, or a cell cannot be stored.
    """
    ids = dict(zip(tables.runs["folder"], tables.runs["run_id"], strict=True))
    new = {"runs": tables.runs}
    for name, table in (("curves", tables.curves), ("evaluations", tables.evaluations)):
        new[name] = table.assign(run_id=table["folder"].map(ids).astype("str"))
    parts = {}
    for name, table in new.items():
        cells = {column.name: table[column.name].tolist() for column in _FILES[name]}
        parts[name] = _checked(cells, name, name)
    with disk_errors_named(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            there = any((folder / f"{name}.parquet").exists() for name in _FILES)
            old = _parts(folder) if there else {}
            staged = folder / _STAGED
            shutil.rmtree(staged, ignore_errors=True)
            staged.mkdir()
            for name, part in parts.items():
                if there:
                    again = pc.is_in(old[name]["run_id"], parts["runs"]["run_id"])
                    part = pa.concat_tables([old[name].filter(pc.invert(again)), part])
                by = [("run_id", "ascending")] + [("step", "ascending")] * (name != "runs")
                order = pc.sort_indices(part, sort_keys=by)
                with written_atomically(staged / f"{name}.parquet") as file:
                    pq.write_table(part.take(order), file, compression="zstd", compression_level=19)
            if beside is not None:
                beside(staged)
            staged.rename(folder / _READY)
            _finish(folder)
    return set(old["runs"]["run_id"].to_pylist()) if there else set()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Wait until no other process writes, and finish what a killed one had ready."""
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        take(descriptor, folder, EXCLUSIVE, wait=True)
        _finish(folder)
        yield
    finally:
        os.close(descriptor)


def _finish(folder: Path) -> None:
    ready = folder / _READY
    if ready.is_dir():
        for path in sorted(ready.iterdir()):
            os.replace(path, folder / path.name)
        ready.rmdir()


def _parts(folder: Path) -> dict[str, pa.Table]:
    """Read the three tables in a consistent state; try again if a writer replaces them
    meanwhile."""
    paths = {name: folder / f"{name}.parquet" for name in _FILES}
    while True:
        if (folder / _READY).is_dir():
            with disk_errors_named(folder), _locked(folder):
                pass
        with ExitStack() as stack:
            try:
                files = {name: stack.enter_context(path.open("rb")) for name, path in paths.items()}
            except OSError as error:
                raise UserError(f"{error.filename}: cannot be read ({error.strerror})") from None
            parts = {name: _read(file, paths[name], name) for name, file in files.items()}
            # Another process may have replaced them in between.
            same = (
                os.path.samestat(os.fstat(file.fileno()), paths[name].stat())
                for name, file in files.items()
            )
            if all(same) and not (folder / _READY).is_dir():
                return parts


def _read(file: IO[bytes], path: Path, name: str) -> pa.Table:
    """The table in today's columns; those that an older file lacks are empty."""
    columns = {column.name: column for column in _FILES[name]}
    try:
        parquet = pq.ParquetFile(file)
        names = parquet.schema_arrow.names
        for header, column in columns.items():
            there = names.count(header)
            if there > 1 or not (there or column.optional or header in _DERIVED):
                wrong = "appears twice" if there else "is missing"
                raise UserError(f"{path}: column {header!r} {wrong}; restore the file")
        version = (parquet.schema_arrow.metadata or {}).get(_VERSION, b"").decode()
        if version != str(SCHEMA_VERSION):
            raise UserError(
                f"{path}: schema version {version or 'not stated'}, but this version of tst_study "
                f"knows {SCHEMA_VERSION}; use the version that wrote it"
            )
        table = parquet.read([header for header in names if header in columns])
        table.validate(full=True)
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({first_line(error)}); restore it") from None
    return _checked({header: table[header] for header in table.column_names}, name, path)


def _checked(cells: dict[str, Any], name: str, path: Path | str) -> pa.Table:
    """A table in today's columns, of lists or Arrow arrays.

    Raises `UserError` that names file, row, column and value of the first cell that is not allowed.
    """
    rows = len(next(iter(cells.values()), ()))
    arrays = {}
    for column in _FILES[name]:
        if (values := cells.get(column.name)) is None:
            arrays[column.name] = pa.nulls(rows, _TYPES[column.kind])
            continue
        arrays[column.name] = _fitting(values, column)
        if arrays[column.name] is None:
            row = next(i for i in range(rows) if _fitting(values[i : i + 1], column) is None)
            cell = values[row] if isinstance(values, list) else values[row].as_py()
            problem = f"{short(cell)} is not {_WANTED[column.kind]}"
            problem = "is empty; fill it in" if cell is None else problem
            raise UserError(f"{path}, row {row + 1}, column {column.name}: {problem}")
    table = pa.table(arrays, schema=_schema(name))
    if name == "runs":
        _check_runs(table, path)
    return table


def _fitting(values: Any, column: Column) -> Any:
    """Values as an array of the column's Arrow type; None where the schema does not allow one."""
    kind, number = _TYPES[column.kind], column.kind == "number"
    try:
        if isinstance(values, list):
            cells = [float(cell) if number and cell is not None else cell for cell in values]
            values = pa.array(cells, from_pandas=True)
        stored = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
        is_text = pa.types.is_string(stored) or pa.types.is_large_string(stored)
        is_truth = pa.types.is_boolean(stored)
        alike = (is_text, is_truth) == (kind == pa.string(), kind == pa.bool_())
        if not (alike or pa.types.is_null(stored)):
            return None
        # Counts beyond 2^53 lose digits as floating-point numbers, which is harmless.
        array = values.cast(kind, safe=not number)
        allowed = pc.fill_null(_ALLOWED[column.kind](array), column.optional)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        return None
    return array if pc.all(allowed, min_count=0).as_py() else None


def _is_json(texts: Any) -> Any:
    for text in filter(None, texts.to_pylist()):
        from_json(text)
    return pc.not_equal(texts, "")


_ALLOWED: dict[str, Callable[[Any], Any]] = {
    "whole": lambda values: pc.greater_equal(values, 0),
    "number": pc.is_finite,
    "text": lambda values: pc.less_equal(pc.utf8_length(values), _LONGEST_TEXT),
    "json": _is_json,
    "truth": lambda values: pc.equal(values, values),
}
"""Whether each cell is within the schema's bounds; a missing one is null."""


def _check_runs(table: pa.Table, path: Path | str) -> None:
    """Raise `UserError` for a run id that is no file name or not unique, and an unknown state."""
    seen: set[str] = set()
    for row, run in enumerate(table.select(["run_id", "state"]).to_pylist(), 1):
        if not is_file_name(run["run_id"]):
            problem = f"run_id: {short(run['run_id'])} is not a valid folder name"
        elif run["run_id"] in seen:
            problem = f"run_id: {run['run_id']!r} appears twice; rename one"
        elif run["state"] not in get_args(State):
            problem = f"state: {short(run['state'])} is not a run state"
        else:
            seen.add(run["run_id"])
            continue
        raise UserError(f"{path}, row {row}, column {problem}")


def _schema(name: str) -> pa.Schema:
    fields = [(column.name, _TYPES[column.kind]) for column in _FILES[name]]
    return pa.schema(fields, metadata={_VERSION: str(SCHEMA_VERSION).encode()})
