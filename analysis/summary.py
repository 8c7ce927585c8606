"""What a study found, as a short table with intervals and plain sentences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import pandas as pd

from analysis.compare.comparison import Comparison, compare
from analysis.compare.equal_loss import equal_loss
from analysis.compare.learning_rate import Sweep, sweeps
from analysis.compare.paired import Verdict
from analysis.run_table import Tables
from analysis.runs.run_row import rows_of
from analysis.wording import gain, group_label, left_out, number

VERDICTS = get_args(Verdict)


@dataclass(frozen=True)
class Summary:
    """Everything that the command line and the report say about a study."""

    tables: Tables
    comparison: Comparison
    equal_loss: pd.DataFrame
    sweeps: list[Sweep]

    @property
    def groups(self) -> list[tuple[str, pd.DataFrame]]:
        """(label, rows of the comparison), corpora and lengths in order."""
        runs, found = self.tables.runs, []
        for group, rows in self.comparison.table.groupby("group", sort=False):
            members = runs[runs["group"] == group]
            found.append((group_label(members), int(members["steps"].iloc[0]), rows))
        found.sort(key=lambda entry: (str(entry[2]["corpus"].iloc[0]), entry[1]))
        labels = [label for label, _, _ in found]
        return [
            (label if labels.count(label) == 1 else f"{label} [{rows['group'].iloc[0][:6]}]", rows)
            for label, _, rows in found
        ]

    def headline(self) -> str:
        """One sentence: how many settings won, lost, tied, and how many may not claim."""
        counts = verdict_counts(self.comparison.table)
        total = sum(counts.values())
        if total == 0:
            return "Nothing to compare yet: no superposed run has a finished baseline of its seed."
        text = f"{number(total, 'setting')} against the baseline at equal FLOPs: "
        text += counts_in_words(counts)
        most = int(self.comparison.table["comparisons"].max())
        if most > 1:
            text += f"; intervals hold for all settings of one question together (up to {most})"
        return text + "."

    def lines(self) -> list[str]:
        """For a terminal; losses in nats per token on held-out text."""
        tables: list[str] = []
        width = max([24, *(len(row) for row in self.comparison.table["setting"])])
        for label, rows in self.groups:
            tables += ["", label]
            tables.append(
                f"  {'setting':<{width}} {'seeds':>5} {'baseline':>9} {'TST':>8}  "
                f"{'gain [95% interval]':<26} verdict"
            )
            tables += [
                f"  {row['setting']:<{width}} {row['seeds']:>5} {row['baseline']:>9.4f} "
                f"{row['superposed']:>8.4f}  {gain(row):<26} {row['verdict']}"
                for row in rows_of(rows)
            ]
        text = [self.headline()]
        for row in rows_of(self.equal_loss):
            if pd.notna(row["speed_up"]):
                text.append(
                    f"Equal loss: {row['setting']} at {row['steps']:,} steps is worth "
                    f"{row['baseline_steps']:,.0f} baseline steps ({row['speed_up']:.2f} times)."
                )
        text.extend(sweep.sentence() for sweep in self.sweeps)
        text.extend(left_out(self.comparison.excluded))
        text.extend(f"Problem: {problem}" for problem in self.tables.problems)
        return text + tables


def verdict_counts(table: pd.DataFrame) -> dict[str, int]:
    """Number of compared settings by verdict, every verdict named."""
    found = table["verdict"].value_counts()
    return {verdict: int(found.get(verdict, 0)) for verdict in VERDICTS}


def counts_in_words(counts: dict[str, int]) -> str:
    """`2 better, 0 worse, 1 with no difference shown`: zeros are said too."""
    words = (
        f"{counts['better']} better, {counts['worse']} worse, "
        f"{counts['no difference shown']} with no difference shown"
    )
    single = counts["one seed: no claim"]
    return f"{words}, {single} with one seed and no claim" if single else words


def summarise(tables: Tables) -> Summary:
    comparison = compare(tables.runs)
    return Summary(tables, comparison, equal_loss(comparison), sweeps(tables.runs, comparison))
