"""Phases, and counters as pure functions of the step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import example
from tst_study.config.phase_plan import PhasePlan, plan_phases

# Table 1 of the paper: tokens are batch x (s x superposed steps + recovery steps), printed as
# B or T to three digits. (batch tokens, steps, superposed steps, s, printed TST tokens, printed
# total)
M2, M8 = 2**21, 2**23
LEDGER = [
    (M2, 20_000, 0, 1, "0", "42B"),
    (M2, 20_000, 6_000, 6, "75B", "105B"),
    (M2, 100_000, 0, 1, "0", "210B"),
    (M2, 100_000, 30_000, 6, "377B", "524B"),
    (M2, 36_000, 0, 1, "0", "75B"),
    (M2, 50_000, 0, 1, "0", "105B"),
    (M8, 125_000, 0, 1, "0", "1049B"),
    (M8, 49_983, 12_483, 16, "1675B", "1990B"),
]


@pytest.mark.parametrize(("batch", "steps", "superposed", "s", "tst", "total"), LEDGER)
def test_ledger_of_the_paper(
    batch: int, steps: int, superposed: int, s: int, tst: str, total: str
) -> None:
    plan = PhasePlan(steps, superposed, s, True, batch // 2048, 2048)
    assert _printed(plan.raw_tokens(superposed)) == tst
    assert _printed(plan.raw_tokens(steps)) == total
    # A step of either phase runs as many latent positions as a baseline's.
    assert plan.latent_tokens(steps) == steps * batch


def _printed(tokens: int) -> str:
    return f"{round(tokens / 1e9)}B" if tokens else "0"


@pytest.mark.parametrize(
    ("override", "switch", "ratio"),
    [("schedule.steps=1000", 200, 0.2), ("superposition={bag_size = 4, steps = 33}", 33, 0.33)],
)
def test_the_switch_is_a_share_of_the_final_number_of_steps_or_given(
    override: str, switch: int, ratio: float
) -> None:
    plan = plan_phases(example(override))
    assert (plan.superposed_steps, plan.step_ratio) == (switch, ratio)
    assert (plan.phase(switch - 1), plan.phase(switch)) == ("superposition", "recovery")


@pytest.mark.parametrize("override", ["superposition.bag_size=1", "superposition.step_ratio=0.0"])
def test_bags_of_one_or_no_superposed_step_are_the_baseline(override: str) -> None:
    baseline = plan_phases(example("superposition={}"))
    assert plan_phases(example(override)) == baseline
    assert baseline.phase(0) == "recovery"
    assert baseline.data_multiplier == 1.0


def test_output_only_reads_no_more_text_than_a_baseline() -> None:
    plan = plan_phases(example("superposition.mode=output_only"))
    assert plan.superposed_steps == 20
    assert plan.raw_tokens(plan.steps) == plan.latent_tokens(plan.steps)


@given(
    steps=st.integers(1, 300),
    share=st.floats(0, 1),
    s=st.integers(2, 16),
    length=st.integers(2, 64),
)
def test_counters_add_up_step_by_step(steps: int, share: float, s: int, length: int) -> None:
    superposed = round(share * steps)
    plan = PhasePlan(steps, superposed, s, True, 3, length)
    for step in range(steps):
        read = plan.raw_tokens(step + 1) - plan.raw_tokens(step)
        assert read == 3 * plan.tokens_per_sequence(plan.phase(step))
    assert plan.data_multiplier == pytest.approx(1 + plan.step_ratio * (s - 1))
