"""Runs whose final losses may be compared: finished and evaluated after the last step, which was a
next-token step, with an annealed learning rate; neither excluded by hand nor a copy of another."""

from __future__ import annotations

from typing import Any

import pandas as pd

from tst_study.analysis.tables.columns import rows_of
from tst_study.config.superposition_setting import SuperpositionSetting

EXCLUDED_COLUMNS = ("run_id", "seed", "setting", "reason", "folder")


def eligible(runs: pd.DataFrame) -> tuple[pd.DataFrame, list[dict[str, Any]]]:
    """Return the runs whose final losses may be compared, and the others (`excluded_row`) with the
    reason why not."""
    excluded: list[dict[str, Any]] = []
    kept: list[int] = []
    seen: dict[str, str] = {}
    for index, run in zip(runs.index, rows_of(runs), strict=True):
        reason = _unfit(run)
        if reason is None and run["fingerprint"] in seen:
            reason = f"the same run as {seen[run['fingerprint']]}, which is counted once"
        if reason is None:
            seen[run["fingerprint"]] = run["folder"]
            kept.append(index)
        else:
            excluded.append(excluded_row(run, reason))
    return runs.loc[kept], excluded


def _unfit(run: dict[str, Any]) -> str | None:
    """Return why a run's final loss may not be compared with any other, or None."""
    if run["exclusion"]:
        return f"excluded by hand: {run['exclusion']}"
    if run.get("role") == "trunk":
        return "a shared prefix run, from which other runs go on"
    if run["state"] == "diverged":
        return f"diverged at step {run['step']:,} of {run['steps']:,}: {run['message']}".strip(": ")
    if run["state"] != "done":
        return f"not finished ({run['state']}, step {run['step']:,} of {run['steps']:,})"
    if pd.isna(run["nats_per_token"]) or run["evaluated_step"] != run["steps"]:
        return "no held-out evaluation after the last step"
    if run["evaluated_phase"] != "recovery":
        return "superposed to its last step, never recovered: not a next-token model"
    if not run["annealed"]:
        return "its learning rate was not annealed when it was evaluated"
    return None


def excluded_row(run: dict[str, Any], reason: str) -> dict[str, Any]:
    """Return the row of a run that was left out, in `EXCLUDED_COLUMNS`."""
    return {
        "run_id": run["run_id"],
        "seed": run["seed"],
        "setting": SuperpositionSetting.of_row(run).label,
        "reason": reason,
        "folder": run["folder"],
    }


def over_shared_seeds(runs: pd.DataFrame, by: str, value: str) -> pd.DataFrame:
    """Return `value` by `by` (rows) and seed (columns), for the seeds that all rows have.

    Means over different seeds would compare luck. Where the rows share no seed, all seeds are kept,
    with gaps. Runs in the same cell are averaged, and so are runs without a seed."""
    seeds = runs["seed"].where(runs["seed"].notna(), -1)
    table = runs.assign(seed=seeds).astype({value: float})
    table = table.pivot_table(value, index=by, columns="seed")
    shared = table.dropna(axis=1)
    return table if shared.empty else shared
