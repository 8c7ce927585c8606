"""Predictions of the campaign: made from what is there, refused once it is too late."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from analysis.law.rows import rows_of_frame
from analysis.law.superposition_law import Law, fit_law, published_law
from docs.predictions import predict, targets
from tst_study.errors import UserError

PARAMS, TOKENS = 270e6, (2e10, 4e10, 8e10)
NOISE = 0.001


@pytest.fixture(scope="module")
def law() -> Law:
    """Of a grid at one length and the main setting at three; its truth is the published law."""
    truth, random = published_law(), np.random.default_rng(0)
    frame = []
    for seed in range(4):
        for tokens in TOKENS:
            level = 3.0 + 0.01 * random.standard_normal()
            main = {(4, 0.25)}
            grid = {(s, r) for s in (2, 3, 6, 8, 16) for r in (0.1, 0.25, 0.5)} | {
                (4, 0.1),
                (4, 0.5),
            }
            for s, r in sorted({(1, 0.0)} | main | (grid if tokens == TOKENS[1] else set())):
                gain = truth.gain(PARAMS, tokens, s, r) if s > 1 else 0.0
                loss = level - gain + NOISE * random.standard_normal()
                frame.append((PARAMS, tokens, s, r, seed, loss))
    names = ["params", "tokens", "bag_size", "step_ratio", "seed", "loss"]
    return fit_law(rows_of_frame(pd.DataFrame(frame, columns=names)))


def test_law_and_trend_find_what_the_truth_goes_on_to(law: Law) -> None:
    found = predict(law, "twice as long", PARAMS, 1.6e11, "tokens")
    truth = published_law().gain(PARAMS, 1.6e11, 4, 0.25)
    _, low, high = found.law
    assert low < truth < high
    value, low, high = found.trend
    assert low < value < high
    assert value == pytest.approx(truth, abs=0.01)


def test_the_null_is_the_gain_of_the_nearest_length(law: Law) -> None:
    found = predict(law, "twice as long", PARAMS, 1.6e11, "tokens")
    rows = law.rows
    nearest = rows[rows["tokens"] == TOKENS[-1]].pivot_table(
        index="seed", columns="bag_size", values="loss"
    )
    assert found.same[0] == pytest.approx((nearest[1] - nearest[4]).mean())
    assert found.none == 0


def test_what_is_there_already_is_not_predicted(law: Law) -> None:
    with pytest.raises(UserError, match="late: has been trained already"):
        predict(law, "late", PARAMS, TOKENS[0], "tokens")
    with pytest.raises(UserError, match="two seeds at two values of params"):
        predict(law, "larger", 4 * PARAMS, TOKENS[0], "params")


def test_targets_differ_from_the_campaign_in_one_thing_each() -> None:
    (_, own, long, along), (_, larger, short, other) = targets()
    assert (along, other) == ("tokens", "params")
    assert long == 28_000 * 1024
    assert short == 10_000 * 1024
    assert 4 < larger / own < 5
