"""The content of the report's sections: questions and answers, tables of verdicts and runs, and
what the numbers cannot say. `page` puts them together."""

import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pandas as pd

from tst_study.analysis.summary import Summary
from tst_study.analysis.tables.columns import rows_of, settings_of
from tst_study.analysis.verdict.question import asks_of
from tst_study.analysis.wording import MEANINGS, PLANNED, gain, number, span, verdict_parts
from tst_study.paper_figures.answers import answer_of, capitalized, question_of
from tst_study.paper_figures.sources import Sources
from tst_study.paper_figures.table import Entry, Grid, Row, number_as, number_entry
from tst_study.text import big, duration

ASKED = "Which arm ends with a lower held-out next-token loss than the baseline, at equal FLOPs?"
"""The question that a study answers if it planned none."""
GLOSSARY = (
    "Token superposition training (TST) reads bags of s tokens for a share r of its steps, at the "
    "same FLOPs a step; s = 1 is the baseline. Gain: the baseline's held-out next-token loss less "
    "that of the arm, in nats per token, paired by seed, with its 95% interval; 0.01 is 1% less "
    "perplexity."
)
FEW = 3
"""The largest number of headings that the lead has beside the primary questions, and the largest
number of gains under one heading that it states in full."""
NAMED = 6
"""The largest number of arms with one verdict that the lead names; it counts the others."""


def lead(sources: Sources) -> list[tuple[str, str, str]]:
    """Return the first paragraphs: what the study asks in its own words, each primary question with
    its answer, the meaning of the words, what else was asked, and facts about the runs.

    Each paragraph is a tuple of its kind (a CSS class), its start in bold, which may be empty, and
    its text. Without a primary question, `ASKED` stands in its place.
    """
    rows = sources.answers
    paragraphs = [("question", "", asks) for asks in asks_of(sources.summary.tables.roots)]
    for row in rows_of(rows[rows["primary"]]):
        late = "" if row["when"] == PLANNED else f"{row['when']}:"
        paragraphs += [("question", late, question_of(row)), ("answer", "", answer_of(row))]
    families = rows[rows["asked"] & ~rows["primary"]]
    if not rows["primary"].any():
        paragraphs = paragraphs or [("question", "", ASKED)]
        paragraphs.append(("answer", "", sources.summary.headline()))
        families = rows
    paragraphs.append(("note", "", GLOSSARY))
    for heading, own in list(families.groupby("heading", sort=False))[:FEW]:
        paragraphs.append(("also", f"{capitalized(str(heading))}.", _also(own)))
    return [*paragraphs, ("facts", "", _facts(sources.summary))]


def _also(rows: pd.DataFrame) -> str:
    """State the gains in full if there are at most `FEW`. Otherwise only say which arms have which
    verdict, because the largest of many gains are large partly by luck."""
    if len(rows) <= FEW:
        gains = (f"{row['name']}: {gain(row)} nats, {row['verdict']}" for row in rows_of(rows))
        return " ".join(f"{capitalized(text)}." for text in gains)
    sentences = []
    for verdict, own in rows.groupby("verdict", sort=True):
        more = [f"{len(own) - NAMED:,} more"] if len(own) > NAMED else []
        names = "; ".join([*own["name"].head(NAMED), *more])
        sentences.append(f"{capitalized(str(verdict))}: {names}.")
    return " ".join(sentences)


def _facts(summary: Summary) -> str:
    runs = summary.tables.runs
    states = runs["state"].mask(runs["role"] == "trunk", "shared prefix")
    counts = ", ".join(f"{count:,} {state}" for state, count in states.value_counts().items())
    facts = [f"{number(len(runs), 'run')} ({counts})"]
    if len(sizes := runs["parameters"].dropna()):
        ends = dict.fromkeys((big(sizes.min()), big(sizes.max())))
        facts.append(f"{' to '.join(ends)} parameters")
    if (seconds := runs["training_seconds"].astype(float).sum()) > 0:
        facts.append(f"{duration(seconds)} of training")
    return " · ".join(facts)


def limits(summary: Summary) -> list[str]:
    """Return sentences on what the numbers of this study cannot say."""
    table, eligible = summary.comparison.table, summary.comparison.eligible
    if table.empty:
        return ["Nothing has been compared yet."]
    runs = eligible[eligible["group"].isin(table["group"])]
    error = eligible["standard_error"].median()
    sentences = [
        f"Models have up to {big(runs['parameters'].max())} parameters. Size and sign of an effect "
        "may differ in larger ones.",
        "Intervals are over seeds and do not cover other texts"
        + ("." if pd.isna(error) else f"; one evaluation's standard error is {error:.3f} nats."),
        _seeds(table),
    ]
    if any(setting.is_rival for setting in settings_of(table)):
        sentences.append(
            "A warm-up's first steps cost less than its baseline's. Such an arm has more steps, "
            "and is compared at the same total FLOPs."
        )
    if not summary.sweeps:
        sentences.append(
            "The learning rate was not swept: another rate may rank the arms otherwise."
        )
    elif all(sweep.followed for sweep in summary.sweeps):
        sentences.append(
            "Learning rates were chosen on the baseline; one tuned for superposition "
            "might favour it."
        )
    if runs["optimal_nats_per_token"].notna().any():
        sentences.append(
            "The topic of the generated language changes slowly, so that bags can keep it. A gain "
            "there shows that the method can work, not what natural text gains."
        )
    return sentences


def _seeds(table: pd.DataFrame) -> str:
    tested = table[table["smallest_detectable"].notna()]
    if tested.empty:
        return "No setting was repeated with two further seeds: no interval and no claim."
    smallest = tested["smallest_detectable"].astype(float)
    ends = " to ".join(dict.fromkeys(f"{end:.3f}" for end in (smallest.min(), smallest.max())))
    return (
        f"With {span(tested['seeds'], 'seed')}, a true difference is found four times in five if "
        f"it is at least {ends} nats, depending on the comparison."
    )


def verdicts(summary: Summary, rows: pd.DataFrame) -> list[Grid]:
    """Return every verdict as the terminal shows it, but always with what the arm is compared with.

    There is a grid for each family of planned questions, then one for the settings that no question
    covers, or one for each study that has such settings. `rows`: the table of
    `paper_figures.answers.answers`, which says what each arm is compared with.
    """
    grids: list[Grid] = []
    last_heading, table = "", summary.verdicts
    names = [
        name if "against" in name else f"{name} against {against}"
        for name, against in zip(table["question"], rows["against"], strict=True)
    ]
    for heading, words, cells in verdict_parts(table.assign(question=names)):
        body = tuple(tuple(map(Entry, row.values())) for row in cells)
        said = [", ".join(words)]
        if heading != last_heading and heading in MEANINGS:
            said.insert(0, MEANINGS[heading])
        title, last_heading = heading if heading != last_heading else "", heading
        grids.append(Grid(title, tuple(cells[0]), body, " ".join(said)))
    if len(set(table["run_ids"])) < len(table):
        twice = "A question under two headings has two intervals, one for each."
        grids[0] = replace(grids[0], note=f"{grids[0].note}. {twice}")
    return grids


def arms(summary: Summary) -> Grid:
    """Return the arms that planned questions compare, each with its loss and the loss's deviation
    over seeds, in nats per token, and with the tokens and FLOPs per run."""
    columns: dict[str, Callable[[Row], Entry | str]] = {
        "arm": lambda row: row["arm"],
        "parameters": lambda row: number_as(row["parameters"], big),
        "steps": lambda row: number_entry(row["steps"]),
        "learning rate": lambda row: number_as(row["learning_rate"] or math.nan, "{:g}".format),
        "seeds": lambda row: number_entry(row["seeds"]),
        "loss": lambda row: number_entry(row["loss"], 4),
        "deviation over seeds": lambda row: number_entry(row["deviation"], 4),
        "tokens read": lambda row: number_as(row["raw_tokens"], big),
        "FLOPs": lambda row: number_as(row["flops"], big),
    }
    return Grid.of(rows_of(summary.arms), columns)


def excluded(summary: Summary) -> Grid:
    """Return the runs that were not compared, with the reasons."""
    columns = {
        "run": lambda row: row["run_id"],
        "why": lambda row: row["reason"],
        "setting": lambda row: row["setting"],
        "seed": lambda row: number_entry(row["seed"]),
    }
    return Grid.of(rows_of(summary.comparison.excluded), columns)


def runs(summary: Summary, to: Path) -> Grid:
    """Return all runs, each with a link to its folder. The links are relative to `to`, the folder
    of the page."""

    def link(row: Row) -> Entry:
        if not Path(row["folder"]).is_dir():  # the runs of an archive have no folders
            return Entry(row["run_id"])
        # Quoting keeps a folder's name from acting as another kind of link, such as `javascript:…`.
        return Entry(row["run_id"], link=quote(Path(os.path.relpath(row["folder"], to)).as_posix()))

    columns: dict[str, Callable[[Row], Entry | str]] = {
        "run": link,
        "held-out loss": lambda row: number_entry(row["nats_per_token"], 4),
        "setting": lambda row: row["arm"],
        "seed": lambda row: number_entry(row["seed"]),
        "learning rate": lambda row: number_as(row["learning_rate"] or math.nan, "{:g}".format),
        "steps": lambda row: number_entry(row["steps"]),
        "state": lambda row: row["state"],
    }
    read = ["run_id", "folder", "nats_per_token", "arm", "seed", "learning_rate", "steps", "state"]
    return Grid.of(rows_of(summary.tables.runs[read]), columns)
