"""Phases, counters and the learning rate are pure functions of the step."""

import math
from itertools import product

import pytest
from hypothesis import example as also
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import example
from tst_study.config.phase_plan import PhasePlan, is_annealed, learning_rate_factor, plan_phases
from tst_study.config.schema import BatchWarmup, Config, Schedule
from tst_study.cost.compute import count_flops, steps_at_equal_flops
from tst_study.errors import UserError


@pytest.mark.parametrize(
    ("override", "switch", "ratio"),
    [("schedule.steps=1000", 200, 0.2), ("superposition={bag_size = 4, steps = 33}", 33, 0.33)],
)
def test_the_switch_is_a_share_of_the_final_number_of_steps_or_given(override, switch, ratio):
    plan = plan_phases(example(override))
    assert (plan.superposed_steps, plan.step_ratio) == (switch, ratio)
    assert (plan.phase(switch - 1), plan.phase(switch)) == ("superposition", "recovery")


@pytest.mark.parametrize("override", ["superposition.bag_size=1", "superposition.step_ratio=0.0"])
def test_bags_of_one_or_no_superposed_step_are_the_baseline(override):
    baseline = plan_phases(example("superposition={}"))
    assert plan_phases(example(override)) == baseline
    assert baseline.phase(0) == "recovery"
    assert baseline.data_multiplier == 1.0


def test_output_only_reads_no_more_text_than_a_baseline():
    plan = plan_phases(example("superposition.mode=output_only"))
    assert plan.superposed_steps == 20
    assert plan.raw_tokens(plan.steps) == plan.latent_tokens(plan.steps)


@given(
    steps=st.integers(1, 300),
    share=st.floats(0, 1),
    s=st.integers(2, 16),
    length=st.integers(2, 64),
)
def test_counters_add_up_step_by_step(steps, share, s, length):
    superposed = round(share * steps)
    plan = PhasePlan(steps, superposed, s, sequences=3, sequence_length=length)
    for step in range(steps):
        read = plan.raw_tokens(step + 1) - plan.raw_tokens(step)
        assert read == 3 * plan.tokens_per_sequence(plan.phase(step))
    assert plan.data_multiplier == pytest.approx(1 + plan.step_ratio * (s - 1))


SMALL_STEPS = (
    "batch_warmup={parts = 2, step_ratio = SHARE}",
    "batch_warmup={parts = 3, step_ratio = SHARE}",
    "sequence_warmup={parts = 3, step_ratio = SHARE}",
    "sequence_warmup={parts = 4, step_ratio = SHARE}",
)
"""The rivals of superposition, for batches of 12 sequences of 24 positions, each of which also has
its FLOPs counted by torch (`tests/cost/test_step.py`)."""


def rival_keys(rival: str, steps: int, share: float) -> tuple[str, ...]:
    batch = ("batch.sequences=12", "batch.sequence_length=24")
    schedule = (f"schedule.steps={steps}", "schedule.warmup_steps=0")
    return ("superposition={}", rival.replace("SHARE", str(share)), *batch, *schedule)


def with_small_steps(rival: str, steps: int, share: float) -> Config:
    return example(*rival_keys(rival, steps, share))


@pytest.mark.parametrize("rival", SMALL_STEPS)
@given(steps=st.integers(24, 60), share=st.floats(0.5, 1))
def test_small_steps_read_every_part_of_a_whole_step_once_and_then_whole_ones(rival, steps, share):
    config = with_small_steps(rival, steps, share)
    plan, (of_config,) = plan_phases(config), config.rivals.values()
    assert abs(plan.small_steps - share * steps) < of_config.group_size
    read: list[tuple[int, int, int]] = []
    for step in range(steps):
        reads = plan.reads(step)
        assert plan.latent_tokens(step) == len(read)
        assert (reads.positions < config.batch.positions) == (step < plan.small_steps)
        rows = range(reads.first_sequence, reads.first_sequence + reads.sequences)
        places = range(reads.first_position, reads.first_position + reads.length)
        read += [(reads.whole_step, row, place) for row in rows for place in places]
    batch = range(config.batch.sequences), range(config.batch.sequence_length)
    whole_steps = len(read) // config.batch.positions
    assert sorted(read) == list(product(range(whole_steps), *batch))


@pytest.mark.parametrize("rival", SMALL_STEPS)
@pytest.mark.parametrize("steps", [400, 1000, 20_000])
def test_a_warm_up_of_equal_flops_has_more_steps_and_costs_the_same_in_total(rival, steps):
    more = steps_at_equal_flops(with_small_steps(rival, steps, 0.3))
    flops = count_flops(with_small_steps(rival, more, 0.3))
    assert more > 1.1 * steps
    assert flops.total == pytest.approx(steps * flops.per_step, abs=0.55 * flops.per_step)


@settings(max_examples=12)
@given(steps=st.integers(200, 320), share=st.floats(0.05, 1), parts=st.sampled_from((2, 3, 4)))
@also(307, 1.0, 4)
@also(1003, 0.95, 4)
def test_no_number_of_steps_is_nearer_to_equal_flops(steps, share, parts):
    whole = example("superposition={}", "batch.sequences=12")
    rival = {"parts": parts, "step_ratio": share}

    def run(length: int) -> Config:
        schedule = whole.schedule.model_copy(update={"steps": length})
        changed = {"schedule": schedule, "batch_warmup": BatchWarmup(**rival)}
        return whole.model_copy(update=changed)

    def away(length: int) -> int:
        flops = count_flops(run(length))
        return abs(flops.total - steps * flops.per_step)

    nearest = min(map(away, range(steps, parts * steps + parts)))
    assert away(steps_at_equal_flops(run(steps))) == nearest


def test_stages_of_small_steps_that_end_within_a_whole_step_are_refused():
    class Odd(BatchWarmup):
        @property
        def group(self) -> tuple[tuple[int, int], ...]:
            return ((1, 4), (1, 2))

    with pytest.raises(ValueError, match="a stage has a multiple of its parts"):
        Odd(parts=2, step_ratio=0.5)


def test_a_run_too_short_for_equal_flops_is_refused():
    """`analyse` would leave it out for that difference after it was trained."""
    run = ("sequence_warmup={parts = 4, step_ratio = 0.5}", "schedule.steps=40")
    with pytest.raises(UserError, match="too much for a comparison at equal FLOPs"):
        steps_at_equal_flops(example("superposition={}", *run))


PAPER = Schedule(steps=20_000, kind="wsd", warmup_steps=2_000, decay_ratio=0.1)
# The decay begins after step 18,000, and every step moves the weights.
AT_THE_PAPERS_STEPS = {
    0: 1 / 2000, 999: 0.5, 1_999: 1.0, 2_000: 1.0, 17_999: 1.0, 18_000: 1.0, 19_000: 0.5,
    19_999: 1 / 2000,
}  # fmt: skip
WAVE = {step: 0.55 + 0.45 * math.cos(math.pi * (step - 10) / 100) for step in range(10, 110)}
SHAPES = {
    "the paper's": (PAPER, AT_THE_PAPERS_STEPS),
    "half a wave from the end of warm-up": (
        Schedule(steps=110, kind="cosine", warmup_steps=10, final_ratio=0.1),
        WAVE,
    ),
    "constant": (
        Schedule(steps=100, decay_ratio=0.0, warmup_steps=4),
        {0: 0.25, 1: 0.5, 2: 0.75, 3: 1.0, 99: 1.0, 100: 1.0},
    ),
    "to the final ratio after the last step": (
        Schedule(steps=100, decay_ratio=0.2, final_ratio=0.3),
        {0: 1.0, 99: 0.3 + 0.7 / 20, 100: 0.3},
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_the_learning_rate_follows_its_shape(name):
    schedule, expected = SHAPES[name]
    found = {step: learning_rate_factor(schedule, step) for step in expected}
    assert found == pytest.approx(expected)


def test_losses_are_annealed_only_after_a_whole_decay():
    assert [is_annealed(PAPER, step) for step in (0, 18_000, 19_999)] == [False] * 3
    assert is_annealed(PAPER, 20_000)
    assert is_annealed(Schedule(steps=10, kind="cosine"), 10)
    assert not is_annealed(Schedule(steps=10, decay_ratio=0.0), 10)
