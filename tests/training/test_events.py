"""Events by the clock come at the same step on all ranks, and change no result."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.distributed import run_ranks
from tests.tiny_runs import (
    assert_same_run,
    assert_same_tensors,
    last_tensors,
    run,
    stop_this_process,
    tiny,
    when_step_begins,
)
from tst_study.checkpoints.places import checkpoint_steps
from tst_study.data.token_stream import TokenStream
from tst_study.parallel import events
from tst_study.record import reader as run_record
from tst_study.train import train

SELDOM = ("execution.log_every=1000", "execution.keep_checkpoints=9")
BY_THE_CLOCK = ("execution.log_seconds=30", "execution.checkpoint_minutes=1")
TWO_RANKS = 2


class Clock:
    """A clock on which every step takes so many seconds."""

    def __init__(self, seconds: float, patch: pytest.MonkeyPatch) -> None:
        self.now, batch = 0.0, TokenStream.batch

        def later(stream: TokenStream, *rest: Any) -> Any:
            self.now += seconds
            return batch(stream, *rest)

        patch.setattr(TokenStream, "batch", later)
        patch.setattr(events, "time", self)

    def monotonic(self) -> float:
        return self.now


def steps_of(folder: Path) -> tuple[list[int], list[int]]:
    """Logged ones, and those with a checkpoint."""
    logged = [row["step"] for row in run_record.read(folder).metrics]
    return logged, checkpoint_steps(folder)


def test_quick_steps_and_those_of_a_run_without_intervals_are_not(words, tmp_path, monkeypatch):
    Clock(0.1, monkeypatch)
    run(words, tmp_path / "quick", *SELDOM, *BY_THE_CLOCK)
    Clock(1e6, monkeypatch)
    run(words, tmp_path / "none", *SELDOM, "execution.checkpoint_minutes=0")
    assert steps_of(tmp_path / "quick") == steps_of(tmp_path / "none") == ([10, 20], [20])


def train_on_its_own_clock(words: Path, folder: Path, seconds: float, *overrides: str) -> str:
    """A rank whose clock runs the faster, the higher its number."""
    with pytest.MonkeyPatch.context() as patch:
        Clock(seconds * (1 + 99 * dist.get_rank()), patch)
        return train(tiny(words, *SELDOM, *overrides), folder, progress=False)


def test_slow_steps_are_logged_and_saved_by_the_clock_of_the_first_rank(words, tmp_path):
    of_rank = partial(train_on_its_own_clock, words)
    slow, plain = tmp_path / "slow", tmp_path / "plain"
    assert run_ranks(TWO_RANKS, of_rank, slow, 12.0, *BY_THE_CLOCK) == ["done", "done"]
    # 36 seconds after a row it is overdue, and the next step is logged; the switch is at 10.
    assert steps_of(slow) == ([4, 8, 10, 14, 18, 20], [5, 10, 15, 20])
    run_ranks(TWO_RANKS, of_rank, plain, 0.01)
    assert_same_tensors(last_tensors(slow), last_tensors(plain))


def test_gpus_are_asked_about_once_a_second_and_the_run_stays_the_same(
    words, tmp_path, monkeypatch
):
    """Steps of a quarter of a second: the first asks, then every fourth."""
    monkeypatch.setitem(events.POLL_SECONDS, "cpu", 1.0)
    of_rank = partial(train_on_its_own_clock, words)
    assert run_ranks(TWO_RANKS, of_rank, tmp_path / "unbroken", 0.25) == ["done", "done"]

    def broken() -> str:
        when_step_begins(5, stop_this_process)
        return of_rank(tmp_path / "broken", 0.25)

    assert run_ranks(TWO_RANKS, broken) == ["preempted", "preempted"]
    assert steps_of(tmp_path / "broken")[1] == [9]
    run_ranks(TWO_RANKS, of_rank, tmp_path / "broken", 0.25)
    assert_same_run(tmp_path / "unbroken", tmp_path / "broken")
