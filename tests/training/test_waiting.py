"""A rank that waits for others says so, ends when it is asked to, and gives up in time."""

import os
import re
import signal
import socket
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from tests.input.answers import refusal
from tests.tiny_runs import fork, tiny
from tst_study.config.schema import to_toml
from tst_study.errors import UserError
from tst_study.process.local_ranks import free_port
from tst_study.process.rank_environment import VARIABLES, adopt_slurm_ranks
from tst_study.record.reader import read_status
from tst_study.train import train


def waiting_rank(
    corpus: Path, folder: Path, rank: int, address: str, port: int, seconds: int = 600
) -> tuple[BaseProcess, Path]:
    """A process that is one of two ranks, of which the other never comes, and a file of what it
    says."""
    said = folder.with_name("said")
    folder.mkdir()
    said.touch()
    run_config = tiny(corpus, f"execution.timeout_seconds={seconds}")

    def work() -> None:
        values = (rank, 2, rank, 2, address, port)
        os.environ.update(zip(VARIABLES, map(str, values), strict=True))
        os.dup2(os.open(said, os.O_WRONLY), 2)
        sys.stderr = os.fdopen(2, "w", buffering=1)
        try:
            os._exit(7 if train(run_config, folder, progress=False) == "preempted" else 0)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            os._exit(3)

    return fork(work), said


@pytest.mark.parametrize(
    ("rank", "address", "number"),
    [
        (0, "127.0.0.1", signal.SIGTERM),
        (1, "127.0.0.1", signal.SIGINT),
        (1, "no-such-host.invalid", signal.SIGTERM),
        (1, "192.0.2.1", signal.SIGINT),  # RFC 5737: nobody has this address
    ],
)
def test_a_rank_whose_peer_never_comes_says_so_and_ends_on_a_signal(
    words, tmp_path, rank, address, number
):
    process, said = waiting_rank(words, tmp_path / "run", rank, address, free_port())
    while "RANK\n" not in said.read_text():
        assert process.is_alive(), said.read_text()
        time.sleep(0.1)
    pattern = rf"rank {rank} of 2 waits for rank {1 - rank} at {address}:\d+ since \d\d:\d\d:\d\d"
    assert re.search(
        pattern + ", for at most 600 s; to train in one process, unset", said.read_text()
    )
    assert process.pid is not None
    os.kill(process.pid, number)
    process.join(60)
    assert process.exitcode == 7
    status = read_status(tmp_path / "run")
    assert (status is None) == (rank == 1)  # the first rank writes for all
    if status is not None:
        assert status["state"] == "preempted"
        assert status["message"] == f"{number.name} while waiting for other ranks"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_gives_up_after_the_configured_time(words, tmp_path, rank):
    process, said = waiting_rank(words, tmp_path / "run", rank, "127.0.0.1", free_port(), seconds=3)
    process.join(120)
    assert process.exitcode == 3
    gave_up = (
        rf"error: rank {1 - rank} did not come to 127.0.0.1:\d+ within 3 s \(execution.timeout"
    )
    assert re.search(gave_up, said.read_text())


def test_a_port_that_is_taken_is_named(words, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process, said = waiting_rank(words, tmp_path / "run", 0, "127.0.0.1", port)
        process.join(120)
    assert process.exitcode == 3
    assert f"error: 127.0.0.1:{port}: rank 0 cannot listen there (" in said.read_text()
    assert "set MASTER_ADDR and MASTER_PORT to a free port" in said.read_text()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (
            {"WORLD_SIZE": "8"},
            "WORLD_SIZE = 8: RANK is not set; start with torchrun or --processes",
        ),
        ({"WORLD_SIZE": "8", "RANK": "1"}, "WORLD_SIZE = 8: MASTER_ADDR is not set"),
        (
            {"WORLD_SIZE": "2", "RANK": "2", "MASTER_ADDR": "x", "MASTER_PORT": "1"},
            "RANK = 2: is not below WORLD_SIZE = 2; unset both",
        ),
        (
            {"SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "1"},
            "SLURM_STEP_NUM_TASKS is set, but srun's other variables do not fit it ('SLURM_STEP_",
        ),
    ],
)
def test_variables_that_are_left_over_are_named(words, tmp_path, variables, expected):
    (tmp_path / "run.toml").write_text(to_toml(tiny(words)))
    assert expected in refusal(["train", "run.toml"], tmp_path, variables)


def test_a_variable_of_srun_that_is_no_number_is_named():
    with pytest.raises(UserError, match="srun's other variables do not fit it"):
        adopt_slurm_ranks({"SLURM_STEP_NUM_TASKS": "two"})
