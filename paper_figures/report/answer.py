"""The words of a study's page: at its top what was asked, on what text, what came out and how sure
it is; at its end what the numbers cannot say.
"""

import pandas as pd

from tst_study.analysis.summary import Summary, verdict_counts
from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.wording import gain_sentence, number, signed, span
from tst_study.paper_figures.groups import Group
from tst_study.paper_figures.sources import Sources
from tst_study.text import big, duration

ASKED = (
    "Asked: does training that first reads bags of s tokens for a share r of its steps end with a "
    "lower held-out next-token loss than ordinary training of the same FLOPs?"
)
EXPECTED = (
    "To be expected: superposition is behind right after the switch, in the paper's runs too, and "
    "makes it up later. A run of a few thousand steps may end before it has."
)
GLOSSARY = (
    "TST: token superposition training. s: tokens per bag; r: share of the steps that read bags; "
    "s = 1 is the baseline. Gain: the baseline's loss less that of superposition, in nats per "
    "token, paired by seed, and its 95% interval; 0.01 is 1% less perplexity."
)
ASKED_OF_ARMS = (
    "Asked: which arm ends with a lower held-out next-token loss than the baseline, at equal FLOPs?"
)
GLOSSARY_OF_ARMS = (
    "Gain: the baseline's loss less that of the arm, in nats per token, and its 95% interval; 0.01 "
    "is 1% less perplexity."
)
PAPER_SIZES = "270M to 10B parameters"
FEW = 3
"""Settings of one kind of text that are all said in words at the top."""


def lead(sources: Sources) -> list[tuple[str, str, str]]:
    """Paragraphs, each with its kind and a bold start: scale, question, what was to be expected,
    an answer for each natural text, then for language made to show the mechanism, words."""
    by_text: dict[str, list[Group]] = {}
    for group in sorted(sources.groups, key=lambda g: (g.is_generated, g.model, g.steps)):
        by_text.setdefault(group.text, []).append(group)
    answers = [
        ("lead answer", name, f"({_scale(found)}): {_answer(found)}")
        for name, found in by_text.items()
    ]
    bags = _has_bags(sources.summary.tables.runs)
    return [
        ("facts", "", _facts(sources.summary)),
        ("lead", "", ASKED if bags else ASKED_OF_ARMS),
        *([("note", "", EXPECTED)] if bags else []),
        *(answers or [("lead", "", sources.summary.headline())]),
        ("note", "", GLOSSARY if bags else GLOSSARY_OF_ARMS),
    ]


def _has_bags(runs: pd.DataFrame) -> bool:
    """Whether runs are about superposition, and not, say, about optimizers of another trainer."""
    return runs.empty or bool((runs["bag_size"] > 1).any())


def _scale(found: list[Group]) -> str:
    """`232k parameters, 1,500 to 20,000 steps, 3 seeds`: after the text's name."""
    models = " and ".join(dict.fromkeys(group.model.split(",")[0] for group in found))
    seeds = [count for group in found for count in group.rows["seeds"]]
    return f"{models}, {span([group.steps for group in found], 'step')}, {span(seeds, 'seed')}"


def _answer(found: list[Group]) -> str:
    rows = pd.concat([group.rows.assign(place=group.label) for group in found])
    if len(rows) <= FEW:
        places = rows["place"] + ", " if len(found) > 1 else [""] * len(rows)
        each = zip(places, rows_of(rows), strict=True)
        return " ".join(f"{place}{gain_sentence(row)}." for place, row in each)
    ranked = rows.sort_values("gain")
    ends = [
        f"{signed(row['gain'])} ({row['setting']}, {row['place']})"
        for row in (next(rows_of(ranked)), list(rows_of(ranked))[-1])
    ]
    counts = verdict_counts(rows)
    return f"{number(len(rows), 'setting')}: {counts}; gains from {ends[0]} to {ends[1]} nats."


def _facts(summary: Summary) -> str:
    runs = summary.tables.runs
    states = runs.assign(state=runs["state"].mask(runs["role"] == "trunk", "trunk"))["state"]
    counts = ", ".join(f"{count:,} {state}" for state, count in states.value_counts().items())
    codes = sorted({code for codes in runs["code"] for code in codes.split(", ") if code})
    facts = [f"{number(len(runs), 'run')} ({counts})" if len(runs) else "No runs"]
    if (seconds := runs["training_seconds"].astype(float).sum()) > 0:
        facts.append(f"{duration(seconds)} of training")
    return " · ".join([*facts, f"code {', '.join(codes)}"] if codes else facts)


def limits(summary: Summary) -> list[str]:
    """What the numbers cannot say: sentences, each with the study's own figures."""
    table, eligible = summary.comparison.table, summary.comparison.eligible
    if table.empty:
        return ["Nothing has been compared yet."]
    runs = eligible[eligible["group"].isin(table["group"])]
    most, error = float(runs["epochs"].max()), eligible["standard_error"].median()
    bags = _has_bags(runs)
    said = [
        f"Models have up to {big(runs['parameters'].max())} parameters"
        + (f"; the paper's have {PAPER_SIZES}" if bags else "")
        + ". Size and sign of an effect may differ in larger ones.",
        "Intervals are over seeds and do not cover other texts"
        + ("." if pd.isna(error) else f"; one evaluation's standard error is {error:.3f} nats."),
        _seeds(table),
    ]
    if bags:
        text = f"{table['data_multiplier'].max():.3g} times the text of its baseline"
        said.append(f"Superposition read up to {text}.")
    if not summary.sweeps:
        said.append("The learning rate was not swept: at another the arms may stand otherwise.")
    elif all(sweep.followed for sweep in summary.sweeps):
        said.append(
            "Learning rates were chosen on the baseline; one tuned for superposition "
            "might favour it."
        )
    if most > 1:
        said.append(f"Some runs read their text up to {most:.3g} times.")
    if runs["optimal_nats_per_token"].notna().any():
        said.append(
            "Generated language has a slow topic, which bags can carry: it shows the "
            "mechanism, not what natural text gains."
        )
    return said


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
