"""Tables 8 to 28: zero-shot accuracy over step ratio r and bag size s, one task each."""

import pandas as pd

from analysis import published
from analysis.runs.run_row import rows_of
from analysis.wording import number
from paper_figures.groups import is_at_scale
from paper_figures.item import Finding
from paper_figures.registration import figure, submit
from paper_figures.sources import Sources
from paper_figures.table import Grid, Table, grid_over_s_and_r, number_entry
from tst_study.configuration.superposition_setting import SuperpositionSetting


@figure(
    {f"table{number}": number for number in range(8, 29)},
    published=["downstream_grid"],
    needs=f"{submit('bag-grid', 'paper')}, then `tst-study evaluate RUN`",
)
def downstream_grid(sources: Sources, which: int) -> Table:
    """One table. Accuracies of other models would say nothing here: only the same scale counts."""
    cells = published.downstream_grid(which)
    name, size, steps = cells.iloc[0][["task", "size", "steps"]]
    runs = sources.runs[is_at_scale(sources.runs, size, steps)]
    of_paper = [
        row["method"] == "baseline" or SuperpositionSetting.of_row(row).is_plain
        for row in rows_of(runs)
    ]
    measured = sources.accuracies.query("task == @name").merge(runs.loc[of_paper], on="folder")
    data, task = grid_data(cells, measured), published.TASKS[name]
    metrics = ", ".join(sorted(set(measured["metric"])))
    return Table(
        title=f"Table {which}. {task}, {size}, {steps:,} steps",
        caption=f"Zero-shot accuracy of {task} in percent, {number(len(cells), 'published run')} "
        "of one seed each. Bold: the highest of each r.",
        measured=f"Measured: {number(len(measured), 'run')}, metric {metrics} (the paper does not "
        "say which)."
        if metrics
        else "",
        data=data,
        folders=tuple(sorted(measured["folder"])),
        grids=_grids(task, data),
        finding=_finding(data, measured),
    )


def grid_data(cells: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """One row per cell, accuracies as fractions; measured ones are means over seeds."""
    key = ["step_ratio", "bag_size"]
    table = cells.rename(columns={"accuracy": "published"})[[*key, "published"]]
    own = measured.assign(step_ratio=measured["step_ratio"].astype(float).round(3))
    means = own.groupby(key)["accuracy"].agg(measured="mean", seeds="count").reset_index()
    means = means.astype({"bag_size": "int64", "measured": float, "seeds": "Int64"})
    data = table.merge(means, on=key, how="outer").sort_values(key, ignore_index=True)
    return data.assign(difference=data["measured"] - data["published"])


def _grids(task: str, data: pd.DataFrame) -> tuple[Grid, ...]:
    columns = {"published": f"Published: {task} accuracy (%)"}
    if data["measured"].notna().any():
        columns["measured"] = f"Measured: {task} accuracy (%)"
        columns["difference"] = "Measured − published (points)"
    percent = data.assign(**{column: 100 * data[column] for column in columns})
    grids = []
    for column, title in columns.items():
        sign = column == "difference"
        base = percent[percent["bag_size"] == 1][column].dropna()
        if len(base):
            title += f"; baseline {number_entry(base.iloc[0], 2, sign=sign).text}"
        best = "" if sign else "max"
        grids.append(grid_over_s_and_r(title, percent, column, digits=2, best=best, sign=sign))  # type: ignore[arg-type]
    return tuple(grids)


def _finding(data: pd.DataFrame, measured: pd.DataFrame) -> Finding:
    said = _above_baseline(data, "published")
    own = _above_baseline(data, "measured")
    if not own:
        return Finding(said)
    return Finding(said, own, number(len(measured), "run"), "undecided")


def _above_baseline(data: pd.DataFrame, column: str) -> str:
    """Empty without a baseline."""
    base = data[data["bag_size"] == 1][column].dropna()
    cells = data[data["bag_size"] > 1][column].dropna()
    if base.empty:
        return ""
    level = base.iloc[0]
    return (
        f"{(cells > level).sum()} of {len(cells)} settings above the baseline's {100 * level:.1f}%"
    )
