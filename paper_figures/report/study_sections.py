"""Sections of the report that come from a study's runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.run_row import rows_of
from analysis.summary import Summary, counts_in_words, verdict_counts
from analysis.wording import gain, gain_sentence, number, setting_label, signed
from paper_figures.report.html_parts import Cell, bullets, paragraph, table, text
from paper_figures.study.headline_table import CAPTION, PRINTED, headline_table
from tst_study.units import duration

FEW = 8
"""Settings of one corpus and length that are all said in words; of more, a fold-out holds them."""


def facts(summary: Summary) -> str:
    runs = summary.tables.runs
    states = runs["state"].value_counts()
    counts = ", ".join(f"{count:,} {state}" for state, count in sorted(states.items()))
    codes = sorted({code for codes in runs["code"] for code in codes.split(", ") if code})
    hours = runs["training_seconds"].astype(float).sum()
    facts = [
        f"{number(len(runs), 'run')} ({counts})" if len(runs) else "No runs",
        f"{duration(hours)} of training",
    ]
    if codes:
        facts.append(f"code {', '.join(codes)}")
    return paragraph(" · ".join(facts), "facts")


def findings(summary: Summary) -> str:
    parts = []
    for problem in summary.tables.problems:
        parts.append(paragraph(f"Not read: {problem}", "note"))
    for label, rows in summary.groups:
        items = "".join(
            f'<li class="{row["verdict"].split()[0]}">{_marked(gain_sentence(row), row)}</li>\n'
            for row in rows_of(rows)
        )
        listed = f"<ul>\n{items}</ul>\n"
        parts.append(f"<h3>{text(label)}</h3>\n")
        if len(rows) > FEW:
            words = counts_in_words(verdict_counts(rows))
            parts.append(paragraph(f"{number(len(rows), 'setting')}: {words}."))
            listed = f"<details><summary>Each in words</summary>{listed}</details>\n"
        parts.append(listed)
    doubtful = [sweep for sweep in summary.sweeps if sweep.at_edge or not sweep.followed]
    if doubtful:
        parts.append("<h3>To be doubted</h3>\n")
        parts.append(bullets(sweep.sentence() for sweep in doubtful))
    return "".join(parts)


def _marked(sentence: str, row: dict[str, object]) -> str:
    """The verdict set apart; wins and losses get the same weight."""
    verdict = str(row["verdict"])
    shown = text(sentence)
    return shown.replace(f" {verdict}", f" <b>{verdict}</b>", 1)


def equal_loss(summary: Summary) -> str:
    if summary.equal_loss.empty:
        return ""
    note = (
        "Baseline steps that reach the loss of each setting, interpolated in log steps between "
        "baselines of several lengths, seed by seed, never beyond the shortest or the longest."
    )
    corpora = dict(zip(summary.tables.runs["group"], summary.tables.runs["corpus"], strict=True))
    rows = []
    for row in rows_of(summary.equal_loss):
        known, bounded = pd.notna(row["speed_up"]), pd.notna(row["low"])
        interval = f" [{row['low']:.2f}, {row['high']:.2f}]" if bounded else ""
        rows.append(
            [
                Cell(corpora[row["group"]]),
                Cell(row["setting"]),
                Cell(f"{row['steps']:,}", row["steps"]),
                Cell(f"{row['baseline_steps']:,.0f}" if known else "", row["baseline_steps"]),
                Cell(f"{row['speed_up']:.2f}{interval}" if known else "", row["speed_up"]),
                Cell(row["note"], words=True),
            ]
        )
    headings = ["corpus", "setting", "steps", "baseline steps", "times [95% interval]", "note"]
    return paragraph(note, "note") + table(headings, rows, "equal-loss-table")


def comparisons(summary: Summary) -> str:
    if summary.comparison.table.empty:
        return ""
    note = (
        "Held-out next-token loss in nats per token, both arms at equal FLOPs with annealed "
        "learning rates on the same held-out text, paired by seed. Gain: baseline minus "
        "superposition, with its 95% t-interval. Detectable: the smallest true gain that this "
        "many seeds would show four times in five."
    )
    headings = ["corpus and length", "setting", "seeds", "baseline", "superposed"]
    headings += ["gain", "verdict", "detectable", "p, adjusted"]
    rows = []
    for label, members in summary.groups:
        for row in rows_of(members):
            smallest, adjusted = row["smallest_detectable"], row["p_adjusted"]
            rows.append(
                [
                    Cell(label, words=True),
                    Cell(row["setting"], words=True),
                    Cell(str(row["seeds"]), row["seeds"]),
                    Cell(f"{row['baseline']:.4f}", row["baseline"]),
                    Cell(f"{row['superposed']:.4f}", row["superposed"]),
                    Cell(gain(row, 4), row["gain"]),
                    Cell(row["verdict"]),
                    Cell("" if pd.isna(smallest) else f"{smallest:.4f}", smallest),
                    Cell("" if pd.isna(adjusted) else f"{adjusted:.2g}", adjusted),
                ]
            )
    return paragraph(note, "note") + table(headings, rows, "comparison-table")


def headline(summary: Summary) -> str:
    found = headline_table(summary)
    if found.empty:
        return ""
    rows = [
        [Cell(column.cell(row), row[column.key] if column.key else None) for column in PRINTED]
        for row in rows_of(found)
    ]
    headings = [column.heading for column in PRINTED]
    return paragraph(CAPTION, "note") + table(headings, rows, "headline-table")


def learning_rates(summary: Summary) -> str:
    parts = []
    for place, sweep in enumerate(summary.sweeps):
        rows = []
        for row in rows_of(sweep.rates):
            lost = row["loss"] == float("inf")
            worse = row["loss"] - sweep.rates["loss"].min()
            rows.append(
                [
                    Cell(f"{row['learning_rate']:g}", row["learning_rate"]),
                    Cell("diverged" if lost else f"{row['loss']:.4f}", row["loss"]),
                    Cell("" if lost else "best" if worse == 0 else signed(worse, 4), worse),
                    Cell(str(row["seeds"]), row["seeds"]),
                ]
            )
        headings = ["learning rate", "held-out loss", "against the best", "seeds"]
        parts.append(paragraph(sweep.sentence()) + table(headings, rows, f"sweep-{place}"))
    return "".join(parts)


def excluded(summary: Summary) -> str:
    excluded = summary.comparison.excluded
    problems = bullets(f"Not read: {problem}" for problem in summary.tables.problems)
    if excluded.empty:
        return problems if summary.tables.problems else ""
    rows = [
        [
            Cell(row["run_id"]),
            Cell(row["setting"]),
            Cell(str(row["seed"]), row["seed"]),
            Cell(row["reason"], words=True),
        ]
        for row in rows_of(excluded)
    ]
    found = table(["run", "setting", "seed", "why"], rows, "excluded-table")
    return found + (problems if summary.tables.problems else "")


def runs(summary: Summary, to: Path) -> str:
    headings = ["run", "state", "setting", "seed", "learning rate", "steps", "time", "tokens/s"]
    headings += ["held-out loss", "notes"]
    rows = []
    for row in rows_of(summary.tables.runs):
        loss, rate = row["nats_per_token"], row["tokens_per_second"]
        rows.append(
            [
                Cell(row["run_id"], link=_relative(row["folder"], to)),
                Cell(row["state"]),
                Cell(setting_label(row)),
                Cell(str(row["seed"]), row["seed"]),
                Cell(f"{row['learning_rate']:g}", row["learning_rate"]),
                Cell(f"{row['step']:,} of {row['steps']:,}", row["step"]),
                Cell(duration(row["training_seconds"]), row["training_seconds"]),
                Cell("" if pd.isna(rate) else f"{rate:,.0f}", rate),
                Cell("" if pd.isna(loss) else f"{loss:.4f}", loss),
                Cell("; ".join(_notes(row)), words=True),
            ]
        )
    if not rows:
        return ""
    return table(headings, rows, "runs-table")


def _notes(row: dict[str, Any]) -> list[str]:
    """What is out of the ordinary about a run."""
    notes = [row["message"]] if row["message"] and row["state"] != "done" else []
    if row["role"] not in ("baseline", "superposition"):
        notes.append(row["role"])
    if row["state"] == "done" and not row["annealed"]:
        notes.append("not annealed")
    if row["segments"] > 1:
        notes.append(number(row["segments"], "launch").replace("launchs", "launches"))
    if row["dropped_rows"]:
        notes.append(f"{number(row['dropped_rows'], 'row')} written twice")
    return notes


def _relative(folder: str, to: Path) -> str:
    return Path(os.path.relpath(folder, to)).as_posix()
