"""Tables 8 to 28: zero-shot accuracy over step ratio r and bag size s, one task each."""

from __future__ import annotations

import pandas as pd

from analysis.wording import number
from paper_figures.downstream_runs import accuracies
from paper_figures.item import Finding, Item, Missing, command
from paper_figures.measured import is_of
from paper_figures.published_numbers import DOWNSTREAM, TASKS, downstream_grid
from paper_figures.sources import Sources
from paper_figures.table import Entry, Grid, Table, number_entry

DATA = ("step_ratio", "bag_size", "published", "measured", "seeds", "difference")


def items(sources: Sources, name: str) -> list[Item | Missing]:
    """One table. Accuracies of other models would say nothing here: only the same scale counts."""
    which = int(name.removeprefix("table"))
    published = downstream_grid(which)
    first = published.iloc[0]
    task = TASKS[str(first["task"])]
    runs = _runs_at_scale(sources.runs, str(first["params"]), int(first["total_steps"]))
    measured = accuracies(runs)
    measured = measured[measured["task"] == first["task"]].merge(runs, on="folder")
    data = grid_data(published, measured)
    return [
        Table(
            "downstream_grid",
            name,
            f"Table {which}. {task}, {first['params']}, {first['total_steps']:,} steps",
            _caption(task, data, measured),
            data,
            tuple(sorted(measured["folder"])),
            _grids(task, data),
            published=(DOWNSTREAM,),
            finding=_finding(data, measured),
        )
    ]


def grid_data(published: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """One row per cell, accuracies as fractions; measured ones are means over seeds."""
    table = published[["step_ratio", "bag_size", "accuracy"]]
    table = table.rename(columns={"accuracy": "published"})
    cells = measured.assign(step_ratio=measured["step_ratio"].astype(float).round(3))
    by_cell = cells.groupby(["step_ratio", "bag_size"])["accuracy"]
    means = by_cell.agg(measured="mean", seeds="count").reset_index()
    means = means.astype({"bag_size": "int64", "measured": float, "seeds": "Int64"})
    data = table.merge(means, on=["step_ratio", "bag_size"], how="outer")
    data["difference"] = data["measured"] - data["published"]
    return data.sort_values(["step_ratio", "bag_size"], ignore_index=True)[list(DATA)]


def _runs_at_scale(runs: pd.DataFrame, params: str, steps: int) -> pd.DataFrame:
    """Of the paper's method under uniform weights, and baselines."""
    plain = runs["weighting"].isna() | (
        (runs["weighting"] == "uniform")
        & (runs["mode"] == "full")
        & (runs["loss_kind"] == "mce")
        & ~runs["reinitialized"].astype(bool)
        & (runs["optimizer_at_switch"] == "keep")
    )
    found = runs[plain]
    keep = [is_of(found.iloc[[place]], params, steps) for place in range(len(found))]
    return found[pd.Series(keep, index=found.index, dtype=bool)]


def _grids(task: str, data: pd.DataFrame) -> tuple[Grid, ...]:
    grids = [_pivot(data, "published", f"Published: {task} accuracy (%)")]
    if data["measured"].notna().any():
        grids.append(_pivot(data, "measured", f"Measured: {task} accuracy (%)"))
        grids.append(_pivot(data, "difference", "Measured − published (points)", sign=True))
    return tuple(grids)


def _pivot(data: pd.DataFrame, column: str, title: str, *, sign: bool = False) -> Grid:
    there = data[data[column].notna()]
    base = there[there["bag_size"] == 1][column]
    cells = there[there["bag_size"] > 1]
    wide = cells.pivot(index="bag_size", columns="step_ratio", values=column)
    if len(base):
        title += f"; baseline {number_entry(100 * base.iloc[0], 2, sign=sign).text}"
    rows = tuple(
        (
            Entry(str(size), value=float(size)),
            *(
                number_entry(
                    100 * wide.loc[size, ratio],
                    2,
                    not sign and wide.loc[size, ratio] == wide[ratio].max(),
                    sign,
                )
                for ratio in wide.columns
            ),
        )
        for size in wide.index
    )
    return Grid(title, ("s", *(f"r = {ratio:.3g}" for ratio in wide.columns)), rows)


def _caption(task: str, data: pd.DataFrame, measured: pd.DataFrame) -> str:
    text = (
        f"Zero-shot accuracy of {task} in percent, "
        f"{number(int(data['published'].count()), 'published run')} of one seed each. Bold: the "
        "highest of each r. "
    )
    if measured.empty:
        return text + (
            f"Nothing measured: `{command('bag-grid', 'paper')}`, then `tst-study evaluate RUN`."
        )
    metrics = ", ".join(sorted(set(measured["metric"])))
    return text + (
        f"Measured: {number(len(measured), 'run')}, metric {metrics} (the paper does not say "
        "which)."
    )


def _finding(data: pd.DataFrame, measured: pd.DataFrame) -> Finding:
    level = data[data["bag_size"] == 1]["published"]
    base = float(level.iloc[0])
    cells = data[data["bag_size"] > 1]["published"].dropna()
    published = (
        f"{int((cells > base).sum())} of {len(cells)} settings above the baseline's "
        f"{100 * base:.1f}%"
    )
    if measured.empty:
        return Finding(published, needs=command("bag-grid", "paper"))
    own = data[data["bag_size"] == 1]["measured"].dropna()
    there = data[data["bag_size"] > 1]["measured"].dropna()
    if own.empty:
        return Finding(published, needs=command("bag-grid", "paper"))
    above = int((there > own.iloc[0]).sum())
    text = f"{above} of {len(there)} settings above the baseline's {100 * own.iloc[0]:.1f}%"
    return Finding(published, text, number(len(measured), "run"), "undecided")
