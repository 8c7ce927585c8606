"""Files of runs and corpora that hold something else: read, or one line that names the file."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.input.answers import UNKNOWN, answer, refusal
from tests.tiny_runs import run, tiny
from tst_study.checkpoints.reader import COMMON, CheckpointReader
from tst_study.config import schema as config
from tst_study.config.schema import to_toml
from tst_study.data.integrity import verify
from tst_study.data.manifest import MANIFEST, read_manifest
from tst_study.data.preparation.text_sources import PACKED
from tst_study.errors import UserError
from tst_study.experiments.slurm.profile import load_profile
from tst_study.experiments.state import status
from tst_study.record import reader as run_record

LOGS = ("run.json", "status.json", "segments.jsonl", "metrics.jsonl", "evals.jsonl")
AS_TRAINED = ("schedule.steps=4", "execution.checkpoint_every=2")


@pytest.fixture(scope="module")
def trained(words: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "trained"
    run(words, folder, *AS_TRAINED)
    return folder


@pytest.fixture
def copy(trained: Path, words: Path, tmp_path: Path) -> Path:
    """A run, with the manifest of its corpus."""
    folder = shutil.copytree(trained, tmp_path / "run")
    shutil.copy(words / MANIFEST, folder)
    return folder


def read(folder: Path, name: str) -> None:
    """Read the file of this name with its reader."""
    if name == MANIFEST:
        read_manifest(folder)
    else:
        run_record.read(folder)


ODD = [b"\n\n", b"null\n", b"{}\n", b"[" * 50_000 + b"\n", b'"\\ud800"\n', bytes(100)]
ODD += [b'{"segment": "x", "state": [], "schema_version": {}, "task": 3}\n']
"""What no generator of bytes finds."""


CHANGES: list[tuple[str, Callable[[dict[str, Any]], Any], str]] = [
    ("segments.jsonl", lambda row: row.pop("resumed_from"), "ends, but never began"),
    ("metrics.jsonl", lambda row: row.update(segment=7), "segment 7 is out of order"),
    (MANIFEST, lambda all: all.update(schema_version=99), "schema_version: Input should be 1"),
    (MANIFEST, lambda all: all.pop("tokenizer"), "tokenizer: Field required"),
    (MANIFEST, lambda all: all["tokenizer"].update(vocabulary_size="x"), "r.vocabulary_size"),
    (MANIFEST, lambda all: all["splits"]["train"].update(tokens=-1), "splits.train.tokens"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "expected"), CHANGES, ids=range(len(CHANGES)))
def test_a_changed_key_of_a_run_is_named(copy, name, change, expected):
    first, _, rest = (copy / name).read_bytes().partition(b"\n" if name.endswith("l") else b"\0")
    row = json.loads(first)
    change(row)
    (copy / name).write_bytes(json.dumps(row).encode() + b"\n" + rest)
    with pytest.raises(UserError) as raised:
        read(copy, name)
    assert expected in str(raised.value)
    assert name in str(raised.value)


VERBS = (
    ["train", "run.toml", "--folder", "run"],
    ["export", "run", "--to", "out"],
    ["evaluate", "run"],
    ["status", "."],
    ["collect", "."],
    ["analyse", "--runs", "run"],
)


REFUSED: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda row: row.update(schema_version=2, something="new"), "schema_version: Input should be"),
    (lambda row: row["config"]["batch"].update(sequences="x"), "config: batch.sequences: 'x'"),
]


@pytest.mark.parametrize(
    ("verb", "change", "expected"),
    [(verb, change, said) for change, said in REFUSED for verb in VERBS],
    ids=lambda one: one[0] if isinstance(one, list) else "",
)
def test_every_verb_refuses_a_run_that_it_cannot_read(copy, words, verb, change, expected):
    header = json.loads((copy / "run.json").read_bytes())
    change(header)
    (copy / "run.json").write_text(json.dumps(header, indent=1))
    (copy.parent / "run.toml").write_text(to_toml(tiny(words, *AS_TRAINED)))
    given = answer(verb, copy.parent)
    assert re.search(rf"run\.json: (is damaged \()?{re.escape(expected)}", given.out + given.err)
    assert "Traceback" not in given.err
    # Verbs of many runs show a damaged one as a row with its reason, and go on.
    assert given.status == (0 if verb[0] in ("status", "collect") else 2)


@UNKNOWN
@given(
    name=st.sampled_from(LOGS),
    content=st.sampled_from(ODD) | st.binary(max_size=120),
    places=st.booleans(),
)
def test_any_bytes_in_a_run_are_a_run_or_a_line(trained, tmp_path, name, content, places):
    folder = tmp_path / "run"
    if not folder.exists():
        shutil.copytree(trained, folder, ignore=shutil.ignore_patterns("checkpoints"))
    before = (folder / name).read_bytes()
    (folder / name).write_bytes(before[: len(before) // 2] + content if places else content)
    said = str(folder)
    try:
        assert status.row(folder).steps in (0, 4)
        run_record.read(folder)
    except UserError as error:
        said = str(error)
    finally:
        (folder / name).write_bytes(before)
    assert str(folder) in said
    assert len(said.splitlines()) == 1
    assert len(said) < 500 + len(str(folder))


def test_what_a_run_says_is_never_markup_for_a_terminal(copy):
    status = json.loads((copy / "status.json").read_bytes())
    status |= {"state": "failed", "message": "\x1b[2J\x1b]0;x\x07[red]\nnext"}
    (copy / "status.json").write_text(json.dumps(status))
    shown = answer(["status", str(copy.parent)], copy)
    assert shown.status == 0
    assert "\x1b[2J" not in shown.out
    assert "\x07" not in shown.out


READERS: dict[str, Callable[[Path], Any]] = {
    "run.toml": config.load,
    "slurm.toml": load_profile,
    MANIFEST: lambda path: read_manifest(path.parent),
    COMMON: lambda path: CheckpointReader(path.parent),
}


@pytest.mark.parametrize("name", READERS)
@UNKNOWN
@given(st.sampled_from(ODD) | st.binary(max_size=200))
def test_any_bytes_are_a_file_or_a_line_that_names_it(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    said = name
    try:
        READERS[name](tmp_path / name)
    except UserError as error:
        said = str(error)
    assert name in said
    assert len(said.splitlines()) == 1


@UNKNOWN
@given(
    file=st.sampled_from(["train.idx", "train.bin", "validation.idx", "validation.bin"]),
    content=st.binary(max_size=100),
    place=st.floats(0, 1),
    cuts=st.booleans(),
)
def test_any_bytes_in_a_corpus_are_found(words, tmp_path, file, content, place, cuts):
    folder = tmp_path / "words"
    if not folder.exists():
        shutil.copytree(words, folder)
    before = (folder / file).read_bytes()
    at = int(place * len(before))
    after = before[:at] + content + (b"" if cuts else before[at + len(content) :])
    (folder / file).write_bytes(after)
    try:
        if after == before:
            verify(folder)
        else:
            with pytest.raises(UserError):
                verify(folder)
    finally:
        (folder / file).write_bytes(before)


TEXTS = {
    "text.txt": (b"\xff\xfe", "text.txt"),
    "second.jsonl": (b'{"text": "fine"}\n{', "second.jsonl, line 2: is not JSON"),
    "blank.jsonl": (b'\n\n{"text": ""}\n', "no document is left for train"),
    "other.jsonl": (b'{"body": "a"}\n', "it has: body: str"),
    "null.jsonl": (b'{"text": null}\n', "null.jsonl, line 1: 'text' is null; --skip-empty"),
    "half.jsonl": (b'{"text": "\\ud800"}\n', "half.jsonl, line 1: holds half a surrogate pair"),
    "empty.txt": (b"", "no document is left for train"),
    **{f"no.jsonl{end}": (b"plain", f"no.jsonl{end}: cannot be read") for end in PACKED},
    "a.parquet": (b"PAR1", "a.parquet: cannot be read"),
    "words.pdf": (b"x", "the ending '.pdf' is not known; there are: .txt"),
}


WITHIN = "--within-documents"
REQUESTS = [
    (["--source", "hf:///nowhere"], "source hf:///nowhere: cannot be read"),
    (["--source", "fifo.txt"], "fifo.txt: is a folder, pipe or device"),
    (["--source", "/dev/zero"], "/dev/zero: "),
    (["--source", "empty"], "empty: no such file, or a folder without text"),
    (["--source", "~no-user/a.txt"], "~no-user/a.txt: no such file"),
    (["--source", "good.txt", WITHIN, "--tokenizer", "bpe:"], "the size of the vocabulary, 257"),
    (["--source", "good.txt", WITHIN, "--tokenizer", "bpe:5000"], "bpe:5000: the text yields"),
    (["--source", "good.txt", WITHIN, "--tokenizer", "good.txt"], "docs/data.md converts files"),
    (["--source", "good.txt", "--shard", "2/1"], "--shard 2/1: write it as i/n"),
    (["--source", "good.txt", "--shard", "1/2", "--limit-bytes", "9"], "--limit-bytes: is for"),
    (["--source", "good.txt", "--validation", "good.txt"], "is both training and held-out text"),
    (["--source", "good.txt", "--source", "good.t*"], "or named twice; name each text once"),
    (["--source", "good.txt"], "no document is left for validation"),
    (["--source", "good.txt", "--validation-share", "5"], "give a number between 0 and 1"),
    (["--source", "ids.bin"], "tst-study data adopt ids.bin"),
    (["--source", "good.txt", "--validation-share", "0.1", "--validation", "x"], "leave it out"),
    (["--source", "odd"], "its name is not UTF-8; rename it"),
    (["--source", "good.txt", WITHIN, "--to", "good.txt"], "good.txt: cannot be written (File"),
    (["--source", "good.txt", WITHIN, "--to", "full"], "full: holds other files"),
    *((["--source", name], expected) for name, (_, expected) in TEXTS.items()),
]  # fmt: skip


ADOPTIONS = [
    (["ids.bin"], "--vocabulary-size: missing"),
    (["ids.bin", "--vocabulary-size", "9"], "ids.idx: is missing; name the type of the ids"),
    (["ids.bin", "--vocabulary-size", "9", "--dtype", "uint17"], "did you mean 'uint16'?"),
    (["ids.bin", "--vocabulary-size", "9", "--dtype", "uint16"], "ids.bin: cannot be read as ui"),
    (["ids.bin", "--vocabulary-size", "9", "--dtype", "uint8"], "ids.bin: token 2 is 66, outside"),
    (["ids.bin", "--vocabulary-size", "9", "--end-of-document", "9"], "9 is no id of a vocab"),
    (["ids.bin", "a/ids.bin", "--vocabulary-size", "9"], "a/ids.bin: is no file in ."),
    (["ids.bin", "--tokenizer", "ids.bin"], "ids.bin: is not a tokenizer.json"),
    (["words/train.bin", "--vocabulary-size", "9"], "manifest.json: describes a prepared folder"),
    (["ids.bin", "--tokenizer", "ids.bin", "--end-of-document", "3"], "--end-of-document: goes"),
]  # fmt: skip
USUAL = {"--to": "out", "--tokenizer": "bytes"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        *((["adopt", *given], expected) for given, expected in ADOPTIONS),
        *((["prepare", *given], expected) for given, expected in REQUESTS),
    ],
    ids=range(len(ADOPTIONS) + len(REQUESTS)),
)
def test_what_no_corpus_can_be_made_of_is_named(words, tmp_path, arguments, expected):
    for folder in ("odd", "empty", "full"):
        (tmp_path / folder).mkdir()
    for name, (content, _) in TEXTS.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "good.txt").write_text("a good text " * 20)
    (tmp_path / "odd" / os.fsdecode(b"\xff.txt")).touch()
    (tmp_path / "ids.bin").write_bytes(b"\1\2BC\3")
    (tmp_path / "full" / "thesis.tex").touch()
    os.mkfifo(tmp_path / "fifo.txt")
    (tmp_path / "words").symlink_to(words)
    more = [word for key in USUAL if key not in arguments for word in (key, USUAL[key])]
    more = more if arguments[0] == "prepare" else []
    assert expected in refusal(["data", *arguments, *more], tmp_path)
    for folder in (tmp_path, tmp_path / "out"):
        assert not (folder / MANIFEST).exists()
