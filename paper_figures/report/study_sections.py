"""Sections of the report that come from a study's runs."""

import os
from pathlib import Path

import pandas as pd

from analysis.summary import Summary
from analysis.tables.columns import rows_of
from analysis.wording import bounds, number, signed, verdict_parts
from paper_figures.report.answer import by_text
from paper_figures.report.html_parts import paragraph, table, text
from paper_figures.study.headline_table import CAPTION, grid, headline_data
from paper_figures.table import Entry, Grid, Row, gain_entry, number_as, number_entry
from tst_study.config.superposition_setting import SuperpositionSetting
from tst_study.text import duration


def verdicts(summary: Summary) -> str:
    """Every verdict as the terminal has it: planned questions, then all other settings."""
    parts: list[str] = []
    said = ""
    for place, (heading, words, cells) in enumerate(verdict_parts(summary.comparison.verdicts)):
        if heading != said:
            parts.append(f"<h3>{text(heading)}</h3>\n")
        said = heading
        all_titles = ("question", "gain", "verdict", "chosen afterwards")
        titles = all_titles if any(row[-1] for row in cells) else all_titles[:-1]
        rows = tuple(tuple(map(Entry, row[: len(titles)])) for row in cells)
        parts.append(paragraph(", ".join(words), "note"))
        parts.append(table(Grid("", titles, rows), f"verdicts-{place}", "Verdicts"))
    return "".join(parts)


def comparisons(summary: Summary) -> str:
    """Text by text; what was gained first."""
    note = (
        "Held-out next-token loss in nats per token, both arms at equal FLOPs with annealed "
        "learning rates on the same held-out text, paired by seed. Gain: baseline minus "
        "superposition, with the interval of its verdict above. Detectable: the smallest true gain "
        "that this many seeds would then show four times in five."
    )
    columns = {
        "setting": lambda row: row["setting"],
        "gain": gain_entry,
        "verdict": lambda row: row["verdict"],
        "superposed": lambda row: number_entry(row["superposed"], 4),
        "baseline": lambda row: number_entry(row["baseline"], 4),
        "seeds": lambda row: number_entry(row["seeds"]),
        "detectable": lambda row: number_entry(row["smallest_detectable"], 4),
        "p, adjusted": lambda row: number_as(row["p_adjusted"], "{:.2g}".format),
        "corpus and length": lambda row: row["label"],
    }
    parts = []
    for place, (its_text, found) in enumerate(by_text(summary)):
        rows = pd.concat([group.rows.assign(label=group.label) for group in found])
        made = Grid.of(rows_of(rows), columns, its_text)
        name = "comparison-table" if place == 0 else f"comparison-table-{place}"
        parts.append(table(made, name, f"Comparisons, {its_text}"))
    return paragraph(note, "note") + "".join(parts) if parts else ""


def equal_loss(summary: Summary) -> str:
    note = (
        "Baseline steps that reach the loss of each setting, read between baselines of several "
        "lengths by a power law beyond a floor, never beyond the shortest or the best; intervals "
        "by the paired differences of the seeds, for all settings of one question together."
    )
    corpora = dict(zip(summary.tables.runs["group"], summary.tables.runs["corpus"], strict=True))

    def times(row: Row) -> Entry:
        interval = f" [{found}]" if (found := bounds(row)) else ""
        return number_as(row["steps_ratio"], lambda times: f"{times:.2f}{interval}")

    columns = {
        "setting": lambda row: row["setting"],
        "times [95% interval]": times,
        "steps": lambda row: number_entry(row["steps"]),
        "baseline steps": lambda row: number_entry(row["baseline_steps"]),
        "corpus": lambda row: corpora[row["group"]],
        "note": lambda row: row["note"],
    }
    found = table(Grid.of(rows_of(summary.equal_loss), columns), "equal-loss-table", "Equal loss")
    return found and paragraph(note, "note") + found


def headline(summary: Summary) -> str:
    found = table(grid(headline_data(summary)), "headline-table", "Cost and loss")
    return found and paragraph(CAPTION, "note") + found


def learning_rates(summary: Summary) -> str:
    parts = []
    for place, sweep in enumerate(summary.sweeps):
        worse = sweep.rates["loss"] - sweep.rates["loss"].min()
        rates = Grid.of(rows_of(sweep.rates.assign(worse=worse)), RATES)
        parts.append(paragraph(sweep.sentence()) + table(rates, f"sweep-{place}", "Learning rates"))
    return "".join(parts)


def _loss(value: float) -> str:
    return "diverged" if value == float("inf") else f"{value:.4f}"


def _worse(value: float) -> str:
    return "" if value == float("inf") else signed(value, 4) if value else "best"


RATES = {
    "learning rate": lambda row: number_as(row["learning_rate"], "{:g}".format),
    "held-out loss": lambda row: number_as(row["loss"], _loss),
    "against the best": lambda row: number_as(row["worse"], _worse),
    "seeds": lambda row: number_entry(row["seeds"]),
}


def excluded(summary: Summary) -> str:
    columns = {
        "run": lambda row: row["run_id"],
        "why": lambda row: row["reason"],
        "setting": lambda row: row["setting"],
        "seed": lambda row: number_entry(row["seed"]),
    }
    found = Grid.of(rows_of(summary.comparison.excluded), columns)
    return table(found, "excluded-table", "Not compared")


def runs(summary: Summary, to: Path) -> str:
    columns = {
        "run": lambda row: Entry(
            row["run_id"], link=Path(os.path.relpath(row["folder"], to)).as_posix()
        ),
        "held-out loss": lambda row: number_entry(row["nats_per_token"], 4),
        "setting": lambda row: SuperpositionSetting.of_row(row).label,
        "state": lambda row: row["state"],
        "seed": lambda row: number_entry(row["seed"]),
        "learning rate": lambda row: number_as(row["learning_rate"], "{:g}".format),
        "steps": lambda row: number_as(row["step"], lambda step: f"{step:,} of {row['steps']:,}"),
        "time": lambda row: number_as(row["training_seconds"], duration),
        "tokens/s": lambda row: number_entry(row["tokens_per_second"]),
        "notes": lambda row: "; ".join(_notes(row)),
    }
    return table(Grid.of(rows_of(summary.tables.runs), columns), "runs-table", "Runs")


def _notes(row: Row) -> list[str]:
    """What is out of the ordinary about a run."""
    notes = [row["message"]] if row["message"] and row["state"] != "done" else []
    if row["role"] not in ("baseline", "superposition"):
        notes.append(row["role"])
    if row["state"] == "done" and not row["annealed"]:
        notes.append("not annealed")
    if row["segments"] > 1:
        notes.append(f"{row['segments']} launches")
    if row["dropped_rows"]:
        notes.append(f"{number(row['dropped_rows'], 'row')} written twice")
    return notes
