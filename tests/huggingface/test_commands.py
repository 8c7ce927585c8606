"""The verbs from one end to the other: train, export, import, train, evaluate."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.huggingface.trained import BYTES
from tests.tiny_runs import run
from tst_study import run_record
from tst_study.command_line import program
from tst_study.errors import UserError
from tst_study.run import lock as run_lock

pytest.importorskip("safetensors", reason="exports need tst-study[export]")


def tst_study(*arguments: str | Path) -> str:
    """What the command prints. Raises whatever it raises."""
    result = CliRunner().invoke(program(), [str(part) for part in arguments])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_a_model_goes_out_and_comes_back(
    documents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(documents, tmp_path / "first", *BYTES)
    shown = tst_study("export", "first", "--to", "exported/mine")
    assert shown == "step 6 of first: exported/mine\n"
    (tmp_path / "rest.toml").write_text(
        f'name = "second"\ndata.corpora = [{{path = "{documents}"}}]\n'
        "batch = {sequences = 4, sequence_length = 8}\nschedule.steps = 4\n"
    )
    arguments = ("--config", "rest.toml", "--set", "optimizer.learning_rate=1e-12")
    tst_study("import", "exported/mine", "--to", "second.toml", *arguments)
    tst_study("train", "second.toml", "--folder", "second", "--set", "execution.threads=1")
    lines = [tst_study("evaluate", name).splitlines() for name in ("first", "second")]
    assert lines[0] == lines[1]  # hardly a step was made, so it is still the same model
    first, second = (run_record.read(tmp_path / name) for name in ("first", "second"))
    assert second.tasks[0]["data"] == first.tasks[0]["data"]
    assert second.header["fingerprint"] != first.header["fingerprint"]
    tst_study("export", "first", "--to", "exported/measured")
    card = (tmp_path / "exported" / "measured" / "README.md").read_text()
    assert f"| held_out | `{first.tasks[0]['data']}` | nats_per_token | " in card
    with pytest.raises(UserError, match=r"second.toml: already exists"):
        tst_study("import", "exported/mine", "--to", "second.toml", *arguments)


def test_a_full_disk_does_not_keep_an_import_from_being_made_later(
    documents: Path, tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(documents, tmp_path / "first", *BYTES)
    tst_study("export", "first", "--to", "exported")
    (tmp_path / "rest.toml").write_text(
        f'data.corpora = [{{path = "{documents}"}}]\noptimizer.learning_rate = 1e-3\n'
        "batch = {sequences = 4, sequence_length = 8}\nschedule.steps = 4\n"
    )
    to = small_disk / "my run.toml"
    arguments = ("import", "exported", "--to", to, "--config", "rest.toml")
    with open(small_disk / "other", "wb", 0) as other, contextlib.suppress(OSError):
        while True:
            other.write(bytes(4096))
    with pytest.raises(UserError, match=r"my run\.toml: cannot be written .*free some space"):
        tst_study(*arguments)
    (small_disk / "other").unlink()
    assert f"start it with `tst-study train '{to}'`" in tst_study(*arguments)


def test_a_run_that_trains_is_not_written_to(documents: Path, tmp_path: Path) -> None:
    run(documents, tmp_path / "run", *BYTES)
    before = (tmp_path / "run" / "evals.jsonl").read_bytes()
    with (
        run_lock.hold(tmp_path / "run"),
        pytest.raises(UserError, match="or measures this run"),
    ):
        tst_study("evaluate", tmp_path / "run")
    assert (tmp_path / "run" / "evals.jsonl").read_bytes() == before
