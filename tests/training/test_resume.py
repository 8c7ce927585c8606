"""A run that is killed at any moment ends, once resumed, bit for bit like the unbroken one."""

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.tiny_runs import (
    MIXTURE,
    MUON,
    assert_same_run,
    kill_this_process,
    launched,
    run,
    when_step_begins,
)
from tst_study.record import reader as run_record
from tst_study.record.reader import RunRecord

# The switch is at step 10 of 20.
ALL = (
    "numerics.dtype=bfloat16",
    *MIXTURE,
    "superposition.reinitialize_at_switch=true",
    "superposition.optimizer_at_switch=reset",
    "model.tied_embeddings=true",
)


def to_the_end(corpus: Path, folder: Path, *overrides: str) -> RunRecord:
    return run(corpus, folder, *overrides, "execution.evaluate_every=6")


def test_killed_between_two_small_steps_that_share_the_text_of_a_whole_one(words, tmp_path):
    rival = ("superposition={}", "sequence_warmup={parts = 4, step_ratio = 0.5}")
    to_the_end(words, tmp_path / "unbroken", *rival)
    killed_in_step(6, words, tmp_path / "broken", *rival, "execution.checkpoint_every=5")
    record = to_the_end(words, tmp_path / "broken", *rival)
    assert [segment["resumed_from"] for segment in record.segments] == [None, 5]
    assert_same_run(tmp_path / "unbroken", tmp_path / "broken")


@pytest.fixture(scope="module")
def unbroken(words: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the run of 20 steps that no one stopped."""
    folder = tmp_path_factory.mktemp("runs") / "unbroken"
    to_the_end(words, folder)
    return folder


def broken(corpus: Path, folder: Path, prepare: Callable[[], None], *overrides: str) -> int:
    return launched(corpus, folder, prepare, *overrides, "execution.evaluate_every=6")


def killed_in_step(step: int, corpus: Path, folder: Path, *overrides: str) -> None:
    prepare = partial(when_step_begins, step, kill_this_process)
    assert broken(corpus, folder, prepare, *overrides) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("step", "every", "resumed_from"),
    [
        (2, 4, None),  # before the first checkpoint
        (10, 5, 10),  # in the first recovery step, with a checkpoint right at the switch
        (11, 4, 8),  # after the switch, so that superposed steps are taken again
    ],
)
def test_killed_in_a_step(words, unbroken, tmp_path, step, every, resumed_from):
    settings = (f"execution.checkpoint_every={every}",)
    killed_in_step(step, words, tmp_path / "broken", *settings)
    record = to_the_end(words, tmp_path / "broken", *settings)
    assert [segment["resumed_from"] for segment in record.segments] == [None, resumed_from]
    assert [segment["ended"] for segment in record.segments] == ["lost", "done"]
    assert record.dropped_rows > 0 or step % every == 0
    seconds = [row["training_seconds"] for row in record.metrics]
    assert seconds == sorted(seconds)
    assert_same_run(tmp_path / "broken", unbroken)


@pytest.mark.parametrize(("overrides", "step"), [(MUON, 13), (ALL, 10), (ALL, 13)])
def test_killed_around_the_switch_of_any_kind_of_run(words, tmp_path, overrides, step):
    unbroken = tmp_path / "unbroken"
    to_the_end(words, unbroken, *overrides)
    settings = (*overrides, "execution.checkpoint_every=5")
    killed_in_step(step, words, tmp_path / "broken", *settings)
    record = to_the_end(words, tmp_path / "broken", *settings)
    assert record.segments[-1]["resumed_from"] == 10
    assert_same_run(tmp_path / "broken", unbroken)


@pytest.mark.parametrize("whole", [False, True], ids=["before its renaming", "behind it"])
def test_killed_at_the_end_of_a_save(words, unbroken, tmp_path, whole):

    def prepare() -> None:
        rename = os.rename

        def last_rename(source: Path, target: Path) -> None:
            of_the_checkpoint = Path(target).name.startswith("step-")
            if whole or not of_the_checkpoint:
                rename(source, target)
            if of_the_checkpoint:
                kill_this_process()

        os.rename = last_rename

    # The save after the last step: of the run, nothing but its word that it is done is left.
    assert broken(words, tmp_path / "broken", prepare) == -signal.SIGKILL
    status = run_record.read_status(tmp_path / "broken")
    assert status["state"] == "running"
    places = tmp_path / "broken" / "checkpoints"
    left = "step-00000020" if whole else "partial-step-00000020"
    assert [place.name for place in places.iterdir()] == [left]
    record = to_the_end(words, tmp_path / "broken")
    assert record.segments[-1]["resumed_from"] == (20 if whole else None)
    assert [place.name for place in places.iterdir()] == ["step-00000020"]
    assert record.state == "done"
    assert_same_run(tmp_path / "broken", unbroken)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_a_signal_stops_a_run_behind_its_step_with_a_checkpoint(words, unbroken, tmp_path, name):
    step = 9  # the last superposed one
    prepare = partial(when_step_begins, step, partial(signal.raise_signal, signal.Signals[name]))
    assert broken(words, tmp_path / "broken", prepare) == 7
    stopped = run_record.read(tmp_path / "broken")
    assert stopped.state == "preempted"
    assert stopped.status["last_checkpoint"] == stopped.status["step"] == step + 1
    assert stopped.segments[0]["ended"] == f"{name} at step {step + 1}"
    record = to_the_end(words, tmp_path / "broken")
    assert record.segments[1]["resumed_from"] == step + 1
    assert record.dropped_rows == 0
    assert_same_run(tmp_path / "broken", unbroken)
