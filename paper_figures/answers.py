"""A study's questions with their answers: the table from which the study's pictures and the report
take them, and the sentences that say them."""

import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

from tst_study.analysis.summary import Summary, verdict_counts
from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.verdict.question import Question
from tst_study.analysis.wording import AFTERWARDS, TIME_UNKNOWN, gain, named, number
from tst_study.paper_figures.style import BASELINE, OTHER_BASELINE, Mark, marks_of

COLUMNS: tuple[str, ...] = ("heading", "when", "asked", "name", "arm", "against", "mark", "family")
COLUMNS += ("question", "primary", "seeds", "comparisons", "gain", "low", "high", "verdict")
COLUMNS += ("run_ids", "study", "under")
"""Columns of the table of answers. `answers` explains the first seven and the last two; the others
are those of the verdicts (`analysis.verdict.decide`)."""


def answers(summary: Summary) -> pd.DataFrame:
    """Return a row for each question, then one for each setting that no question compares.

    `heading`: the family of questions, or "every setting, not planned"; if the whole family is
    compared with one arm, also "against" and the name of that arm; and when it was asked, unless
    that was before the runs. `when`: the heading of the verdict. `asked`: whether somebody asked
    the question, at any time. `name`: the question's name, which says "against …" only if the
    heading does not. `arm`: the name of the question's arm, empty if nobody asked. `against`: the
    name of the arm that this arm is compared with. `mark`: colour, marker and dash pattern of the
    arm's setting. `study`: that of the question (`Question.study`). `under`: what the heading says
    after the family."""
    asked = {(question.family, question.name): question for question in summary.questions}
    runs, table = summary.comparison.eligible, summary.comparison.table
    by_label = marks_of(runs, "setting")
    settings = dict(zip(table["run_ids"], table["setting"].map(by_label), strict=True))
    rows: list[dict[str, Any]] = []
    for (when, family), verdicts in summary.verdicts.groupby(["heading", "family"], sort=False):
        questions = [asked.get((row["family"], row["question"])) for row in rows_of(verdicts)]
        against = {question.against.name if question else "the baseline" for question in questions}
        shared = against.pop() if len(against) == 1 else ""
        first, words = str(family) if any(questions) else "every setting, not planned", [""]
        if shared and "against" not in str(family):
            words.append(f"against {_with_article(shared)}")
        if when in (TIME_UNKNOWN, AFTERWARDS):
            words.append(when.lower())
        for row, question in zip(rows_of(verdicts), questions, strict=True):
            name = row["question"].removesuffix(f" against {shared}")
            name = name.removesuffix(f" against {_with_article(shared)}")
            if question and not shared and "against" not in name:
                name += f" against {question.against.name}"
            mark = _mark_of(question, runs, by_label) if question else settings[row["run_ids"]]
            own = {"asked": question is not None, "mark": mark, "name": name}
            own["arm"] = question.arm.name if question else ""
            own["against"] = question.against.name if question else "the baseline"
            own["study"], own["under"] = question.study if question else "", ", ".join(words)
            rows.append({**row, **own, "heading": first + own["under"], "when": when})
    table = pd.DataFrame(rows, columns=list(COLUMNS)).astype({"primary": bool})
    words = ["heading", "name", "arm", "against", "under"]
    return table.assign(**table[words].map(named))


def _mark_of(question: Question, runs: pd.DataFrame, marks: Mapping[str, Mark]) -> Mark:
    """Return the mark of the arm's setting; `OTHER_BASELINE` if the arm is a baseline or has no
    run."""
    own, _ = question.runs(runs)
    mark = marks[own["setting"].iloc[0]] if len(own) else BASELINE
    return OTHER_BASELINE if mark == BASELINE else mark


def _with_article(name: str) -> str:
    return f"the {name}" if "baseline" in name and not name.startswith("the ") else name


def question_of(row: Mapping[str, Any]) -> str:
    """Return the question of a row of `answers` as a sentence."""
    arm, asked = row["arm"], named(row["question"]).split(" against ")[0]
    subject = asked if arm in asked else f"{arm} ({asked})"
    return f"Does “{subject}” end with a lower held-out loss than {_with_article(row['against'])}?"


def answer_of(row: Mapping[str, Any]) -> str:
    """Return the answer of a row of `answers` as a sentence, with its interval and its number of
    seeds."""
    seeds = number(row["seeds"], "seed")
    if row["verdict"] in ("better", "worse"):
        start, sign = ("Yes: lower", 1) if row["verdict"] == "better" else ("No: higher", -1)
        low, high = sorted((sign * row["low"], sign * row["high"]))
        known = f"95% interval {low:.3f} to {high:.3f}"
        return f"{start} by {abs(row['gain']):.3f} nats per token ({known}, {seeds})."
    return f"{row['verdict'].capitalize()} (gain {gain(row)}, {seeds})."


def message(rows: pd.DataFrame) -> str:
    """Return one sentence that says what a study found: the answers to its primary questions or, if
    it has none, how many comparisons had each verdict. `rows`: of `answers`."""
    primary = [
        f"{row['arm']} {_VERBS.get(row['verdict'], 'against')} {_with_article(row['against'])}: "
        f"{gain(row)} nats" + (f", {row['verdict']}" if row["verdict"] not in _VERBS else "")
        for row in rows_of(rows[rows["primary"]])
    ]
    if primary:
        return capitalized("; ".join(primary))
    return f"{number(len(rows), 'comparison')}: {verdict_counts(rows)}"


def capitalized(sentence: str) -> str:
    """Return a sentence with a capital first letter, unless that letter is a variable (`s = 4`)."""
    return re.sub(r"^[a-z](?! =)", lambda first: first[0].upper(), sentence)


_VERBS = {"better": "beats", "worse": "loses to"}


def with_family_intervals(rows: pd.DataFrame, verdicts: pd.DataFrame) -> pd.DataFrame:
    """Return the settings with gains and intervals from one family of verdicts, so that as many
    intervals as possible allow for the same number of comparisons.

    `rows`: of `Comparison.table`. `verdicts`: of `Summary.verdicts`. The family is the one that
    covers the most of these settings. Settings that it does not cover keep the gains and intervals
    they had; if it covers fewer than two, all do. A question may use only some of a setting's
    seeds. The column `seeds` then says how many."""
    by_family: dict[str, dict[int, dict[str, Any]]] = {}
    for verdict in rows_of(verdicts):
        for place, ids in zip(rows.index, rows["run_ids"], strict=True):
            if verdict["run_ids"] and set(verdict["run_ids"]) <= set(ids):
                by_family.setdefault(verdict["family"], {})[place] = verdict
    best = max(by_family.values(), key=len, default={})
    if len(best) < 2:
        return rows
    names = ["seeds", "gain", "low", "high"]
    new = [best.get(place, row) for place, row in zip(rows.index, rows_of(rows), strict=True)]
    return rows.assign(**{name: [row[name] for row in new] for name in names})
