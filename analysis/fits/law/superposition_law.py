"""A law of superposition: the gain over the baseline as a function of N, D, s and r.

For a model of N parameters after D latent tokens, s tokens a bag over a share r of the steps, and
ŝ = exp(entropy of the target weights), which is s under uniform weights:

    gain = D^−c { w (1 − exp(−(ŝ − 1) / a)) s^(d log D − b) r / (r + ρ s^−m)
                  − k N^κ log ŝ ((1 − r)^−q − 1) / q }

Worth: what superposed steps bring saturates after a few targets, is blurred by large bags, less so
in longer runs, and comes with the first per cents of the steps. Debt: what too short a recovery
leaves unpaid, in proportion to the entropy of the targets. Both shrink with one power of the length
and vanish at s = 1 and at r = 0. No unit is built in: N and D are counted from the geometric mean
of what was fitted, and other units only change w, k and b.

The baseline's loss is no part of the law: every baseline (a size, a length, a seed) has a level
of its own, which its runs share.
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
from tst_study.analysis.fits.law.rows import published_rows, rows_of_frame, rows_of_runs, settings
from tst_study.analysis.fits.solver.problem import Columns, Formula, Problem, derivative
from tst_study.analysis.fits.solver.shared_errors import Noise, fit_shared
from tst_study.analysis.fits.solver.solve import Fit
from tst_study.analysis.fits.solver.uncertainty import Spread
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
"""Where fits start: log a, b, d, log ρ, m, q, κ, c. Nothing holds them there."""
LINEAR = ("worth", "debt")
"""w and k, in nats: solved for at every start."""
_NEAR = 0.02
"""Relative distance from a fitted size or length that still counts as inside."""
_STARTS = 24
_REFINED = 6


def gain(p: Mapping[str, Any], c: Columns) -> Any:
    """Nats; columns n and l (logs of N and D from their units), s, t (ŝ) and r."""
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
    """A fitted law. Gains in nats per token, lengths in latent tokens."""

    fit: Fit
    values: Mapping[str, float]
    """Of all parameters, those held among them."""
    held: Mapping[str, str]
    """Why, for each parameter that these runs do not determine and that was held."""
    noise: Noise
    """`shared`: by all r at one s of a baseline, which fork from one shared prefix run; `own`: of a
    run."""
    units: tuple[float, float]
    """N and D at which w and k are what they are."""
    rows: pd.DataFrame
    """The rows fitted, with predicted and error (predicted − observed)."""

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
        """Baseline loss minus loss after superposition, at equal steps; 0 at s = 1 or r = 0.

        Raises `UserError` for a size or a length outside the fitted ones, unless `extrapolate`.
        """
        rows = settings(params, tokens, bag_size, step_ratio, weighting)
        if not 0 <= step_ratio < 1:
            raise UserError(f"step_ratio {step_ratio}: the law holds for 0 <= r < 1, with recovery")
        gains = self.of_rows(rows)
        if not extrapolate and (far := self.outside(params, tokens)):
            raise UserError(f"{far}; `tst-study advise` says what is known there")
        return float(gains[0])

    def outside(self, params: float, tokens: float) -> str:
        """Say why a model or a length lies beyond what was fitted; empty where it does not."""
        for name, value, unit in (("params", params, "parameters"), ("tokens", tokens, "tokens")):
            low, high = float(self.rows[name].min()), float(self.rows[name].max())
            if not low * (1 - _NEAR) <= value <= high * (1 + _NEAR):
                fitted = f"{low:.3g}" if high <= low * (1 + _NEAR) else f"{low:.3g} to {high:.3g}"
                return f"{value:.3g} {unit}: outside what the law was fitted to ({fitted})"
        return ""

    def of_rows(self, rows: pd.DataFrame) -> Floats:
        """Gains of rows with params, tokens, bag_size, step_ratio and targets, shape (n,)."""
        for name, least in (("params", 0.0), ("tokens", 0.0), ("bag_size", 1.0)):
            found = rows[name].to_numpy(dtype=float)
            bad = ~((found > 0) & (found >= least))
            if bad.any():
                wanted = "a positive number" if least == 0 else "1 or more"
                raise UserError(f"{name} {rows[name][bad].iloc[0]}: must be {wanted}")
        value: Floats = gain(self.values, columns(rows, self.units))
        return value

    def errors(self, rows: pd.DataFrame, less: pd.DataFrame | None = None) -> Floats:
        """Half of the 95% t-interval of each row's gain, shape (n,); with `less` (n rows or one)
        of the difference between their gains.

        By the linearised fit (`Spread`), so that misfit of the form is in it as noise, the choice
        of the form is not. Infinite where no run is left to tell the noise by.
        """
        slopes = self._slopes(rows) - (0.0 if less is None else self._slopes(less))
        return Spread.of(self.fit).half(slopes)

    def _slopes(self, rows: pd.DataFrame) -> Floats:
        """Derivative of the rows' gains by the fitted parameters, shape (n, p)."""
        names, known = self.fit.problem.model.parameters, columns(rows, self.units)

        def gains(theta: NDArray[Any]) -> NDArray[Any]:
            free = {name: theta[..., i, None] for i, name in enumerate(names)}
            found: NDArray[Any] = gain({**self.values, **free}, known)
            return found

        return derivative(gains, self.fit.theta)


def columns(rows: pd.DataFrame, units: tuple[float, float]) -> dict[str, Any]:
    """What `gain` reads, of rows with params, tokens, bag_size, step_ratio and targets."""
    return {
        "n": np.log(rows["params"].to_numpy(dtype=float) / units[0]),
        "l": np.log(rows["tokens"].to_numpy(dtype=float) / units[1]),
        "s": rows["bag_size"].to_numpy(dtype=float),
        "t": rows["targets"].to_numpy(dtype=float),
        "r": rows["step_ratio"].to_numpy(dtype=float),
    }


def fit_law(rows: pd.DataFrame, known: Mapping[str, Any] | None = None) -> Law:
    """Fit by generalised least squares on the loss, one error per shared prefix run and one per
    run; nothing is sought where the answer is `known` (`as_data`).

    Columns: params, tokens (latent), bag_size, step_ratio, targets (`effective_targets`), loss
    (nats, annealed), level (label of the baseline that a run shares), prefix (label of
    what shares an error), size (label). Of one size nothing is learnt about κ, of one length
    nothing about c and d: they are held at 0, at `DATA_EXPONENT` and at 0, and `held` says so; d as
    well where one s alone was trained at several lengths. Where the rest is not determined either
    the fit is refused (`NotConvergedError`)."""
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
    if values:
        model = model.held(values)
    observed, prefixes = rows["loss"].to_numpy(dtype=float), pd.factorize(rows["prefix"])[0]
    problem = Problem(model, observed, on="loss")
    if known:
        noise = Noise(**known["noise"])
        problem = replace(problem, groups=prefixes, ratio=noise.ratio)
        found = Fit.at(problem, np.array(known["theta"]), known["started"], known["agreed"])
    else:
        random = np.random.default_rng(0)
        ends = [BOX.get(name, (0.0, 1.0)) for name in model.parameters]
        starts = np.array([[random.uniform(*end) for end in ends] for _ in range(_STARTS)])
        found, noise = fit_shared(problem, prefixes, starts, _REFINED)
    predicted = model.loss(found.theta)
    return Law(
        found,
        {**values, **found.values},
        {name: why for name, (_, why) in held.items()},
        noise,
        (size, length),
        rows.assign(predicted=predicted, error=predicted - observed),
    )


def fit_superposition_law(frame: pd.DataFrame) -> Law:
    """The law of a grid over s and r, of a DataFrame of one's own.

    A run table (`source.load`), or columns params, tokens (latent), bag_size (1: the baseline),
    step_ratio, loss (nats per token, final, annealed) and, if there, weighting (`uniform`) and seed
    (0). Every superposed run needs a baseline of its params, tokens and seed.
    """
    if "loss" not in frame and "nats_per_token" in frame:
        return fit_law(rows_of_runs(frame)[0])
    return fit_law(rows_of_frame(frame))


def as_data(law: Law) -> dict[str, Any]:
    """Everything about a fit that takes long to find; the rest follows from the rows."""
    found = {name: getattr(law.fit, name) for name in ("started", "agreed")}
    return {**found, "noise": asdict(law.noise), "theta": law.fit.theta.tolist()}


@functools.cache
def published_law() -> Law:
    """The law of Tables 4–7, from the fit that `python -m benchmarks.advice` wrote."""
    return fit_law(published_rows(), published.evidence()["law"])
