"""Chinchilla's law of loss, L = E + A N^−α + B D^−β, fitted to runs: approach 3 of Hoffmann et al.
2022 (arXiv 2203.15556). L is in nats per token, N in parameters, D in tokens.

`tst-study analyse chinchilla` prints the fit to one's runs. From Python:

    law = analysis.fit_chinchilla(frame)     # columns params, tokens (or flops), loss
    print(law)                               # a table with intervals
    law.E, law.alpha, law.predict(other)
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import special

from tst_study.analysis.answer import table_lines
from tst_study.analysis.checks import Floats
from tst_study.analysis.fits.scaling.points import (
    annealed_points,
    flops_ratio,
    outside,
    with_tokens,
)
from tst_study.analysis.fits.solver.problem import HUBER, Formula, Problem
from tst_study.analysis.fits.solver.solve import Fit, fit, grid_of_starts, refit
from tst_study.analysis.fits.solver.uncertainty import LEAST_CLUSTERS, Bootstrap, bootstrap
from tst_study.analysis.statistics import CONFIDENCE, rmse
from tst_study.errors import UserError
from tst_study.text import big

NAMES = ("E", "A", "B", "alpha", "beta")
"""Printed names of the parameters. The fit is over the logs of the first three."""
LEAST_RUNS = 10
"""Fewest runs for a fit: one for each of the five parameters, and five more to judge the fit by."""
GRID = {"alpha": (0.1, 0.3, 0.5, 0.8), "beta": (0.1, 0.3, 0.5, 0.8)}
"""Values of the exponents, all combinations of which are starts of a fit. The other parameters
follow from them by least squares."""


@dataclass(frozen=True)
class ChinchillaFit:
    """A fitted L = E + A N^−α + B D^−β. Its attributes E (nats per token), A, B, alpha and beta are
    the parameters."""

    fit: Fit
    drawn: Bootstrap
    """Refits to models drawn with replacement; the intervals come from these. A model is a group of
    runs that are drawn together (`fit_chinchilla`)."""
    points: pd.DataFrame
    """The fitted runs, with a column `size` (`points.sizes_of`)."""

    def __getattr__(self, name: str) -> float:
        """Return a parameter by its printed name."""
        if name not in NAMES:
            raise AttributeError(name)
        return float(_printed(self.fit.theta[None])[name].iloc[0])

    def summary(self) -> pd.DataFrame:
        """Return a row for each parameter: parameter, value, low and high (95% interval), note. A
        parameter that the runs do not determine has no interval; if fewer than `LEAST_CLUSTERS`
        models were run, no parameter has one. `note` says why an interval is missing."""
        rows, draws = [], _printed(self.drawn.draws.to_numpy())
        for parameter, name in zip(self.fit.values, NAMES, strict=True):
            value, (low, high) = getattr(self, name), self.drawn.interval(draws[name].to_numpy())
            note = ""
            if self.drawn.clusters < LEAST_CLUSTERS:
                note = f"no interval: {self.drawn.clusters} models are too few"
            elif low is None or parameter in self.fit.undetermined:
                low, high = None, None
                note = f"{name} not determined" + (", at its bound of 0" if value < 1e-3 else "")
            rows.append({"parameter": name, "value": value, "low": low, "high": high, "note": note})
        return pd.DataFrame(rows)

    def predict(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the frame's rows with the law's loss, nats per token, and its 95% interval:
        columns loss (replaced if the frame has one), low and high (NaN if there is no interval).
        The interval is for the law, not for a single run.

        frame: columns params, and tokens or flops (C = 6 N D)."""
        model = chinchilla(*(with_tokens(frame)[name] for name in ("params", "tokens")))
        draws = model.loss(self.drawn.draws.to_numpy())
        ends = [self.drawn.interval(draws[:, row]) for row in range(len(frame))]
        low, high = np.array(ends, dtype=float).T
        return frame.assign(loss=model.loss(self.fit.theta), low=low, high=high)

    def __str__(self) -> str:
        intervals = f"intervals: {self.drawn.clusters} models drawn with replacement"
        if self.drawn.clusters < LEAST_CLUSTERS:
            intervals = f"no intervals: {self.drawn.clusters} models are too few"
        starts = f"{self.fit.agreed} of {self.fit.started} starts agree"
        last = f"{len(self.points)} runs; {starts}; {intervals}"
        return "\n".join([*table_lines(self.summary()), last])

    def each_size_from_the_others(self) -> pd.DataFrame:
        """Return how well the losses at each model size are predicted by the law fitted to all
        other sizes, and how well they are predicted without a law. The smallest and the largest
        size are extrapolations; only the largest shows how the law does at scale.

        Columns: group (the size in parameters), runs (their number), rmse (root mean square error
        of the law's loss, nats per token), copied (the same error if each loss is copied from the
        nearest other size at the nearest number of tokens), note (why there is no rmse).
        """
        problem = self.fit.problem
        starts = grid_of_starts(problem.model, GRID)
        rows = []
        for size in pd.unique(self.points["size"]):
            out = (self.points["size"] == size).to_numpy()
            row = {"group": size, "runs": int(out.sum()), "note": ""}
            kept, left_out = problem.rows(~out), problem.rows(out)
            try:
                row["rmse"] = rmse(
                    left_out.model.loss(fit(kept, starts, 6).theta) - left_out.observed
                )
            except UserError as reason:
                row["note"] = str(reason)
            rows.append({**row, "copied": _copied(self.points[out], self.points[~out], size)})
        return pd.DataFrame(rows, columns=["group", "runs", "rmse", "copied", "note"])

    def largest_from_the_others(self) -> str:
        """Return a sentence on how well the law fitted to all other runs predicts those at the
        largest size and length (by N D), beside a loss copied from the nearest other run."""
        work = np.log(self.points["params"]) + np.log(self.points["tokens"])
        out = (work > work.max() - 0.01).to_numpy()
        own, rest = self.points[out], self.points[~out]
        size, tokens, loss = (float(own[name].mean()) for name in ("params", "tokens", "loss"))
        where = f"the largest run, {big(size)} parameters and {big(tokens)} tokens,"
        problem = self.fit.problem
        try:
            law = fit(problem.rows(~out), grid_of_starts(problem.model, GRID), 6)
        except UserError as reason:
            return f"{where} cannot be predicted from the others: {reason}"
        said = float(problem.rows(out).model.loss(law.theta).mean())
        copied = _copied(own, rest, size)
        return (
            f"{where} has loss {loss:.4f}; the others predict {said:.4f} ({said - loss:+.4f}; the "
            f"nearest run's loss is off by {copied:.4f})"
        )

    def allocation(self, flops: Floats | list[float]) -> pd.DataFrame:
        """Return a row for each FLOPs budget: flops, the compute-optimal params and tokens, the
        loss there, and params_exponent and tokens_exponent, a and b in N ∝ C^a, D ∝ C^b.

        C is 6 N D, or, where the FLOPs of the fitted runs are not, 6 k N^(1 + q) D
        (`points.flops_ratio`). All but flops and b have a 95% interval over models, in columns such
        as params_low and params_high. Sizes, tokens and losses are NaN unless the law falls with
        both N and D. `outside` names what lies beyond the fitted runs (`points.outside`)."""
        law = Base(*np.vstack([self.fit.theta, self.drawn.draws.to_numpy()]).T)
        scale, q = flops_ratio(self.points)
        slope = law.beta * (1 + q)
        total = law.alpha + slope
        with np.errstate(all="ignore"):
            ratio = law.log_A - law.log_B + np.log(law.alpha / slope)
        rows = []
        for budget in np.asarray(flops, dtype=float):
            work = budget / 6 / scale
            size = np.exp((ratio + law.beta * np.log(work)) / total)
            # Only a law that falls with both N and D has an optimum.
            size = np.where((law.alpha > 0) & (law.beta > 0), size, np.nan)
            tokens = work / size ** (1 + q)
            values = {"params": size, "tokens": tokens, "loss": law.loss(size, tokens)}
            values["params_exponent"] = law.beta / total
            row: dict[str, Any] = {"flops": float(budget)}
            for name, draws in values.items():
                low, high = self.drawn.interval(draws[1:])
                row |= {name: float(draws[0]), f"{name}_low": low, f"{name}_high": high}
            row["tokens_exponent"] = float(1 - (1 + q) * law.beta[0] / total[0])
            row["outside"] = outside(self.points, row)
            rows.append(row)
        return pd.DataFrame(rows)


def fit_chinchilla(frame: pd.DataFrame, draws: int = 1000, huber: float = HUBER) -> ChinchillaFit:
    """Fit L = E + A N^−α + B D^−β by the Huber loss on log L (Hoffmann et al. 2022, approach 3).

    frame: a row for each run, with the columns loss (nats per token, final, annealed), params, and
    tokens or flops (C = 6 N D). Two more columns, `annealed` and `model`, are used if they are
    there. Rows for which `annealed` is false are left out. Rows with the same label in `model`,
    such as those of one training, are drawn together for the intervals; without `model`, rows of
    the same size are drawn together.
    draws: number of refits for the intervals. huber: delta of the Huber loss, by default that of
    Hoffmann et al.; an infinite delta gives least squares.

    If the data do not need a term, its fitted coefficient is close to 0. Raises `UserError` for a
    missing column or a bad value, for fewer than three sizes, three lengths or `LEAST_RUNS` runs,
    and for an unreliable fit."""
    points = annealed_points(with_tokens(frame), ("params", "tokens", "loss"))
    sizes, lengths = (points[name].nunique() for name in ("size", "tokens"))
    if sizes < 3 or lengths < 3:
        raise UserError(
            f"{sizes} model sizes and {lengths} amounts of data: the parametric law needs at least "
            "three of each"
        )
    if len(points) < LEAST_RUNS:
        raise UserError(
            f"{len(points)} runs: the parametric law has five parameters and needs {LEAST_RUNS}"
        )
    law = chinchilla(points["params"], points["tokens"])
    models = pd.factorize(points.get("model", points["size"]).fillna(points["size"]))[0]
    problem = Problem(law, points["loss"].to_numpy(dtype=float), huber)
    fitted = fit(problem, grid_of_starts(law, GRID))
    _check_identified(fitted)
    return ChinchillaFit(fitted, bootstrap(fitted, models, draws), points)


def _check_identified(fitted: Fit) -> None:
    """Raise `UserError` if halving or doubling an exponent does not worsen the fit significantly
    (F-test), as happens if all sizes but one are nearly equal, or if noise dominates."""
    problem, freedom = fitted.problem, len(fitted.problem.observed) - len(fitted.theta)
    allowed = 1 + float(special.fdtri(1, freedom, CONFIDENCE)) / freedom
    for place, name, column in ((3, "alpha", "size"), (4, "beta", "data")):
        for factor in (0.5, 2.0):
            held = replace(problem, model=problem.model.held({name: factor * fitted[name]}))
            start = held.model.improved(np.delete(fitted.theta, place), problem.observed)
            if held.value(refit(held, start)) <= allowed * fitted.objective + 1e-15:
                raise UserError(
                    f"unidentified: {name} = {factor * fitted[name]:.3g} fits these runs as well "
                    f"as {fitted[name]:.3g} (F-test, 5%), so that they do not say how loss falls "
                    f"with {column}; give runs further apart in it, or more of them"
                )


def _copied(out: pd.DataFrame, rest: pd.DataFrame, size: float) -> float:
    by_size = np.abs(np.log(rest["params"] / size))
    near = rest[by_size <= by_size.min() + 1e-9]
    nearest = [int(np.argmin(np.abs(np.log(near["tokens"] / tokens)))) for tokens in out["tokens"]]
    return rmse(near["loss"].to_numpy()[nearest] - out["loss"].to_numpy())


def _printed(thetas: Floats) -> pd.DataFrame:
    """Convert parameters from the form in which they are fitted, shape (n, 5), into a table under
    their printed names."""
    with np.errstate(over="ignore"):
        return pd.DataFrame(np.hstack([np.exp(thetas[:, :3]), thetas[:, 3:]]), columns=NAMES)


def chinchilla(params: ArrayLike, tokens: ArrayLike) -> Formula:
    """Return the formula E + A N^−α + B D^−β for runs of these params and tokens; its parameters
    are log_E, log_A, log_B, alpha and beta."""
    columns = {"size": np.log(np.asarray(params, dtype=float))}
    columns["data"] = np.log(np.asarray(tokens, dtype=float))
    coefficients = ("log_E", "log_A", "log_B")
    return Formula(
        (*coefficients, "alpha", "beta"),
        lambda p, c: sum(Base(**p).terms(c["size"], c["data"])),
        columns,
        coefficients,
    )


@dataclass(frozen=True)
class Base:
    """A Chinchilla law with given parameters; if these are arrays, many laws at once."""

    log_E: Any  # noqa: N815
    log_A: Any  # noqa: N815
    log_B: Any  # noqa: N815
    alpha: Any
    beta: Any

    def loss(self, params: Any, tokens: Any) -> Any:
        """Return the loss in nats per token. Arguments are numbers, or arrays that fit together."""
        return sum(self.terms(np.log(params), np.log(tokens)))

    def terms(self, size: Any, data: Any) -> tuple[Any, Any, Any]:
        """Return the three terms E, A N^−α and B D^−β (nats per token) at log N and log D."""
        of_size = np.exp(self.log_A - self.alpha * size)
        return np.exp(self.log_E), of_size, np.exp(self.log_B - self.beta * data)
