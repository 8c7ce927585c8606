"""Runs trained elsewhere, as a data frame or a table: fitted, printed, predicted, compared."""

import numpy as np
import pandas as pd
import pytest

from tst_study import analysis
from tst_study.analysis.answer import Answer
from tst_study.analysis.fits.scaling.approaches import chinchilla_answer
from tst_study.analysis.fits.scaling.points import at_best_settings
from tst_study.errors import UserError

TRUTH = {"E": 1.8, "A": 480.0, "B": 2085.0, "alpha": 0.35, "beta": 0.37}


def frame(noise: float = 0.001, floor: float = TRUTH["E"], seed: int = 0) -> pd.DataFrame:
    """Nine sizes at five lengths each."""
    size, tokens = (
        part.ravel() for part in np.meshgrid(np.geomspace(5e7, 1e10, 9), np.geomspace(2e9, 3e11, 5))
    )
    loss = floor + TRUTH["A"] * size ** -TRUTH["alpha"] + TRUTH["B"] * tokens ** -TRUTH["beta"]
    loss *= np.exp(noise * np.random.default_rng(seed).standard_normal(len(loss)))
    return pd.DataFrame({"params": size, "tokens": tokens, "loss": loss})


@pytest.fixture(scope="module")
def found() -> analysis.fits.scaling.laws.ChinchillaFit:
    return analysis.fit_chinchilla(frame().astype(str), draws=100)  # text as numbers


def test_a_frame_is_fitted_and_speaks_in_printed_names(found):
    table = found.summary().set_index("parameter")
    assert list(table.index) == ["E", "A", "B", "alpha", "beta"]
    for name, truth in TRUTH.items():
        assert getattr(found, name) == table.loc[name, "value"]
        assert table.loc[name, "low"] < table.loc[name, "value"] < table.loc[name, "high"]
        assert table.loc[name, "value"] == pytest.approx(truth, rel=0.15)
    text = str(found)
    assert text.splitlines()[0].split() == ["parameter", "value", "low", "high", "note"]
    assert "45 runs; 16 of 16 starts agree" in text
    with pytest.raises(AttributeError):
        found.gamma  # noqa: B018


def test_a_fit_predicts_with_intervals_and_allocates(found):
    asked = pd.DataFrame({"params": [2e9, 3e10], "tokens": [1e11, 1e12]})
    said = found.predict(asked)
    truth = (
        TRUTH["E"] + TRUTH["A"] * asked["params"] ** -0.35 + TRUTH["B"] * asked["tokens"] ** -0.37
    )
    assert ((said["low"] < truth) & (truth < said["high"])).all()
    assert said["loss"].to_numpy() == pytest.approx(truth.to_numpy(), rel=0.005)
    assert (found.allocation([1e21]).eval("params_low < params < params_high")).all()


def test_a_floor_that_the_runs_do_not_ask_for_is_named_and_has_no_interval():
    found = analysis.fit_chinchilla(frame(0.002, floor=0.0), draws=30)
    row = found.summary().set_index("parameter").loc["E"]
    assert row["note"] == "E not determined, at its bound of 0"
    assert row[["low", "high"]].isna().all()
    assert "E not determined" in str(found)


def test_runs_that_do_not_determine_an_exponent_get_no_numbers():
    """A cliff behind the smallest size has any large exponent."""
    points = frame(0.004, seed=1)
    flat = points["loss"] - TRUTH["A"] * points["params"] ** -TRUTH["alpha"]
    points["params"] = 5e7 * (points["params"] / 5e7) ** 0.4
    cliff = points.assign(loss=flat + 0.2 * (points["params"] == 5e7))
    with pytest.raises(UserError, match=r"unidentified: alpha = .* fits these runs as well as"):
        analysis.fit_chinchilla(cliff)
    said = answered(cliff.assign(learning_rate=1e-3))
    assert "no fit: unidentified: alpha" in " ".join(said.sentences)
    assert not said.tables


def test_a_larger_delta_of_hubers_loss_is_drawn_by_an_outlier():
    """Out of thousands of runs one bad one moves the fit as far as delta lets it."""
    points = frame()
    bad = points.assign(loss=points["loss"].where(points.index != 44, points["loss"] * 1.1))
    plain = analysis.fit_chinchilla(points, 0)
    off = [
        abs(analysis.fit_chinchilla(bad, 0, huber).beta - plain.beta) for huber in (1e-3, np.inf)
    ]
    assert off[0] < 0.002 < off[1]


def test_missing_tokens_are_computed_from_flops_and_missing_both_is_an_error():
    points = frame()
    flops = 6 * points["params"] * points["tokens"]
    same = analysis.fit_chinchilla(points.assign(flops=flops).drop(columns="tokens"), draws=2)
    assert same.fit.theta == pytest.approx(analysis.fit_chinchilla(points, draws=2).fit.theta)
    with pytest.raises(UserError, match="'tokens' is missing, and 'flops'"):
        analysis.fit_chinchilla(points.drop(columns="tokens"))


def test_rows_that_are_not_annealed_or_badly_tuned_are_no_part_of_the_law():
    """A size of which no row is annealed has nothing to be predicted, and a swept rate that was
    worse tells nothing of size or data."""
    points = frame().assign(learning_rate=1e-3, annealed=True)
    points = points[points["params"].isin(points["params"].unique()[::2])]
    plain = answered(points)
    early = points[points["params"] == points["params"].max()]
    early = early.assign(params=2 * early["params"], annealed=False)
    swept = points.head(5).assign(learning_rate=4e-3, loss=points["loss"].head(5) + 0.3)
    smoothed = points.head(5).assign(loss=points["loss"].head(5) - 0.3, method="ablation")
    more = answered(pd.concat([points, early, swept, smoothed]))
    assert "5 runs at worse settings left out" in " ".join(more.sentences)
    for one, other in zip(plain.tables.values(), more.tables.values(), strict=True):
        pd.testing.assert_frame_equal(one, other)


def answered(points: pd.DataFrame) -> Answer:
    method = points.get("method", pd.Series(None, points.index, object)).fillna("baseline")
    points = points.assign(flops=6 * points["params"] * points["tokens"], method=method)
    return chinchilla_answer(points.assign(corpus="", eval_set="", family=""))


def test_the_best_of_all_settings_of_a_size_and_length_counts_over_shared_seeds():
    """Whatever varies: rate, or batch and set-up."""
    rows = [("a", 1e-3, 0, 3.0), ("b", 1e-3, 0, 4.0), ("b", 2e-3, 0, 2.9), ("b", 2e-3, 1, 3.9)]
    points = pd.DataFrame(rows, columns=["family", "learning_rate", "seed", "loss"])
    kept, note = at_best_settings(points.assign(params=1e8, tokens=1e9))
    assert list(kept["loss"]) == [2.9, 3.9]
    assert note == (
        "2 runs at worse settings left out: the best of up to 3 settings (learning rate, batch or "
        "set-up) at each size and length"
    )
    lucky = [("a", 1e-3, 0, 3.0), ("a", 2e-3, 0, 2.99), ("a", 2e-3, 1, 3.05)]
    points = pd.DataFrame(lucky, columns=points.columns)
    assert list(at_best_settings(points.assign(params=1e8, tokens=1e9))[0]["seed"]) == [0, 1]
    unknown = points.assign(params=1e8, tokens=1e9, learning_rate=np.nan)
    assert len(at_best_settings(unknown)[0]) == 3


def test_of_a_grid_of_rates_and_batches_the_law_is_that_of_the_best_runs():
    """A batch at each of which the rate was tuned is no part of the law: averaged over batches, E
    comes out 0.07 too high and B by two thirds."""
    truth = {"E": 1.69, "A": 406.4, "B": 410.7, "alpha": 0.34, "beta": 0.28}
    grid = pd.MultiIndex.from_product(
        [(1e7, 3e7, 1e8, 3e8, 1e9), (1e9, 3e9, 1e10, 3e10), (1e-3, 2e-3), (32, 64, 128, 256)],
        names=["params", "tokens", "learning_rate", "batch"],
    ).to_frame(index=False)
    law = truth["E"] + truth["A"] * grid["params"] ** -0.34 + truth["B"] * grid["tokens"] ** -0.28
    best = 64 + 64 * (grid["tokens"] > 5e9)
    loss = law + 0.02 * np.log(grid["batch"] / best) ** 2 + 0.01 * (grid["learning_rate"] > 1e-3)
    points = grid.assign(loss=loss, family="batch " + grid["batch"].astype(str), method="baseline")
    kept, note = at_best_settings(points)
    assert kept["loss"].to_numpy() == pytest.approx(law[kept.index].to_numpy())
    assert "140 runs at worse settings left out: the best of up to 8 settings" in note
    fitted = analysis.fit_chinchilla(kept, draws=0)
    for name, value in truth.items():
        assert getattr(fitted, name) == pytest.approx(value, rel=1e-3)


def test_a_law_stands_though_a_size_cannot_be_left_out():
    """Seven of eleven runs are of one size: the law has its runs, the four others have not."""
    points = frame().sort_values(["params", "tokens"])
    one = pd.concat([points[points["params"] == points["params"].min()]] * 2).head(7)
    one = one.assign(tokens=np.geomspace(2e9, 3e11, 7))
    one["loss"] = 1.8 + 480 * one["params"] ** -0.35 + 2085 * one["tokens"] ** -0.37
    others = points[points["params"] > points["params"].min()].iloc[[0, 9, 18, 27]]
    answer = answered(pd.concat([one, others]))
    law, _, errors = answer.tables.values()
    assert law["value"].notna().all()
    assert "4 runs cannot determine the 5 parameters" in errors["note"].iloc[0]
