"""An archive holds what run folders hold that results need, and opens without this package."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from analysis.tables.archive import add_to_archive
from analysis.tables.source import read_tables
from tests.analysis.made_runs import BOOKS, config, write_run
from tst_study.config.identity import fingerprint
from tst_study.config.schema import from_dict, of_record
from tst_study.errors import UserError
from tst_study.record.writer import append_task_results

PLACE = {"corpora": [{"path": "/home/someone/secret/books-bpe1024"}]}
FILES = ("runs", "curves", "evaluations")


def archive_of(root: Path, to: Path) -> Path:
    add_to_archive(to, read_tables(root))
    return to


def test_an_archive_reads_like_the_folders_it_was_made_from(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", config(0, 4, 0.2, data=PLACE), loss=3.5)
    task = {"step": 1000, "phase": "recovery", "raw_tokens": 1, "latent_tokens": 1, "flops": 1}
    task |= {
        "annealed": True,
        "task": "piqa",
        "data": "piqa-1",
        "samples": 9,
        "details": {"shots": 0},
    }
    task |= {"metrics": {"acc": 0.5, "acc_stderr": 0.1}, "seconds": 1.0}
    append_task_results(write_run(tmp_path / "runs", config(1), loss=3.6), [task])
    before = read_tables(tmp_path / "runs")
    after = read_tables(archive_of(tmp_path / "runs", tmp_path / "kept"))
    for name in FILES:
        one, other = (getattr(tables, name).copy() for tables in (before, after))
        other["folder"] = other["folder"].astype("str").str.replace("/kept/", "/runs/")
        pd.testing.assert_frame_equal(one.astype({"folder": "str"}), other)
    assert len(before.held_out) == 2


def test_an_archive_tells_what_a_run_is_and_nothing_of_whose_machine_it_was(
    tmp_path: Path,
) -> None:
    write_run(tmp_path / "runs", config(0, data=PLACE), loss=3.5)
    kept = archive_of(tmp_path / "runs", tmp_path / "kept")
    (row,) = pd.read_parquet(kept / "runs.parquet").to_dict("records")
    recorded, data = from_dict(of_record(json.loads(row["config"]))), json.loads(row["data"])
    assert fingerprint(recorded, data) == row["fingerprint"]
    assert data == BOOKS
    assert recorded.data.corpora[0].path == "books-bpe1024"
    for path in kept.iterdir():
        said = pd.read_parquet(path).to_json()
        assert not [word for word in ("someone", "secret", "home", "host") if word in said]


def test_runs_are_added_to_an_archive_and_replaced_in_it(tmp_path: Path) -> None:
    write_run(tmp_path / "one", config(0), loss=3.5)
    kept = archive_of(tmp_path / "one", tmp_path / "kept")
    write_run(tmp_path / "two", config(0), loss=3.4)
    write_run(tmp_path / "two", config(1), loss=3.3)
    archive_of(tmp_path / "two", kept)
    tables = read_tables(kept)
    assert sorted(tables.runs["nats_per_token"]) == [3.3, 3.4]
    assert sorted(tables.evaluations["nats_per_token"]) == [3.3, 3.4]
    assert len(tables.curves) == 2 * len(read_tables(tmp_path / "one").curves)
    both = read_tables([kept, tmp_path / "one"])
    assert sorted(both.runs["nats_per_token"]) == [3.3, 3.4, 3.5]
    assert set(both.curves["folder"]) == set(both.runs["folder"])


def test_a_column_that_came_later_is_as_all_runs_were_before_it(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", config(0, 4, 0.2), loss=3.5)
    path = archive_of(tmp_path / "runs", tmp_path / "kept") / "runs.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["shuffled_targets", "arm"]), path)
    (row,) = read_tables(tmp_path / "kept").runs.to_dict("records")
    assert (row["shuffled_targets"], row["arm"]) == (False, "s = 4, r = 0.2")


def test_a_damaged_archive_and_one_of_another_version_are_named(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", config(0), loss=3.5)
    kept = archive_of(tmp_path / "runs", tmp_path / "kept")
    path = kept / "curves.parquet"
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({"tst_study_schema_version": "2"}), path)
    with pytest.raises(UserError, match=r"curves\.parquet: schema version 2"):
        read_tables(kept)
    path.write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"curves\.parquet: cannot be read"):
        read_tables(kept)
