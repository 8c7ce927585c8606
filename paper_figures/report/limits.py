"""What a study's numbers cannot say, from the study itself."""

from __future__ import annotations

from analysis.summary import Summary
from analysis.wording import number
from tst_study.units import big

PAPER_SIZES = "270M to 10B parameters"


def limits(summary: Summary) -> list[str]:
    """Sentences, each with the study's own figures; the comparison must not be empty."""
    table, eligible = summary.comparison.table, summary.comparison.eligible
    if table.empty:
        return ["Nothing has been compared yet."]
    runs = eligible[eligible["group"].isin(table["group"])]
    said = [
        f"The models have up to {big(runs['parameters'].max())} parameters; the paper's have "
        f"{PAPER_SIZES}. Size and sign of an effect may differ there.",
        _text(summary),
        _seeds(summary),
        "Equal FLOPs is not equal text: superposition read up to "
        f"{table['data_multiplier'].max():.3g} times the text of its baseline.",
        "Where the learning rate was swept, it was chosen on the baseline and used by both; a rate "
        "tuned for superposition might favour it.",
    ]
    most = float(runs["epochs"].max())
    said.append(
        "No run read any text twice."
        if most <= 1
        else f"Some runs repeat their text, up to {most:.1f} times."
    )
    if runs["optimal_nats_per_token"].notna().any():
        said.append(
            "The generated language has a slow topic by construction, which is what bags can "
            "carry. It shows the mechanism, not what natural text would gain."
        )
    return said


def _text(summary: Summary) -> str:
    names = sorted(set(summary.comparison.table["corpus"]))
    error = summary.comparison.eligible["standard_error"].median()
    return (
        f"Each result is of one corpus and one held-out text ({', '.join(names)}). The intervals "
        "are over seeds; they do not cover other texts. (One evaluation has a standard error of "
        f"about {error:.3f} nats over its sequences, most of it common to both arms.)"
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
            " Where one baseline was held against several settings, intervals and p allow for all "
            "of them together (Bonferroni); across different questions nothing is adjusted."
        )
    return text
