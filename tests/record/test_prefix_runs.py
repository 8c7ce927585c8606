"""Runs with a common prefix share it bit for bit, and no other run may fork from it."""

from functools import partial
from pathlib import Path

import pytest

from tests.examples import example
from tests.tiny_runs import (
    assert_same_run,
    kill_this_process,
    launched,
    run,
    tiny,
    when_step_begins,
)
from tst_study.config.identity import fingerprint, prefix_form, shared_until
from tst_study.dry_run import check_start
from tst_study.errors import UserError
from tst_study.record import reader as run_record
from tst_study.record.writer import RunWriter
from tst_study.train import train

DATA = {"corpora": [{"fingerprint": "ab", "weight": 1.0}], "tokenizer": "cd"}
BOTH_AT_THE_SWITCH = (
    "superposition.optimizer_at_switch=reset",
    "superposition.reinitialize_at_switch=true",
)
LOGGED = ("execution.log_every=3", "execution.evaluate_every=4")


def form(*overrides: str) -> dict[str, object]:
    return prefix_form(example(*overrides), DATA)


FALLING = "superposition.weighting=[[1, 1, 1, 1], [1, 0, 0, 0]]"  # over the superposed steps
BASELINE = "superposition={}"
SHARED = [
    # All r at one s share their superposed phase, whatever is done at the switch,
    ((), ("superposition.step_ratio=0.5",)),
    ((), ("superposition.optimizer_at_switch=reset",)),
    ((), ("superposition.reinitialize_at_switch=true",)),
    ((FALLING,), (FALLING, "schedule.decay_ratio=0.2")),
    # and all lengths of a baseline their stable one.
    ((BASELINE,), (BASELINE, "schedule.steps=400")),
    ((BASELINE,), ("superposition={bag_size=1, step_ratio=0.3}",)),
]
UNSHARED = [
    "seed=1", "superposition.bag_size=8", "superposition.mode=output_only", BASELINE,
    "superposition.weighting=power_law", "schedule.warmup_steps=6", "numerics.dtype=bfloat16",
    "optimizer.learning_rate=1e-3", "batch.sequences=8",
]  # fmt: skip


def test_what_runs_share_is_all_that_their_state_depends_on():
    for one, other in SHARED:
        assert form(*one) == form(*other)
    for override in UNSHARED:
        assert form(override) != form()
    assert form(FALLING) != form(FALLING, "superposition.step_ratio=0.5")


@pytest.mark.parametrize(
    ("override", "last"),
    [
        ("superposition.step_ratio=0.2", 20),
        ("superposition.step_ratio=1.0", 90),  # where the decay begins
        (BASELINE, 90),
        ("schedule.kind=cosine", 0),
    ],
)
def test_it_ends_with_the_superposed_phase_or_where_the_decay_begins(override, last):
    assert shared_until(example(override)) == last
    assert shared_until(example("superposition={}", "schedule.decay_ratio=0")) == 99


def test_a_trunk_is_the_same_run_whatever_it_was_planned_for():
    def identity(*overrides: str) -> str:
        return fingerprint(example("schedule.stop_after=15", *overrides), DATA)

    assert identity() == identity("superposition.step_ratio=0.5") == identity("schedule.steps=150")
    assert identity() != fingerprint(example("schedule.stop_after=14"), DATA)
    assert identity() != fingerprint(example(), DATA)


@pytest.fixture(scope="module")
def prefix(words: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten steps, of which all are superposed; forks after steps 5 and 10."""
    folder = tmp_path_factory.mktemp("runs") / "trunk"
    kept = ("execution.keep_steps=[5, 10]", "execution.checkpoint_every=3")
    run(words, folder, "schedule.stop_after=10", "role=trunk", *kept, *LOGGED)
    return folder


def forked(prefix: Path, step: int) -> str:
    return f"execution.fork_from={{folder='{prefix}', step={step}}}"


@pytest.mark.parametrize(
    ("ratio", "step", "more"),
    [
        (0.25, 5, ()),
        (0.5, 5, ()),  # superposed steps continue after the fork
        (0.5, 10, BOTH_AT_THE_SWITCH),
    ],
)
def test_a_forked_run_is_the_unforked_one_bit_for_bit(words, prefix, tmp_path, ratio, step, more):
    overrides = (f"superposition.step_ratio={ratio}", *LOGGED, *more)
    run(words, tmp_path / "unforked", *overrides)
    record = run(words, tmp_path / "forked", *overrides, forked(prefix, step))
    assert_same_run(tmp_path / "unforked", tmp_path / "forked")
    first, second = record.segments
    assert first["forked_from"]["step"] == step
    assert first["forked_from"]["run_id"] == run_record.read_header(prefix)["run_id"]
    assert second["resumed_from"] == step


def test_lengths_fork_from_a_stable_phase(words, tmp_path):
    baseline = ("superposition={}", *LOGGED)
    stop = ("schedule.steps=40", "schedule.stop_after=18", "execution.keep_steps=[18]")
    run(words, tmp_path / "trunk", *baseline, *stop)
    run(words, tmp_path / "unforked", *baseline)
    run(words, tmp_path / "forked", *baseline, forked(tmp_path / "trunk", 18))
    assert_same_run(tmp_path / "unforked", tmp_path / "forked")


def test_a_fork_that_is_killed_forks_again(words, prefix, tmp_path):
    overrides = (*LOGGED, forked(prefix, 10))
    prepare = partial(when_step_begins, 15, kill_this_process)
    launched(words, tmp_path / "forked", prepare, *overrides)
    assert run_record.read(tmp_path / "forked").metrics[-1]["step"] == 15
    # A launch without the fork makes its rows void, so that the next one copies them again.
    RunWriter(tmp_path / "forked", run_record.read_header(tmp_path / "forked")).start_segment(
        None, {}
    )
    run(words, tmp_path / "forked", *overrides)
    run(words, tmp_path / "unforked", *LOGGED)
    assert_same_run(tmp_path / "unforked", tmp_path / "forked")


def test_a_trunk_keeps_the_checkpoints_that_others_fork_from(prefix):
    names = sorted(path.name for path in (prefix / "checkpoints").iterdir())
    assert names == ["step-00000005", "step-00000006", "step-00000009", "step-00000010"]
    record = run_record.read(prefix)
    assert record.state == "done"
    assert (record.status["step"], record.status["steps"]) == (10, 10)
    assert record.header["flops"]["total"] == record.metrics[-1]["flops"]


@pytest.mark.parametrize(
    ("step", "override", "said"),
    [
        (4, "seed=0", "no checkpoint of step 4"),
        (5, "seed=1", "not a prefix"),
        (10, "superposition.step_ratio=0.25", "part after step 5"),
    ],
)
def test_what_is_no_trunk_is_refused_and_a_dry_run_says_so(
    words, prefix, tmp_path, step, override, said
):
    check_start(tiny(words, forked(prefix, 5)), None, 1)
    config = tiny(words, forked(prefix, step), override)
    for start in (partial(check_start, config, tmp_path, 1), partial(train, config, tmp_path)):
        with pytest.raises(UserError, match=said):
            start()
