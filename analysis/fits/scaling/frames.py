"""Fits of a DataFrame of one's own runs, wherever they were trained: fit, look, predict.

found = analysis.fit_chinchilla(frame)     # columns params, tokens (or flops), loss
print(found)                               # a table with intervals
found.E, found.alpha, found.predict(other)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.answer import table_lines
from analysis.checks import Floats, needs_columns, positive
from analysis.fits.scaling.chinchilla import allocation, annealed_points, parametric, points_of
from analysis.fits.scaling.power_law import fit_power_law as fit_power_law_of
from analysis.fits.scaling.scaling_laws import chinchilla, power_law
from analysis.fits.solver import Bootstrap, Fit, Formula, bootstrap
from analysis.fits.solver.uncertainty import LEAST_CLUSTERS
from analysis.tables.eligible import eligible
from tst_study.errors import UserError


@dataclass(frozen=True)
class FrameFit:
    """A fitted law by its printed names; losses in nats per token."""

    found: Fit
    drawn: Bootstrap
    """Refits to redrawn models, which the intervals come from."""
    names: Mapping[str, str]
    """Printed name of each fitted parameter; a `log_…` is printed as its exponential."""
    model: Callable[[pd.DataFrame], Formula]
    """The law on other rows."""

    def __getattr__(self, name: str) -> float:
        """A parameter by its printed name."""
        for parameter, printed in self.__dict__.get("names", {}).items():
            if printed == name:
                return float(_printed(parameter, np.array(self.found[parameter])))
        raise AttributeError(name)

    def summary(self) -> pd.DataFrame:
        """parameter, value, low, high (95%), note: what is not determined has no interval."""
        rows = []
        for parameter, name in self.names.items():
            draws = _printed(parameter, self.drawn.draws[parameter].to_numpy())
            low, high = self.drawn.interval(draws)
            value = float(_printed(parameter, np.array(self.found[parameter])))
            note = ""
            if self.drawn.clusters < LEAST_CLUSTERS:
                note = f"no interval: {self.drawn.clusters} {self.drawn.resampled} are too few"
            elif low is None or parameter in self.found.identified.undetermined:
                low, high = None, None
                note = f"{name} not determined" + (", at its bound of 0" if value < 1e-3 else "")
            rows.append({"parameter": name, "value": value, "low": low, "high": high, "note": note})
        return pd.DataFrame(rows)

    def predict(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The frame's rows with loss, low and high: of the law, not of a single run."""
        model = self.model(frame)
        draws = model.loss(self.drawn.draws.to_numpy())
        ends = [self.drawn.interval(draws[:, row]) for row in range(len(frame))]
        low, high = np.array(ends, dtype=float).T
        return frame.assign(loss=model.loss(self.found.theta), low=low, high=high)

    def __str__(self) -> str:
        kept = self.found.identified
        return "\n".join(
            [
                *table_lines(self.summary()),
                f"{len(self.found.problem.observed)} runs; rank {kept.rank}, conditioning "
                f"{kept.condition:.3g}; {self.found.agreed} of {self.found.started} starts agree; "
                f"intervals: {self.drawn.clusters} {self.drawn.resampled} drawn with replacement",
            ]
        )


class ChinchillaFit(FrameFit):
    """L = E + A N^−α + B D^−β: attributes E, A, B, alpha, beta."""

    def allocation(self, flops: Floats | list[float]) -> pd.DataFrame:
        """Compute-optimal params, tokens and loss at FLOPs budgets, with intervals."""
        return allocation(self.found, np.asarray(flops, dtype=float), self.drawn)


def fit_chinchilla(frame: pd.DataFrame, draws: int = 1000) -> ChinchillaFit:
    """E + A N^−α + B D^−β by Huber loss on log L (Hoffmann et al. 2022, approach 3).

    A run table, whose eligible baselines count, or columns loss (nats per token, final, annealed),
    params, and tokens or flops (C = 6 N D). If
    there: annealed (rows where it is false are left out), model (rows of one training share it and
    are drawn together; by default all rows of one size). Raises `UserError` for a missing column or
    a bad value, and `NotConvergedError` for a fit that may not be believed.
    """
    points = with_tokens(of_runs(frame))
    found = parametric(points)
    names = {"log_E": "E", "log_A": "A", "log_B": "B", "alpha": "alpha", "beta": "beta"}
    return ChinchillaFit(
        found,
        bootstrap(found, draws),
        names,
        lambda rows: chinchilla(*(with_tokens(rows, ())[name] for name in ("params", "tokens"))),
    )


def fit_power_law(frame: pd.DataFrame, along: str = "flops", draws: int = 1000) -> FrameFit:
    """E + A (x / unit)^−α of one column (flops, tokens, steps), with unit the geometric mean of x:
    attributes E, A, alpha.

    Columns: `along` and loss (nats per token, final), and, if there, annealed and model as in
    `fit_chinchilla` (without model every row is one of its own). Needs four different x.
    """
    frame = of_runs(frame)
    positive(frame, (along, "loss"), "frame")
    points = annealed_points(frame, (along, "loss"))
    law = fit_power_law_of(
        points[along].to_numpy(dtype=float),
        points["loss"].to_numpy(dtype=float),
        pd.factorize(points["model"])[0] if "model" in points else None,
    )
    names = {"log_E": "E", "log_A": "A", "alpha": "alpha"}

    def model(rows: pd.DataFrame) -> Formula:
        positive(rows, (along,), "frame")
        return power_law(rows[along].to_numpy(dtype=float) / law.unit)

    return FrameFit(law.fit, bootstrap(law.fit, draws), names, model)


def of_runs(frame: pd.DataFrame) -> pd.DataFrame:
    """The baselines among the eligible runs of a run table (`source.load`, an archive's `runs`),
    in a law's columns; any other frame as it is."""
    if "loss" in frame or "nats_per_token" not in frame:
        return frame
    kept, _ = eligible(frame)
    return points_of(kept[kept["method"] == "baseline"])


def with_tokens(frame: pd.DataFrame, others: tuple[str, ...] = ("loss",)) -> pd.DataFrame:
    """The frame with tokens and flops, either from the other by C = 6 N D."""
    if "tokens" not in frame and "flops" not in frame:
        raise UserError("frame: column 'tokens' is missing, and 'flops' to compute it from")
    known = "tokens" if "tokens" in frame else "flops"
    positive(frame, ("params", known, *others), "frame")
    if "flops" not in frame:
        return frame.assign(flops=6.0 * frame["params"] * frame["tokens"])
    if "tokens" not in frame:
        return frame.assign(tokens=frame["flops"] / 6.0 / frame["params"])
    needs_columns(frame, ("flops",), "frame")
    return frame


def _printed(parameter: str, values: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return np.exp(values) if parameter.startswith("log_") else values
