"""`tst-study analyse chinchilla`: E + A N^−α + B D^−β of baselines, with its nulls."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.answer import Answer
from analysis.fits.scaling.chinchilla import (
    alike_in_kind,
    annealed_points,
    at_best_rates,
    leave_one_size_out,
    sizes_of,
)
from analysis.fits.scaling.frames import fit_chinchilla
from tst_study.errors import UserError

_BUDGETS = 5


def chinchilla_answer(points: pd.DataFrame, inputs: dict[str, str]) -> Answer:
    """A fit for each corpus, held-out text and kind of model of rows with params, tokens, flops,
    loss, corpus and eval_set (`schema.checked`, `points_of`); superposed runs are left out, and so
    are rows that are not annealed or at another than their size's and length's best learning rate.
    """
    tables: dict[str, pd.DataFrame] = {}
    said: list[str] = []
    plain = points[points["bag_size"] == 1]
    for name, rows in alike_in_kind(plain):
        try:
            own, note = at_best_rates(annealed_points(rows, ("params", "tokens", "loss")))
            found = fit_chinchilla(own)
        except UserError as error:
            said.append(f"{name}: no fit: {error}.")
            continue
        ends = np.geomspace(own["flops"].min(), own["flops"].max(), _BUDGETS)
        tables |= {
            f"{name}. L = E + A N^−α + B D^−β, 95% intervals": found.summary(),
            f"{name}. Compute-optimal, C = 6 N D": found.allocation(ends),
        }
        try:
            errors = leave_one_size_out(own).assign(copied=_copied(own))
            tables[f"{name}. Each size predicted from the others, nats"] = errors
        except UserError as error:
            said.append(f"{name}: no prediction of one size from the others: {error}.")
        said += [f"{name}: {line}." for line in (*str(found).splitlines()[-1:], note) if line]
    if not said:
        raise UserError("no baseline among these runs: nothing to fit")
    return Answer("chinchilla", tables, tuple(said), inputs)


def _copied(points: pd.DataFrame) -> list[float]:
    """The null of each left-out size: root mean square error of the loss of the nearest other size
    at the nearest number of tokens."""
    found = []
    sizes = sizes_of(points["params"])
    for size in pd.unique(sizes):
        out, rest = points[sizes == size], points[sizes != size]
        errors = []
        for tokens, loss in zip(out["tokens"], out["loss"], strict=True):
            by_size = np.abs(np.log(rest["params"] / size))
            near = rest[by_size <= by_size.min() + 1e-9]
            nearest = int(np.argmin(np.abs(np.log(near["tokens"] / tokens))))
            errors.append(float(near["loss"].iloc[nearest]) - float(loss))
        found.append(float(np.sqrt(np.mean(np.square(errors)))))
    return found
