"""How well a fit is known: bootstrap, profile likelihood, prediction of what was left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy import stats

from analysis.checks import Floats
from analysis.fits.solver.identified import undetermined
from analysis.fits.solver.problem import Problem
from analysis.fits.solver.solve import GRADIENT_TOLERANCE, Fit, fit, gradient_measure, refit
from tst_study.statistics import CONFIDENCE, critical_t

LEAST_CLUSTERS = 6
"""Of fewer, draws with replacement tell too little for an interval."""


@dataclass(frozen=True)
class Bootstrap:
    """Refits to resampled models. Draws that did not converge are left out and counted."""

    draws: pd.DataFrame
    """One row per refit that converged, one column per parameter; NaN where the draw's rows do not
    determine it (`undetermined`)."""
    failed: int
    resampled: str
    """What was drawn: `rows`, or `models`."""
    clusters: int
    """How many there are to draw from."""
    undetermined: tuple[str, ...] = ()
    """Parameters that the fit itself leaves open: they have no interval."""

    def interval(self, values: Floats | pd.Series | str) -> tuple[float | None, float | None]:
        """95% percentile interval of a parameter, or of any number computed from each draw, as wide
        as t with one degree of freedom less than there are clusters asks (Hesterberg 2015, section
        5.3). None on both sides where there are too few clusters, or where more draws than that
        leave the number undetermined."""
        drawn = np.asarray(self.draws[values] if isinstance(values, str) else values, dtype=float)
        known = drawn[np.isfinite(drawn)]
        open_ = isinstance(values, str) and values in self.undetermined
        few = self.clusters < LEAST_CLUSTERS or len(known) < max(1.0, CONFIDENCE * len(drawn))
        if open_ or few:
            return None, None
        critical = critical_t(self.clusters - 1)
        tail = float(stats.norm.sf(critical * np.sqrt(self.clusters / (self.clusters - 1))))
        low, high = np.quantile(known, [tail, 1 - tail])
        return float(low), float(high)


def bootstrap(found: Fit, draws: int = 1000) -> Bootstrap:
    """Refit to whole models (all rows of one training: the problem's `models`) drawn with
    replacement, or to rows where it names none. Each refit starts from `found`."""
    random = np.random.default_rng(0)
    problem = found.problem
    models = problem.models
    codes = np.arange(len(problem.observed)) if models is None else pd.factorize(models)[0]
    members = int(codes.max()) + 1
    kept: list[Floats] = []
    for _ in range(draws):
        drawn = np.bincount(random.integers(members, size=members), minlength=members)
        again = problem.rows(np.repeat(np.arange(len(codes)), drawn[codes]))
        theta = refit(again, found.theta)
        if gradient_measure(again, theta) <= 10 * GRADIENT_TOLERANCE and np.isfinite(theta).all():
            kept.append(np.where(_undetermined(again, theta), np.nan, theta))
    columns = list(problem.model.parameters)
    table = pd.DataFrame(np.array(kept).reshape(len(kept), len(columns)), columns=columns)
    away = _undetermined(problem, found.theta)
    return Bootstrap(
        draws=table,
        failed=draws - len(kept),
        resampled="rows" if models is None else "models",
        clusters=members,
        undetermined=tuple(np.array(columns)[away]),
    )


def _undetermined(problem: Problem, theta: Floats) -> np.ndarray:
    return undetermined(problem.residuals(theta), problem.jacobian(theta))


@dataclass(frozen=True)
class Profile:
    """The objective along one parameter, all others fitted anew at each of its values."""

    name: str
    table: pd.DataFrame
    """value, objective, deviance (twice the log-likelihood ratio to the best), and the others."""

    def interval(self) -> tuple[float | None, float | None]:
        """Where the deviance crosses the 95% quantile of χ²; None on a side where it never does
        within the values tried: the data do not bound the parameter there."""
        limit = float(stats.chi2.ppf(CONFIDENCE, 1))
        values = self.table["value"].to_numpy()
        above = self.table["deviance"].to_numpy() - limit
        best = int(np.argmin(above))
        left = [i for i in range(best) if above[i] > 0 >= above[i + 1]]
        right = [i for i in range(best, len(values) - 1) if above[i] <= 0 < above[i + 1]]

        def crossing(i: int) -> float:
            share = above[i] / (above[i] - above[i + 1])
            return float(values[i] + share * (values[i + 1] - values[i]))

        return crossing(left[0]) if left else None, crossing(right[-1]) if right else None


def profile(found: Fit, name: str, values: Sequence[float]) -> Profile:
    """Profile likelihood of a parameter over `values`.

    The scale of the residuals is taken as unknown and fitted: the deviance is (n − p) log of the
    sum of squares (normal errors), twice that of a sum of absolute residuals (Laplace), and for a
    Huber loss what lies between, by how many residuals are beyond its delta. It is counted from
    the lowest objective seen, which may lie away from `found`.
    """
    names = found.problem.model.parameters
    place = names.index(name)
    ordered = sorted({float(value) for value in values} | {float(found.theta[place])})
    rows: dict[float, tuple[float, Floats]] = {}
    centre = ordered.index(float(found.theta[place]))
    for walk in (range(centre, len(ordered)), range(centre, -1, -1)):
        theta = np.delete(found.theta, place)
        for at in walk:
            held = found.problem.model.held({name: ordered[at]})
            problem = replace(found.problem, model=held)
            ends = [refit(problem, start) for start in (theta, np.delete(found.theta, place))]
            theta = min(ends, key=problem.value)
            whole, value = np.insert(theta, place, ordered[at]), problem.value(theta)
            if ordered[at] not in rows or value < rows[ordered[at]][0]:
                rows[ordered[at]] = (value, whole)
    lowest, best = min(rows.values(), key=lambda row: row[0])
    residuals = found.problem.residuals(best)
    # 2 where the objective is quadratic in the residuals, 1 where it is linear.
    power = float(found.problem.slopes(residuals) @ residuals) / lowest
    count = 2.0 / power * (len(residuals) - len(names))
    table = pd.DataFrame(
        [
            {
                "value": at,
                "objective": value,
                "deviance": count * np.log(value / lowest),
                **{other: whole[i] for i, other in enumerate(names) if other != name},
            }
            for at, (value, whole) in sorted(rows.items())
        ]
    )
    return Profile(name, table)


def leave_one_out(
    problem: Problem,
    groups: Sequence[str] | Sequence[int] | Sequence[float],
    starts: Floats,
    *,
    refine: int = 16,
) -> pd.DataFrame:
    """Prediction error of each group of rows (a model size, say) by a fit to all the others.

    Columns: group, runs, rmse (of the loss, nats), mean (signed, predicted − observed), relative
    (largest |error| over loss), note (what failed, in place of numbers).
    """
    labels = pd.Series(list(groups))
    rows: list[Mapping[str, object]] = []
    for group in labels.unique():
        out = np.asarray(labels == group)
        found = fit(problem.rows(~out), starts, strict=False, refine=refine)
        row: dict[str, object] = {"group": group, "runs": int(out.sum())}
        if found.failures:
            rows.append({**row, "note": "; ".join(found.failures)})
            continue
        predicted = problem.model.rows(out).loss(found.theta)
        error = predicted - problem.observed[out]
        rows.append(
            {
                **row,
                "rmse": float(np.sqrt((error**2).mean())),
                "mean": float(error.mean()),
                "relative": float(np.abs(error / problem.observed[out]).max()),
                "note": "",
            }
        )
    columns = ["group", "runs", "rmse", "mean", "relative", "note"]
    return pd.DataFrame(rows, columns=columns)
