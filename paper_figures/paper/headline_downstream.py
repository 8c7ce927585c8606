"""Table 3: zero-shot accuracies of the headline runs."""

import numpy as np
import pandas as pd

from analysis import published
from analysis.published import TASKS
from analysis.runs.run_row import rows_of
from analysis.wording import number
from paper_figures.item import Finding
from paper_figures.registration import figure, submit
from paper_figures.sources import Sources
from paper_figures.table import Grid, Table, number_entry
from tst_study.configuration.superposition_setting import SuperpositionSetting
from tst_study.units import big


@figure(
    "table3",
    title="Table 3. Headline runs: zero-shot accuracy",
    published=["headline_runs"],
    needs=f"{submit('headline', 'paper')}, then `tst-study evaluate RUN`",
)
def headline_downstream(sources: Sources) -> Table:
    """Published runs, and below them what `tst-study evaluate` measured here."""
    data, used = _published(), sources.accuracies
    if len(used):
        data = pd.concat([data, _measured(sources.runs, used)], ignore_index=True)
    metrics = ", ".join(sorted(set(used["metric"])))
    return Table(
        caption="Zero-shot accuracy in percent, one seed where published. Bold: the highest of a "
        "model. An empty cell was not published or not measured.",
        measured=f"Measured rows: means over seeds, metric {metrics} (the paper names none)."
        if metrics
        else "",
        data=data,
        folders=tuple(sorted(set(used["folder"]))),
        grids=(_grid(data),),
        finding=_finding(used),
    )


def _published() -> pd.DataFrame:
    runs = published.headline_runs().query("method in ['baseline', 'tst']")
    names = {"params": "model", "total_steps": "steps"}
    table = runs.assign(method=runs["method"].replace("tst", "TST")).rename(columns=names)
    return table[["model", "method", "steps", *TASKS]]


def _measured(runs: pd.DataFrame, used: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds, in percent."""
    known = used.merge(runs, on="folder")
    known["method"] = [SuperpositionSetting.of_row(row).label for row in rows_of(known)]
    known["model"] = known["parameters"].map(big) + ", " + known["corpus"]
    keys = ["parameters", "model", "method", "steps"]
    wide = 100 * known.pivot_table(index=keys, columns="task", values="accuracy", aggfunc="mean")
    table = wide.reindex(columns=list(TASKS)).assign(seeds=known.groupby(keys)["seed"].nunique())
    return table.reset_index().drop(columns="parameters")


def _grid(data: pd.DataFrame) -> Grid:
    tops = {model: rows[list(TASKS)].max() for model, rows in data.groupby("model")}
    columns = {
        "model": lambda row: row["model"],
        "method": lambda row: row["method"],
        "steps": lambda row: number_entry(row["steps"]),
    }
    for task, name in TASKS.items():
        columns[name] = lambda row, task=task: number_entry(  # type: ignore[misc]
            row[task], 1, row[task] == tops[row["model"]][task]
        )
    return Grid.of(rows_of(data), columns)


def _finding(used: pd.DataFrame) -> Finding:
    pairs = _published().groupby(["model", "steps"]).filter(lambda rows: len(rows) == 2)
    by_method = {name: rows[list(TASKS)].to_numpy() for name, rows in pairs.groupby("method")}
    change = (by_method["TST"] - by_method["baseline"]).ravel()
    known = change[~np.isnan(change)]
    said = (
        f"at equal steps TST is above the baseline in {(known > 0).sum()} of {len(known)} tasks, "
        f"below in {(known < 0).sum()}"
    )
    if used.empty:
        return Finding(said)
    evaluated = number(used["folder"].nunique(), "run")
    return Finding(said, f"{evaluated} evaluated", "", "undecided")
