"""The benchmark of saving runs at its smallest and writes its record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.saving import main


def test_both_ways_of_saving_are_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    into, disk = tmp_path / "saving.json", tmp_path / "disk"
    disk.mkdir()
    main(["--size", "tiny", "--repeats", "2", "--folder", str(disk), "--json", str(into)])
    record = json.loads(into.read_text())
    assert len(record["seconds"]) == 2
    assert all(seconds > 0 for row in record["seconds"] for seconds in row.values())
    assert record["weights"] > 0
    assert "standing still, beside over first" in capsys.readouterr().out
    assert not list(disk.iterdir())
