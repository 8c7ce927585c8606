"""The answer of `tst-study analyse chinchilla`, and Chinchilla's approaches 2 and 3 side by side:
what each says of the compute-optimal size, and whether they disagree. The answer of `compute` shows
this, too."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from tst_study.analysis.answer import Answer
from tst_study.analysis.fits.scaling.frontier import Frontier, isoflop
from tst_study.analysis.fits.scaling.laws import ChinchillaFit, fit_chinchilla
from tst_study.analysis.fits.scaling.points import (
    alike_in_kind,
    annealed_points,
    at_best_settings,
    doubts,
    outside,
)
from tst_study.analysis.fits.solver.problem import HUBER
from tst_study.errors import UserError

COLUMNS: tuple[str, ...] = ("approach", "counts", "params_exponent", "exponent_low")
COLUMNS += ("exponent_high", "tokens_exponent", "flops", "params", "tokens", "outside")
_BUDGETS = 5
"""Number of FLOPs budgets for which compute-optimal sizes are printed."""
DRAWS = 200
"""Refits for an interval, where the fit stands beside another answer."""


def side_by_side(
    points: pd.DataFrame, frontier: Frontier | None, fitted: ChinchillaFit | None
) -> tuple[pd.DataFrame, list[str]]:
    """Return a row for each approach (`COLUMNS`), with its sizes and tokens at the largest budget
    whose best size lies inside the sizes tried, and sentences on how far they agree.

    points: the fitted runs, with flops. frontier, fitted: what is known already. If every run has a
    `non_embedding_parameters`, both approaches are also given that count. The table has fewer than
    two rows, and there is no sentence, if an approach is not possible."""
    rows, sentences = [], []
    for counts, params in _counts(points).items():
        own = points.assign(params=params.astype(float))
        if counts != "as imported":
            frontier, fitted = None, None
        try:
            frontier = isoflop(own) if frontier is None else frontier
            fitted = fit_chinchilla(own, DRAWS) if fitted is None else fitted
        except UserError:
            continue
        if frontier.params_exponent is None or frontier.params_interval is None:
            continue
        inside = frontier.table[~frontier.table["edge"].astype(bool)]
        budget = float(inside["flops"].max())
        logs = np.log(inside[["flops", "params", "tokens"]].to_numpy(float)).T
        size, tokens = (
            float(np.exp(np.polyval(np.polyfit(logs[0], own_log, 1), np.log(budget))))
            for own_log in logs[1:]
        )
        third = fitted.allocation([budget]).iloc[0]
        ends = ("exponent_low", "exponent_high")
        first: dict[str, Any] = dict(zip(ends, frontier.params_interval, strict=True))
        first |= {"params_exponent": frontier.params_exponent, "params": size}
        first |= {"tokens_exponent": frontier.tokens_exponent, "tokens": tokens}
        second = {name: third[name] for name in first if name not in ends}
        second |= {end: third[f"params_{end}"] for end in ends}
        for name, row in (("2, a parabola a budget", first), ("3, E + A N^−α + B D^−β", second)):
            row |= {"flops": budget, "outside": outside(own, row)}
            rows.append({"approach": name, "counts": counts, **row})
        sentences.append(_sentence(counts, budget, first, second))
    return pd.DataFrame(rows, columns=[*COLUMNS]), sentences


def _counts(points: pd.DataFrame) -> dict[str, pd.Series]:
    counts = {"as imported": points["params"]}
    other = points.get("non_embedding_parameters")
    if other is not None and other.notna().all() and (other != points["params"]).any():
        counts["without embeddings"] = other
    return counts


def _sentence(
    counts: str, budget: float, first: Mapping[str, Any], second: Mapping[str, Any]
) -> str:
    names = ("params_exponent", "exponent_low", "exponent_high")
    (a, low, high), (b, lowest, highest) = ([one[key] for key in names] for one in (first, second))
    if lowest is None or np.isnan(lowest):
        lowest = highest = b
    said = (
        f"approach 3 gives {second['params'] / first['params']:.2f} times the parameters of "
        f"approach 2 at {budget:.3g} FLOPs; exponents {b:.3f} and {a:.3f} [{low:.3f}, {high:.3f}]"
    )
    said += f", parameters {counts}" * (counts != "as imported")
    apart = highest < low or lowest > high
    return said + (": they disagree, so that neither is safe beyond these runs" if apart else "")


def chinchilla_answer(points: pd.DataFrame, huber: float = HUBER) -> Answer:
    """Answer `tst-study analyse chinchilla`: a fit for each corpus, held-out text and kind of model
    (dense or mixture), or a sentence that says why there is none.

    points: runs as `points_of` returns them. Superposed runs and ablations are left out, and so are
    runs that are not annealed or not at the best setting of their size and length.
    huber: as in `fit_chinchilla`. Raises `UserError` if there is no baseline.
    """
    tables: dict[str, pd.DataFrame] = {}
    sentences: list[str] = []
    plain = points[points["method"] == "baseline"]
    for name, rows in alike_in_kind(plain):
        try:
            own, note = at_best_settings(annealed_points(rows, ("params", "tokens", "loss")))
            fitted = fit_chinchilla(own, huber=huber)
        except UserError as error:
            sentences.append(f"{name}: no fit: {error}.")
            continue
        ends = np.geomspace(own["flops"].min(), own["flops"].max(), _BUDGETS)
        errors = fitted.each_size_from_the_others()
        tables |= {
            f"{name}. L = E + A N^−α + B D^−β, 95% intervals": fitted.summary(),
            f"{name}. Compute-optimal": fitted.allocation(ends),
            f"{name}. Each size predicted from the others, nats": errors,
        }
        both, agreed = side_by_side(own, None, fitted)
        if len(both):
            tables[f"{name}. Both approaches at the largest budget"] = both
        lines = [fitted.largest_from_the_others(), *agreed, *str(fitted).splitlines()[-1:]]
        sentences += [f"{name}: {line}." for line in (*lines, note, *doubts(own)) if line]
    if not sentences:
        raise UserError("no baseline among these runs: nothing to fit")
    return Answer("chinchilla", tables, tuple(sentences))
