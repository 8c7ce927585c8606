"""Simultaneous intervals: equal to textbook tests, and covering wherever that was simulated."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from analysis.verdict.intervals import Design, critical

RECORD = Path(__file__).parents[2] / "benchmarks" / "records" / "verdict_coverage.json"


def _design(arms: int, seeds: int, blocks: bool, own: bool) -> Design:
    arm, seed = np.divmod(np.arange((arms + 1) * seeds), seeds)
    contrasts = np.hstack([-np.ones((arms, 1)), np.eye(arms)])
    return Design(arm, seed, contrasts, blocks, own)


def test_one_way_pooled_is_dunnetts() -> None:
    losses = np.random.default_rng(1).normal(size=(4, 6)) + np.array([[0], [0.5], [1], [2]])
    estimate, error, freedom, correlation = _design(3, 6, False, False).estimates(losses.ravel())
    half = critical(correlation, float(freedom.mean())) * error
    expected = stats.dunnett(*losses[1:], control=losses[0], random_state=1).confidence_interval()
    np.testing.assert_allclose(estimate - half, expected.low, atol=0.02)
    np.testing.assert_allclose(estimate + half, expected.high, atol=0.02)


@pytest.mark.parametrize("own", [False, True])
def test_two_arms_with_blocks_are_the_paired_t_test(own: bool) -> None:
    losses = np.random.default_rng(2).normal(size=(2, 5))
    estimate, error, freedom, correlation = _design(1, 5, True, own).estimates(losses.ravel())
    half = critical(correlation, float(freedom[0])) * error
    paired = stats.ttest_rel(losses[1], losses[0]).confidence_interval(0.95)
    np.testing.assert_allclose([estimate - half, estimate + half], [[paired.low], [paired.high]])


def test_two_arms_of_unequal_spread_are_welchs_with_freedom_that_is_a_little_larger() -> None:
    losses = np.random.default_rng(3).normal(size=(2, 12)) * np.array([[1], [4]])
    estimate, error, freedom, _ = _design(1, 12, False, True).estimates(losses.ravel())
    welch = stats.ttest_ind(losses[1], losses[0], equal_var=False)
    np.testing.assert_allclose(estimate / error, [welch.statistic])
    assert welch.df <= freedom[0] <= welch.df * 1.1


def test_an_arm_without_seeds_of_its_own_design_is_not_estimated() -> None:
    contrasts = np.array([[-1.0, 1.0]])
    assert not Design(np.array([0, 1]), np.array([0, 1]), contrasts, True, False).estimable
    assert _design(2, 3, True, True).estimable


def test_the_default_covers_in_every_case_that_was_simulated() -> None:
    rows = json.loads(RECORD.read_text())
    assert len(rows) >= 100
    assert all(row["made"] >= 2000 for row in rows)
    assert min(row["blocks, own variances"][0] for row in rows) >= 0.93
    incomplete = json.loads(RECORD.with_name("verdict_coverage_incomplete.json").read_text())
    assert min(row["blocks, own variances"][0] for row in incomplete) >= 0.93
