"""Zero-shot accuracies that `tst-study evaluate` wrote into run folders."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.published import TASKS
from analysis.runs.run_row import rows_of
from tst_study.run_record import read_task_results

METRICS = ("acc_norm", "acc")
"""The first that a task reports. (The paper does not say which of them it prints.)"""
COLUMNS = ("folder", "task", "accuracy", "metric")


def accuracies(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per finished run and task: accuracy as a fraction, of the last measurement.

    On all questions and without examples in the context, as the paper's are.
    """
    rows: list[dict[str, Any]] = []
    for run in rows_of(runs[runs["state"] == "done"]):
        found = {}
        for row in read_task_results(run["folder"]):
            whole = row["details"].get("shots") == 0 and row["details"].get("limit") is None
            if row["task"] in TASKS and row["step"] == run["steps"] and whole:
                known = (name for name in METRICS if row["metrics"].get(name) is not None)
                if metric := next(known, None):
                    found[row["task"]] = (row["task"], row["metrics"][metric], metric)
        rows += [dict(zip(COLUMNS, (run["folder"], *found[task]), strict=True)) for task in found]
    return pd.DataFrame(rows, columns=list(COLUMNS))
