"""The choice of the runs that may be compared by their final losses.

Such a run is finished, its held-out loss was measured after its last step, and its learning rate
had decayed by then (it is annealed), or it is a finished baseline of which that is not known. Its
last step was a next-token step. Left out are runs that a person excluded, shared prefix runs (the
steps that several runs have in common, trained once), runs of pilot sweeps, and repeats of a run
under the same fingerprint. Comparisons of runs, and fits to them, begin here.
"""

from collections import defaultdict
from typing import Any

import pandas as pd

from tst_study.analysis.tables.columns import rows_of

EXCLUDED_COLUMNS = ("run_id", "seed", "setting", "reason", "folder")
"""Columns of a table of runs that were left out."""
_READ = (
    *("run_id", "seed", "arm", "folder", "fingerprint", "exclusion", "role", "state", "message"),
    *("step", "steps", "nats_per_token", "evaluated_step", "evaluated_phase", "annealed"),
)
"""Columns that `eligible` reads."""
NOT_WHOLE = "the pilot is not whole, so its gains are not to be read yet"
"""Why the runs of a pilot with a stop rule are left out while some of them are not over."""
SAME_LOSS = 1e-6
"""The most, in nats per token, by which the losses of copies of one run may differ."""


def eligible(runs: pd.DataFrame, pilots: bool = False) -> tuple[pd.DataFrame, list[dict[str, Any]]]:
    """Return the rows of the runs whose final losses may be compared, and a row with the reason
    (`excluded_row`) for every run that is left out. Of several runs with the same fingerprint, the
    first that may be compared is kept; if their losses differ, all are left out, since nothing says
    which is right.

    `pilots`: whether runs of pilot sweeps count, which is so only where sweeps are judged."""
    excluded: list[dict[str, Any]] = []
    kept: list[int] = []
    read = [name for name in _READ if name in runs]
    rows = [(run, _unfit(run, pilots)) for run in rows_of(runs[read])]
    fit: dict[str, list[dict[str, Any]]] = defaultdict(list)
    named: dict[str, str] = {}
    for run, reason in rows:
        if reason is None and not isinstance(run.get("config"), str):
            # The fingerprint of an imported run covers its losses. Where they differ, its name and
            # setting say that it is the same run.
            name = str([run.get(k) for k in ("run_id", "group", "arm", "seed", "learning_rate")])
            run["fingerprint"] = named.setdefault(name, run["fingerprint"])
        if reason is None:
            fit[run["fingerprint"]].append(run)
    for index, (run, reason) in zip(runs.index, rows, strict=True):
        same = fit[run["fingerprint"]]
        losses = [float(one["nats_per_token"]) for one in same]
        differs = max(losses, default=0) - min(losses, default=0)
        # The paper's tables print one run with three decimals or with four.
        if reason is None and differs > (1e-3 if run.get("role") == "published" else SAME_LOSS):
            where = (
                f"{loss:.6g} in {one['folder']}" for one, loss in zip(same, losses, strict=True)
            )
            reason = f"one run with two results, {' and '.join(where)}; keep the folder of one"
        elif reason is None and run is not same[0]:
            reason = f"the same run as {same[0]['folder']}, which is counted once"
        if reason is None:
            kept.append(index)
        else:
            excluded.append(excluded_row(run, reason))
    return runs.loc[kept], excluded


def _unfit(run: dict[str, Any], pilots: bool) -> str | None:
    """Return why a run's final loss may not be compared with any other, or None if it may."""
    if run["exclusion"] == NOT_WHOLE:
        return NOT_WHOLE
    if run["exclusion"]:
        return f"excluded by hand: {run['exclusion']}"
    if run.get("role") == "trunk":
        return "a shared prefix run, from which other runs go on"
    if run.get("role") == "pilot" and not pilots:
        return "a run of a pilot sweep, which is never a result"
    if run["state"] == "diverged":
        return f"diverged at step {run['step']:,} of {run['steps']:,}: {run['message']}".strip(": ")
    if run["state"] != "done":
        return f"not finished ({run['state']}, step {run['step']:,} of {run['steps']:,})"
    if pd.isna(run["nats_per_token"]) or run["evaluated_step"] != run["steps"]:
        return "no held-out evaluation after the last step"
    if run["evaluated_phase"] != "recovery":
        return "superposed to its last step, never recovered: not a next-token model"
    if pd.notna(run["annealed"]) and not run["annealed"]:
        return "its learning rate was not annealed when it was evaluated"
    return None


def excluded_row(run: dict[str, Any], reason: str) -> dict[str, Any]:
    """Return the row of a run that was left out, in `EXCLUDED_COLUMNS`."""
    return {
        "run_id": run["run_id"],
        "seed": run["seed"],
        "setting": run["arm"],
        "reason": reason,
        "folder": run["folder"],
    }


def over_shared_seeds(runs: pd.DataFrame, by: str, value: str) -> pd.DataFrame:
    """Return the column `value` of a run table, arranged with a row for each value of the column
    `by` and a column for each seed.

    Only seeds that every row has are kept, because means over different seeds would differ by luck.
    If the rows have no seed in common, all seeds are kept and missing cells are NaN. Several runs
    in one cell are averaged. Runs without a seed count as runs of one more seed, −1.
    """
    seeds = runs["seed"].where(runs["seed"].notna(), -1)
    table = runs.assign(seed=seeds).astype({value: float})
    table = table.pivot_table(value, index=by, columns="seed")
    shared = table.dropna(axis=1)
    return table if shared.empty else shared
