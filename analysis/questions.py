"""The questions of `tst-study analyse`, asked of runs or of the published numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd

from analysis import published
from analysis.answer import Answer
from analysis.compare.comparison import Comparison, compare
from analysis.run_table import Tables, read_tables
from analysis.summary import summarise_tables
from tst_study.errors import UserError, one_of

Source = Tables | None
"""Runs, or None for the published numbers."""


def ask(
    question: str,
    runs: Path | None = None,
    *,
    of_published: bool = False,
    table: Path | None = None,
    at: str | None = None,
    tokens: Path | None = None,
    cache: Path | None = None,
) -> Answer:
    """Answer one of `QUESTIONS` of run folders, of the published numbers, or of a `table` of runs
    trained elsewhere (`runs.schema`). `at`: params,tokens for which `law` is to recommend.

    Raises `UserError` where the question is not known, the source is missing or not the right
    one, or the data do not allow an answer.
    """
    one_of(question, QUESTIONS, "question")
    if question == "mutual-information":
        return _mutual_information(tokens, of_published)
    if tokens is not None:
        raise UserError(f"--tokens: not used by {question}; only by mutual-information")
    if (runs is not None) + of_published + (table is not None) > 1:
        raise UserError("--runs, --table and --published: keep one")
    if runs is None and table is None and not of_published:
        raise UserError(
            f"{question}: name --runs DIR, --table FILE, or --published for the paper's numbers"
        )
    if at is not None and question != "law":
        raise UserError(f"--at: not used by {question}; only by law")
    if table is not None:
        return _of_table(question, table, at)
    source = None if runs is None else read_tables(runs, cache)
    if source is not None and source.runs.empty:
        raise UserError(source.problems[0])
    return _law(source, at) if question == "law" else QUESTIONS[question](source)


def _of_table(question: str, path: Path, at: str | None) -> Answer:
    from analysis.runs.schema import checked, fingerprint_of_file, read_frame, tables_of

    if question == "loss-curve":
        from analysis.scaling.loss_curve_answer import loss_curve_of_log

        return loss_curve_of_log(read_frame(path), fingerprint_of_file(path))
    if question == "chinchilla":
        from analysis.scaling.chinchilla_answer import chinchilla_answer

        return chinchilla_answer(checked(read_frame(path)), fingerprint_of_file(path))
    source = tables_of(path)
    answer = _law(source, at) if question == "law" else QUESTIONS[question](source)
    return replace(answer, inputs=fingerprint_of_file(path))


def fingerprints(tables: Tables) -> dict[str, str]:
    """Fingerprint of every run that was read, by run id."""
    return dict(zip(tables.runs["run_id"], tables.runs["fingerprint"], strict=True))


def _comparison(source: Source) -> Answer:
    if source is None:
        found = compare(published.runs())
        said = "One run each: gains of the published grids make no claim of their own."
        inputs = published.fingerprints("headline_runs", "final_loss_grid")
        shown = {"Equal FLOPs": _readable(found)}
        return Answer("comparison", shown, (said,), inputs, found.excluded)
    summary = summarise_tables(source)
    return Answer(
        "comparison",
        {"Equal FLOPs": _readable(summary.comparison), "Equal loss": summary.equal_loss},
        tuple(sweep.sentence() for sweep in summary.sweeps),
        fingerprints(source),
        summary.comparison.excluded,
        text=tuple(summary.lines()),
    )


def _matched(source: Source) -> Answer:
    from analysis.compare.matched import matched_answer

    if source is None:
        return matched_answer()
    return matched_answer(source.runs, fingerprints(source))


def _set_ups(source: Source) -> Answer:
    from analysis.compare.set_ups import set_ups_answer

    if source is None:
        raise UserError("set-ups needs --runs or --table: the paper ran each set-up once")
    return set_ups_answer(compare(source.runs), fingerprints(source))


def _bag_size(source: Source) -> Answer:
    from analysis.bag_size.grid_optimum import bag_size_answer, grid_of_runs

    if source is None:
        return bag_size_answer()
    compared = compare(source.runs)
    answer = bag_size_answer(grid_of_runs(compared), fingerprints(source))
    return replace(answer, excluded=compared.excluded)


def _law(source: Source, at: str | None = None) -> Answer:
    from analysis.law.answer import law_answer, law_on_runs

    target = None if at is None else _target(at)
    if source is None:
        return law_answer(target)
    return law_on_runs(source.runs, fingerprints(source), target)


def _target(text: str) -> tuple[float, float]:
    try:
        params, tokens = (float(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"--at {text!r}: give params,tokens, such as 270e6,42e9") from None
    return params, tokens


def _chinchilla(source: Source) -> Answer:
    from analysis.scaling.chinchilla_answer import chinchilla_answer, points_of_runs

    if source is None:
        raise UserError("chinchilla needs --runs or --table: the paper has too few baselines")
    points, excluded = points_of_runs(source.runs)
    return replace(chinchilla_answer(points, fingerprints(source)), excluded=excluded)


def _loss_curve(source: Source) -> Answer:
    from analysis.scaling.loss_curve_answer import loss_curve_answer

    if source is None:
        raise UserError("loss-curve needs --runs or --table: the paper states no learning rates")
    return loss_curve_answer(source, fingerprints(source))


def _compute(source: Source) -> Answer:
    from analysis.compare.compute_multiplier import compute_answer

    if source is None:
        return compute_answer()
    return compute_answer(source.runs, fingerprints(source))


def _data(source: Source) -> Answer:
    from analysis.scaling.data_constrained import data_answer

    if source is None:
        return data_answer()
    return data_answer(compare(source.runs), source.runs, fingerprints(source))


def _disagreements(source: Source) -> Answer:
    from analysis.paper.disagreements import disagreements_answer

    if source is not None:
        raise UserError("disagreements compares the paper with itself: give --published")
    return disagreements_answer()


def _mutual_information(tokens: Path | None, of_published: bool) -> Answer:
    from analysis.paper.mutual_information import mutual_information_answer

    if tokens is None and not of_published:
        raise UserError("mutual-information: name --tokens PREFIX of a token file, or --published")
    return mutual_information_answer(tokens)


def _unreachable(source: Source) -> Answer:
    raise AssertionError("asked of token files")


def _readable(found: Comparison) -> pd.DataFrame:
    columns = ["corpus", "steps", "learning_rate", "setting", "seeds", "baseline", "superposed"]
    columns += ["gain", "low", "high", "smallest_detectable", "p_adjusted", "verdict"]
    return found.table[columns]


QUESTIONS: dict[str, Callable[[Source], Answer]] = {
    "comparison": _comparison,
    "matched": _matched,
    "set-ups": _set_ups,
    "bag-size": _bag_size,
    "law": _law,
    "compute": _compute,
    "chinchilla": _chinchilla,
    "loss-curve": _loss_curve,
    "data": _data,
    "mutual-information": _unreachable,
    "disagreements": _disagreements,
}
