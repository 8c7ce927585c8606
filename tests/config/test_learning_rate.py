"""Schedules are pure functions of the step with the shapes that their names promise."""

from __future__ import annotations

import math

import pytest

from tst_study.config.phase_plan import is_annealed, learning_rate_factor
from tst_study.config.schema import Schedule

PAPER = Schedule(steps=20_000, kind="wsd", warmup_steps=2_000, decay_ratio=0.1)
# The decay begins after step 18,000, and every step moves the weights.
AT_THE_PAPERS_STEPS = {
    0: 1 / 2000, 999: 0.5, 1_999: 1.0, 2_000: 1.0, 17_999: 1.0, 18_000: 1.0, 19_000: 0.5,
    19_999: 1 / 2000,
}  # fmt: skip
WAVE = {step: 0.55 + 0.45 * math.cos(math.pi * (step - 10) / 100) for step in range(10, 110)}
SHAPES = {
    "the paper's": (PAPER, AT_THE_PAPERS_STEPS),
    "square root": (
        Schedule(steps=100, decay_ratio=0.5, decay_shape="sqrt"),
        {0: 1.0, 50: 1.0, 75: 1 - math.sqrt(0.5), 99: 1 - math.sqrt(0.98)},
    ),
    "half a wave from the end of warm-up": (
        Schedule(steps=110, kind="cosine", warmup_steps=10, final_ratio=0.1),
        WAVE,
    ),
    "constant": (
        Schedule(steps=100, kind="constant", warmup_steps=4),
        {0: 0.25, 1: 0.5, 2: 0.75, 3: 1.0, 99: 1.0, 100: 1.0},
    ),
    "to the final ratio after the last step": (
        Schedule(steps=100, decay_ratio=0.2, final_ratio=0.3),
        {0: 1.0, 99: 0.3 + 0.7 / 20, 100: 0.3},
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_the_learning_rate_follows_its_shape(name: str) -> None:
    schedule, expected = SHAPES[name]
    found = {step: learning_rate_factor(schedule, step) for step in expected}
    assert found == pytest.approx(expected)


def test_losses_are_annealed_only_after_a_whole_decay() -> None:
    assert [is_annealed(PAPER, step) for step in (0, 18_000, 19_999)] == [False] * 3
    assert is_annealed(PAPER, 20_000)
    assert is_annealed(Schedule(steps=10, kind="cosine"), 10)
    assert not is_annealed(Schedule(steps=10, kind="constant"), 10)
    assert not is_annealed(Schedule(steps=10, decay_ratio=0.0), 10)
