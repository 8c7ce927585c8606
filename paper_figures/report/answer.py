"""The top of a study's page: what was asked, on what text, what came out, and how sure it is."""

from __future__ import annotations

import pandas as pd

from analysis.runs.run_row import rows_of
from analysis.summary import Summary, counts_in_words, verdict_counts
from analysis.wording import gain_sentence, number, signed
from paper_figures.groups import Group, all_groups, span
from paper_figures.report.html_parts import paragraph, text
from tst_study.units import duration

ASKED = (
    "Asked: does training that first reads bags of s tokens for a share r of its steps end with a "
    "lower held-out next-token loss than ordinary training of the same FLOPs?"
)
GLOSSARY = (
    "TST: token superposition training. s: tokens per bag; r: share of the steps that read bags; "
    "s = 1 is the baseline. Nats: loss per token with the natural logarithm; a gain is the "
    "baseline's loss less that of superposition, and 0.01 of it is 1% less perplexity."
)
FEW = 3
"""Settings of one kind of text that are all said in words at the top."""


def by_text(summary: Summary) -> list[tuple[str, list[Group]]]:
    """Groups of each natural text, then of language that was made up to show the mechanism."""
    split: dict[str, list[Group]] = {}
    for group in sorted(all_groups(summary), key=lambda g: (g.is_generated, g.model, g.steps)):
        split.setdefault(group.text, []).append(group)
    return list(split.items())


def lead(summary: Summary) -> str:
    """Scale, question, answers, words."""
    texts = by_text(summary)
    parts = [paragraph(_facts(summary), "facts"), paragraph(ASKED, "lead")]
    for name, found in texts:
        words = f"<b>{text(name)}</b> ({text(_scale(found))}): {text(_answer(found))}"
        parts.append(f'<p class="lead answer">{words}</p>\n')
    if not texts:
        parts.append(paragraph(summary.headline(), "lead"))
    return "".join(parts) + paragraph(GLOSSARY, "note")


def _scale(found: list[Group]) -> str:
    """`232k parameters, books-bpe1024, 1,500 to 20,000 steps, 3 seeds`: after the text's name."""
    models = " and ".join(dict.fromkeys(_model(group) for group in found))
    seeds = [count for group in found for count in group.rows["seeds"]]
    return f"{models}, {span([group.steps for group in found], 'step')}, {span(seeds, 'seed')}"


def _model(group: Group) -> str:
    return group.model.removesuffix(f", {group.text}")


def _answer(found: list[Group]) -> str:
    rows = pd.concat([group.rows.assign(group_label=group.label) for group in found])
    if len(rows) <= FEW:
        several = len(found) > 1
        said = (
            (f"{row['steps']:,} steps, " if several else "") + gain_sentence(row)
            for row in rows_of(rows)
        )
        return " ".join(said)
    ranked = rows.sort_values("gain")
    ends = [
        f"{signed(row['gain'])} ({row['setting']}, {row['steps']:,} steps)"
        for row in (next(rows_of(ranked)), list(rows_of(ranked))[-1])
    ]
    counts = counts_in_words(verdict_counts(rows))
    return f"{number(len(rows), 'setting')}: {counts}; gains from {ends[0]} to {ends[1]} nats."


def _facts(summary: Summary) -> str:
    runs = summary.tables.runs
    states = runs["state"].value_counts()
    counts = ", ".join(f"{count:,} {state}" for state, count in sorted(states.items()))
    codes = sorted({code for codes in runs["code"] for code in codes.split(", ") if code})
    facts = [f"{number(len(runs), 'run')} ({counts})" if len(runs) else "No runs"]
    facts.append(f"{duration(runs['training_seconds'].astype(float).sum())} of training")
    return " · ".join([*facts, f"code {', '.join(codes)}"] if codes else facts)
