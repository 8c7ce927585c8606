"""Schedules are pure functions of the step with the shapes that their names promise."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from tst_study.config.phase_plan import is_annealed, learning_rate_factor
from tst_study.config.schema import Schedule

PAPER = Schedule(steps=20_000, kind="wsd", warmup_steps=2_000, decay_ratio=0.1)


def factors(schedule: Schedule) -> list[float]:
    return [learning_rate_factor(schedule, step) for step in range(schedule.steps)]


def test_the_papers_schedule_at_its_named_steps() -> None:
    assert learning_rate_factor(PAPER, 0) == 1 / 2000
    assert learning_rate_factor(PAPER, 999) == 0.5
    assert learning_rate_factor(PAPER, 1_999) == 1.0
    assert learning_rate_factor(PAPER, 2_000) == learning_rate_factor(PAPER, 17_999) == 1.0
    assert learning_rate_factor(PAPER, 18_000) == 1.0  # the decay begins after this step
    assert learning_rate_factor(PAPER, 19_000) == pytest.approx(0.5)
    assert learning_rate_factor(PAPER, 19_999) == pytest.approx(1 / 2000)
    assert PAPER.decay_steps == 2_000


def test_wsd_rises_stays_and_falls() -> None:
    values = factors(PAPER)
    assert all(a < b for a, b in pairwise(values[:2_000]))
    assert set(values[1_999:18_001]) == {1.0}
    assert all(a > b for a, b in pairwise(values[18_000:]))
    assert min(values) > 0.0  # every step moves the weights


def test_a_square_root_decay_falls_faster_at_first() -> None:
    linear = Schedule(steps=100, decay_ratio=0.5)
    root = Schedule(steps=100, decay_ratio=0.5, decay_shape="sqrt")
    assert learning_rate_factor(root, 50) == 1.0
    assert learning_rate_factor(root, 75) == pytest.approx(1 - math.sqrt(0.5))
    for step in range(51, 100):
        assert learning_rate_factor(root, step) < learning_rate_factor(linear, step)


def test_cosine_is_half_a_wave_from_the_end_of_warm_up() -> None:
    cosine = Schedule(steps=110, kind="cosine", warmup_steps=10, final_ratio=0.1)
    assert learning_rate_factor(cosine, 10) == 1.0
    assert learning_rate_factor(cosine, 60) == pytest.approx(0.55)
    for step in range(10, 110):
        wave = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (step - 10) / 100))
        assert learning_rate_factor(cosine, step) == pytest.approx(wave)


def test_a_constant_schedule_only_warms_up() -> None:
    constant = Schedule(steps=100, kind="constant", warmup_steps=4)
    assert factors(constant) == [0.25, 0.5, 0.75] + [1.0] * 97
    assert learning_rate_factor(constant, 100) == 1.0


def test_the_decay_ends_at_the_final_ratio_behind_the_last_step() -> None:
    schedule = Schedule(steps=100, decay_ratio=0.2, final_ratio=0.3)
    assert learning_rate_factor(schedule, 99) == pytest.approx(0.3 + 0.7 / 20)
    assert learning_rate_factor(schedule, 100) == pytest.approx(0.3)


def test_without_warm_up_the_first_step_has_the_peak_rate() -> None:
    assert learning_rate_factor(Schedule(steps=10), 0) == 1.0


def test_losses_are_annealed_only_behind_a_whole_decay() -> None:
    assert [is_annealed(PAPER, step) for step in (0, 18_000, 19_999, 20_000)] == [False] * 3 + [
        True
    ]
    assert is_annealed(Schedule(steps=10, kind="cosine"), 10)
    assert not is_annealed(Schedule(steps=10, kind="constant"), 10)
    assert not is_annealed(Schedule(steps=10, decay_ratio=0.0), 10)
