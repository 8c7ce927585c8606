"""A law of superposition: the gain over the baseline as a function of N, D, s and r.

For a model of N parameters after D latent tokens, s tokens a bag over a share r of the steps, and
ŝ = exp(entropy of the target weights), which is s under uniform weights:

    gain = D^−c { w (1 − exp(−(ŝ − 1) / a)) s^(d log D − b) r / (r + ρ s^−m)
                  − k N^κ log ŝ ((1 − r)^−q − 1) / q }

Both terms are in nats per token. The first one, the *worth*, is what superposed steps bring. It
saturates after a few targets, is blurred by large bags (less so in longer runs), and most of it
comes with the first superposed steps. The second one, the *debt*, is what too short a recovery
leaves unpaid; it is proportional to the entropy of the targets. Both shrink with the same power of
the length, and vanish at s = 1 and at r = 0. N and D are relative to the geometric means of the
fitted runs; other units would only change w, k and b.

The law does not predict the loss of a baseline. Each baseline, of one size, length and seed, has a
parameter of its own, its *level*: its fitted loss in nats per token. The runs that are compared
with this baseline share the level.

`tst-study analyse law` fits the law to runs, `fit_superposition_law` to a table, and `tst-study
advise` uses the fit to the paper's Tables 4–7 (`published_law`).
"""

import functools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tst_study.analysis import published
from tst_study.analysis.checks import Floats
from tst_study.analysis.fits.law.rows import published_rows, rows_of_frame, settings
from tst_study.analysis.fits.solver.problem import Columns, Formula, Problem, derivative
from tst_study.analysis.fits.solver.solve import Fit
from tst_study.analysis.fits.solver.uncertainty import Noise, fit_shared, linearised
from tst_study.errors import UserError
from tst_study.superposition.weighting import Weighting

DATA_EXPONENT = 0.366
"""β of Chinchilla's law (Besiroglu et al. 2024, arXiv 2404.10102; a test fits it again). It takes
the place of c if all runs have one length."""
BOX: dict[str, tuple[float, float]] = {
    "log_width": (-0.7, 2.1),
    "blur": (0.0, 0.5),
    "drift": (-0.1, 0.1),
    "log_onset": (-4.6, -0.7),
    "onset_bag": (0.0, 1.0),
    "debt_recovery": (0.2, 1.5),
    "size": (-0.3, 0.3),
    "length": (0.0, 0.8),
}
"""Ranges of log a, b, d, log ρ, m, q, κ and c, in this order, from which the random starts are
drawn. A fit may end outside them."""
LINEAR = ("worth", "debt")
"""The parameters w and k, in nats per token. Linear least squares gives their values at every
start."""
_NEAR = 0.02
"""How far a size or length may lie outside the fitted range, relative to its end, and still count
as inside."""
MOST_RATIO = 0.5
"""The largest r for which the law is used: beyond it the debt is large, and so are its errors."""
_STARTS, _REFINED = 24, 6
"""Number of random starts, and number of those that are followed to the end."""


def gain(p: Mapping[str, Any], c: Columns) -> Any:
    """Return the gain in nats per token, by the formula of the law.

    p: parameters by the names in `BOX` and `LINEAR`. c: the columns n and l (logs of N and D,
    relative to their units), s, t (ŝ) and r."""
    log_s = np.log(c["s"])
    onset = np.exp(p["log_onset"] - p["onset_bag"] * log_s)
    blurred = np.exp((p["drift"] * c["l"] - p["blur"]) * log_s)
    kept = (1 - np.exp((1 - c["t"]) * np.exp(-p["log_width"]))) * blurred
    grown = np.log(c["t"]) * np.exp(p["size"] * c["n"])
    unpaid = ((1 - c["r"]) ** -p["debt_recovery"] - 1) / p["debt_recovery"]
    whole = p["worth"] * kept * c["r"] / (c["r"] + onset) - p["debt"] * grown * unpaid
    return whole * np.exp(-p["length"] * c["l"])


@dataclass(frozen=True)
class Law:
    """A fitted law. Gains are in nats per token, lengths in latent tokens."""

    fit: Fit
    values: Mapping[str, float]
    """Values of all parameters, the held ones included."""
    held: Mapping[str, str]
    """Parameters that were held because these runs do not determine them, with the reason."""
    noise: Noise
    """The two parts of the noise: one that is common to all runs of one s, weighting and level,
    because these are taken to be branches of one shared prefix run; and one that each run has by
    itself."""
    units: tuple[float, float]
    """The units of N and D, a number of parameters and a number of latent tokens: N and D are
    divided by these before the formula is applied."""
    rows: pd.DataFrame
    """The fitted rows, with the columns predicted (the loss by the fit) and error (predicted −
    observed), nats per token."""

    def gain(
        self,
        params: float,
        tokens: float,
        bag_size: int,
        step_ratio: float,
        weighting: Weighting = "uniform",
        *,
        extrapolate: bool = False,
    ) -> float:
        """Return the baseline's loss minus the loss after superposition, at equal steps; 0 at s = 1
        or r = 0.

        Raises `UserError` for an s below 1 or an r outside 0 ≤ r < 1 and, unless `extrapolate` is
        true, for a size or a length outside the fitted ones, an s above the largest fitted, or an r
        above `MOST_RATIO`; `ValueError` for an unknown weighting.
        """
        if not (bag_size >= 1 and 0 <= step_ratio < 1):
            raise UserError(f"s = {bag_size}, r = {step_ratio}: the law needs s ≥ 1 and 0 ≤ r < 1")
        if not extrapolate:
            self.refuse_outside(params, tokens)
            most = self.rows["bag_size"].max()
            if bag_size > most or step_ratio > MOST_RATIO:
                raise UserError(
                    f"s = {bag_size}, r = {step_ratio:g}: the law is used up to the largest fitted "
                    f"s, {most:.0f}, and r = {MOST_RATIO}; extrapolate=True asks it all the same"
                )
        return float(self.of_rows(settings(params, tokens, bag_size, step_ratio, weighting))[0])

    def refuse_outside(self, params: float, tokens: float) -> None:
        """Raise `UserError` if a size (parameters) or a length (latent tokens) lies more than 2%
        outside the fitted range."""
        rows = self.rows[self.rows["bag_size"] > 1]
        for name, value, unit in (("params", params, "parameters"), ("tokens", tokens, "tokens")):
            low, high = float(rows[name].min()), float(rows[name].max())
            if not low * (1 - _NEAR) <= value <= high * (1 + _NEAR):
                fitted = f"{low:.3g}" if high <= low * (1 + _NEAR) else f"{low:.3g} to {high:.3g}"
                raise UserError(
                    f"{value:.3g} {unit}: outside what the law was fitted to ({fitted}); "
                    "`tst-study advise` says what is known there"
                )

    def of_rows(self, rows: pd.DataFrame) -> Floats:
        """Return the gain of each row, shape (n,). The rows have the columns params, tokens,
        bag_size, step_ratio and targets."""
        gains: Floats = gain(self.values, columns(rows, self.units))
        return gains

    def errors(self, rows: pd.DataFrame, less: pd.DataFrame | None = None) -> Floats:
        """Return half the width of the 95% t-interval of each row's gain, shape (n,), or of its
        difference from the gain of `less` (n rows or one).

        The interval comes from the linearised fit, which counts misfit of the form as noise. It
        does not allow for the choice among forms.
        """
        slopes = self._slopes(rows) - (0.0 if less is None else self._slopes(less))
        root, critical = linearised(self.fit)
        half: Floats = critical * np.linalg.norm(slopes @ root, axis=1)
        return half

    def _slopes(self, rows: pd.DataFrame) -> Floats:
        """Return the derivatives of the rows' gains with respect to the fitted parameters, shape
        (n, p)."""
        names, known = self.fit.problem.model.parameters, columns(rows, self.units)

        def gains(theta: NDArray[Any]) -> Any:
            free = {name: theta[..., i, None] for i, name in enumerate(names)}
            return gain({**self.values, **free}, known)

        return derivative(gains, self.fit.theta)


def columns(rows: pd.DataFrame, units: tuple[float, float]) -> dict[str, Any]:
    """Return the columns that `gain` takes, from rows with params, tokens, bag_size, step_ratio and
    targets."""
    return {
        "n": np.log(rows["params"].to_numpy(dtype=float) / units[0]),
        "l": np.log(rows["tokens"].to_numpy(dtype=float) / units[1]),
        "s": rows["bag_size"].to_numpy(dtype=float),
        "t": rows["targets"].to_numpy(dtype=float),
        "r": rows["step_ratio"].to_numpy(dtype=float),
    }


def fit_law(rows: pd.DataFrame, known: Mapping[str, Any] | None = None) -> Law:
    """Fit rows (see `rows.py`) by generalised least squares on the loss, with an error for each
    prefix and an error for each run. `known` is the `as_data` of an earlier fit to the same rows;
    with it nothing is searched again.

    Parameters that the superposed rows cannot determine are held, and `held` says why: κ at 0 if
    they have one size, c at `DATA_EXPONENT` if one length, and d at 0 if fewer than two s were
    trained at several lengths. Raises `UserError` if the fit fails, as `fit` in `solver/solve.py`
    does: for instance where the rows do not determine the other parameters either.
    """
    size, length = (float(np.exp(np.log(rows[name]).mean())) for name in ("params", "tokens"))
    held: dict[str, tuple[float, str]] = {}
    superposed = rows[rows["bag_size"] > 1]  # a baseline alone has no gain
    if superposed["params"].nunique() == 1:
        held["size"] = (0.0, "one model size")
    lengths = superposed.groupby("bag_size")["tokens"].nunique()
    if (lengths > 1).sum() < 2:
        held["drift"] = (0.0, "fewer than two bag sizes at several lengths")
    if superposed["tokens"].nunique() == 1:
        held["length"] = (DATA_EXPONENT, f"one length: {DATA_EXPONENT}, Chinchilla's β")
        held["drift"] = (0.0, "one length")
    codes, levels = pd.factorize(rows["level"])
    model = Formula(
        (*levels, *LINEAR, *BOX),
        lambda p, c: (
            np.concatenate([p[level] for level in levels], axis=-1)[..., c["level"]] - gain(p, c)
        ),
        {**columns(rows, (size, length)), "level": codes},
        (*levels, *LINEAR),
    )
    values = {name: value for name, (value, _) in held.items()}
    model = model.held(values)
    observed, prefixes = rows["loss"].to_numpy(dtype=float), pd.factorize(rows["prefix"])[0]
    problem = Problem(model, observed, on="loss")
    if known:
        noise = Noise(**known["noise"])
        problem = replace(problem, groups=prefixes, ratio=noise.ratio)
        fitted = Fit(problem, np.array(known["theta"]), known["started"], known["agreed"])
    else:
        random = np.random.default_rng(0)
        ends = [BOX.get(name, (0.0, 1.0)) for name in model.parameters]
        starts = np.array([[random.uniform(*end) for end in ends] for _ in range(_STARTS)])
        fitted, noise = fit_shared(problem, prefixes, starts, _REFINED)
    predicted = model.loss(fitted.theta)
    return Law(
        fitted,
        {**values, **fitted.values},
        {name: why for name, (_, why) in held.items()},
        noise,
        (size, length),
        rows.assign(predicted=predicted, error=predicted - observed),
    )


def fit_superposition_law(frame: pd.DataFrame) -> Law:
    """Fit the law to your own grid over s and r.

    frame: a row for each run, with the columns params, tokens (latent), bag_size (1 for the
    baseline), step_ratio, loss (nats per token, final, annealed) and, if you have them, weighting
    (`uniform` by default) and seed (0 by default). Every superposed run needs a baseline with the
    same params, tokens and seed. Raises `UserError` for a missing column, a bad number or a missing
    baseline, and if the fit fails.
    """
    return fit_law(rows_of_frame(frame))


def as_data(law: Law) -> dict[str, Any]:
    """Return the parts of a fit that take long to find, as JSON values; `fit_law` computes the rest
    from the rows."""
    starts = {"started": law.fit.started, "agreed": law.fit.agreed}
    return {**starts, "noise": asdict(law.noise), "theta": law.fit.theta.tolist()}


@functools.cache
def published_law() -> Law:
    """Return the law of Tables 4–7, from the fit that `python -m benchmarks.advice` wrote."""
    return fit_law(published_rows(), published.evidence()["law"])
