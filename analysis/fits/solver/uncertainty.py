"""How well a fit is known: refits to models drawn anew."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from tst_study.analysis.checks import Floats
from tst_study.analysis.fits.solver.solve import (
    GRADIENT_TOLERANCE,
    Fit,
    gradient_measure,
    refit,
    undetermined,
)
from tst_study.statistics import CONFIDENCE, critical_t

LEAST_CLUSTERS = 6
"""Of fewer, draws with replacement tell too little for an interval."""


@dataclass(frozen=True)
class Bootstrap:
    """Refits to resampled models. Draws that did not converge are left out."""

    draws: pd.DataFrame
    """One row per refit that converged, one column per parameter; NaN where the draw's rows do not
    determine it (`undetermined`)."""
    clusters: int
    """How many there are to draw from."""

    def interval(self, values: Floats) -> tuple[float | None, float | None]:
        """95% percentile interval of a number computed from each draw, as wide as t with one degree
        of freedom less than there are clusters asks (Hesterberg 2015, section 5.3). None on both
        sides where there are too few clusters, or where more draws than that leave the number
        undetermined."""
        known = values[np.isfinite(values)]
        if self.clusters < LEAST_CLUSTERS or len(known) < max(1.0, CONFIDENCE * len(values)):
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
            open_ = undetermined(again.residuals(theta), again.jacobian(theta))
            kept.append(np.where(open_, np.nan, theta))
    columns = list(problem.model.parameters)
    table = pd.DataFrame(np.array(kept).reshape(len(kept), len(columns)), columns=columns)
    return Bootstrap(
        draws=table,
        clusters=members,
    )
