"""The words of a study's page: first its question and the answer, at its end what the numbers
cannot say.
"""

import pandas as pd

from tst_study.analysis.summary import Summary
from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.wording import gain_sentence, number, span
from tst_study.paper_figures.answers import answer_of, capitalized, question_of
from tst_study.paper_figures.sources import Sources
from tst_study.text import big, duration

ASKED = (
    "Does training that first reads bags of s tokens for a share r of its steps end with a lower "
    "held-out loss than ordinary training of the same FLOPs?"
)
GLOSSARY = (
    "Token superposition training (TST) reads bags of s tokens for a share r of its steps, at the "
    "same FLOPs a step; s = 1 is the baseline. Gain: the baseline's held-out next-token loss less "
    "that of the arm, in nats per token, paired by seed, with its 95% interval; 0.01 is 1% less "
    "perplexity."
)
ASKED_OF_ARMS = (
    "Which arm ends with a lower held-out next-token loss than the baseline, at equal FLOPs?"
)
GLOSSARY_OF_ARMS = (
    "Gain: the baseline's loss less that of the arm, in nats per token, and its 95% interval; 0.01 "
    "is 1% less perplexity."
)
PAPER_SIZES = "270M to 10B parameters"
FEW = 3
"""Families, or settings of one kind of text, that are said in words at the top."""
NAMED = 6
"""Arms of one verdict that are named."""


def lead(sources: Sources) -> list[tuple[str, str, str]]:
    """Return paragraphs, each with its kind and a bold start: question, answer, the meaning of the
    words, what else was asked, and the runs."""
    rows, bags = sources.answers, _has_bags(sources.summary.tables.runs)
    paragraphs: list[tuple[str, str, str]] = []
    for row in rows_of(rows[rows["primary"]]):
        paragraphs += [("question", "", question_of(row)), ("answer", "", answer_of(row))]
    families = rows[rows["planned"] & ~rows["primary"]]
    if not paragraphs:
        paragraphs = [
            ("question", "", ASKED if bags else ASKED_OF_ARMS),
            ("answer", "", sources.summary.headline()),
        ]
        families = rows
    paragraphs.append(("note", "", GLOSSARY if bags else GLOSSARY_OF_ARMS))
    for heading, own in list(families.groupby("heading", sort=False))[:FEW]:
        paragraphs.append(("also", f"{str(heading)[0].upper()}{str(heading)[1:]}.", _also(own)))
    return [*paragraphs, ("facts", "", _facts(sources.summary))]


def _has_bags(runs: pd.DataFrame) -> bool:
    """Whether runs are about superposition, and not, say, about optimizers of another trainer."""
    return runs.empty or bool((runs["bag_size"] > 1).any())


def _also(rows: pd.DataFrame) -> str:
    """Say a few gains in full, and of many only which arms have which verdict: extremes are chosen
    by luck."""
    if len(rows) <= FEW:
        gains = (gain_sentence({**row, "setting": row["name"]}) for row in rows_of(rows))
        return " ".join(f"{capitalized(text)}." for text in gains)
    by_verdict = rows.groupby("verdict", sort=False)["name"].agg(list)
    order = [verdict for verdict in ("better", "worse") if verdict in by_verdict]
    order += [verdict for verdict in by_verdict.index if verdict not in order]
    sentences = []
    for verdict in order:
        names, more = by_verdict[verdict][:NAMED], len(by_verdict[verdict]) - NAMED
        names += [f"{more:,} more"] if more > 0 else []
        sentences.append(f"{verdict[0].upper()}{verdict[1:]}: {'; '.join(names)}.")
    return " ".join(sentences)


def _facts(summary: Summary) -> str:
    runs = summary.tables.runs
    states = runs["state"].mask(runs["role"] == "trunk", "shared prefix")
    counts = ", ".join(f"{count:,} {state}" for state, count in states.value_counts().items())
    codes = sorted({code for codes in runs["code"] for code in codes.split(", ") if code})
    facts = [f"{number(len(runs), 'run')} ({counts})" if len(runs) else "No runs"]
    if len(sizes := runs["parameters"].dropna()):
        ends = dict.fromkeys((big(sizes.min()), big(sizes.max())))
        facts.append(f"{' to '.join(ends)} parameters")
    if (seconds := runs["training_seconds"].astype(float).sum()) > 0:
        facts.append(f"{duration(seconds)} of training")
    return " · ".join([*facts, f"code {', '.join(codes)}"] if codes else facts)


def limits(summary: Summary) -> list[str]:
    """Return what the numbers cannot say: sentences, each with the study's own figures."""
    table, eligible = summary.comparison.table, summary.comparison.eligible
    if table.empty:
        return ["Nothing has been compared yet."]
    runs = eligible[eligible["group"].isin(table["group"])]
    most, error = float(runs["epochs"].max()), eligible["standard_error"].median()
    bags = _has_bags(runs)
    sentences = [
        f"Models have up to {big(runs['parameters'].max())} parameters"
        + (f"; the paper's have {PAPER_SIZES}" if bags else "")
        + ". Size and sign of an effect may differ in larger ones.",
        "Intervals are over seeds and do not cover other texts"
        + ("." if pd.isna(error) else f"; one evaluation's standard error is {error:.3f} nats."),
        _seeds(table),
    ]
    if bags:
        text = f"{table['data_multiplier'].max():.3g} times the text of its baseline"
        sentences.append(f"Superposition read up to {text}.")
    if not summary.sweeps:
        sentences.append(
            "The learning rate was not swept: at another the arms may stand otherwise."
        )
    elif all(sweep.followed for sweep in summary.sweeps):
        sentences.append(
            "Learning rates were chosen on the baseline; one tuned for superposition "
            "might favour it."
        )
    if most > 1:
        sentences.append(f"Some runs read their text up to {most:.3g} times.")
    if runs["optimal_nats_per_token"].notna().any():
        sentences.append(
            "Generated language has a slow topic, which bags can carry: it shows the "
            "mechanism, not what natural text gains."
        )
    return sentences


def _seeds(table: pd.DataFrame) -> str:
    tested = table[table["seeds"] > 1]
    if tested.empty:
        return "No setting was repeated with another seed: no interval and no claim."
    smallest = tested["smallest_detectable"].astype(float)
    ends = " to ".join(dict.fromkeys(f"{end:.3f}" for end in (smallest.min(), smallest.max())))
    return (
        f"With {span(tested['seeds'], 'seed')}, a true difference below {ends} nats would be "
        "missed more than one time in five."
    )
