"""A law of superposition: L(N, steps, s, r) fitted to all published grids at once.

Noise is modelled as the grids show it: all r at one s share an error (they look forked from one
superposed trunk), so a trunk counts about once, and the bootstrap draws whole trunks.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy import optimize

from analysis import published
from analysis.fitting import Fit, Fixed, LeastSquares, Model, Problem, fit
from analysis.fitting.descent import refit
from analysis.fitting.formula import Columns, Formula
from analysis.fitting.objectives import Floats
from analysis.superposition_forms import (
    FORMS,
    STEPS_UNIT,
    Form,
    columns,
    effective_targets,
)
from tst_study.errors import UserError
from tst_study.superposition.weighting import Weighting

_START_JITTER = 0.1
_STARTS = 4


@dataclass(frozen=True)
class Noise:
    """Standard deviations, nats, of the residuals of a fit (misfit of the form included)."""

    trunk: float
    """What all r at one (table, s) share."""
    cell: float
    """What each cell has for itself."""

    @property
    def ratio(self) -> float:
        return (self.trunk / self.cell) ** 2 if self.cell else 0.0


@dataclass(frozen=True)
class Law:
    """A fitted form. Gains are in nats per token; steps are steps of 2M (2^21) tokens."""

    form: Form
    fit: Fit
    values: Mapping[str, float]
    noise: Noise
    residuals: pd.DataFrame
    """The rows fitted, with predicted and error (predicted − observed)."""

    def gain(
        self,
        params: float,
        steps: float,
        bag_size: int,
        step_ratio: float,
        weighting: Weighting = "uniform",
    ) -> float:
        """Baseline loss minus loss after superposition, at equal steps; 0 at s = 1 or r = 0."""
        if not 0 <= step_ratio < 1:
            raise UserError(f"step_ratio {step_ratio}: the law holds for 0 <= r < 1, with recovery")
        target = effective_targets(bag_size, weighting)
        c = columns([params], [steps], [bag_size], [step_ratio], [target])
        return float(self.form.gain(self.values, c)[0])

    def gains(self, params: float, steps: float, bags: Floats, ratios: Floats) -> Floats:
        """Gains under uniform weights, shape (bags, ratios)."""
        s, r = (part.ravel() for part in np.meshgrid(bags, ratios, indexing="ij"))
        c = columns(np.full(s.shape, params), np.full(s.shape, steps), s, r)
        value: Floats = self.form.gain(self.values, c).reshape(len(bags), len(ratios))
        return value

    def loss(self, size: str, steps: float, bag_size: int, step_ratio: float) -> float:
        """Final training loss of one of the fitted sizes (`270M`, `600M`), uniform weights."""
        name = f"loss {size}"
        if name not in self.values:
            raise UserError(f"size {size}: not fitted; give `gain` its number of parameters")
        gain = self.gain(published.PARAMS[size], steps, bag_size, step_ratio)
        return self.values[name] + self.steps_bring(STEPS_UNIT, steps) - gain

    def steps_bring(self, steps: float, others: float) -> float:
        """By how much the baseline's loss at `others` steps exceeds that at `steps`."""
        here, there = steps / STEPS_UNIT, others / STEPS_UNIT
        form = self.form.baseline
        return float(form(self.values, there) - form(self.values, here))

    def baseline_steps(self, steps: float, gain: float) -> float | None:
        """Steps at which the baseline would have this gain over itself at `steps`; None where the
        gain exceeds all that more steps could bring. By the D of the fitted sizes: the 3B
        baselines of the paper fall faster, and there the same gain is worth fewer steps."""

        def short(log_steps: float) -> float:
            return -gain - self.steps_bring(steps, float(np.exp(log_steps)))

        low, high = np.log(steps) - 5, np.log(steps) + 12
        if short(high) < 0 or short(low) > 0:
            return None
        return float(np.exp(optimize.brentq(short, low, high)))

    def with_values(self, values: Mapping[str, float]) -> Law:
        """The same law at other parameters, those of a bootstrap draw."""
        return Law(self.form, self.fit, dict(values), self.noise, self.residuals)

    def drawn(self, draws: int = 200, seed: int = 0) -> list[Law]:
        """The law refitted to data drawn from itself and its noise: trunk errors and cell errors.

        Drawing rows or trunks with replacement would now and then draw no baseline of one length,
        and with it no law. Misfit of the form is in the noise, and so in the spread. Refits that do
        not converge are left out.
        """
        random = np.random.default_rng(seed)
        rows, problem, found = self.residuals, self.fit.problem, []
        codes = np.unique(rows["trunk"], return_inverse=True)[1]
        for _ in range(draws):
            trunk = self.noise.trunk * random.standard_normal(codes.max() + 1)[codes]
            cell = self.noise.cell * random.standard_normal(len(rows))
            drawn = rows["predicted"].to_numpy() + trunk + cell
            theta, gradient = refit(replace(problem, observed=drawn), self.fit.theta)
            if gradient < 1e-3:
                values = dict(zip(problem.model.parameters, map(float, theta), strict=True))
                found.append(replace(self, values={**self.values, **values}))
        return found


def law_rows(grid: pd.DataFrame | None = None) -> pd.DataFrame:
    """The grid with `targets` (ŝ) and `trunk`, the baseline that two tables share once.

    Columns needed: params, size, steps, weighting, bag_size, step_ratio, loss, table.
    """
    rows = (published.loss_grid() if grid is None else grid).copy()
    rows = rows[rows["step_ratio"] < 1]
    shared = rows["bag_size"].eq(1) & rows.duplicated(["size", "steps", "bag_size", "loss"])
    rows = rows[~shared].reset_index(drop=True)
    rows["targets"] = [
        effective_targets(int(s), w)
        for s, w in zip(rows["bag_size"], rows["weighting"], strict=True)
    ]
    rows["trunk"] = rows.groupby(["table", "bag_size"], sort=True).ngroup()
    return rows


def fit_law(
    rows: pd.DataFrame | None = None,
    form: str | Form = "worth and debt",
    *,
    strict: bool = True,
    whole: Sequence[Mapping[str, float]] = (),
) -> Law:
    """Fit a form to `law_rows` by generalised least squares on the loss.

    The ratio of shared to own noise is estimated from the residuals, in turns with the fit.
    `whole`: further starts. Raises `NotConvergedError` where starts disagree (if `strict`).
    """
    rows = law_rows() if rows is None else rows
    chosen = form if isinstance(form, Form) else _form(form)
    sizes = list(dict.fromkeys(rows["size"]))
    table = _columns(rows, sizes)
    names = (*(f"loss {size}" for size in sizes), *chosen.starts[0])
    formula = Formula(names, _loss_of(chosen, sizes), table)
    held = dict.fromkeys(chosen.of_size, 0.0) if len(sizes) == 1 else {}
    model: Model = Fixed(formula, held) if held else formula
    observed = rows["loss"].to_numpy(dtype=float)
    trunks = tuple(map(int, np.unique(rows["trunk"], return_inverse=True)[1]))
    starts = _starts(chosen, model, rows, sizes, whole)  # every _STARTS-th is not moved
    noise, found = Noise(0.0, 1.0), None
    for turn in range(4):
        objective = LeastSquares("loss", trunks, noise.ratio)
        problem = Problem(model, observed, objective)
        last = turn == 3
        found = fit(
            problem,
            starts if last else starts[::_STARTS] if found is None else found.theta[None],
            refine=_STARTS * len(chosen.starts) + len(whole) + 1,
            strict=strict and last,
        )
        if last:
            break
        starts = np.vstack([starts, found.theta])
        noise = _noise(np.exp(model.log_loss(found.theta)[0]) - observed, trunks, len(names))
    assert found is not None
    predicted = np.exp(model.log_loss(found.theta)[0])
    values = {**held, **found.values}
    residuals = rows.assign(predicted=predicted, error=predicted - observed)
    return Law(chosen, found, values, noise, residuals)


@functools.cache
def published_law() -> Law:
    """The recommended form on Tables 4–7, fitted once per process."""
    return fit_law()


def _form(name: str) -> Form:
    for form in FORMS:
        if form.name == name:
            return form
    raise UserError(f"form {name!r}: not known; there are {', '.join(f.name for f in FORMS)}")


def _columns(rows: pd.DataFrame, sizes: Sequence[str]) -> dict[str, Any]:
    table: dict[str, Any] = columns(
        rows["params"].to_numpy(),
        rows["steps"].to_numpy(),
        rows["bag_size"].to_numpy(),
        rows["step_ratio"].to_numpy(),
        rows["targets"].to_numpy(),
    )
    for size in sizes:
        table[f"is {size}"] = rows["size"].eq(size).to_numpy(dtype=float)
    return table


def _loss_of(form: Form, sizes: Sequence[str]) -> Any:
    def loss(p: Mapping[str, Any], c: Columns) -> Any:
        own = sum(p[f"loss {size}"] * c[f"is {size}"] for size in sizes)
        return own + form.baseline(p, c["u"]) - form.baseline(p, 1.0) - form.gain(p, c)

    return loss


def _starts(
    form: Form,
    model: Model,
    rows: pd.DataFrame,
    sizes: Sequence[str],
    whole: Sequence[Mapping[str, float]],
) -> Floats:
    """The form's own starts and copies with every number moved by some per cent."""
    random = np.random.default_rng(0)
    found = []
    for start in (*form.starts, *whole):
        values = dict(start)
        for size in sizes:
            alone = rows[(rows["size"] == size) & (rows["bag_size"] == 1)]
            values.setdefault(f"loss {size}", float(alone["loss"].mean()))
        theta = np.array([values[name] for name in model.parameters])
        found.append(theta)
        copies = _STARTS - 1 if start in form.starts else 0
        for _ in range(copies):
            found.append(theta * np.exp(_START_JITTER * random.standard_normal(len(theta))))
    return np.array(found)


def _noise(residuals: Floats, trunks: Sequence[int], parameters: int) -> Noise:
    """One-way analysis of variance; the parameters are charged to the trunks' means, which they
    mostly explain."""
    codes = np.asarray(trunks)
    sizes = np.bincount(codes)
    means = np.bincount(codes, residuals) / sizes
    within = ((residuals - means[codes]) ** 2).sum() / max(1, len(codes) - len(sizes))
    between = (means**2).sum() / max(1, len(sizes) - parameters)
    trunk = max(0.0, between - within * float(np.mean(1 / sizes)))
    return Noise(float(np.sqrt(trunk)), float(np.sqrt(within)))
