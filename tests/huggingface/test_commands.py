"""The verbs for a trained run: export and evaluate."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.huggingface.trained import BYTES
from tests.tiny_runs import run
from tst_study.command_line import program
from tst_study.errors import UserError
from tst_study.record import lock as run_lock
from tst_study.record import reader as run_record

pytest.importorskip("safetensors", reason="exports need tst-study[export]")


def tst_study(*arguments: str | Path) -> str:
    """What the command prints. Raises whatever it raises."""
    result = CliRunner().invoke(program(), [str(part) for part in arguments])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_an_export_tells_what_was_evaluated_before(documents: Path, tmp_path: Path) -> None:
    run(documents, tmp_path / "run", *BYTES)
    (line,) = tst_study("evaluate", tmp_path / "run").splitlines()
    assert line.startswith("held_out (")
    shown = tst_study("export", tmp_path / "run", "--to", tmp_path / "made" / "model")
    assert shown == f"step 6 of {tmp_path / 'run'}: {tmp_path / 'made' / 'model'}\n"
    (row,) = run_record.read(tmp_path / "run").tasks
    card = (tmp_path / "made" / "model" / "README.md").read_text()
    assert f"| held_out | {row['data']} | nats_per_token | " in card


def test_a_run_that_trains_is_not_written_to(documents: Path, tmp_path: Path) -> None:
    run(documents, tmp_path / "run", *BYTES)
    before = (tmp_path / "run" / "evals.jsonl").read_bytes()
    with (
        run_lock.hold(tmp_path / "run"),
        pytest.raises(UserError, match="or measures this run"),
    ):
        tst_study("evaluate", tmp_path / "run")
    assert (tmp_path / "run" / "evals.jsonl").read_bytes() == before
