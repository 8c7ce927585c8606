"""Predictions of the campaign: made from its own grids once they are whole, refused once it is too
late."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.law.superposition_law import published_law
from analysis.tables.source import load
from benchmarks.prediction_coverage import RECORD
from docs import predictions
from docs.predictions import ABOUT, BASED_ON, main, predict, rows_to_fit, targets
from experiments.studies import catalogue
from tests.analysis.made_runs import write_run
from tests.test_campaign_tables import TwiceTheRate
from tst_study.config import Config
from tst_study.errors import UserError

NOISE = 0.004
"""Of a run, nats: pairs deviate by 0.006."""


def truth(run: Config) -> float:
    """0.011 at the main setting and 20,000 steps, more in longer runs, over s and r as the paper's
    grids have it."""
    s = run.superposition
    if s.bag_size == 1:
        return 0.0
    law, params, tokens = published_law(), 270e6, 20_000 * 2.0**21
    shape = law.gain(params, tokens, s.bag_size, s.step_ratio) / law.gain(params, tokens, 4, 0.25)
    return 0.011 * (run.schedule.steps / 20_000) ** 0.5 * shape


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Those that predictions are made from."""
    root, random = tmp_path_factory.mktemp("campaign"), np.random.default_rng(0)
    for run in catalogue.load("laptop", "desktop").runs(TwiceTheRate()):
        if run.name.startswith(tuple(BASED_ON)) and not run.name.startswith(ABOUT):
            level = 3.3 + 400 / run.schedule.steps + 0.01 * run.seed
            loss = level - truth(run) + NOISE * random.standard_normal()
            write_run(root, run, loss, log_every=run.schedule.steps)
    return root


@pytest.fixture(scope="module")
def written(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    to = tmp_path_factory.mktemp("predicted") / "predictions.json"
    main([str(runs), "--to", str(to)])
    with pytest.raises(FileExistsError):
        main([str(runs), "--to", str(to)])
    found: dict[str, object] = json.loads(to.read_text("utf8"))
    return found


def test_law_and_trend_find_what_the_truth_goes_on_to(written: dict[str, object]) -> None:
    longest, larger = written["predictions"]  # type: ignore[misc]
    goes_on = 0.011 * (28 / 20) ** 0.5
    for way in ("law", "trend"):
        value, low, high = longest[way]
        assert low < goes_on < high
        assert low < value < high
        assert high - low < 0.05
    assert longest["seeds"] == list(range(3, 11))
    assert larger["law"] is None
    assert larger["seeds"] == [3, 4, 5, 6]


def test_the_law_says_what_it_was_fitted_to_and_what_was_held(written: dict[str, object]) -> None:
    law = written["law"]
    assert isinstance(law, dict)
    assert set(law["fitted"]) == {"worth", "debt", "blur", "length"}
    assert set(law["held"]) == {*predictions.SHAPE, "size", "drift"}
    assert law["fitted"]["length"] < 0  # what grows with length


def test_a_law_that_runs_do_not_determine_leaves_trend_and_nulls(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> None:
        raise UserError("only 1 of 4 starts ended there")

    monkeypatch.setattr(predictions, "fit_law", refuses)
    rows, _ = rows_to_fit(load(runs))
    law, said = predictions.main_law(rows, targets()[0][1])
    assert said == {"refused": "only 1 of 4 starts ended there"}
    found = predict(rows, law, *targets()[0])
    assert found.law is None
    assert found.trend[1] < found.trend[0] < found.trend[2]


def test_the_null_is_the_gain_of_the_nearest_length(runs: Path) -> None:
    rows, _ = rows_to_fit(load(runs))
    found = predict(rows, None, *targets()[0])
    nearest = rows[np.isclose(rows["tokens"], 20_000 * 1024) & rows["bag_size"].isin([1, 4])]
    main_only = nearest[nearest["step_ratio"].isin([0.0, 0.25])]
    losses = main_only.pivot_table(index="seed", columns="bag_size", values="loss")
    assert found.same[0] == pytest.approx((losses[1] - losses[4]).mean())
    assert found.same_by_seed == pytest.approx(list(losses[1] - losses[4]))
    assert found.none == 0


def with_name(runs: pd.DataFrame, name: str) -> pd.DataFrame:
    changed = pd.concat([runs, runs.head(1).assign(name=name)], ignore_index=True)
    changed.attrs = runs.attrs
    return changed


def test_what_is_there_already_or_not_yet_whole_is_refused(runs: Path) -> None:
    table = load(runs)
    with pytest.raises(UserError, match="lengths-28000-baseline-seed3: has ended"):
        rows_to_fit(with_name(table, "lengths-28000-baseline-seed3"))
    short = table[~table["name"].str.contains("s16-r0.25-seed4")]
    short.attrs = table.attrs
    with pytest.raises(UserError, match="bag-sizes: 23 superposed runs are over, 24 are planned"):
        rows_to_fit(short)
    short.attrs = {"problems": ["lengths-5000-…: cannot be read"]}
    with pytest.raises(UserError, match="mend it first"):
        rows_to_fit(short)
    rows, left_out = rows_to_fit(table)
    assert left_out == []
    _, own, _, _ = targets()[0]
    with pytest.raises(UserError, match="late: has been trained already"):
        predict(rows, None, "late", own, 20_000 * 1024.0, "tokens")
    with pytest.raises(UserError, match="two seeds at two values of params"):
        predict(rows, None, "larger", 4 * own, 5_000 * 1024.0, "params")


def test_targets_differ_from_the_campaign_in_one_thing_each() -> None:
    (_, own, long, along), (_, larger, short, other) = targets()
    assert (along, other) == ("tokens", "params")
    assert long == 28_000 * 1024
    assert short == 10_000 * 1024
    assert 4 < larger / own < 5


def test_the_record_of_their_coverage_is_what_the_docs_say() -> None:
    record = pd.read_csv(RECORD).set_index(["gain", "way"])
    assert (record["covered"] >= 0.93).all()
    covered = [f"{share:.2f}".lstrip("0") for share in record["covered"]]
    refused = [
        f"{float(f'{100 * (1 - share):.1g}'):g}%"
        for share in record["shown"].xs("law", level="way")
    ]
    page = " ".join((Path(__file__).parents[1] / "docs/analysis.md").read_text("utf8").split())
    assert f"{covered[0]} of the law's and {covered[1]} of the trend's cover" in page
    assert (
        f"bend, {covered[2]} and {covered[3]}. The law is refused in {' and '.join(refused)}"
        in page
    )
