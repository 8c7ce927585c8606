"""Every column of every table and record, with every kind of bad value: accepted as the schema
says, or one line that names file, column and, in a table, row."""

import io
import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import BaseModel

from tests.analysis.made_runs import config, write_run
from tests.input.test_records_and_corpora import LOGS
from tst_study.analysis.tables.archive import add_to_archive, read_archive
from tst_study.analysis.tables.columns import CURVES, EVALUATIONS, RUNS
from tst_study.analysis.tables.imports import import_logs
from tst_study.analysis.tables.source import read_tables
from tst_study.analysis.verdict.comparison import compare
from tst_study.checkpoints.places import DIGESTS, damage, write_digests
from tst_study.config.keys import sections_of
from tst_study.errors import UserError
from tst_study.experiments.slurm.profile import Profile, load_profile

BAD: dict[str, Any] = {
    "empty": None,
    "text": "x",
    "not a number": math.nan,
    "infinite": math.inf,
    "minus infinite": -math.inf,
    "too large": 10**400,
    "negative": -1,
    "a fraction": 1.5,
    "beyond 64 bits": 2**63,
    "a date": "2026-01-01",
    "control characters": "\x1b[2J",
    "a megabyte": "y" * 10**6,
}
TEXTS = {"text", "a date", "control characters"}
NUMBERS = {"negative", "a fraction", "beyond 64 bits"}
FINE = {"text": TEXTS, "number": NUMBERS, "whole": set(), "truth": set(), "json": set()}
"""Bad values that a column of an archive may hold all the same, by its kind."""


def refusal(read: Callable[[], object], *words: str) -> str:
    """The one line, with these words in it, by which an input is refused; empty if it is not."""
    try:
        read()
    except UserError as error:
        said = str(error)
        assert len(said.splitlines()) == 1, said
        assert len(said) < 1000, said[:1000]
        assert all(word in said for word in words), (said, words)
        return said
    return ""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of our own and of another trainer."""
    folder = tmp_path_factory.mktemp("archive")
    for seed in range(2):
        write_run(folder / "runs", config(seed), 3.5 + 0.01 * seed, log_every=500)
        write_run(folder / "runs", config(seed, 4, 0.2), 3.4, log_every=500)
    (folder / "log.csv").write_text(LOG)
    facts = {"parameters": "1e6", "tokens_per_step": "8", "steps": "2", "annealed": "true"}
    add_to_archive(folder / "kept", import_logs([str(folder / "log.csv")], facts))
    add_to_archive(folder / "kept", read_tables(folder / "runs"))
    return folder / "kept"


LOG = "step,loss,val_loss,lr,grad_norm,training_seconds\n1,4,4.1,0.1,1,1\n2,3,3.1,0.1,1,2\n"
COLUMNS = [("runs", one) for one in RUNS]
COLUMNS += [("curves", one) for one in CURVES]
COLUMNS += [("evaluations", one) for one in EVALUATIONS]


@pytest.mark.parametrize(("table", "column"), COLUMNS, ids=lambda one: getattr(one, "name", one))
def test_each_cell_of_an_archive(archive, tmp_path, table, column):
    folder = shutil.copytree(archive, tmp_path / "kept")
    path = folder / f"{table}.parquet"
    whole = pq.read_table(path)
    place = whole.column_names.index(column.name)

    def refused(changed: pa.Table, *words: str) -> bool:
        pq.write_table(changed, path)
        if refusal(lambda: read_archive(folder), path.name, column.name, *words):
            return True
        if table == "runs":
            refusal(lambda: compare(read_archive(folder).runs))
        return False

    gone = whole.drop_columns([column.name])
    if column.name != "data":  # which runs of ours need
        assert refused(gone) != column.optional
    for name, value in BAD.items():
        if value == 10**400:
            continue  # which no column of parquet holds
        if value is None:
            cells = pa.array([None, *whole[column.name].to_pylist()[1:]], whole[place].type)
            fine = column.optional
        else:
            cells = pa.array([float(value) if name in NUMBERS else value] * len(whole))
            fine = name in FINE[column.kind] and column.name not in ("run_id", "state", "annealed")
        changed = whole.set_column(place, column.name, cells)
        assert refused(changed) != fine, name


def text_of(value: Any) -> str:
    return "" if value is None else str(value)


def with_cell(table: str, column: str, cell: str | None) -> str:
    """A CSV with another cell in its first row, or without the column."""
    rows = pd.read_csv(io.StringIO(table), dtype=str, keep_default_na=False)
    if cell is None:
        return rows.drop(columns=column).to_csv(index=False)
    rows.loc[0, column] = cell
    return rows.to_csv(index=False)


FACTS = "run,arm,bag_size,step_ratio,parameters,tokens_per_step,steps,seed,learning_rate,corpus"
FACTS += ",eval_set,annealed,flops,bytes_per_token,mode\n"
FACTS += "r,x,4,0.5,1000,8,2,0,0.1,books,books,true,1e9,4,full\n"
FINISHED = "run,N,D,loss,seed,bag_size,step_ratio,steps,learning_rate,corpus,annealed\n"
FINISHED += "a,1e6,1e9,3.1,0,1,0,100,0.1,books,true\nb,1e6,1e9,3.0,0,4,0.5,100,0.1,books,true\n"
TEXT_COLUMNS = ("run", "reason", "arm", "corpus", "eval_set")
LOSSES = ("loss", "val_loss")
WHOLE = {"bag_size", "parameters", "tokens_per_step", "steps", "seed", "step"}


def fine(column: str, name: str) -> bool | None:
    """Whether a value may stand in a column of a CSV; None where that depends on others."""
    if column in TEXT_COLUMNS or name in ("empty", "a fraction", "negative", "beyond 64 bits"):
        return False if column in WHOLE and name not in ("empty", "a megabyte") else None
    if column in (*LOSSES, "lr", "grad_norm", "training_seconds"):
        return name not in (*TEXTS, "a megabyte")
    return None if column in ("D", "N", "flops", "learning_rate") and name == "too large" else False


def cases(table: str) -> Iterator[tuple[str, str, str | None]]:
    for column in table.splitlines()[0].split(","):
        yield column, "missing", None
        for name, value in BAD.items():
            yield column, name, text_of(value)


@pytest.mark.parametrize(
    ("name", "table"),
    [("runs.csv", FACTS), ("r.csv", LOG), ("r.jsonl", LOG), ("finished.csv", FINISHED)],
    ids=["facts", "log", "lines", "finished"],
)
def test_each_cell_of_what_is_imported(name, table, tmp_path):
    (tmp_path / "logs").mkdir()
    facts = {"parameters": "1e6", "tokens_per_step": "8", "steps": "2", "annealed": "true"}
    (tmp_path / "logs" / "r.csv").write_text(LOG)
    log = tmp_path / "logs" if name == "runs.csv" else tmp_path / name
    given = tmp_path / name if name == "runs.csv" else None
    for column, kind, cell in cases(table):
        if name == "r.jsonl":
            (tmp_path / name).write_text(as_json(table, column, kind))
        else:
            (tmp_path / name).write_text(with_cell(table, column, cell))

        def read(known: dict[str, str] = facts if table == LOG else {}) -> None:
            add_to_archive(tmp_path / "kept", import_logs([str(log)], known, given))

        said = refusal(read)
        if (expected := fine(column, kind)) is not None and kind != "missing":
            assert bool(said) != expected, (column, kind)
            line = 1 if name == "r.jsonl" else 2
            place = f"{tmp_path / name}, line {line}"
            assert not said or place in said or "run 'r'" in said, (column, kind, said)


def as_json(table: str, column: str, kind: str) -> str:
    """The rows of a CSV of numbers as lines of JSON, the first with a bad cell."""
    rows = pd.read_csv(io.StringIO(table)).to_dict("records")
    rows[0][column] = BAD.get(kind)
    return "\n".join(map(json.dumps, rows))


@pytest.mark.parametrize("column", ["run", "reason"])
def test_each_cell_of_the_exclusions(archive, tmp_path, column):
    folder = shutil.copytree(archive, tmp_path / "kept")
    run = pd.read_parquet(folder / "runs.parquet")["run_id"][0]
    table = f"run,reason\n{run},broken\n"
    for name, value in {"missing": None, **BAD}.items():
        cell = None if name == "missing" else text_of(value)
        (folder / "exclusions.csv").write_text(with_cell(table, column, cell))
        refused = refusal(lambda: read_tables(folder), "exclusions.csv")
        assert bool(refused) == (name in ("missing", "empty", "a megabyte")), name


OPEN = {"host", "process", "command", "job", "config", "versions", "python", "forked_from"}
"""Keys that no reader needs, or that have tests of their own."""


@pytest.mark.parametrize("file", LOGS)
def test_each_key_of_a_run(file, tmp_path):
    path = write_run(tmp_path, config(0, 4, 0.2), 3.5, log_every=500) / file
    first, end, rest = path.read_bytes().partition(b"\n" if file.endswith("l") else b"\0")
    row = json.loads(first)
    inner = [(name, key) for name, of in row.items() if isinstance(of, dict) for key in of]
    for place in [*((name,) for name in row), *inner]:
        if OPEN & {*place}:
            continue
        *above, key = place
        for name, value in {"missing": None, **BAD}.items():
            changed = json.loads(first)
            section = changed[above[0]] if above else changed
            before = section.pop(key)
            if name != "missing":
                section[key] = value
            path.write_bytes(json.dumps(changed).encode() + end + rest)
            problems = read_tables(tmp_path).problems
            if isinstance(before, int | float) and not {"threads", "flops"} & {*place}:
                number = name in NUMBERS and isinstance(before, float)
                assert number or name in ("missing", "empty") or problems, (place, name)
            for said in problems:
                assert file in said, said
                assert key in said or "segment" in said or "the sum of its parts" in said, said
                assert len(said) < 1000, said[:1000]
    path.write_bytes(first + end + rest)
    assert not read_tables(tmp_path).problems


@pytest.mark.parametrize("name", BAD)
def test_digests_that_are_none_say_that_a_checkpoint_is_damaged(name, tmp_path):
    (tmp_path / "weights").write_bytes(b"w")
    write_digests(tmp_path, {"weights": "0" * 64})
    bad = BAD[name]
    for value in (bad, [bad], {"sha256": bad}, {"sha256": {"weights": bad}}):
        (tmp_path / DIGESTS).write_text(json.dumps(value))
        assert "is not what was written" in str(damage(tmp_path))


def keys(section: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """The keys of a profile with the tables that they stand in."""
    for name in section.model_fields:
        if name in sections_of(section):
            yield from ((name, key) for key in sections_of(section)[name].model_fields)
        else:
            yield "", name


def toml(value: Any) -> str:
    text = json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf")
    return "[[]]" if value is None else text


def test_each_key_of_a_profile(tmp_path):
    path = tmp_path / "slurm.toml"
    for table, key in keys(Profile):
        for name, value in BAD.items():
            path.write_text(f"{f'[{table}]' if table else ''}\n{key} = {toml(value)}\n")
            refused = refusal(lambda: load_profile(path), "slurm.toml")
            assert refused or name not in ("infinite", "minus infinite", "not a number"), key
