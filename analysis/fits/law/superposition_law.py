"""A law of superposition: the gain over the baseline as a function of N, D, s and r.

For a model of N parameters after D latent tokens, s tokens a bag over a share r of the steps, and
ŝ = exp(entropy of the target weights), which is s under uniform weights:

    gain = D^−c { w (1 − exp(−(ŝ − 1) / a)) s^(d log D − b) r / (r + ρ s^−m)
                  − k N^κ log ŝ ((1 − r)^−q − 1) / q }

All terms are nats per token. The first one, the *worth*, is what superposed steps bring: it
saturates after a few targets, is blurred by large bags (less so in longer runs), and comes with the
first few per cent of the steps. The second one, the *debt*, is what too short a recovery leaves
unpaid: it is proportional to the entropy of the targets. Both shrink with one power of the length
and vanish at s = 1 and at r = 0. No unit is built in: N and D are relative to the geometric means
of the fitted runs, and other units only change w, k and b.

The baseline's loss is not part of the law: every baseline (of a size, a length and a seed) has a
*level* of its own, its fitted loss in nats per token, which the runs compared with it share.
"""

from __future__ import annotations

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
"""β of Chinchilla (Besiroglu et al. 2024, arXiv 2404.10102; refitted in the tests): in place of c
where there is one length only."""
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
"""Ranges from which the random starts are drawn, of log a, b, d, log ρ, m, q, κ and c; a fit may
leave them."""
LINEAR = ("worth", "debt")
"""w and k, in nats per token: at every start, linear least squares gives their values."""
_NEAR = 0.02
"""Relative distance from a fitted size or length that still counts as inside."""
_STARTS, _REFINED = 24, 6
"""Number of random starts, and of those that are followed to the end."""


def gain(p: Mapping[str, Any], c: Columns) -> Any:
    """Gain in nats per token; columns n and l (logs of N and D in their units), s, t (ŝ) and r."""
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
    """Parameters that these runs do not determine and that were held, with the reason."""
    noise: Noise
    """Noise that all r at one s of a baseline share (they fork from one shared prefix run), and the
    noise of a single run."""
    units: tuple[float, float]
    """The units of N and D, a number of parameters and one of latent tokens: w, k and b hold for N
    and D divided by these."""
    rows: pd.DataFrame
    """The fitted rows, with predicted and error (predicted − observed)."""

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

        Raises `UserError` for numbers that are no setting, and for a size or a length outside the
        fitted ones unless `extrapolate`.
        """
        if not (bag_size >= 1 and 0 <= step_ratio < 1):
            raise UserError(f"s = {bag_size}, r = {step_ratio}: the law needs s ≥ 1 and 0 ≤ r < 1")
        if not extrapolate and (far := self.outside(params, tokens)):
            raise UserError(f"{far}; `tst-study advise` says what is known there")
        return float(self.of_rows(settings(params, tokens, bag_size, step_ratio, weighting))[0])

    def outside(self, params: float, tokens: float) -> str:
        """Say which of a size (parameters) and a length (latent tokens) lies outside the fitted
        ones; empty where neither does."""
        for name, value, unit in (("params", params, "parameters"), ("tokens", tokens, "tokens")):
            low, high = float(self.rows[name].min()), float(self.rows[name].max())
            if not low * (1 - _NEAR) <= value <= high * (1 + _NEAR):
                fitted = f"{low:.3g}" if high <= low * (1 + _NEAR) else f"{low:.3g} to {high:.3g}"
                return f"{value:.3g} {unit}: outside what the law was fitted to ({fitted})"
        return ""

    def of_rows(self, rows: pd.DataFrame) -> Floats:
        """Return gains of rows with params, tokens, bag_size, step_ratio and targets, shape
        (n,)."""
        gains: Floats = gain(self.values, columns(rows, self.units))
        return gains

    def errors(self, rows: pd.DataFrame, less: pd.DataFrame | None = None) -> Floats:
        """Return half of the 95% t-interval of each row's gain, shape (n,), or of its difference
        from the gain of `less` (n rows or one).

        It comes from the linearised fit, in which misfit of the form counts as noise. That another
        form might have been chosen is not allowed for.
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
    """Return the columns of `gain` for rows with params, tokens, bag_size, step_ratio, targets."""
    return {
        "n": np.log(rows["params"].to_numpy(dtype=float) / units[0]),
        "l": np.log(rows["tokens"].to_numpy(dtype=float) / units[1]),
        "s": rows["bag_size"].to_numpy(dtype=float),
        "t": rows["targets"].to_numpy(dtype=float),
        "r": rows["step_ratio"].to_numpy(dtype=float),
    }


def fit_law(rows: pd.DataFrame, known: Mapping[str, Any] | None = None) -> Law:
    """Fit rows (see `rows.py`) by generalised least squares on the loss, with one error for each
    shared prefix run and one for each run. With `known`, the `as_data` of an earlier fit to the
    same rows, nothing is searched again.

    One size says nothing about κ, and one length nothing about c and d: they are held at 0, at
    `DATA_EXPONENT` and at 0, and `held` says so; so is d where only one s was trained at several
    lengths. Raises `UserError` where the other parameters are not determined either.
    """
    size, length = (float(np.exp(np.log(rows[name]).mean())) for name in ("params", "tokens"))
    held: dict[str, tuple[float, str]] = {}
    if rows["params"].nunique() == 1:
        held["size"] = (0.0, "one model size")
    lengths = rows[rows["bag_size"] > 1].groupby("bag_size")["tokens"].nunique()
    if (lengths > 1).sum() < 2:
        held["drift"] = (0.0, "fewer than two bag sizes at several lengths")
    if rows["tokens"].nunique() == 1:
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

    frame: columns params, tokens (latent), bag_size (1: the baseline), step_ratio, loss (nats per
    token, final, annealed) and, if there, weighting (`uniform`) and seed (0). Every superposed run
    needs a baseline of its params, tokens and seed.
    """
    return fit_law(rows_of_frame(frame))


def as_data(law: Law) -> dict[str, Any]:
    """Return everything about a fit that takes long to find; the rest follows from the rows."""
    starts = {"started": law.fit.started, "agreed": law.fit.agreed}
    return {**starts, "noise": asdict(law.noise), "theta": law.fit.theta.tolist()}


@functools.cache
def published_law() -> Law:
    """Return the law of Tables 4–7, from the fit that `python -m benchmarks.advice` wrote."""
    return fit_law(published_rows(), published.evidence()["law"])
