"""Table 3: zero-shot accuracies of the headline runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from analysis.run_row import rows_of
from analysis.wording import big, setting_label
from paper_figures.downstream_runs import accuracies
from paper_figures.item import Finding, Item, Missing, command
from paper_figures.published_numbers import HEADLINE, TASKS, table
from paper_figures.sources import Sources
from paper_figures.table import Entry, Grid, Table, number_entry

NEEDS = command("headline", "paper")
LEADING = ("model", "method", "steps")


def items(sources: Sources, name: str) -> list[Item | Missing]:
    """Published runs, and below them what `tst-study evaluate` measured here."""
    data, used = _published(), accuracies(sources.runs)
    if len(used):
        data = pd.concat([data, _measured(sources.runs, used)], ignore_index=True)
    return [
        Table(
            "headline_downstream",
            name,
            "Table 3. Headline runs: zero-shot accuracy",
            _caption(used),
            data,
            tuple(sorted(set(used["folder"]))),
            (_grid(data),),
            published=(HEADLINE,),
            finding=_finding(used),
        )
    ]


def _published() -> pd.DataFrame:
    runs = table(HEADLINE)
    runs = runs[runs["method"].isin(["baseline", "tst"])]
    names = {"baseline": "baseline", "tst": "TST"}
    return pd.DataFrame(
        {
            "model": row["params"],
            "method": names[row["method"]],
            "steps": row["total_steps"],
            **{task: row[task] for task in TASKS},
        }
        for row in rows_of(runs)
    )


def _measured(runs: pd.DataFrame, used: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds, in percent."""
    known = used.merge(runs, on="folder")
    known["method"] = [setting_label(row) for row in rows_of(known)]
    rows: list[dict[str, Any]] = []
    keys = ["parameters", "corpus", "method", "steps"]
    for (_, corpus, method, steps), members in known.groupby(keys, sort=True):
        by_task = 100 * members.groupby("task")["accuracy"].mean()
        rows.append(
            {
                "model": f"{big(members['parameters'].iloc[0])}, {corpus}",
                "method": method,
                "steps": steps,
                **{task: by_task.get(task) for task in TASKS},
                "seeds": members["seed"].nunique(),
            }
        )
    return pd.DataFrame(rows)


def _grid(data: pd.DataFrame) -> Grid:
    best = data.groupby("model")[list(TASKS)].transform("max")
    rows = []
    for place, row in enumerate(rows_of(data)):
        rows.append(
            (
                Entry(row["model"]),
                Entry(row["method"]),
                Entry(f"{row['steps']:,}", value=float(row["steps"])),
                *(
                    number_entry(row[task], 1, row[task] == best[task].iloc[place])
                    for task in TASKS
                ),
            )
        )
    return Grid("", (*LEADING, *TASKS.values()), tuple(rows))


def _caption(used: pd.DataFrame) -> str:
    text = (
        "Zero-shot accuracy in percent, one seed where published. Bold: the highest of a model. "
        "An empty cell was not published or not measured. "
    )
    if used.empty:
        return text + f"Nothing measured: `{NEEDS}`, then `tst-study evaluate RUN`."
    metrics = ", ".join(sorted(set(used["metric"])))
    return text + f"Measured rows: means over seeds, metric {metrics} (the paper names none)."


def _finding(used: pd.DataFrame) -> Finding:
    pairs = _published().groupby(["model", "steps"]).filter(lambda rows: len(rows) == 2)
    by_method = {name: rows[list(TASKS)].to_numpy() for name, rows in pairs.groupby("method")}
    change = (by_method["TST"] - by_method["baseline"]).ravel()
    known = change[~np.isnan(change)]
    published = (
        f"at equal steps TST is above the baseline in {(known > 0).sum()} of {len(known)} tasks, "
        f"below in {(known < 0).sum()}"
    )
    if used.empty:
        return Finding(published, needs=NEEDS)
    return Finding(published, f"{len(set(used['folder']))} runs evaluated", "", "undecided")
