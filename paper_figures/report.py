"""`report.html`: what a study found, in one page that needs nothing but itself.

Styles, script and pictures are inside; nothing is fetched. Links to run folders are relative.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape
from pathlib import Path

import pandas as pd

from analysis.run_row import rows_of
from analysis.summary import Summary, counts_in_words, verdict_counts
from analysis.wording import duration, gain, gain_sentence, number, setting_label, signed
from paper_figures.headline_table import PRINTED, headline_table
from paper_figures.html_parts import Cell, bullets, paragraph, table, text
from paper_figures.inline_svg import inline
from paper_figures.limits import limits
from paper_figures.picture import Missing, Picture

KIND = "report"
FEW = 8
"""Settings of one corpus and length that are all said in words; of more, a fold-out holds them."""
WIDE = "overview"


def html(
    summary: Summary, pictures: Sequence[Picture], missing: Sequence[Missing], to: Path
) -> str:
    """The page; the pictures' SVG files must lie in `to`. Same runs, same bytes."""
    sections = {
        "Findings": _findings(summary),
        "Figures": _figures(pictures, missing, to),
        "Comparisons": _comparisons(summary),
        "Equal loss": _equal_loss(summary),
        "Cost and loss": _headline(summary),
        "Learning rates": _learning_rates(summary),
        "What these numbers cannot say": bullets(limits(summary)),
        "Not compared": _excluded(summary),
        "Runs": _runs(summary, to),
    }
    kept = {title: content for title, content in sections.items() if content}
    names = {title: title.lower().replace(" ", "-") for title in kept}
    links = "".join(f'<a href="#{names[title]}">{text(title)}</a>' for title in kept)
    body = "".join(
        f'<section id="{names[title]}"><h2>{text(title)}</h2>\n{content}</section>\n'
        for title, content in kept.items()
    )
    here = Path(__file__).parent
    title = f"Token superposition: {_studies(summary)}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n"
        f"<style>\n{here.joinpath('report.css').read_text('utf8')}</style></head>\n"
        f"<body><main><header><h1>{escape(title)}</h1>\n{_facts(summary)}"
        f"{paragraph(summary.headline(), 'lead')}<nav>{links}</nav></header>\n{body}</main>\n"
        f"<script>\n{here.joinpath('report.js').read_text('utf8')}</script></body></html>\n"
    )


def _studies(summary: Summary) -> str:
    names = sorted(set(summary.tables.runs["study"]))
    return f"study {', '.join(names)}" if names else "no runs yet"


def _facts(summary: Summary) -> str:
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


def _findings(summary: Summary) -> str:
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


def _equal_loss(summary: Summary) -> str:
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


def _figures(pictures: Sequence[Picture], missing: Sequence[Missing], to: Path) -> str:
    parts = []
    for place, picture in enumerate(pictures):
        svg = to.joinpath(f"{picture.name}.svg").read_text("utf8")
        drawing = inline(svg, f"f{place}", f"{picture.title}. {picture.caption}")
        wide = picture.kind == WIDE
        parts.append(
            f"<figure{' class=' + chr(34) + 'wide' + chr(34) if wide else ''}>"
            f"<h3>{text(picture.title)}</h3>\n"
            f'<div class="scroll">{drawing}</div>\n'
            f"<figcaption>{text(picture.caption)}</figcaption></figure>\n"
        )
    grid = f'<div class="figures">\n{"".join(parts)}</div>\n' if parts else ""
    if missing:
        said = bullets(f"{entry.title}. {entry.sentence}" for entry in missing)
        grid += f"<h3>Not drawn</h3>\n{said}"
    return grid


def _comparisons(summary: Summary) -> str:
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


def _headline(summary: Summary) -> str:
    found = headline_table(summary)
    if found.empty:
        return ""
    note = (
        "Means over seeds; ± is the standard deviation over seeds. Time is training alone, on the "
        "machine at hand, other runs beside it."
    )
    rows = [
        [Cell(column.cell(row), row[column.key] if column.key else None) for column in PRINTED]
        for row in rows_of(found)
    ]
    headings = [column.heading for column in PRINTED]
    return paragraph(note, "note") + table(headings, rows, "headline-table")


def _learning_rates(summary: Summary) -> str:
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


def _excluded(summary: Summary) -> str:
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


def _runs(summary: Summary, to: Path) -> str:
    headings = ["run", "state", "setting", "seed", "learning rate", "steps", "role", "time"]
    headings += ["tokens/s", "held-out loss", "annealed", "launches", "rows dropped"]
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
                Cell(row["role"]),
                Cell(duration(row["training_seconds"]), row["training_seconds"]),
                Cell("" if pd.isna(rate) else f"{rate:,.0f}", rate),
                Cell("" if pd.isna(loss) else f"{loss:.4f}", loss),
                Cell("yes" if row["annealed"] else "no"),
                Cell(str(row["segments"]), row["segments"]),
                Cell(str(row["dropped_rows"]), row["dropped_rows"]),
            ]
        )
    if not rows:
        return ""
    search = '<input type="search" data-filters="runs-table" placeholder="Filter runs" aria-label='
    return f'{search}"Filter runs">\n' + table(headings, rows, "runs-table")


def _relative(folder: str, to: Path) -> str:
    return Path(os.path.relpath(folder, to)).as_posix()
