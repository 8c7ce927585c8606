"""Zero-shot accuracies that `tst-study evaluate` wrote into run folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.run_row import rows_of
from paper_figures.published_numbers import TASKS
from tst_study.errors import UserError

METRICS = ("acc_norm", "acc")
"""The first that a task reports. (The paper does not say which of them it prints.)"""

COLUMNS = ("folder", "task", "accuracy", "metric")


def accuracies(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per finished run and task: accuracy as a fraction, of the last measurement."""
    rows: list[dict[str, Any]] = []
    for run in rows_of(runs[runs["state"] == "done"]):
        rows += _of_run(Path(run["folder"]), run["steps"])
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _of_run(folder: Path, steps: int) -> list[dict[str, Any]]:
    path = folder / "evals.jsonl"
    found: dict[str, dict[str, Any]] = {}
    if not path.is_file():
        return []
    for number, line in enumerate(path.read_text("utf8").splitlines(), 1):
        if '"task"' not in line:  # most lines, and parsing them all is what would take time
            continue
        try:
            row = json.loads(line)
        except ValueError:
            raise UserError(f"{path}:{number}: not JSON; the file is damaged") from None
        # The paper's are 0-shot, on all questions.
        whole = row["details"].get("shots") == 0 and row["details"].get("limit") is None
        if row.get("task") in TASKS and row["step"] == steps and whole:
            metric = next((name for name in METRICS if row["metrics"].get(name) is not None), None)
            if metric:
                value = float(row["metrics"][metric])
                found[row["task"]] = {"task": row["task"], "accuracy": value, "metric": metric}
    return [{"folder": str(folder), **row} for row in found.values()]
