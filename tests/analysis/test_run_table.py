"""The run table holds what the run folders hold, and says what it could not read; so does an
archive, which opens without this package."""

import json
import multiprocessing
import os
import re
import resource
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.analysis.made_runs import BOOKS, config, write_pairs, write_run
from tests.analysis.test_verdict import question
from tst_study.analysis.cli import import_
from tst_study.analysis.tables.archive import add_to_archive
from tst_study.analysis.tables.source import load, read_tables
from tst_study.analysis.verdict.comparison import compare
from tst_study.analysis.verdict.question import add_questions, read_questions
from tst_study.config.identity import fingerprint
from tst_study.config.schema import from_dict, of_record
from tst_study.errors import UserError
from tst_study.record.writer import append_task_results


def test_a_run_is_one_row_with_both_token_counters(tmp_path):
    write_run(tmp_path, config(3, bag_size=4, step_ratio=0.2), loss=3.5)
    (row,) = load(tmp_path).to_dict("records")
    assert (row["bag_size"], row["superposed_steps"], row["seed"]) == (4, 200, 3)
    assert row["latent_tokens"] == 1000 * 16 * 64
    assert row["data_multiplier"] == pytest.approx(1 + 0.2 * (4 - 1))
    assert row["nats_per_token"] == 3.5
    assert row["annealed"]
    assert row["state"] == "done"
    assert row["tokens_per_second"] == pytest.approx(row["raw_tokens"] / 10.0)
    assert row["code"] == "0123456789ab"
    curve = read_tables(tmp_path).curves  # a bag loss keeps its own name
    names = curve.groupby(curve["step"] <= 200)["loss_name"].unique().str[0]
    assert names.to_dict() == {True: "mce_uniform", False: "next_token"}


def test_a_run_follows_from_its_record_not_from_its_name_or_role(tmp_path):
    """A plan without superposed steps is a baseline; no loss is not zero; FLOPs outgrow 64 bits."""
    named = config(0, bag_size=4, step_ratio=0.0, name="tst", role="superposition")
    folder = write_run(tmp_path, named, loss=None, state="running")
    header = json.loads((folder / "run.json").read_text())
    header["flops"] |= {"total": 10**22 + 1, "superposition": 0, "recovery": 10**22 + 1}
    (folder / "run.json").write_text(json.dumps(header))
    (row,) = load([tmp_path, folder]).to_dict("records")  # named twice, read once
    assert (row["method"], row["bag_size"], row["mode"]) == ("baseline", 1, None)
    assert row["flops"] == 10**22 + 1
    assert pd.isna(row["nats_per_token"])


def test_a_damaged_run_is_reported_and_the_others_are_read(tmp_path):
    write_run(tmp_path, config(0), loss=3.5)
    bad = write_run(tmp_path, config(1), loss=3.5)
    lines = (bad / "metrics.jsonl").read_text().splitlines()
    lines[2] = lines[2].replace('"loss"', '"los"')
    (bad / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    older = write_run(tmp_path, config(2), loss=3.5)
    header = json.loads((older / "run.json").read_text())
    del header["config"]["batch"]
    (older / "run.json").write_text(json.dumps(header))
    tables = read_tables(tmp_path)
    assert list(tables.runs["seed"]) == [0]
    damaged, lacking = sorted(tables.problems, key=lambda text: "lacks" in text)
    assert f"{bad}/metrics.jsonl:3" in damaged
    assert str(older) in lacking


def test_an_excluded_run_is_compared_with_nothing_and_reported(tmp_path):
    write_pairs(tmp_path, (3.5, 3.4), (3.5, 3.4))
    gone = load(tmp_path).query("seed == 1 and bag_size == 4")["run_id"].item()
    lines = f"run,reason\n{gone},a node lost its clock\n12345678,a typing error\n"
    (tmp_path / "exclusions.csv").write_text(lines)
    tables = read_tables(tmp_path)
    result = compare(tables.runs)
    assert list(result.table["seeds"]) == [1]
    assert list(result.excluded["reason"]) == ["excluded by hand: a node lost its clock"]
    assert "12345678 matches no run" in tables.problems[0]


def test_exclusions_beside_a_studys_runs_hold_from_the_folder_above(tmp_path, monkeypatch):
    """And for that study alone: another may have a run of the same name."""
    for study in ("one", "two"):
        gone = write_run(tmp_path / study, config(1), loss=3.5)
    (tmp_path / "one" / "exclusions.csv").write_text(f"run,reason\n{gone.name},wrong text\n")
    monkeypatch.chdir(tmp_path / "one")
    for folder in (tmp_path, tmp_path / "one", Path()):
        tables = read_tables(folder)
        place = folder / ("one" if folder == tmp_path else "") / gone.name
        assert list(tables.runs.query("exclusion != ''")["folder"]) == [str(place)]
        assert not tables.problems
    monkeypatch.chdir(archive_of(tmp_path / "two", tmp_path / "archive"))
    assert len(read_tables(".").only(load(".")["seed"] == 1).curves) > 2


PLACE = {"corpora": [{"path": "/home/someone/secret/books-bpe1024"}]}
FILES = ("runs", "curves", "evaluations")


def archive_of(root: Path, to: Path) -> Path:
    add_to_archive(to, read_tables(root))
    return to


def test_an_archive_reads_like_the_folders_it_was_made_from(tmp_path):
    write_run(tmp_path / "runs", config(0, 4, 0.2, data=PLACE), loss=3.5)
    task = {"step": 1000, "phase": "recovery", "raw_tokens": 1, "latent_tokens": 1, "flops": 1}
    task |= {"annealed": True, "task": "piqa", "data": "piqa-1", "samples": 9, "seconds": 1.0}
    task |= {"metrics": {"acc": 0.5, "acc_stderr": 0.1}, "details": {"shots": 0}}
    append_task_results(write_run(tmp_path / "runs", config(1), loss=3.6), [task])
    before = read_tables(tmp_path / "runs")
    after = read_tables(archive_of(tmp_path / "runs", tmp_path / "kept"))
    for name in FILES:
        one, other = (getattr(tables, name).copy() for tables in (before, after))
        other["folder"] = other["folder"].astype("str").str.replace("/kept/", "/runs/")
        pd.testing.assert_frame_equal(one.astype({"folder": "str"}), other)
    assert len(before.held_out) == 2
    curves = pq.ParquetFile(tmp_path / "kept" / "curves.parquet").metadata.row_group(0).to_dict()
    encodings = {column["path_in_schema"]: column["encodings"] for column in curves["columns"]}
    assert "BYTE_STREAM_SPLIT" in encodings["loss"]
    assert "RLE_DICTIONARY" in encodings["step"]


def test_an_archive_tells_what_a_run_is_and_nothing_of_whose_machine_it_was(tmp_path):
    begun = config(0, data=PLACE, fork_from="hf:/home/someone/secret/model")
    write_run(tmp_path / "runs", begun, loss=3.5)
    kept = archive_of(tmp_path / "runs", tmp_path / "kept")
    (row,) = pd.read_parquet(kept / "runs.parquet").to_dict("records")
    recorded, data = from_dict(of_record(json.loads(row["config"]))), json.loads(row["data"])
    assert fingerprint(recorded, data) == row["fingerprint"]
    assert data == BOOKS
    assert recorded.data.corpora[0].path == "books-bpe1024"
    (launch,) = json.loads(row["launches"])
    # So that a reader sees whether a plan was first.
    assert launch["end"] >= launch["start"] > 1.7e9
    for path in kept.glob("*.parquet"):
        said = pd.read_parquet(path).to_json()
        assert not [word for word in ("someone", "secret", "home", "host") if word in said]


def test_runs_are_added_to_an_archive_and_replaced_in_it(tmp_path):
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


def test_writers_at_once_each_keep_the_runs_of_the_others(tmp_path):
    for seed in range(6):
        write_run(tmp_path / f"{seed}", config(seed), loss=3.5)
    apart = multiprocessing.get_context("fork")
    to = tmp_path / "kept"
    writers = [
        apart.Process(target=archive_of, args=(tmp_path / f"{seed}", to)) for seed in range(6)
    ]
    for one in writers:
        one.start()
    for one in writers:
        one.join(60)
    found = {name: pd.read_parquet(to / f"{name}.parquet")["run_id"].nunique() for name in FILES}
    assert found == dict.fromkeys(FILES, 6)


def test_an_archive_whose_writer_is_killed_is_the_old_one_or_the_new_one(tmp_path):
    """Killed before any of its renames, one after the other."""
    old = archive_of(write_run(tmp_path / "old", config(0), loss=3.5), tmp_path / "kept")
    new = read_tables(write_run(tmp_path / "new", config(0), loss=3.4))

    def write_until(left: int, to: Path) -> None:
        def killed_after(rename: Callable[..., None]) -> Callable[..., None]:
            def renamed(*paths: Path) -> None:
                nonlocal left
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                rename(*paths)

            return renamed

        os.replace, os.rename = killed_after(os.replace), killed_after(os.rename)
        add_to_archive(to, new, lambda folder: add_questions(folder, [question(2)]))

    found = []
    for left in range(20):
        to = shutil.copytree(old, tmp_path / f"{left}")
        writer = multiprocessing.get_context("fork").Process(target=write_until, args=(left, to))
        writer.start()
        writer.join(60)
        runs = read_tables(to)
        said = [runs.runs["nats_per_token"].item(), runs.evaluations["nats_per_token"].item()]
        found.append((*said, len(read_questions(to))))
        assert len({one.name for one in to.iterdir()} - {".lock", ".staged"}) in (3, 4)
        if writer.exitcode == 0:
            break
    assert writer.exitcode == 0
    assert set(found) == {(3.5, 3.5, 0), (3.4, 3.4, 1)}
    assert found == sorted(found, reverse=True)


def test_what_an_archive_cannot_hold_is_named_before_anything_is_written(tmp_path):
    write_run(tmp_path / "runs", config(0), loss=3.5)
    kept, tables = tmp_path / "kept", read_tables(tmp_path / "runs")
    for column, value, said in (
        ("seed", 2**63, "runs, column seed: "),
        ("run_id", "../../x", "'../../x' is not a valid folder name"),
        ("state", "fine", "state: 'fine'"),
        ("step", -1, "runs, row 1, column step: -1 is not a whole number"),
    ):
        wrong = replace(tables, runs=tables.runs.assign(**{column: value}))
        with pytest.raises(UserError, match=re.escape(said)):
            add_to_archive(kept, wrong)
        assert not kept.exists()
    archive_of(tmp_path / "runs", kept)
    table = pd.read_parquet(kept / "runs.parquet").assign(run_id="../../x")
    schema = pq.read_schema(kept / "runs.parquet")
    pq.write_table(pa.Table.from_pandas(table, schema), kept / "runs.parquet")
    with pytest.raises(UserError, match=r"runs\.parquet, row 1, column run_id: '\.\./\.\./x'"):
        read_tables(kept)


def test_a_disk_that_fills_up_leaves_an_archive_as_it_was(tmp_path):
    write_run(tmp_path / "runs", config(0), loss=3.5)
    write_run(tmp_path / "more", config(1), loss=3.4)
    kept, more = archive_of(tmp_path / "runs", tmp_path / "kept"), read_tables(tmp_path / "more")
    before = {path.name: path.read_bytes() for path in kept.glob("*.parquet")}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, limits[1]))
    try:
        with pytest.raises(UserError, match=r"parquet: cannot be written .*; free some space"):
            add_to_archive(kept, more)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {path.name: path.read_bytes() for path in kept.glob("*.parquet")} == before


def test_a_column_that_came_later_is_as_all_runs_were_before_it(tmp_path):
    write_run(tmp_path / "runs", config(0, 4, 0.2), loss=3.5)
    path = archive_of(tmp_path / "runs", tmp_path / "kept") / "runs.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["shuffled_targets"]), path)
    (row,) = read_tables(tmp_path / "kept").runs.to_dict("records")
    assert not row["shuffled_targets"]


def test_an_archive_of_another_version_is_named(tmp_path):
    write_run(tmp_path / "runs", config(0), loss=3.5)
    kept = archive_of(tmp_path / "runs", tmp_path / "kept")
    path = kept / "curves.parquet"
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({"tst_study_schema_version": "2"}), path)
    with pytest.raises(UserError, match=r"curves\.parquet: schema version 2"):
        read_tables(kept)


def test_the_tables_of_two_archives_are_no_archive(tmp_path):
    """Though their runs have the same ids."""
    for name, loss in (("one", 3.5), ("other", 3.4)):
        write_run(tmp_path / f"{name}-runs", config(0), loss)
        archive_of(tmp_path / f"{name}-runs", tmp_path / name)
    for name in ("runs", "curves", "evaluations"):
        mixed = shutil.copytree(tmp_path / "one", tmp_path / f"mixed-{name}")
        assert len(load(mixed)) == 1
        shutil.copy(tmp_path / "other" / f"{name}.parquet", mixed)
        with pytest.raises(UserError, match=f"{mixed}: its 3 parquet files were not written tog"):
            load(mixed)


@pytest.mark.parametrize("name", ["curves", "evaluations"])
def test_rows_of_unknown_runs_and_runs_without_rows_are_named(tmp_path, name):
    """In archives of earlier versions, too, which state no digest."""
    runs = [config(0), config(1)]
    for run in runs:
        write_run(tmp_path / "runs", run, loss=3.5)
    kept = archive_of(tmp_path / "runs", tmp_path / "kept")
    for path in kept.glob("*.parquet"):
        table = pq.read_table(path)
        del (known := dict(table.schema.metadata))[b"tst_study_digest"]
        pq.write_table(table.replace_schema_metadata(known), path)
    first, second = load(kept)["run_id"]
    for lacking, what in ((name, "which has no row there"), ("runs", "which runs.parquet lacks")):
        mixed = shutil.copytree(kept, tmp_path / f"without-{lacking}")
        table = pq.read_table(kept / f"{lacking}.parquet")
        pq.write_table(table.filter(pc.field("run_id") == first), mixed / f"{lacking}.parquet")
        if lacking == "runs":
            other = {"curves", "evaluations"} - {name}
            path = mixed / f"{other.pop()}.parquet"
            pq.write_table(pq.read_table(path).filter(pc.field("run_id") == first), path)
        with pytest.raises(UserError, match=rf"{name}\.parquet: run {second}, {what}"):
            load(mixed)


def test_import_takes_our_own_run_folders_whole(tmp_path):
    """One row a run, with every fact, and the questions beside them."""
    runs, archive = tmp_path / "mine", tmp_path / "archive"
    for seed in range(2):
        write_run(runs, config(seed), 3.5)
    add_questions(runs, [question(4)])
    imported: dict[str, Any] = {"sources": [str(runs)], "steps_from": 1}
    import_(**imported, to=archive)
    read, stored = load(runs), load(archive)
    assert list(stored["run_id"]) == list(read["run_id"])
    for name in ("launches", "config", "nats_per_token", "learning_rate", "devices"):
        assert list(stored[name]) == list(read[name])
    assert read_questions(archive) == (question(4),)
    with pytest.raises(UserError, match="know their facts"):
        import_(**imported, to=archive, given=["seed=1"])
