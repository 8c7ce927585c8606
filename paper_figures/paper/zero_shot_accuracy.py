"""Tables 3 and 8 to 28: zero-shot accuracy on multiple-choice tasks.

Table 3 has the headline runs. Each of Tables 8 to 28 has one task, for one model and number of
steps, over the step ratio r and the bag size s.
"""

import pandas as pd

from tst_study.analysis import published
from tst_study.analysis.published import TASKS
from tst_study.analysis.tables.columns import rows_of, settings_of
from tst_study.analysis.verdict.comparison import SAME
from tst_study.analysis.wording import disambiguate_by_set_up, number
from tst_study.paper_figures.catalogue import figure, submit
from tst_study.paper_figures.item import Finding
from tst_study.paper_figures.sources import Sources, is_at_scale
from tst_study.paper_figures.table import Entry, Grid, Table, grids_over_s_and_r, number_entry
from tst_study.text import big

METRIC = "length-normalised where a task reports that (the paper does not say what it prints)"
"""The kind of accuracy that the measured numbers are, in words for captions."""


@figure(
    "table3",
    title="Table 3. Headline runs: zero-shot accuracy",
    published=["headline_runs"],
    needs=f"{submit('headline', 'paper')}, then `tst-study evaluate RUN --tasks paper`",
)
def of_headline_runs(sources: Sources) -> Table:
    """Show the published runs, and below them what `tst-study evaluate` measured here."""
    data, used = _published(), sources.accuracies
    if len(used):
        data = pd.concat([data, _measured(used)], ignore_index=True)
    return Table(
        caption="Zero-shot accuracy in percent; published rows have one seed. Bold: the highest of "
        "a model. An empty cell was not published or not measured.",
        measured=f"Measured rows: means over seeds, {METRIC}.",
        data=data,
        folders=tuple(sorted(set(used["folder"]))),
        grids=(_by_model(data),),
        finding=_finding(used),
    )


def _published() -> pd.DataFrame:
    runs = published.headline_runs().query("method in ['baseline', 'tst']")
    names = {"params": "model", "total_steps": "steps"}
    table = runs.assign(method=runs["method"].replace("tst", "TST")).rename(columns=names)
    return table[["model", "method", "steps", *TASKS]]


def _measured(used: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each arm of each group of runs that may be compared: mean accuracies over
    seeds, in percent, with a column for each task."""
    rates = used["learning_rate"].map("learning rate {:g}".format)
    rates = rates.where(used["rate"].notna(), "each arm at its own learning rate")
    known = used.assign(model=used["parameters"].map(big) + ", " + used["corpus"] + ", " + rates)
    known = known.assign(method=known["setting"]).sort_values("parameters", kind="stable")
    groups = [rows for _, rows in known.groupby([*SAME], dropna=False, sort=False)]
    first, keys, tables = [rows.iloc[0] for rows in groups], ["method", "steps"], []
    models = disambiguate_by_set_up([row["model"] for row in first], first)
    for model, rows in zip(models, groups, strict=True):
        means = 100 * rows.pivot_table("accuracy", keys, "task")
        table = means.reindex(columns=list(TASKS)).assign(model=model)
        tables.append(table.assign(seeds=rows.groupby(keys)["seed"].nunique()).reset_index())
    return pd.concat(tables)


def _by_model(data: pd.DataFrame) -> Grid:
    tops = {model: rows[list(TASKS)].max() for model, rows in data.groupby("model")}
    rows = []
    for row in rows_of(data):
        top = tops[row["model"]]
        cells = (number_entry(row[task], 1, row[task] == top[task]) for task in TASKS)
        named = Entry(row["model"]), Entry(row["method"]), number_entry(row["steps"])
        rows.append((*named, *cells))
    return Grid("", ("model", "method", "steps", *TASKS.values()), tuple(rows))


def _finding(used: pd.DataFrame) -> Finding:
    runs = _published().set_index(["model", "steps"])
    tst, baseline = (runs[runs["method"] == arm][list(TASKS)] for arm in ("TST", "baseline"))
    change = (tst - baseline).stack().dropna()
    theirs = (
        f"at equal steps TST is above the baseline in {(change > 0).sum()} of {len(change)} tasks, "
        f"below in {(change < 0).sum()}"
    )
    if used.empty:
        return Finding(theirs)
    evaluated = number(used["folder"].nunique(), "run")
    return Finding(theirs, f"{evaluated} evaluated", "", "undecided")


@figure(
    {f"table{number}": number for number in range(8, 29)},
    published=["downstream_grid"],
    needs=f"{submit('bag-grid', 'paper')}, then `tst-study evaluate RUN --tasks paper`",
)
def over_s_and_r(sources: Sources, which: int) -> Table:
    """Show the paper's table number `which`, and the measured accuracies beside it.

    Only runs of the baseline and of the paper's method count, and of these only runs that have the
    table's number of steps and about its number of parameters. Of several groups of runs that may
    be compared, the one with the most settings is shown, and of equal ones that with the most runs.
    """
    cells = published.downstream_grid(which)
    name, size, steps = cells.iloc[0][["task", "size", "steps"]]
    runs = sources.accuracies.query("task == @name")
    runs = runs[is_at_scale(runs, size, steps)]
    settings = settings_of(runs)
    runs = runs.loc[[setting.is_baseline or setting.is_plain for setting in settings]]
    groups = [rows for _, rows in runs.groupby([*SAME], dropna=False)]
    measured = max(groups, key=lambda rows: (rows["setting"].nunique(), len(rows)), default=runs)
    data, task = grid_data(cells, measured), TASKS[name]
    theirs, ours = _above_baseline(data, "published"), _above_baseline(data, "measured")
    columns = {"published": f"Published: {task} accuracy (%)"}
    if len(measured):
        columns["measured"] = f"Measured: {task} accuracy (%)"
    percent = data.assign(**{column: 100 * data[column] for column in columns})
    return Table(
        title=f"Table {which}. {task}, {size}, {steps:,} steps",
        caption=f"Zero-shot accuracy of {task} in percent, {number(len(cells), 'published run')} "
        "of one seed each. Bold: the highest of each r.",
        measured=f"Measured: {number(len(measured), 'run')}, {METRIC}.",
        data=data,
        folders=tuple(sorted(measured["folder"])),
        grids=tuple(grids_over_s_and_r(percent, columns, 2, "max")),
        finding=Finding(theirs, ours, number(len(measured), "run"), "undecided"),
    )


def grid_data(cells: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each r and s, with the published and the measured accuracy as fractions.
    Measured ones are means over seeds."""
    key = ["step_ratio", "bag_size"]
    table = cells.rename(columns={"accuracy": "published"})[[*key, "published"]]
    own = measured.assign(step_ratio=measured["step_ratio"].astype(float).round(3))
    means = own.groupby(key).agg(measured=("accuracy", "mean"), seeds=("seed", "nunique"))
    means = means.reset_index().astype({"bag_size": "int64", "measured": float, "seeds": "Int64"})
    return table.merge(means, on=key, how="outer").sort_values(key, ignore_index=True)


def _above_baseline(data: pd.DataFrame, column: str) -> str:
    """Say how many settings are above the baseline; an empty text if `column` has no accuracy of
    the baseline."""
    cells = data[data["bag_size"] > 1][column].dropna()
    for level in data[data["bag_size"] == 1][column].dropna():
        above = f"{(cells > level).sum()} of {len(cells)} settings"
        return f"{above} above the baseline's {100 * level:.1f}%"
    return ""
