"""An archive: a folder of three parquet files that any tool opens (`docs/tables.md`).

| file | a row |
| --- | --- |
| `runs.parquet` | a run, with its resolved config and the fingerprints of its text as JSON |
| `curves.parquet` | a logged step |
| `evaluations.parquet` | a held-out loss, or a number that a task measured |

`run_id` joins them. `questions.json` may lie beside them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tst_study.analysis.tables.columns import CURVES, EVALUATIONS, RUNS, Column, Tables, typed
from tst_study.analysis.tables.run_folders import of_config
from tst_study.atomic_files import written_atomically
from tst_study.config.superposition_setting import SuperpositionSetting
from tst_study.errors import UserError

SCHEMA_VERSION = 1
_VERSION = b"tst_study_schema_version"
_TYPES = {
    "text": pa.string(),
    "json": pa.string(),
    "whole": pa.int64(),
    "number": pa.float64(),
    "truth": pa.bool_(),
}
_LOGS = ("curves", "evaluations")
_FILES: dict[str, tuple[Column, ...]] = {
    "runs": RUNS,
    "curves": (RUNS[0], *CURVES),
    "evaluations": (RUNS[0], *EVALUATIONS),
}


def find_archives(root: Path) -> list[Path]:
    """All archives at or below `root`, sorted."""
    wanted = {f"{name}.parquet" for name in _FILES}
    return sorted(Path(path) for path, _, files in os.walk(root) if wanted <= set(files))


def read_archive(folder: Path) -> Tables:
    """Raises `UserError` for a damaged file, or one of a later version."""
    parts = {name: _read(folder / f"{name}.parquet", name) for name in _FILES}
    rows = [_with_today(row) for row in parts["runs"].to_pylist()]
    for row in rows:
        row["folder"] = str(folder / row["run_id"])
        if row["flops"] is not None:
            row["flops"] = int(row["flops"])  # whole, though they outgrow 64 bits
    curves, evaluations = (_joined(parts[name], name, folder) for name in _LOGS)
    return Tables.of(rows, curves, evaluations)


def _with_today(row: dict[str, Any]) -> dict[str, Any]:
    """With the columns of today, as they follow from what the run is."""
    if row.get("config") is not None:
        return {**row, **of_config(json.loads(row["config"]), json.loads(row["data"]))}
    return {**row, **SuperpositionSetting.of_row(row).columns()}


def _joined(part: pa.Table, name: str, folder: Path) -> pd.DataFrame:
    table = typed(part.to_pandas(), _FILES[name]).rename(columns={"run_id": "folder"})
    runs = sorted(table["folder"].unique())
    codes = pd.Categorical(table["folder"], categories=runs)
    table["folder"] = codes.rename_categories({run: str(folder / run) for run in runs})
    return table


def add_to_archive(folder: Path, tables: Tables) -> list[str]:
    """Write runs into an archive, new or there already; a run that is in it is replaced. Returns
    their ids, in order.

    Raises `UserError` where two of the runs have one id.
    """
    ids = dict(zip(tables.runs["folder"], tables.runs["run_id"], strict=True))
    twice = tables.runs["run_id"][tables.runs["run_id"].duplicated()]
    if len(twice):
        raise UserError(f"run {twice.iloc[0]!r} is there twice; give each run an id of its own")
    written = {
        "runs": tables.runs,
        "curves": tables.curves.assign(run_id=tables.curves["folder"].map(ids).astype("str")),
        "evaluations": tables.evaluations.assign(
            run_id=tables.evaluations["folder"].map(ids).astype("str")
        ),
    }
    there = folder / "runs.parquet"
    folder.mkdir(parents=True, exist_ok=True)
    for name in (*_LOGS, "runs"):  # what the others belong to comes last
        part = _arrow(written[name], name)
        if there.is_file() and (folder / f"{name}.parquet").is_file():
            old = _read(folder / f"{name}.parquet", name)
            kept = [run not in ids.values() for run in old["run_id"].to_pylist()]
            part = pa.concat_tables([old.filter(pa.array(kept, pa.bool_())), part])
        by = [("run_id", "ascending")] + [("step", "ascending")] * (name != "runs")
        order = pc.sort_indices(part, sort_keys=by)
        with written_atomically(folder / f"{name}.parquet") as file:
            pq.write_table(part.take(order), file, compression="zstd", compression_level=19)
    return sorted(ids.values())


def _arrow(table: pd.DataFrame, name: str) -> pa.Table:
    values = {}
    for column in _FILES[name]:
        cells = [None if pd.isna(value) else value for value in table[column.name].tolist()]
        if column.kind == "number":
            cells = [None if value is None else float(value) for value in cells]
        values[column.name] = cells
    return pa.table(values, schema=_schema(name))


def _schema(name: str) -> pa.Schema:
    fields = [(column.name, _TYPES[column.kind]) for column in _FILES[name]]
    return pa.schema(fields, metadata={_VERSION: str(SCHEMA_VERSION).encode()})


def _read(path: Path, name: str) -> pa.Table:
    """In today's columns; what an older file lacks is missing."""
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"{path}: cannot be read ({error}); restore it") from None
    version = (table.schema.metadata or {}).get(_VERSION, b"").decode()
    if version != str(SCHEMA_VERSION):
        raise UserError(
            f"{path}: schema version {version or 'not stated'}, but this version of tst_study "
            f"knows {SCHEMA_VERSION}; use the version that wrote it"
        )
    for field in _schema(name):
        if field.name not in table.column_names:
            table = table.append_column(field, pa.nulls(len(table), field.type))
    return table.select(_schema(name).names).cast(_schema(name))
