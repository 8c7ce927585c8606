"""The questions of `tst-study analyse`, and `ask`, which answers one of them from runs or from the
published numbers."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pandas as pd

from tst_study.analysis.answer import Answer
from tst_study.analysis.fits.bag_size import bag_size_answer, grid_of_runs
from tst_study.analysis.fits.law.law_answer import law_answer, law_on_runs
from tst_study.analysis.fits.mutual_information import mutual_information_answer
from tst_study.analysis.fits.scaling.approaches import chinchilla_answer
from tst_study.analysis.fits.scaling.compute_multiplier import compute_answer
from tst_study.analysis.fits.scaling.points import points_of
from tst_study.analysis.summary import summarise
from tst_study.analysis.tables.columns import Tables
from tst_study.analysis.tables.eligible import eligible
from tst_study.analysis.tables.source import Folders, read_tables
from tst_study.analysis.verdict.asked_now import asked_now
from tst_study.analysis.verdict.comparison import compare, refuse_copies
from tst_study.analysis.verdict.matched import matched_answer
from tst_study.analysis.verdict.planned import uncovered, without_early_looks
from tst_study.analysis.verdict.question import Method, questions_of
from tst_study.analysis.wording import number
from tst_study.errors import UserError, one_of
from tst_study.text import amount

_USED_BY = {
    "at": ("law",),
    "tokens": ("mutual-information",),
    "huber": ("chinchilla",),
    "own_rates": ("comparison", "matched", "bag-size", "compute"),
    **dict.fromkeys(("arm", "against", "where", "method", "smallest_gain"), ("comparison",)),
}


def ask(
    question: str, runs: Folders | None = None, *, of_published: bool = False, **options: Any
) -> Answer:
    """Answer one of `QUESTIONS`.

    The answer is about `runs` (folders of runs, or archives), about the token file `tokens`, or, if
    `of_published` is true, about the published numbers.

    Options (None is as if it was not given): at: PARAMS,TOKENS of a run for which `law` is to
    recommend s and r. tokens: a path without `.bin`, which `mutual-information` needs in place of
    runs. huber: delta of the Huber loss of `chinchilla`. own_rates: compare arms at learning rates
    of their own. arm, against, where, method, smallest_gain: a question of `comparison`
    (`verdict.asked_now`), in place of those that lie beside the runs.

    Raises `UserError` for an unknown question or option, for an option that the question does not
    use, if no source is given or more than one, and if the data do not allow an answer.
    """
    if Path(question).exists():
        raise UserError(f"{question}: no question; name folders of runs by --runs")
    one_of(question, QUESTIONS, "question")
    of_own, of_paper = QUESTIONS[question]
    unasked: tuple[Any, ...] = (None, (), [])
    options = {
        name: value
        for name, value in options.items()
        if value is not False and value not in unasked
    }
    for name in options:
        one_of(name, _USED_BY, "option")
        if question not in _USED_BY[name]:
            raise UserError(
                f"--{name.replace('_', '-')}: not used by {question}; only by "
                f"{', '.join(_USED_BY[name])}"
            )
    if "method" in options:
        one_of(options["method"], get_args(Method), "--method")
    own, name = runs, "--runs DIR"
    if question == "mutual-information":
        own, name = options.get("tokens"), "--tokens PREFIX"
        if runs is not None:
            raise UserError("mutual-information: asks about text; leave out --runs")
    if (own is None) is not of_published:
        raise UserError(f"{question}: name {name} or --published, one of the two")
    if "at" in options:
        options = {"target": _target(options["at"])}
    if of_published:
        if isinstance(of_paper, str):
            raise UserError(f"{question} needs --runs: {of_paper}")
        return of_paper(**options)
    if runs is None:
        return of_own(**options)
    source = read_tables(runs)
    if source.runs.empty:
        raise UserError(source.problems[0])
    marks = dict(zip(source.runs["run_id"], source.runs["fingerprint"], strict=True))
    if question != "comparison":  # `summarise` sees to the same
        source = without_early_looks(source)
        kept, excluded = eligible(source.runs)
        if kept.empty:
            reasons = pd.Series([row["reason"] for row in excluded]).value_counts()
            raise UserError(f"{number(int(reasons.iloc[0]), 'run')} left out: {reasons.index[0]}")
        refuse_copies(source)
        beside = uncovered(source.runs, questions_of(source.roots))
        source = source.only(~source.runs["folder"].isin(beside))
    answer: Answer = of_own(source, **options)
    problems = (f"Problem: {problem}" for problem in source.problems)
    return replace(answer, inputs=marks, sentences=(*answer.sentences, *problems))


def _target(text: str) -> tuple[float, float]:
    params, comma, tokens = text.partition(",")
    if not comma:
        raise UserError(f"--at {text!r}: give params,tokens, such as 270M,42B")
    return amount(params, "--at, params"), amount(tokens, "--at, tokens")


def _comparison(source: Tables, own_rates: bool = False, **asked: Any) -> Answer:
    questions = questions_of(source.roots)
    if asked:
        asked = {"arm": None, "against": None, **asked}
        questions = asked_now(source.runs, questions, **asked)
    summary = summarise(source, questions, own_rates)
    tables = {"Verdicts": summary.verdicts, "Arms": summary.arms}
    tables |= {"On the way": summary.gains_over_training, "Equal loss": summary.equal_loss}
    return Answer(
        "comparison",
        tables,
        tuple(sweep.sentence() for sweep in summary.sweeps),
        excluded=summary.comparison.excluded,
        text=summary.lines,
    )


def _bag_size(source: Tables, own_rates: bool = False) -> Answer:
    compared = compare(source.runs, questions_of(source.roots), own_rates)
    return replace(bag_size_answer(grid_of_runs(compared.pairs)), excluded=compared.excluded)


def _chinchilla(source: Tables, **huber: float) -> Answer:
    kept, excluded = eligible(source.runs)
    answer = chinchilla_answer(points_of(kept), **huber)
    return replace(answer, excluded=pd.DataFrame(excluded))


QUESTIONS: dict[str, tuple[Callable[..., Answer], Callable[..., Answer] | str]] = {
    "comparison": (_comparison, "the paper has one run of each setting, which allows no verdict"),
    "matched": (
        lambda of, **own: matched_answer(of.runs, questions=questions_of(of.roots), **own),
        matched_answer,
    ),
    "bag-size": (_bag_size, bag_size_answer),
    "law": (lambda of, **at: law_on_runs(of.runs, **at), law_answer),
    "compute": (
        lambda of, **own: compute_answer(of.runs, questions_of(of.roots), **own),
        compute_answer,
    ),
    "chinchilla": (_chinchilla, "the paper has too few baselines"),
    "mutual-information": (mutual_information_answer, mutual_information_answer),
}
"""Two functions for each question. The first answers it from runs, given their tables; for
`mutual-information` it answers from a token file. The second answers it from the published numbers;
in its place there may be the reason why these have no answer."""
