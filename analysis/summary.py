"""The results of a study as a short table with intervals and as sentences."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from tst_study.analysis.tables.columns import Tables, rows_of
from tst_study.analysis.verdict.comparison import Comparison, compare, refuse_copies
from tst_study.analysis.verdict.learning_rate import Sweep, sweeps
from tst_study.analysis.verdict.matched import EQUAL_LOSS, matched
from tst_study.analysis.verdict.planned import arms, gains_over_training, since
from tst_study.analysis.verdict.question import Question, questions_of
from tst_study.analysis.wording import bounds, left_out, number, verdict_lines
from tst_study.text import ENDLESS, printable, wrapped


@dataclass(frozen=True)
class Summary:
    """Everything that the command line and the report show about a study."""

    tables: Tables
    comparison: Comparison
    sweeps: list[Sweep]
    questions: tuple[Question, ...] = ()

    @functools.cached_property
    def arms(self) -> pd.DataFrame:
        """Loss, tokens and FLOPs of each arm in the planned questions (`planned.arms`)."""
        return arms(self.comparison.eligible, self.questions)

    @functools.cached_property
    def gains_over_training(self) -> pd.DataFrame:
        """Gains of the planned questions at every evaluation after the switch that both arms have
        (`planned.gains_over_training`)."""
        return gains_over_training(self.comparison.eligible, self.tables.held_out, self.questions)

    @functools.cached_property
    def verdicts(self) -> pd.DataFrame:
        """The comparison's verdicts, with a column `since`, in words: since which share of the
        steps a planned gain has had its final sign, such as `ahead since 75%` (`planned.since`)."""
        key = ["family", "question"]
        leads = {name: since(rows) for name, rows in self.gains_over_training.groupby(key)}
        verdicts = self.comparison.verdicts
        names = verdicts[key].itertuples(index=False, name=None)
        return verdicts.assign(since=[leads.get(name, "") for name in names])

    @functools.cached_property
    def matches(self) -> pd.DataFrame:
        """Each setting matched with baselines in three ways: at equal FLOPs, at equal data, at
        equal loss (`matched`)."""
        return matched(self.comparison)

    @property
    def equal_loss(self) -> pd.DataFrame:
        """The matches at equal loss that have a number."""
        rows = self.matches
        return rows[(rows["kind"] == EQUAL_LOSS) & rows["steps_ratio"].notna()]

    def headline(self) -> str:
        """One sentence: how many settings are better than the baseline, worse or not shown to
        differ, and how many allow no verdict; or why there is nothing to compare."""
        table = self.comparison.table
        if table.empty:
            among = "" if self.comparison.excluded.empty else " among the runs not left out"
            return f"Nothing to compare yet: no superposed run has a matching baseline{among}."
        total = f"{number(len(table), 'setting')} against the baseline at equal FLOPs"
        return f"{total}: {verdict_counts(table)}."

    def lines(self, width: int = ENDLESS) -> list[str]:
        """Lines for a terminal of this width; losses in nats per token on held-out text."""
        verdicts = verdict_lines(self.verdicts, width)
        text = [self.headline(), *(_equal_loss(row) for row in rows_of(self.equal_loss))]
        text += (sweep.sentence() for sweep in self.sweeps)
        text += left_out(self.comparison.excluded)
        text += (f"Problem: {problem}" for problem in self.tables.problems)
        lines = [*verdicts, *([""] if verdicts else []), *wrapped(text, width)]
        return list(map(printable, lines))


def _equal_loss(row: Mapping[str, Any]) -> str:
    known = "one seed: no claim" if row["seeds"] < 2 else ""
    if found := bounds(row):
        known = f"95%: {found}"
    return (
        f"Equal loss: {row['setting']} at {row['steps']:,} steps is worth "
        f"{row['baseline_steps']:,.0f} baseline steps ({row['steps_ratio']:.2f} times"
        f"{'; ' if known else ''}{known})."
    )


def verdict_counts(table: pd.DataFrame) -> str:
    """Count settings by verdict: `2 better, 0 worse, 1 with no difference shown`.

    Verdicts other than these three are left out where no setting has them."""
    counts = table["verdict"].value_counts()
    words = {"better": "better", "worse": "worse"}
    words["no difference shown"] = "with no difference shown"
    rest = {
        "one seed: no claim": "with one seed and no claim",
        "two seeds: no claim": "with two seeds and no claim",
        "no variation: no claim": "without variation and no claim",
        "unstable": "unstable",
    }
    words |= {verdict: said for verdict, said in rest.items() if verdict in counts}
    return ", ".join(f"{counts.get(verdict, 0)} {said}" for verdict, said in words.items())


def summarise(tables: Tables) -> Summary:
    """Compare the runs, and answer the questions that lie beside them. Raises `UserError` for a run
    that is a copy of another, and as `compare` does."""
    refuse_copies(tables)
    questions = questions_of(tables.roots)
    comparison = compare(tables.runs, questions)
    return Summary(tables, comparison, sweeps(tables.runs, comparison), questions)
