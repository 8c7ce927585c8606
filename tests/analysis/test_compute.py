"""Loss against compute: what is identified is found, and what is not is a sentence."""

import numpy as np
import pandas as pd
import pytest

from tst_study.analysis.fits.scaling.approaches import side_by_side
from tst_study.analysis.fits.scaling.compute_multiplier import compute_multiplier
from tst_study.analysis.fits.scaling.frontier import isoflop
from tst_study.analysis.fits.scaling.laws import Base, fit_chinchilla
from tst_study.analysis.fits.scaling.repetition import Repetition, fit_repetition, worth
from tst_study.errors import UserError

LAW = Base(np.log(1.8), np.log(480.0), np.log(2085.0), 0.35, 0.37)


def lattice(count: int = 12) -> pd.DataFrame:
    """Runs of so many sizes at 7 FLOPs budgets, without noise."""
    budgets, sizes = np.meshgrid(np.geomspace(1e19, 1e22, 7), np.geomspace(1e8, 2e10, count))
    table = pd.DataFrame({"flops": budgets.ravel(), "params": sizes.ravel()})
    table["tokens"] = table["flops"] / 6 / table["params"]
    return table.assign(loss=LAW.loss(table["params"], table["tokens"]))


@pytest.mark.parametrize("law", [LAW, Base(np.log(1.8), np.log(5e3), np.log(400.0), 0.5, 0.28)])
def test_an_interval_holds_both_forms_where_they_disagree(law):
    """Seven sizes over two decades: the parabola's own interval excludes the truth."""
    points, truth = lattice(7), law.beta / (law.alpha + law.beta)
    fitted = isoflop(points.assign(loss=law.loss(points["params"], points["tokens"])))
    assert "form not settled: akima gives" in fitted.note
    assert fitted.params_interval[0] < truth < fitted.params_interval[1]
    assert fitted.params_exponent != pytest.approx(truth, abs=0.01)


def test_sizes_within_two_percent_are_one_size():
    points = lattice()
    counted = points["params"] * (1 + 0.01 * np.random.default_rng(0).random(len(points)))
    nearly = points.assign(params=counted)
    fitted, exact = isoflop(nearly), isoflop(points)
    assert fitted.params_exponent == pytest.approx(exact.params_exponent, abs=0.01)
    table = fit_chinchilla(nearly, 0).each_size_from_the_others()
    assert len(table) == 12
    assert (table["note"] == "").all()
    assert table["rmse"].max() < 1e-3


def test_flops_that_follow_each_other_closely_are_no_one_budget():
    random, points = np.random.default_rng(0), lattice().sample(240, replace=True, random_state=0)
    flops = np.exp(random.uniform(np.log(1e18), np.log(1e21), len(points)))
    points = points.assign(flops=flops, tokens=flops / 6 / points["params"])
    found = isoflop(points.assign(loss=LAW.loss(points["params"], points["tokens"])))
    assert found.table["flops"].is_monotonic_increasing
    assert len(found.table) > 12


def test_the_allocation_is_the_lowest_loss_of_its_budget():
    (row,) = fit_chinchilla(lattice(), 10).allocation([1e21]).to_dict("records")
    sizes = np.geomspace(1e8, 1e11, 4000)
    losses = LAW.loss(sizes, 1e21 / 6 / sizes)
    assert row["params"] == pytest.approx(sizes[np.argmin(losses)], rel=0.01)
    assert row["loss"] == pytest.approx(losses.min(), abs=1e-6)
    assert row["outside"] == ""


def test_compute_optimal_sizes_beyond_the_runs_are_marked_as_such():
    """And both approaches are compared at the largest budget whose best size was tried."""
    points = lattice()
    found = fit_chinchilla(points, 10).allocation([1e21, 1e27])
    assert found["outside"].tolist() == ["", "params, tokens"]
    most = points[points["flops"] == points["flops"].max()]
    more = most.assign(flops=1e4 * most["flops"], tokens=1e4 * most["tokens"])
    more = more.assign(loss=LAW.loss(more["params"], more["tokens"]))
    both, _ = side_by_side(pd.concat([points, more]), None, None)
    assert both["flops"].tolist() == pytest.approx([1e22, 1e22])
    assert both["outside"].tolist() == ["", ""]


def test_points_that_are_not_annealed_are_refused():
    with pytest.raises(UserError, match="learning rate was annealed"):
        fit_chinchilla(lattice().assign(annealed=False))


def test_too_few_sizes_are_a_sentence():
    with pytest.raises(UserError, match="4 or more model sizes"):
        isoflop(lattice().query("params < 2e8"))


def arms(seeds: int = 3) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A method that is worth twice the compute at every loss."""
    random = np.random.default_rng(0)
    tables = []
    for speed in (1.0, 2.0):
        rows = [
            {"flops": flops, "seed": seed, "loss": 4.0 - 0.1 * np.log(flops * speed) + luck}
            for seed in range(seeds)
            for flops in (1e3, 2e3, 4e3, 8e3)
            for luck in [0.002 * random.standard_normal()]
        ]
        tables.append(pd.DataFrame(rows))
    return tables[0], tables[1]


def test_a_multiplier_of_two_is_two_at_every_loss_with_its_interval():
    table = compute_multiplier(*arms())
    assert table["multiplier"].to_numpy() == pytest.approx(np.full(9, 2.0), rel=0.06)
    assert (table["low"] < 2.05).all()
    assert (table["high"] > 1.95).all()
    assert compute_multiplier(*arms(1))["low"].isna().all()


def test_no_multiplier_beyond_what_both_reached():
    baseline, method = arms()
    with pytest.raises(UserError, match="no loss reached by both"):
        compute_multiplier(baseline, method.assign(loss=method["loss"] - 1))


@pytest.mark.parametrize("bad", [np.nan, -3.0, 0.0, np.inf])
def test_a_bad_loss_is_named_and_never_taken_in(bad):
    points = lattice()
    points.loc[5, "loss"] = bad
    for fitted in (isoflop, fit_chinchilla):
        with pytest.raises(UserError, match=f"row 5: {bad} is not a finite number above 0") as told:
            fitted(points)
        assert "\n" not in str(told.value)


def test_the_law_of_repeated_text_is_recovered_and_beats_the_null():
    """Noise-free runs of one size: six lengths of fresh text, three of a text that is repeated."""
    tokens = np.array([5e6, 1e7, 2e7, 4e7, 8e7, 1.6e8, 2e7, 4e7, 8e7])
    unique = np.array([*[2e8] * 6, *[4e6] * 3])
    law = Repetition(2.5, 1.4, 0.4, 5.0, {})
    runs = pd.DataFrame({"tokens": tokens, "unique": unique})
    fitted = fit_repetition(runs.assign(loss=law.loss(tokens, unique, 5.0)))
    assert fitted.constant == pytest.approx(5.0, rel=1e-3)
    assert [fitted.floor, fitted.exponent] == pytest.approx([2.5, 0.4], rel=1e-3)
    assert fitted.errors["fitted"] < 1e-4 < fitted.errors["published"] < fitted.errors["null"]
    assert worth(tokens, unique, np.inf).tolist() == tokens.tolist()
    with pytest.raises(UserError, match="needs at least 4 and 1"):
        fit_repetition(runs.assign(loss=3.0).head(6))
