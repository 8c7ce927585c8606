"""The three tables of a study kept as parquet, read anew only for runs whose files changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from tst_study.atomic_files import write_json

FORMAT = 1
"""Of the tables: a cache of another format is not read."""
_FILES = ("run.json", "segments.jsonl", "metrics.jsonl", "evals.jsonl", "status.json")
_TABLES = ("runs", "curves", "evaluations")


def stamp(folder: Path, columns: tuple[str, ...]) -> str:
    """Changes with any file of a run folder (its size or its time), and with the schema."""
    parts: list[object] = [FORMAT, columns]
    for name in _FILES:
        try:
            facts = (folder / name).stat()
            parts.append((name, facts.st_size, facts.st_mtime_ns))
        except FileNotFoundError:
            parts.append((name, None))
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def load(cache: Path, stamps: Mapping[str, str]) -> tuple[dict[str, pd.DataFrame], set[str]]:
    """Tables of the runs whose stamp still holds, and the names of their folders."""
    try:
        index: dict[str, str] = json.loads((cache / "index.json").read_bytes())
        tables = {name: pd.read_parquet(cache / f"{name}.parquet") for name in _TABLES}
    except (OSError, ValueError):
        return {}, set()
    kept = {folder for folder, mark in stamps.items() if index.get(folder) == mark}
    # Numbers of FLOPs outgrow 64 bits.
    tables["runs"]["flops"] = [int(value) for value in tables["runs"]["flops"]]
    return {name: table[table["folder"].isin(kept)] for name, table in tables.items()}, kept


def save(cache: Path, tables: Mapping[str, pd.DataFrame], stamps: Mapping[str, str]) -> None:
    """Replace the cache; the index last, so that a cache cut short is not believed."""
    cache.mkdir(parents=True, exist_ok=True)
    (cache / "index.json").unlink(missing_ok=True)
    for name in _TABLES:
        table = tables[name]
        if name == "runs":
            table = table.assign(flops=table["flops"].map(str))
        table.to_parquet(cache / f"{name}.parquet", index=False)
    write_json(cache / "index.json", dict(stamps))
