"""The words of a study's page: at its top what was asked, on what text, what came out and how sure
it is; at its end what the numbers cannot say.
"""

import pandas as pd

from analysis.summary import Summary, counts_in_words, verdict_counts
from analysis.tables.columns import rows_of
from analysis.wording import gain_sentence, number, signed, span, told_apart
from paper_figures.groups import Group, all_groups
from paper_figures.report.html_parts import paragraph, text
from tst_study.text import big, duration

ASKED = (
    "Asked: does training that first reads bags of s tokens for a share r of its steps end with a "
    "lower held-out next-token loss than ordinary training of the same FLOPs?"
)
EXPECTED = (
    "To be expected: right after the switch superposition is behind, in the paper's runs too "
    "(Figure 3), and makes this up later. A small model trained for a few thousand steps may end "
    "before it has; that it loses there says nothing of longer runs."
)
GLOSSARY = (
    "TST: token superposition training. s: tokens per bag; r: share of the steps that read bags; "
    "s = 1 is the baseline. Nats: loss per token with the natural logarithm; a gain is the "
    "baseline's loss less that of superposition, and 0.01 of it is 1% less perplexity."
)
PAPER_SIZES = "270M to 10B parameters"
FEW = 3
"""Settings of one kind of text that are all said in words at the top."""


def by_text(summary: Summary) -> list[tuple[str, list[Group]]]:
    """Groups of each natural text, then of language that was made up to show the mechanism."""
    split: dict[str, list[Group]] = {}
    for group in sorted(all_groups(summary), key=lambda g: (g.is_generated, g.model, g.steps)):
        split.setdefault(group.text, []).append(group)
    return list(split.items())


def lead(summary: Summary) -> str:
    """Scale, question, what was to be expected, answers, words."""
    texts = by_text(summary)
    parts = [paragraph(_facts(summary), "facts"), paragraph(ASKED, "lead")]
    parts.append(paragraph(EXPECTED, "note"))
    for name, found in texts:
        words = f"<b>{text(name)}</b> ({text(_scale(found))}): {text(_answer(found))}"
        parts.append(f'<p class="lead answer">{words}</p>\n')
    if not texts:
        parts.append(paragraph(summary.headline(), "lead"))
    return "".join(parts) + paragraph(GLOSSARY, "note")


def _scale(found: list[Group]) -> str:
    """`232k parameters, 1,500 to 20,000 steps, 3 seeds`: after the text's name."""
    models = " and ".join(dict.fromkeys(group.model.split(",")[0] for group in found))
    seeds = [count for group in found for count in group.rows["seeds"]]
    return f"{models}, {span([group.steps for group in found], 'step')}, {span(seeds, 'seed')}"


def _answer(found: list[Group]) -> str:
    firsts = [group.rows.iloc[0] for group in found]
    places = told_apart(
        [f"{group.steps:,} steps" for group in found],
        [str(first["corpus"]) for first in firsts],
        [group.model.split(",")[0] for group in found],
        [f"learning rate {first['learning_rate']:g}" for first in firsts],
        [f"[{first['group'][:6]}]" for first in firsts],
    )
    each = zip(found, places, strict=True)
    rows = pd.concat([group.rows.assign(place=place) for group, place in each])
    if len(rows) <= FEW:
        several = len(found) > 1
        said = (
            (f"{row['place']}, " if several else "") + gain_sentence(row) for row in rows_of(rows)
        )
        return " ".join(said)
    ranked = rows.sort_values("gain")
    ends = [
        f"{signed(row['gain'])} ({row['setting']}, {row['place']})"
        for row in (next(rows_of(ranked)), list(rows_of(ranked))[-1])
    ]
    counts = counts_in_words(verdict_counts(rows))
    return f"{number(len(rows), 'setting')}: {counts}; gains from {ends[0]} to {ends[1]} nats."


def _facts(summary: Summary) -> str:
    trunks = summary.tables.runs["role"] == "trunk"
    runs = summary.tables.runs[~trunks]
    states = runs["state"].value_counts()
    counts = ", ".join(f"{count:,} {state}" for state, count in sorted(states.items()))
    codes = sorted({code for codes in runs["code"] for code in codes.split(", ") if code})
    facts = [f"{number(len(runs), 'run')} ({counts})" if len(runs) else "No runs"]
    said = f"{duration(runs['training_seconds'].astype(float).sum())} of training"
    if trunks.any():
        facts.append(f"{number(int(trunks.sum()), 'trunk')} that they share")
        said += ", shared steps counted for each run"
    facts.append(said)
    return " · ".join([*facts, f"code {', '.join(codes)}"] if codes else facts)


def limits(summary: Summary) -> list[str]:
    """Sentences, each with the study's own figures."""
    table, eligible = summary.comparison.table, summary.comparison.eligible
    if table.empty:
        return ["Nothing has been compared yet."]
    runs = eligible[eligible["group"].isin(table["group"])]
    most = float(runs["epochs"].max())
    said = [
        f"The models have up to {big(runs['parameters'].max())} parameters; the paper's have "
        f"{PAPER_SIZES}. Size and sign of an effect may differ there.",
        _text(summary),
        _seeds(summary),
        "Equal FLOPs is not equal text: superposition read up to "
        f"{table['data_multiplier'].max():.3g} times the text of its baseline.",
        _rates(summary),
    ]
    if most > 1:
        said.append(f"Some runs read their text more than once, up to {most:.3g} times.")
    elif runs["epochs"].notna().all():
        said.append("No run read any text twice.")
    if runs["optimal_nats_per_token"].notna().any():
        said.append(
            "The generated language has a slow topic by construction, which is what bags can "
            "carry. It shows the mechanism, not what natural text would gain."
        )
    return said


def _rates(summary: Summary) -> str:
    if not summary.sweeps:
        return "The learning rate was not swept: at another one the arms may stand otherwise."
    if all(sweep.followed for sweep in summary.sweeps):
        return (
            "Where the learning rate was swept, it was chosen on the baseline and used by both; a "
            "rate tuned for superposition might favour it."
        )
    return (
        "Where the learning rate was swept, some superposed runs use other rates than the one that "
        "was best for the baseline; each comparison is of one rate."
    )


def _text(summary: Summary) -> str:
    names = sorted(set(summary.comparison.table["corpus"]))
    error = summary.comparison.eligible["standard_error"].median()
    said = (
        f"Each result is of one corpus and one held-out text ({', '.join(names)}). The intervals "
        "are over seeds; they do not cover other texts."
    )
    if pd.isna(error):
        return said
    return (
        f"{said} (One evaluation has a standard error of about {error:.3f} nats over its "
        "sequences, most of it common to both arms.)"
    )


def _seeds(summary: Summary) -> str:
    table = summary.comparison.table
    tested = table[table["seeds"] > 1]
    if tested.empty:
        return "No setting was repeated with another seed, so there is no interval and no claim."
    smallest = tested["smallest_detectable"].astype(float)
    text = (
        f"{number(int(tested['seeds'].min()), 'seed')} at least and "
        f"{int(tested['seeds'].max()):,} at most give each interval: a true difference below "
        f"{smallest.min():.3f} (best case) to {smallest.max():.3f} nats (worst case) would be "
        "missed more than one time in five."
    )
    if tested["comparisons"].max() > 1:
        text += (
            " Intervals and p allow for all questions of a family together, and for all settings "
            "that no question planned; from family to family nothing is adjusted."
        )
    return text
