"""The method `moderated-1`: no interval that another arm, a gap, a spike or a copy can blow up or
shrink. `tests/test_claims.py` computes its intervals a second time."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tests.analysis.made_runs import config, write_run
from tst_study.analysis.summary import summarise
from tst_study.analysis.tables.source import load, read_tables
from tst_study.analysis.verdict.comparison import compare
from tst_study.analysis.verdict.decide import Estimate, estimates
from tst_study.analysis.verdict.intervals import moderated, paired_difference
from tst_study.errors import UserError

RECORD = Path(__file__).parents[2] / "benchmarks" / "records" / "verdict_coverage.json"
ROWS = json.loads(RECORD.read_text())


def judged(family: Sequence[Sequence[float]], allowed: int = 0) -> list[Estimate]:
    """Estimates of a family, from each contrast's differences."""
    return estimates(list(map(paired_difference, family)), allowed or len(family), "moderated-1")


def width(one: Estimate) -> float:
    return one.high - one.low


def gains(seeds: int, arms: int, seed: int = 0) -> list[list[float]]:
    made = np.random.default_rng(seed).normal(0.0, 0.005, (arms, seeds))
    return [list(map(float, one)) for one in made]


@given(st.integers(0, 2**32 - 1), st.integers(3, 12), st.integers(3, 30))
def test_no_interval_is_wider_than_the_widest_of_plain_paired_tests(
    seed: int, seeds: int, arms: int
) -> None:
    family = gains(seeds, arms, seed)
    plain = estimates(list(map(paired_difference, family)), arms, "paired")
    assert max(map(width, judged(family))) <= max(map(width, plain)) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("family", "verdicts"),
    [
        ([[0.01]], ["one seed: no claim"]),
        ([[0.01, 0.02]] * 3, ["two seeds: no claim"] * 3),
        ([[0.01] * 4, [0.0] * 4], ["no variation: no claim"] * 2),
        ([[]], ["no pair yet"]),
    ],
)
def test_what_allows_no_interval_says_why(family: list[list[float]], verdicts: list[str]) -> None:
    found = judged(family)
    assert [one.verdict for one in found] == verdicts
    assert {one.low for one in found} == {None}


def test_a_spike_in_one_arm_does_not_hide_another_s_gain() -> None:
    family = gains(8, 3)
    family[0] = [0.02 + x / 2 for x in family[0]]
    before = judged(family)[0]
    family[1][3] -= 1.6  # one run ends at a loss of 5
    after = judged(family)[0]
    assert (before.verdict, after.verdict) == ("better", "better")
    assert width(after) < 1.2 * width(before)


def test_a_seed_that_one_arm_lacks_changes_no_other_arm() -> None:
    family = gains(4, 2)
    whole = judged(family)[1]
    assert judged([family[0][:3], family[1]])[1] == whole


def test_a_control_that_loses_by_far_widens_no_interval() -> None:
    family = gains(12, 3, seed=4)
    control = [10 * x - 0.17 for x in gains(12, 1, seed=5)[0]]
    before, after = judged(family, 4)[0], judged([*family, control])[0]
    assert width(after) < 1.05 * width(before)


def test_an_arm_without_variation_claims_nothing_and_changes_no_other() -> None:
    family = gains(4, 3)
    found = judged([*family, [0.05] * 4], 4)
    assert found[3].verdict == "no variation: no claim"
    assert found[:3] == judged(family, 4)


def test_runs_without_seeds_are_compared_with_every_baseline_and_named_unpaired(
    tmp_path: Path,
) -> None:
    for seed in range(4):
        write_run(tmp_path, config(seed), 3.5 + 0.01 * seed)
        write_run(tmp_path, config(seed, 4, 0.2), 3.4 + 0.012 * seed)
    runs = load(tmp_path)
    unseeded = runs.assign(seed=pd.array([pd.NA] * len(runs), "Int64"))
    (row,) = compare(unseeded).verdicts.to_dict("records")
    expected = stats.ttest_ind(
        *(runs[runs["method"] == one]["nats_per_token"] for one in ("baseline", "superposition")),
        equal_var=False,
    ).confidence_interval()
    assert (row["low"], row["high"]) == pytest.approx((expected.low, expected.high))
    assert row["unpaired"]
    mixed = runs.assign(seed=runs["seed"].astype("Int64"))
    mixed.loc[mixed["method"] == "superposition", "seed"] = pd.NA
    (reason,) = set(compare(mixed).excluded["reason"])
    assert reason == "no finished baseline without a seed"


def test_a_curve_copied_under_another_seed_is_an_error_that_names_both(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path, config(seed), 3.5 + 0.01 * seed)
    tables = read_tables(tmp_path)
    folders = list(tables.runs["folder"])
    steps = np.arange(1, 6)
    curves = pd.concat(
        pd.DataFrame({"folder": one, "step": steps, "loss": 5.0 / steps + 0.1 * (i % 2)})
        for i, one in enumerate(folders)
    )
    first, _, third = tables.runs["run_id"]
    with pytest.raises(UserError, match=rf"runs '{first}' and '{third}': seeds 0 and 2, but the"):
        summarise(replace(tables, curves=curves))


def test_the_method_covers_wherever_it_was_simulated() -> None:
    rows = [row for row in ROWS if "moderated" in row]
    assert {int(row["case"].split()[0]) for row in rows} == {2, 3, 4, 8, 12}
    assert all(row["made"] >= 2000 for row in rows)
    assert min(row["moderated"]["coverage"] for row in rows) >= 0.93
    assert max(row["widest, of the widest paired"] for row in rows) <= 1.0


def test_a_spike_elsewhere_widens_an_interval_by_a_tenth_at_most_in_the_median() -> None:
    """Three seeds or more; two allow no claim."""
    rows = [row for row in ROWS if "found" in row and not row["case"].startswith("2 seeds")]
    assert len(rows) >= 16
    assert max(row["wider, median"] for row in rows) <= 1.1
    assert max(row["wider, most"] for row in rows) <= 4 / 3
    eight = [row["found"] for row in rows if row["case"].startswith("8 seeds")]
    assert min(eight) > 0.9


def test_a_contrast_far_quieter_than_its_family_is_judged_alone() -> None:
    """Pooling would widen it several times, and narrow the others."""
    random = np.random.default_rng(0)
    family = [paired_difference(random.standard_normal(4) * size) for size in (0.02, *[1.0] * 8)]
    alone, *others = moderated(family)
    assert alone == family[0]
    assert others == moderated(family[1:])
    near = [paired_difference(random.standard_normal(4) * size) for size in (0.3, *[1.0] * 8)]
    assert moderated(near)[0].freedom > near[0].freedom
