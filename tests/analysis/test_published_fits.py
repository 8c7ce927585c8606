"""The published fits come out of the published runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from analysis.fits.solver.problem import HUBER
from analysis.fits.solver.solve import Fit, fit, grid_of_starts
from analysis.fits.solver.uncertainty import bootstrap
from tests.analysis.published_fits import (
    CHINCHILLA_GRID,
    chinchilla_problem,
    repetition_problem,
)


def chinchilla_fit() -> Fit:
    problem = chinchilla_problem(delta=HUBER)
    return fit(problem, grid_of_starts(problem.model, CHINCHILLA_GRID), refine=6)


def test_chinchilla_by_huber_is_the_notebooks_first_fit() -> None:
    found = chinchilla_fit()
    assert found.objective == pytest.approx(0.001018274018, abs=1e-11)
    assert (found["alpha"], found["beta"]) == pytest.approx((0.34731, 0.36717), abs=2e-5)
    assert np.exp(found["log_E"]) == pytest.approx(1.81722, abs=2e-5)
    assert np.exp(found["log_A"]) == pytest.approx(477.84, rel=1e-3)


def test_chinchilla_by_least_absolute_is_the_published_one() -> None:
    """Published: a Huber likelihood whose fitted scale makes it least absolute deviations, the
    limit of a small delta; each fit starts from the one before."""
    found = chinchilla_fit()
    for delta in (3e-4, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6, 1e-7):
        found = fit(chinchilla_problem(delta=delta), [found.theta])
    assert np.exp(found["log_A"]) == pytest.approx(482.00572, rel=3e-5)
    assert np.exp(found["log_B"]) == pytest.approx(2085.43420, rel=3e-5)
    assert np.exp(found["log_E"]) == pytest.approx(1.81686, abs=1e-5)
    assert (found["alpha"], found["beta"]) == pytest.approx((0.34781, 0.36585), abs=1e-5)


def test_chinchillas_bootstrap_errors_are_the_published_ones() -> None:
    drawn = bootstrap(chinchilla_fit(), 400)
    assert drawn.failed == 0
    assert drawn.draws["alpha"].std() == pytest.approx(0.0154, rel=0.2)
    assert drawn.draws["beta"].std() == pytest.approx(0.0206, rel=0.2)
    assert np.exp(drawn.draws["log_E"]).std() == pytest.approx(0.0257, rel=0.2)


def test_repetition_at_the_published_point_and_its_local_minimum() -> None:
    problem, published = repetition_problem(), np.log([15.387756, 5.309743])
    assert problem.value(published) == pytest.approx(0.0158259366, abs=2e-9)
    near = fit(problem, [published])
    assert near.objective == pytest.approx(0.0158259321, abs=1e-10)
    assert np.exp(near.theta) == pytest.approx([15.3718, 5.3151], rel=1e-4)


def test_the_worth_of_repeated_data_is_hardly_identified() -> None:
    """Published as 15.4; a start elsewhere ends lower, and by the profile of the likelihood 7.6 is
    the least that the runs allow (`data_constrained.WORTH_RANGE`), without an upper bound."""
    problem = repetition_problem()
    starts = grid_of_starts(
        problem.model, {"log_RD": np.log([3, 30, 100]), "log_RN": np.log([0.5, 2, 8])}
    )
    wide = fit(problem, starts, strict=False)  # six minima within 1 in 10,000
    assert wide.objective < 0.015805
    assert np.exp(wide["log_RD"]) == pytest.approx(95.365, rel=1e-3)
    power = problem.slopes(wide.residuals) @ wide.residuals / wide.objective
    scale = 2 / power * (len(wide.residuals) - 2)
    deviance = {}
    for worth in (6.9, 8.4, 1000.0):
        held = replace(problem, model=problem.model.held({"log_RD": np.log(worth)}))
        found = fit(held, starts[:3, 1:], strict=False)
        deviance[worth] = scale * np.log(found.objective / wide.objective)
    assert deviance[1000.0] < deviance[8.4] < stats.chi2.ppf(0.95, 1) < deviance[6.9]
