"""The results of a study: its comparisons, verdicts and learning-rate sweeps in one object.
`tst-study analyse` prints it, and the pages and figures of the report are made from it."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from tst_study.analysis.tables.columns import Tables, rows_of
from tst_study.analysis.verdict.comparison import Comparison, compare, refuse_copies
from tst_study.analysis.verdict.documents import with_documents
from tst_study.analysis.verdict.intervals import FEW
from tst_study.analysis.verdict.learning_rate import Sweep, sweeps
from tst_study.analysis.verdict.matched import matched, worth
from tst_study.analysis.verdict.planned import arms, gains_over_training, since, without_early_looks
from tst_study.analysis.verdict.question import Question, questions_of
from tst_study.analysis.wording import bounds, left_out, number, verdict_lines
from tst_study.text import ENDLESS, printable, wrapped


@dataclass(frozen=True)
class Summary:
    """A study's runs, compared. Tables that follow from the comparison are computed when they are
    first asked for. Losses and gains are in nats per token on held-out text."""

    tables: Tables
    comparison: Comparison
    sweeps: list[Sweep]
    """Learning-rate sweeps, each with its best rate."""
    questions: tuple[Question, ...] = ()
    """The questions that were asked, before the runs or afterwards."""

    @functools.cached_property
    def arms(self) -> pd.DataFrame:
        """Loss, raw tokens and FLOPs of each arm that a planned question names (`planned.arms`)."""
        return arms(self.comparison.eligible, self.questions)

    @functools.cached_property
    def gains_over_training(self) -> pd.DataFrame:
        """The gain that each planned question asks about, at every evaluation that both of its arms
        have after the switch (`planned.gains_over_training`)."""
        return gains_over_training(self.comparison.eligible, self.tables.held_out, self.questions)

    @functools.cached_property
    def verdicts(self) -> pd.DataFrame:
        """The comparison's verdicts, with a further column, `since`. It says since which share of
        the steps a planned gain has had its final sign, in words such as `ahead since 75%`
        (`planned.since`). It is empty for settings without a planned question."""
        key = ["family", "question"]
        leads = {name: since(rows) for name, rows in self.gains_over_training.groupby(key)}
        verdicts = self.comparison.verdicts
        names = verdicts[key].itertuples(index=False, name=None)
        return verdicts.assign(since=[leads.get(name, "") for name in names])

    @functools.cached_property
    def matches(self) -> pd.DataFrame:
        """Each setting compared with baselines in three ways: at equal FLOPs, at equal data, and at
        equal loss (`matched`)."""
        return matched(self.comparison)

    @functools.cached_property
    def equal_loss(self) -> pd.DataFrame:
        """The answers to questions of an equal loss (`matched.worth`)."""
        return worth(self.comparison.eligible, self.comparison.lost, self.questions)

    def headline(self) -> str:
        """Return one sentence: how many settings are better than the baseline, worse, or not shown
        to differ, and how many allow no such verdict; or why there is nothing to compare."""
        table = self.comparison.table
        if table.empty:
            among = "" if self.comparison.excluded.empty else " among the runs not left out"
            return f"Nothing to compare yet: no superposed run has a matching baseline{among}."
        total = f"{number(len(table), 'setting')} against the baseline at equal FLOPs"
        return f"{total}: {verdict_counts(table)}."

    def lines(self, width: int = ENDLESS) -> list[str]:
        """Return lines for a terminal of this width: the verdicts, the headline, a sentence for
        each question of an equal loss and for each sweep, the runs that were left out, and
        problems."""
        verdicts = verdict_lines(self.verdicts, width)
        text = [self.headline(), *(_equal_loss(row) for row in rows_of(self.equal_loss))]
        text += (sweep.sentence() for sweep in self.sweeps)
        text += left_out(self.comparison.excluded)
        text += (f"Problem: {problem}" for problem in self.tables.problems)
        lines = [*verdicts, *([""] if verdicts else []), *wrapped(text, width)]
        return list(map(printable, lines))


def _equal_loss(row: Mapping[str, Any]) -> str:
    start = f"Equal loss, {row['family']}, {row['question']}: "
    if pd.isna(row["steps_ratio"]):
        return f"{start}{row['note']}."
    known = FEW.get(row["seeds"], "95%: open on both sides")
    if found := bounds(row):
        known = f"95%: {found}"
    note = f"; {row['note']}" if row["note"] else ""
    return (
        f"{start}{row['steps']:,} steps are worth {row['baseline_steps']:,.0f} baseline steps "
        f"({row['steps_ratio']:.2f} times; {known}{note})."
    )


def verdict_counts(table: pd.DataFrame) -> str:
    """Count settings by verdict, in words: `2 better, 0 worse, 1 with no difference shown`.

    Verdicts other than these three are named only if a setting has them."""
    counts, shown = table["verdict"].value_counts(), "no difference shown"
    words = {"better": "better", "worse": "worse", shown: f"with {shown}"}
    rest = {
        f"{why}: no claim": f"with {why} and no claim"
        for why in ("one seed", "two seeds", "no variation", "unstable comparison arm")
    }
    rest |= {"no worthwhile gain": "with no worthwhile gain", "undecided": "undecided"}
    rest |= {"no pair yet": "without a pair of runs", "unstable": "unstable"}
    words |= {verdict: said for verdict, said in rest.items() if verdict in counts}
    return ", ".join(f"{counts.get(verdict, 0)} {said}" for verdict, said in words.items())


def summarise(
    tables: Tables, questions: Sequence[Question] | None = None, own_rates: bool = False
) -> Summary:
    """Compare runs, and answer these questions, by default those that lie beside the runs
    (`questions.json`). Raises `UserError` for a run that is a copy of another, for questions that
    cannot be read, and as `compare` does."""
    refuse_copies(tables)
    tables = without_early_looks(tables)
    questions = tuple(questions_of(tables.roots) if questions is None else questions)
    comparison = compare(with_documents(tables), questions, own_rates)
    return Summary(tables, comparison, sweeps(tables.runs), questions)
