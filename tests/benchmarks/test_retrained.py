"""A record's runs come out again to the bit, and the check sees the last bit of a loss."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.retrained import compare_again, main
from experiments.runs.collect import keep
from tests.tiny_runs import run
from tst_study.errors import UserError


@pytest.fixture(scope="module")
def record(words: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("record")
    run(words, root / "runs/one", "execution.evaluate_every=6")
    keep(root / "runs", root / "kept")
    return root / "kept"


def test_a_run_of_a_record_comes_out_again_to_the_bit(
    record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(record), "--json", str(tmp_path / "again.json")]) == 0
    (row,) = json.loads((tmp_path / "again.json").read_text())["runs"]
    assert row["equal"]
    assert row["largest"] == 0.0
    assert row["losses"] >= 20
    assert "equal to the bit" in capsys.readouterr().out


def test_a_loss_that_differs_in_its_last_bit_is_seen(record: Path, tmp_path: Path) -> None:
    changed = tmp_path / "changed"
    changed.mkdir()
    for file in (record / "one").iterdir():
        (changed / file.name).write_bytes(file.read_bytes())
    rows = [json.loads(line) for line in (changed / "evals.jsonl").read_text().splitlines()]
    rows[-1]["nats_per_token"] = float(np.nextafter(rows[-1]["nats_per_token"], 9))
    (changed / "evals.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = compare_again(changed, tmp_path / "again")
    assert not found["equal"]
    assert 0 < found["largest"] < 1e-12


def test_a_folder_without_runs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run that is over"):
        main([str(tmp_path)])
