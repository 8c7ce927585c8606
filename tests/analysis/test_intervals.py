"""The method `moderated-1`: no interval that another arm, a gap, a spike or a copy can blow up or
shrink. `tests/test_claims.py` computes its intervals a second time."""

import json
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from benchmarks.verdict_coverage import MEASURED, RECORD, SPREADS, Case
from tests.analysis.made_runs import write_pairs
from tst_study.analysis.statistics import critical_t
from tst_study.analysis.summary import summarise
from tst_study.analysis.tables.source import load, read_tables
from tst_study.analysis.verdict.comparison import compare
from tst_study.analysis.verdict.decide import Estimate, estimates
from tst_study.analysis.verdict.documents import documents_of
from tst_study.analysis.verdict.intervals import WIDER, moderated, paired_difference, shared

ROWS = json.loads(RECORD.read_text())


def judged(family: Sequence[Sequence[float]], allowed: int = 0) -> list[Estimate]:
    """Estimates of a family, from each contrast's differences."""
    return estimates(list(map(paired_difference, family)), allowed or len(family), "moderated-1")


def width(one: Estimate) -> float:
    return one.high - one.low


def gains(seeds: int, arms: int, seed: int = 0) -> list[list[float]]:
    made = np.random.default_rng(seed).normal(0.0, 0.005, (arms, seeds))
    return [list(map(float, one)) for one in made]


@pytest.mark.parametrize(
    ("family", "verdicts"),
    [
        ([[0.01]], ["one seed: no claim"]),
        ([[0.01, 0.02]] * 3, ["two seeds: no claim"] * 3),
        ([[0.01] * 4, [0.0] * 4], ["no variation: no claim"] * 2),
        ([[]], ["no pair yet"]),
    ],
)
def test_what_allows_no_interval_says_why(family, verdicts):
    found = judged(family)
    assert [one.verdict for one in found] == verdicts
    assert {one.low for one in found} == {None}


def test_a_spike_in_one_arm_does_not_hide_another_s_gain():
    family = gains(8, 3)
    family[0] = [0.02 + x / 2 for x in family[0]]
    before = judged(family)[0]
    family[1][3] -= 1.6  # one run ends at a loss of 5
    after = judged(family)[0]
    assert (before.verdict, after.verdict) == ("better", "better")
    assert width(after) < 1.2 * width(before)


def test_a_seed_that_one_arm_lacks_changes_no_other_arm():
    family = gains(4, 2)
    whole = judged(family)[1]
    assert judged([family[0][:3], family[1]])[1] == whole


def test_a_control_that_loses_by_far_widens_no_interval():
    family = gains(12, 3, seed=4)
    control = [10 * x - 0.17 for x in gains(12, 1, seed=5)[0]]
    before, after = judged(family, 4)[0], judged([*family, control])[0]
    assert width(after) < 1.05 * width(before)


def test_an_arm_without_variation_claims_nothing_and_changes_no_other():
    family = gains(4, 3)
    found = judged([*family, [0.05] * 4], 4)
    assert found[3].verdict == "no variation: no claim"
    assert found[:3] == judged(family, 4)


def test_runs_without_seeds_are_compared_with_every_baseline_and_named_unpaired(tmp_path):
    write_pairs(tmp_path, *((3.5 + 0.01 * seed, 3.4 + 0.012 * seed) for seed in range(4)))
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


def test_the_method_covers_wherever_it_was_simulated():
    """Also where seeds are uneven, and where quiet arms stand beside noisy ones."""
    rows = [row for row in ROWS if "moderated" in row]
    assert {int(row["case"].split()[0]) for row in rows} == {2, 3, 4, 8, 12, 20}
    assert {row["case"].rpartition(", ")[2] for row in rows} == {MEASURED, *SPREADS}
    assert all(row["made"] >= 10_000 for row in rows)
    assert min(row["moderated"]["coverage"] for row in rows) >= 0.93
    assert max(row["widest, of the widest paired"] for row in rows) <= 1.0
    assert max(row["widest, of its own paired"] for row in rows) <= WIDER


def test_a_spike_elsewhere_widens_an_interval_by_a_tenth_at_most_in_the_median():
    """Three seeds or more; two allow no claim."""
    rows = [row for row in ROWS if "found" in row and not row["case"].startswith("2 seeds")]
    assert len(rows) >= 16
    assert max(row["wider, median"] for row in rows) <= 1.1
    assert max(row["wider, most"] for row in rows) <= 4 / 3
    eight = [row["found"] for row in rows if row["case"].startswith("8 seeds")]
    assert min(eight) > 0.9


@given(st.lists(st.floats(-5, 1), min_size=3, max_size=9), st.integers(3, 20))
def test_no_interval_is_far_wider_than_its_own_or_wider_than_the_widest(sizes, most):
    """Whatever the noise of the arms and their numbers of seeds."""
    random = np.random.default_rng(most)
    family = [
        paired_difference(random.standard_normal(3 if place % 2 else most) * 10**size)
        for place, size in enumerate(sizes)
    ]
    own, found = (estimates(family, len(family), name) for name in ("paired", "moderated-1"))
    assert max(map(width, found)) <= max(map(width, own)) * (1 + 1e-9)
    assert all(
        width(new) <= WIDER * width(old) * (1 + 1e-9) for new, old in zip(found, own, strict=True)
    )


def test_a_contrast_far_quieter_than_its_family_narrows_no_other():
    """With it, the others' typical variance would be too low."""
    random = np.random.default_rng(0)
    family = [paired_difference(random.standard_normal(4) * size) for size in (0.02, *[1.0] * 8)]
    others = moderated(family, 9)[1:]
    assert others == moderated(family[1:], 9)
    near = [paired_difference(random.standard_normal(4) * size) for size in (0.3, *[1.0] * 8)]
    assert moderated(near, 9)[1:] != moderated(near[1:], 9)


def test_families_are_moderated_at_once_as_one_by_one():
    """The benchmark simulates many families in one call."""
    random = np.random.default_rng(1)
    families = [
        [paired_difference(random.standard_normal(5) * size) for size in (0.01, 1.0, 2.0, 3.0)]
        for _ in range(3)
    ]
    arrays = [
        np.array([[getattr(one, name) for one in family] for family in families])
        for name in ("variance", "freedom", "size")
    ]
    variance, freedom = shared(*arrays, 4)
    one_by_one = [moderated(family, 4) for family in families]
    assert variance.tolist() == [[one.variance for one in family] for family in one_by_one]
    assert freedom.tolist() == [[one.freedom for one in family] for family in one_by_one]


def test_a_gain_over_documents_and_seeds_is_less_certain_than_over_seeds():
    """The third campaign's larger pair, fifteen books worth 8.8 equal ones, in a family of two."""
    tables = read_tables(RECORD.parents[2] / "docs" / "records" / "tuned")
    table = summarise(tables).verdicts.set_index("question")
    row = table.loc["output only, 1.07 million weights against the tuned baseline"]
    assert (row["low"], row["high"]) == pytest.approx((0.0098, 0.0138), abs=1e-4)
    assert (row["documents_low"], row["documents_high"]) == pytest.approx(
        (0.0054, 0.0182), abs=1e-4
    )
    assert row["documents"] == 15


def test_documents_make_an_interval_only_where_all_runs_have_the_same_and_enough():
    def arm(tokens: Sequence[float], gain: float = 0.0) -> pd.DataFrame:
        losses = 3.0 + np.arange(len(tokens)) - gain * np.arange(len(tokens))
        cells = [np.array([losses + seed, tokens]) for seed in range(3)]
        return pd.DataFrame({"block": ["a", "b", "c"], "documents": cells})

    found = documents_of(arm([1] * 5, 0.01), arm([1] * 5))
    assert found is not None
    assert (found.count, found.freedom) == (5, pytest.approx(4))
    assert found.error == pytest.approx(0.01 * np.arange(5).std(ddof=1) / 5**0.5)
    low, high = found.ends(0.02, 0.02, 1)
    assert (low, high) == pytest.approx(
        stats.ttest_1samp(0.01 * np.arange(5), 0).confidence_interval()
    )
    assert documents_of(arm([1] * 3), arm([1] * 3)) is None
    assert documents_of(arm([100, 1, 1, 1, 1, 1]), arm([100, 1, 1, 1, 1, 1])) is None
    assert documents_of(arm([1] * 5), arm([1] * 4 + [2])) is None
    assert documents_of(arm([1] * 5), arm([1] * 5).assign(documents=None)) is None
    assert documents_of(arm([1] * 5), arm([1] * 5).drop(columns="documents")) is None


def test_stragglers_on_one_side_are_missed_as_often_as_the_page_says():
    covered = []
    for seeds in (3, 12):
        losses = Case(seeds, 1, "equal").losses(20_000)
        late = np.random.default_rng(seeds).random((20_000, seeds)) < 4 / 42
        pairs = losses[:, 0] + 30.0 * late - losses[:, 1]
        half = critical_t(seeds - 1) * pairs.std(axis=1, ddof=1) / np.sqrt(seeds)
        covered.append(np.mean(np.abs(pairs.mean(axis=1) - 30.0 * 4 / 42) <= half))
    assert covered == pytest.approx([0.925, 0.85], abs=0.005)
