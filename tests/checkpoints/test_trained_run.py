"""Both `export` and `evaluate` begin by opening a run: what is wrong with it is said there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_runs import run
from tst_study.checkpoints.trained_run import open_run
from tst_study.errors import UserError


@pytest.fixture(scope="module")
def trained(words: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "trained"
    run(words, folder, "schedule.steps=4", "execution.checkpoint_every=2")
    return folder


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("plan", "superposed_steps", "two"),
        ("config", "model", []),
        ("parameters", "total", None),
        ("flops", "per_step", [1]),
        ("data", "tokenizer", 3),
        ("data", "corpora", [{"tokens": "many"}]),
        ("data", "corpora", "books"),
    ],
)
@pytest.mark.parametrize("gone", [False, True], ids=["wrong", "missing"])
def test_a_damaged_record_is_one_line(
    trained: Path, tmp_path: Path, section: str, key: str, value: Any, gone: bool
) -> None:
    folder = shutil.copytree(trained, tmp_path / "run")
    header = json.loads((folder / "run.json").read_text())
    header[section].pop(key) if gone else header[section].update({key: value})
    (folder / "run.json").write_text(json.dumps(header))
    with pytest.raises(UserError, match=rf"run\.json: .*{key}") as raised:
        open_run(folder)
    assert "\n" not in str(raised.value)


def test_a_folder_that_is_no_step_is_no_checkpoint(trained: Path, tmp_path: Path) -> None:
    """A superscript is a digit to `isdigit`, and no number to `int`."""
    folder = shutil.copytree(trained, tmp_path / "run")
    (folder / "checkpoints" / "step-²").mkdir()
    assert open_run(folder).step == 4
