"""The law returns the baseline where nothing is superposed, fits, predicts, and says its limits."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize

from analysis.fitting import Problem
from analysis.superposition_advice import TOLERANCE, recommend
from analysis.superposition_answer import published_beside_law, published_cells
from analysis.superposition_forms import FORMS, columns, effective_targets
from analysis.superposition_held_out import SPLITS, held_out
from analysis.superposition_law import Law, fit_law, law_rows, published_law
from tst_study.errors import UserError


@pytest.fixture(scope="module")
def law() -> Law:
    return published_law()


@pytest.mark.parametrize("form", FORMS, ids=[form.name for form in FORMS])
def test_every_form_is_the_baseline_at_one_token_and_at_no_steps(form) -> None:  # type: ignore[no-untyped-def]
    random = np.random.default_rng(0)
    values = {k: v * random.uniform(0.5, 2) + 0.01 for k, v in form.starts[0].items()}
    grid = columns([270e6] * 3, [50_000] * 3, [1, 8, 1], [0.4, 0.0, 0.9])
    assert form.gain(values, grid) == pytest.approx(np.zeros(3), abs=1e-12)


def test_derivatives_of_the_law_are_those_of_finite_differences(law: Law) -> None:
    problem: Problem = law.fit.problem
    at = law.fit.theta * 1.05
    _, gradient = problem.value_and_gradient(at)
    numeric = optimize.approx_fprime(at, problem.value, 1e-7)
    assert gradient == pytest.approx(numeric, rel=2e-3, abs=1e-4)


def test_one_set_of_parameters_fits_all_four_tables(law: Law) -> None:
    error = law.residuals["error"]
    assert len(error) == 462
    assert np.sqrt((error**2).mean()) < 0.0022
    by_table = np.sqrt((error**2).groupby(law.residuals["table"]).mean())
    assert by_table.max() < 0.0026
    assert law.fit.failures == ()


def test_from_270m_alone_it_predicts_600m_under_both_weightings() -> None:
    errors = held_out("worth and debt", splits=SPLITS[:2]).set_index("split")
    assert errors.loc["270M → 600M", "rmse"] < 0.0045
    assert errors.loc["270M → 600M, power-law weights", "rmse"] < 0.0040


def test_the_polynomial_fits_worse_and_predicts_far_worse() -> None:
    errors = held_out("surface", splits=SPLITS[:1])
    assert errors["rmse"].item() > 0.01


def test_a_law_is_recovered_from_what_it_made(law: Law) -> None:
    rows = law_rows()
    made = rows.assign(loss=law.residuals["predicted"].to_numpy())
    again = fit_law(made)
    assert again.fit.theta == pytest.approx(law.fit.theta, rel=1e-4)


def test_targets_count_by_the_entropy_of_their_weights() -> None:
    assert effective_targets(8) == pytest.approx(8.0)
    assert effective_targets(8, "first_token") == pytest.approx(1.0)
    assert 1 < effective_targets(8, "exponential") < effective_targets(8, "power_law") < 8


def test_advice_lies_where_the_grid_has_its_best_cells(law: Law) -> None:
    """The recommended cell's published loss is within noise of the best published one."""
    found = recommend(600e6, 20_000, law, law.drawn(20))
    cells = published_cells(law).query("table == 6")
    same = (cells["bag_size"] == found.bag_size) & (
        cells["step_ratio"] == round(found.step_ratio, 1)
    )
    chosen = cells[same]["loss"].item()
    assert chosen - cells["loss"].min() < TOLERANCE
    assert found.bag_range[0] <= found.bag_size <= found.bag_range[1]
    assert found.belief == "inside the fitted range"
    assert "extrapolated" in recommend(3e9, 20_000, law, law.drawn(3)).belief


def test_the_worth_in_baseline_steps_is_the_baselines_own_curve(law: Law) -> None:
    gain = law.loss("270M", 20_000, 1, 0.0) - law.loss("270M", 60_000, 1, 0.0)
    assert law.baseline_steps(20_000, gain) == pytest.approx(60_000)
    assert law.baseline_steps(20_000, 9.0) is None


def test_what_was_never_recovered_has_no_loss_under_the_law(law: Law) -> None:
    with pytest.raises(UserError, match="0 <= r < 1"):
        law.gain(270e6, 20_000, 4, 1.0)


def test_at_3b_the_law_sides_with_the_figure_and_not_with_the_table(law: Law) -> None:
    """Gain 0.132 by Table 1, 0.073 by Figure 3a."""
    row = published_beside_law(law, law.drawn(30), [law]).iloc[0]
    assert row["inside"] == "figures"
    assert row["low"] < row["figures"] < row["high"] < row["table_1"]
