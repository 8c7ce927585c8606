"""Tables of the report that come from a study's runs."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pandas as pd

from tst_study.analysis.summary import Summary
from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.wording import number, verdict_parts
from tst_study.config.superposition_setting import SuperpositionSetting
from tst_study.paper_figures.table import Entry, Grid, Row, number_as, number_entry
from tst_study.text import big


def verdicts(summary: Summary, rows: pd.DataFrame) -> list[Grid]:
    """Return every verdict as the terminal has it, each with what it is compared with: planned
    questions, then all other settings. `rows`: of `answers`."""
    grids: list[Grid] = []
    last_heading, table = "", summary.verdicts
    against = dict(zip(rows["run_ids"], rows["against"], strict=True))
    names = [
        row["question"]
        if "against" in row["question"]
        else f"{row['question']} against {against[row['run_ids']]}"
        for row in rows_of(table)
    ]
    for heading, words, cells in verdict_parts(table.assign(question=names)):
        body = tuple(tuple(map(Entry, row.values())) for row in cells)
        title, last_heading = heading if heading != last_heading else "", heading
        grids.append(Grid(title, tuple(cells[0]), body, ", ".join(words)))
    if len(set(table["run_ids"])) < len(table):
        twice = (
            "A question under two headings has two intervals: each allows for all of its heading."
        )
        grids[0] = replace(grids[0], note=f"{grids[0].note}. {twice}")
    return grids


def arms(summary: Summary) -> Grid:
    """Return the arms that planned questions hold against one another."""
    columns: dict[str, Callable[[Row], Entry | str]] = {
        "arm": lambda row: row["arm"],
        "seeds": lambda row: number_entry(row["seeds"]),
        "loss": lambda row: number_entry(row["loss"], 4),
        "deviation over seeds": lambda row: number_entry(row["deviation"], 4),
        "tokens read": lambda row: number_as(row["raw_tokens"], big),
        "FLOPs": lambda row: number_as(row["flops"], big),
    }
    return Grid.of(rows_of(summary.arms), columns)


def excluded(summary: Summary) -> Grid:
    columns = {
        "run": lambda row: row["run_id"],
        "why": lambda row: row["reason"],
        "setting": lambda row: row["setting"],
        "seed": lambda row: number_entry(row["seed"]),
    }
    return Grid.of(rows_of(summary.comparison.excluded), columns)


def runs(summary: Summary, to: Path) -> Grid:
    def link(row: Row) -> Entry:
        if not Path(row["folder"]).is_dir():  # the runs of an archive have no folders
            return Entry(row["run_id"])
        # Quoted, no name can be a link of another kind, such as `javascript:…`.
        return Entry(row["run_id"], link=quote(Path(os.path.relpath(row["folder"], to)).as_posix()))

    columns: dict[str, Callable[[Row], Entry | str]] = {
        "run": link,
        "held-out loss": lambda row: number_entry(row["nats_per_token"], 4),
        "setting": lambda row: SuperpositionSetting.of_row(row).label,
        "seed": lambda row: number_entry(row["seed"]),
        "learning rate": lambda row: number_as(row["learning_rate"], "{:g}".format),
        "steps": lambda row: number_entry(row["steps"]),
        "state": _state,
    }
    return Grid.of(rows_of(summary.tables.runs), columns)


def _state(row: Row) -> str:
    """Say how a run ended, and what is out of the ordinary about it."""
    words = [row["state"]]
    if row["state"] != "done":
        words += [f"at step {row['step']:,}"] if row["step"] == row["step"] else []
        words += [row["message"]] if row["message"] else []
    elif not row["annealed"]:
        words.append("not annealed")
    if row["role"] not in ("baseline", "superposition"):
        words.append(row["role"])
    if row["segments"] > 1:
        words.append(f"{row['segments']} launches")
    if row["dropped_rows"]:
        words.append(f"{number(row['dropped_rows'], 'row')} written twice")
    return "; ".join(words)
