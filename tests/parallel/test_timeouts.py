"""Ranks wait for one that hangs as long as configured, and errors name the rank and collective."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.distributed import run_ranks
from tests.tiny_runs import tiny
from tst_study.errors import OtherRankError, UserError
from tst_study.parallel.process_groups import collectives_named, process_groups

TIMEOUTS = ("execution.start_timeout_seconds=1234", "execution.timeout_seconds=2")


def timeouts() -> tuple[timedelta, set[timedelta]]:
    """Timeouts of the group of all ranks, and of all others."""
    of = {
        group: group._get_backend(torch.device("cpu")).options._timeout
        for group in dist.distributed_c10d._world.pg_map
    }
    return of.pop(dist.group.WORLD), set(of.values())


def test_every_group_waits_long_for_the_first_step_and_then_less(words: Path) -> None:
    def work() -> list[float]:
        config = tiny(words, *TIMEOUTS, "execution.parallel.tensor=2")
        with process_groups(config) as ranks:
            _, before = timeouts()
            ranks.wait_at_most(config.execution.timeout_seconds)
            world, after = timeouts()
            return [one.total_seconds() for one in (*before, *after, world)]

    assert run_ranks(4, work) == [[1234.0, 2.0, 2.0]] * 4


def test_a_file_whose_name_says_gloo_is_no_collective() -> None:
    missing = FileNotFoundError(2, "No such file or directory", "prepared/gloo")
    with pytest.raises(UserError) as raised, collectives_named(0):
        raise UserError("prepared/gloo: cannot be read; name a TOML file") from missing
    assert not isinstance(raised.value, OtherRankError)
    assert str(raised.value) == "prepared/gloo: cannot be read; name a TOML file"


def test_what_a_library_of_collectives_says_is_told_of_the_other_rank() -> None:
    def wait() -> None:
        raise RuntimeError("[pair.cc:534] gloo: Connection closed by peer [127.0.0.1]:1234")

    with pytest.raises(OtherRankError, match="rank 1: wait did not come"), collectives_named(1):
        wait()


def test_files_are_read_by_the_first_rank_alone_and_its_error_is_everyones(words: Path) -> None:
    def work() -> tuple[list[str], int]:
        read: list[str] = []

        def reading(name: str) -> str:
            read.append(name)
            if name == "missing":
                raise UserError(f"{name}: not there")
            return name

        with process_groups(tiny(words)) as ranks:
            assert ranks.from_first(lambda: reading("text")) == "text"
            with pytest.raises(UserError, match="missing: not there"):
                ranks.from_first(lambda: reading("missing"))
        return read, ranks.rank

    assert run_ranks(2, work) == [(["text", "missing"], 0), ([], 1)]
