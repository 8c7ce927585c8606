"""The solver finds what is there, says what failed, and its intervals mean what they say; published
fits come out of the published runs."""

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import optimize

from tst_study.analysis.fits.scaling.laws import GRID, chinchilla
from tst_study.analysis.fits.solver.problem import HUBER, Formula, Problem
from tst_study.analysis.fits.solver.solve import Fit, fit, grid_of_starts
from tst_study.analysis.fits.solver.uncertainty import bootstrap
from tst_study.errors import UserError

CHINCHILLA = Path(__file__).parent / "scaling" / "chinchilla_epoch.csv"
TRUTH = np.array([np.log(1.8), np.log(480.0), np.log(2085.0), 0.35, 0.37])


def made_runs(noise: float = 0.0, seed: int = 0) -> Problem:
    sizes, data = np.meshgrid(np.geomspace(5e7, 1e10, 8), np.geomspace(1e9, 1e12, 8))
    model = chinchilla(sizes.ravel(), data.ravel())
    errors = noise * np.random.default_rng(seed).standard_normal(64)
    return Problem(model, model.loss(TRUTH) * np.exp(errors), HUBER)


def chinchilla_problem(**objective: Any) -> Problem:
    """The published runs without the five highest losses, as their authors fitted them."""
    table = pd.read_csv(CHINCHILLA)
    runs = table[table["loss"] < table["loss"].nlargest(5).min()]
    size = runs["Model Size"]
    model = chinchilla(size, runs["Training FLOP"] / 6 / size)
    return Problem(model, runs["loss"].to_numpy(), **objective)


@pytest.mark.parametrize(
    "objective", [{"delta": HUBER}, {"delta": HUBER, "on": "loss"}, {}, {"on": "loss"}]
)
def test_without_noise_every_objective_recovers_the_law(objective):
    problem = Problem(made_runs().model, made_runs().observed, **objective)
    fitted = fit(problem, grid_of_starts(problem.model, GRID), refine=4)
    assert fitted.theta == pytest.approx(TRUTH, rel=1e-5)


@pytest.mark.parametrize("objective", [{"delta": HUBER}, {"on": "loss"}])
def test_gradients_are_those_of_finite_differences(objective):
    problem = chinchilla_problem(**objective)
    gradient = problem.slopes(problem.residuals(TRUTH)) @ problem.jacobian(TRUTH)
    numeric = optimize.approx_fprime(TRUTH, problem.value, 1e-7)
    assert gradient == pytest.approx(numeric, rel=1e-4, abs=1e-7)


def test_shared_errors_enter_as_their_covariance_says():
    """Whitened residuals give the generalised sum of squares, r' V^-1 r."""
    groups, ratio = np.array([0, 0, 0, 1, 1, 2]), 2.5
    residuals = np.random.default_rng(0).standard_normal(6)
    covariance = np.eye(6) + ratio * (groups[:, None] == groups)
    white = replace(made_runs(), groups=groups, ratio=ratio).whitened(residuals)
    assert white @ white == pytest.approx(residuals @ np.linalg.solve(covariance, residuals))


def test_a_fit_that_did_not_converge_is_no_number_but_a_sentence():
    x = np.linspace(0.0, 20.0, 50)
    waves = Formula(("pitch",), lambda p, c: 3.0 + np.sin(p["pitch"] * c["x"]), {"x": x})
    observed = waves.loss(np.array([2.0])) + 0.01 * np.random.default_rng(0).standard_normal(50)
    starts = np.array([[0.4], [0.8], [1.3], [2.0], [2.7], [3.5]])
    with pytest.raises(UserError, match="only 1 of 6 starts ended at objective"):
        fit(Problem(waves, observed, HUBER), starts)


def test_too_few_runs_are_refused():
    with pytest.raises(UserError, match="4 runs cannot determine the 5 parameters"):
        fit(made_runs().rows(np.arange(4)), TRUTH[None])


@functools.cache
def chinchilla_fit() -> Fit:
    problem = chinchilla_problem(delta=HUBER)
    return fit(problem, grid_of_starts(problem.model, GRID), refine=6)


def test_chinchilla_by_least_absolute_is_the_published_one():
    """Published: a Huber likelihood whose fitted scale makes it least absolute deviations, the
    limit of a small delta; each fit starts from the one before."""
    fitted = chinchilla_fit()
    for delta in (3e-4, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6, 1e-7):
        fitted = fit(chinchilla_problem(delta=delta), fitted.theta[None])
    assert np.exp(fitted["log_A"]) == pytest.approx(482.00572, rel=3e-5)
    assert np.exp(fitted["log_B"]) == pytest.approx(2085.43420, rel=3e-5)
    assert np.exp(fitted["log_E"]) == pytest.approx(1.81686, abs=1e-5)
    assert (fitted["alpha"], fitted["beta"]) == pytest.approx((0.34781, 0.36585), abs=1e-5)


def test_chinchillas_bootstrap_errors_are_the_published_ones():
    fitted = chinchilla_fit()
    drawn = bootstrap(fitted, np.arange(len(fitted.residuals)), 400)
    assert len(drawn.draws) == 400
    assert drawn.draws["alpha"].std() == pytest.approx(0.0154, rel=0.2)
    assert drawn.draws["beta"].std() == pytest.approx(0.0206, rel=0.2)
    assert np.exp(drawn.draws["log_E"]).std() == pytest.approx(0.0257, rel=0.2)
