"""Loss against compute: E + A C^−α, with what of it the data identify."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.checks import Floats, numbers
from analysis.fits.scaling.scaling_laws import power_law
from analysis.fits.solver import Fit, Huber, Problem, fit, grid_of_starts, profile
from tst_study.errors import UserError


@dataclass(frozen=True)
class PowerLaw:
    """A fitted E + A (C / unit)^−α; C in whatever `compute` was given in."""

    fit: Fit
    unit: float
    """Geometric mean of the computes fitted: A is the reducible loss there."""

    @property
    def floor(self) -> float:
        """E, nats."""
        return float(np.exp(self.fit["log_E"]))

    @property
    def exponent(self) -> float:
        return self.fit["alpha"]

    def loss(self, compute: Floats | float) -> Floats:
        """Loss at computes, shape as given."""
        scaled = np.asarray(compute, dtype=float) / self.unit
        value: Floats = self.floor + np.exp(self.fit["log_A"]) * scaled**-self.exponent
        return value

    def floor_interval(self) -> tuple[float | None, float | None]:
        """95% profile interval of E, nats; None on a side that the data do not bound (a floor of
        zero is as good as any)."""
        lowest = float(self.fit.problem.observed.min())
        values = np.log(np.linspace(0.02 * lowest, 0.999 * lowest, 60))
        ends = profile(self.fit, "log_E", list(values)).interval()
        low, high = (None if end is None else float(np.exp(end)) for end in ends)
        return low, high


def fit_power_law(
    compute: Floats, loss: Floats, models: NDArray[np.intp] | None = None
) -> PowerLaw:
    """Fit to final losses of annealed runs (nats), shapes (n,); `models`: labels of what a
    bootstrap draws together.

    Raises `UserError` for fewer than four different computes (three identify the law exactly and
    say nothing of its error) and for a value that is not a finite number above 0.
    """
    x, y = numbers(compute, "compute", above=0), numbers(loss, "loss", above=0)
    if len(x) != len(y):
        raise UserError(f"{len(x)} amounts of compute, {len(y)} losses: one of each per run")
    different = len(np.unique(np.round(np.log(x), 3)))
    if different < 4:
        raise UserError(
            f"{different} different amounts of compute: a power law with a floor needs at least "
            "four; run more lengths or sizes"
        )
    unit = float(np.exp(np.log(x).mean()))
    model = power_law(x / unit)
    lowest = float(y.min())
    starts = grid_of_starts(
        model,
        {
            "log_E": [float(np.log(share * lowest)) for share in (0.3, 0.6, 0.9)],
            "alpha": (0.05, 0.15, 0.3, 0.6),
        },
    )
    return PowerLaw(fit(Problem(model, y, Huber(), models=models), starts), unit)
