"""The benchmark of planning at its smallest: it runs, and counts what it made."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_runs_and_their_trunks_are_counted() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.planning", "--runs", "20"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    result = json.loads(done.stdout)
    # Ten runs of one s share one trunk.
    assert result["planning_from_nothing"]["result"] == 22
    # One s is done, and its trunk no longer needed.
    assert result["status"]["result"] == "10 done, 10 preempted, 1 waiting"
