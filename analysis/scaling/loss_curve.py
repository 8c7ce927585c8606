"""Loss along a run as a function of its learning rates, so that lengths share what they know.

The multi-power law of Luo et al. 2025 (arXiv 2503.12811), for runs of one model at one peak rate:

    L = L0 + A S^−α − B Σ_k (η_{k−1} − η_k) G(η_k^−γ S_k),    G(x) = 1 − (1 + C x)^−β

S is the sum of all learning rates so far, S_k that since step k. α says how the loss falls while
the rate stands still, B what its decay brings. β, γ and C are held at what the paper found alike
for 25, 100 and 400 million parameters (0.6, 0.65, 2): runs of one shape of schedule hardly tell
them. A point before the decay then informs the loss after it, at this length and at others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.checks import Floats
from analysis.fitting import Fit, dual
from analysis.fitting.formula import Columns, Formula
from analysis.fitting.shared_errors import Noise, Spread, fit_shared
from tst_study.errors import UserError

BETA, GAMMA, STEEPNESS = 0.6, 0.65, 2.0
"""β, γ, C."""
_NAMES = ("floor", "reducible", "drop", "exponent")
"""L0, A (at the unit of S), B, α."""
_STARTS = (0.1, 0.2, 0.35, 0.5, 0.7, 1.0)
_SAME_RATE = 0.01
"""Relative difference of peak rates within which runs are of one curve."""


@dataclass(frozen=True)
class Schedule:
    """Learning rates of a run at the steps that it logged, from step 0."""

    steps: Floats
    rates: Floats

    @classmethod
    def of(cls, log: pd.DataFrame) -> Schedule:
        """From rows with step and learning_rate, in any order."""
        rows = log.dropna(subset=["learning_rate"]).drop_duplicates("step").sort_values("step")
        steps, rates = (rows[name].to_numpy(dtype=float) for name in ("step", "learning_rate"))
        if len(steps) < 2 or not (rates >= 0).all() or rates.max() <= 0:
            raise UserError("a run needs its learning_rate, 0 or more, at two or more steps")
        return cls(np.concatenate([[0.0], steps]), np.concatenate([[0.0], rates]))

    @property
    def warm(self) -> float:
        """Step at which the rate first stands at its peak."""
        return float(self.steps[int(np.argmax(self.rates >= self.rates.max() * (1 - _SAME_RATE)))])

    def stretched(self, steps: float) -> Schedule:
        """The same shape over another number of steps."""
        return Schedule(self.steps * steps / self.steps[-1], self.rates)

    def areas(self, at: Floats) -> tuple[Floats, Floats]:
        """S and Σ_k (η_{k−1} − η_k) G(η_k^−γ S_k) after the steps `at`, shape (n,) each."""
        middle = (self.rates[1:] + self.rates[:-1]) / 2
        sums = np.concatenate([[0.0], np.cumsum(np.diff(self.steps) * middle)])
        area = np.interp(at, self.steps, sums)
        fallen = np.flatnonzero((np.diff(self.rates) < 0) & (self.steps[1:] > self.warm))
        half = (self.steps[fallen] + self.steps[fallen + 1]) / 2
        since = np.clip(area[:, None] - np.interp(half, self.steps, sums), 0.0, None)
        grown = 1 - (1 + STEEPNESS * middle[fallen] ** -GAMMA * since) ** -BETA
        fall = (self.rates[fallen] - self.rates[fallen + 1]) * grown
        annealed: Floats = fall.sum(axis=1)
        return area, annealed


def _loss(p: Mapping[str, Any], c: Columns) -> Any:
    power = np.exp(-p["exponent"] * c["log_area"])
    return p["floor"] + p["reducible"] * power - p["drop"] * c["annealed"]


@dataclass(frozen=True)
class LossCurve:
    """A fitted curve of one model at one peak rate; losses in nats per token."""

    fit: Fit
    noise: Noise
    """`shared`: by all points of a run (its seed); `own`: of a point."""
    unit: float
    """Area at which A is what it is."""
    shape: Schedule
    """Of the longest run."""
    points: pd.DataFrame
    """run, step, loss of what was fitted, with predicted."""

    def predict(
        self, steps: Floats | list[float], schedule: Schedule | None = None
    ) -> pd.DataFrame:
        """Loss at the end of runs of so many steps whose schedule has the shape of the longest
        fitted one; or after `steps` steps of a given `schedule`.

        Columns: steps, loss (mean over seeds), low, high (95% t-interval by the linearised fit).
        """
        at = np.asarray(steps, dtype=float)
        if not (at > 0).all():
            raise UserError(f"steps {at[~(at > 0)][0]:g}: must be positive")
        if schedule is None:
            ends = [self.shape.stretched(float(end)).areas(np.array([end])) for end in at]
            areas = [np.concatenate(part) for part in zip(*ends, strict=True)]
        else:
            areas = list(schedule.areas(at))
        columns = {"log_area": np.log(areas[0] / self.unit), "annealed": areas[1]}
        value = _loss(dual.parameters(_NAMES, self.fit.theta), columns)
        loss, half = value.value, Spread.of(self.fit).half(value.slope.T)
        return pd.DataFrame({"steps": at, "loss": loss, "low": loss - half, "high": loss + half})


def fit_loss_curve(log: pd.DataFrame) -> LossCurve:
    """Fit to logs of runs: run, step, learning_rate, loss (NaN where it was not measured).

    Losses are next-token losses on one held-out text (or one smoothed training loss), of one model
    and batch; runs may differ in length and seed, and should share the peak rate. Points before a
    run's rate stands at its peak are not used. Raises `UserError` where the runs have several peak
    rates, or nothing was measured after a decay, and `NotConvergedError` for a fit that fails.
    """
    if log.empty:
        raise UserError("log: no row; a curve needs the logged steps of finished runs")
    parts, schedules = [], {}
    for run, rows in log.groupby("run", sort=False, observed=True):
        schedule = schedules[run] = Schedule.of(rows)
        own = rows.dropna(subset=["loss"])
        own = own[own["step"] >= schedule.warm]
        area, annealed = schedule.areas(own["step"].to_numpy(dtype=float))
        parts.append(own.assign(area=area, annealed=annealed)[[*_POINT, "area", "annealed"]])
    peaks = {float(schedule.rates.max()) for schedule in schedules.values()}
    if max(peaks) > min(peaks) * (1 + _SAME_RATE):
        said = ", ".join(f"{rate:g}" for rate in sorted(peaks))
        raise UserError(f"learning_rate: peaks of {said}; a curve needs runs of one peak rate")
    points = pd.concat(parts, ignore_index=True)
    if not (points["annealed"] > 0).any() or (points["annealed"] > 0).all():
        raise UserError(
            "loss: needs values both before and after the learning rate decays, in any of the runs"
        )
    unit = float(np.exp(np.log(points["area"]).mean()))
    columns = {
        "log_area": np.log(points["area"].to_numpy() / unit),
        "annealed": points["annealed"].to_numpy(),
    }
    model = Formula(_NAMES, _loss, columns, linear=_NAMES[:3])
    starts = np.array([[0.0, 0.0, 0.0, exponent] for exponent in _STARTS])
    observed = points["loss"].to_numpy(dtype=float)
    found, noise = fit_shared(model, observed, list(points["run"].astype(str)), starts)
    longest = max(schedules.values(), key=lambda schedule: float(schedule.steps[-1]))
    points = points[list(_POINT)].assign(predicted=np.exp(model.log_loss(found.theta)[0]))
    return LossCurve(found, noise, unit, longest, points)


_POINT = ("run", "step", "loss")
