"""Ranks of one run: started on one machine or by Slurm, and what one says when another is gone."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from tests.tiny_runs import logged_step, tiny
from tst_study import file_lock
from tst_study.config.schema import to_toml
from tst_study.process.rank_environment import ON_GPUS, adopt_slurm_ranks, prepare_for_gpus
from tst_study.record import reader as run_record

ROOT = Path(__file__).parents[2]
Running = tuple[Path, subprocess.Popen[str]]
# Far longer than ranks of a busy machine are apart: waiting costs no processor time.
LONG = ("schedule.steps=10000000", "execution.log_every=5", "execution.timeout_seconds=60")
COMMAND = """
from tst_study.command_line import main
from tst_study.process import local_ranks
local_ranks.GRACE_SECONDS = 3.0
main()
"""


def start(
    corpus: Path, folder: Path, *overrides: str, variables: Sequence[tuple[str, str]] = ()
) -> subprocess.Popen[str]:
    config = folder.parent / "run.toml"
    config.write_text(to_toml(tiny(corpus, *overrides)))
    command = [sys.executable, "-c", COMMAND, "train", str(config), "--processes", "2"]
    return subprocess.Popen(
        [*command, "--folder", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", **dict(variables)},
        start_new_session=True,  # a group of its own, as a shell gives it
    )


@pytest.fixture
def running(words: Path, tmp_path: Path) -> Running:
    """Two ranks in the middle of a long run."""
    folder = tmp_path / "run"
    launcher = start(words, folder, *LONG)
    while logged_step(folder) < 10:
        assert launcher.poll() is None, launcher.communicate()[1]
        time.sleep(0.05)
    return folder, launcher


def process_of_rank(launcher: subprocess.Popen[str], rank: int) -> int:
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    for child in map(int, children):
        if f"RANK={rank}".encode() in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            return child
    raise AssertionError(f"no rank {rank}")


def test_two_processes_train_a_run(words, tmp_path):
    folder = tmp_path / "run"
    # As some job managers do for a job of one process.
    alone = [("RANK", "0"), ("WORLD_SIZE", "1")]
    launcher = start(words, folder, "execution.parallel=auto", variables=alone)
    said, errors = launcher.communicate()
    assert launcher.returncode == 0, errors
    assert said.splitlines().count(f"done: {folder}") == 1
    record = run_record.read(folder)
    segment = record.segments[0]
    assert len(record.metrics) == 20
    assert segment["devices"]["count"] == 2
    assert "data 2" in segment["layout_chosen"]


KILLED = "rank 1 was ended by SIGKILL"
ABORTED = "rank 0 was ended by SIGABRT"


@pytest.mark.parametrize(
    ("rank", "number", "said", "recorded"),
    [
        # The first rank records what it waited for, or the launcher what it saw, if the first rank
        # is slower than the time that the launcher gives it.
        (1, signal.SIGKILL, KILLED, f"waited in vain|{KILLED}"),
        # A rank that hangs says nothing; the other says that it waited for it.
        (1, signal.SIGSTOP, "waited in vain", "waited in vain"),
        # As NCCL's watchdog ends a process: of the first rank its launcher says it.
        (0, signal.SIGABRT, ABORTED, ABORTED),
    ],
)
def test_ranks_do_not_outlive_one_that_dies_or_hangs(running, rank, number, said, recorded):
    folder, launcher = running
    os.kill(process_of_rank(launcher, rank), number)
    errors = launcher.communicate()[1].splitlines()
    assert launcher.returncode != 0
    assert any(said in line for line in errors), errors
    assert sum(line.startswith("error:") for line in errors) <= 1, errors
    status = run_record.read_status(folder)
    assert status["state"] == "failed"
    assert re.search(recorded, status["message"])
    assert status["step"] > 0


def test_one_ctrl_c_stops_all_ranks_with_a_checkpoint(running):
    """A terminal sends Ctrl-C to its whole process group."""
    folder, launcher = running
    os.killpg(launcher.pid, signal.SIGINT)
    output, errors = launcher.communicate()
    assert output.splitlines()[-1] == f"preempted: {folder}; the same command goes on from there", (
        errors
    )
    assert run_record.read(folder).state == "preempted"
    assert list((folder / "checkpoints").glob("step-*"))


def test_ranks_listen_on_the_loopback_alone_and_do_not_outlive_their_launcher(running):
    folder, launcher = running
    ranks = psutil.Process(launcher.pid).children()
    doors = [door for rank in ranks for door in rank.net_connections() if door.status == "LISTEN"]
    assert {door.laddr.ip for door in doors} == {"127.0.0.1"}
    launcher.kill()
    # Both pipes are at their end once every rank is gone.
    assert "preempted" not in launcher.communicate()[0]
    assert not file_lock.is_held(folder)


SLURM = {
    "SLURM_JOB_ID": "123",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
}


@pytest.mark.parametrize(
    ("change", "local", "host"),
    [
        ({}, ("1", "2"), "gpu07"),
        # Nodes may have different numbers of tasks.
        ({"SLURM_STEP_TASKS_PER_NODE": "1,2(x1),1"}, ("1", "2"), "gpu07"),
        ({"SLURM_STEP_TASKS_PER_NODE": "1,3"}, ("1", "3"), "gpu07"),
        ({"SLURM_STEP_NODELIST": "n1,n2"}, ("1", "2"), "n1"),
        ({"SLURM_STEP_NODELIST": "node[07-09,12],other"}, ("1", "2"), "node07"),
        ({"SLURM_STEP_NODELIST": "a-[3,5]-ib"}, ("1", "2"), "a-3-ib"),
    ],
)
def test_slurm_tasks_are_ranks(change, local, host):
    environment = SLURM | change
    adopt_slurm_ranks(environment)
    ours = {key: value for key, value in environment.items() if key not in SLURM | change}
    assert 20_000 <= int(ours.pop("MASTER_PORT")) < 30_000
    assert (ours.pop("LOCAL_RANK"), ours.pop("LOCAL_WORLD_SIZE")) == local
    assert ours == {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": host}


@pytest.mark.parametrize("change", [{"SLURM_STEP_NUM_TASKS": "1"}, {"RANK": "0"}])
def test_one_task_or_torchrun_inside_slurm_is_left_alone(change):
    environment = SLURM | change
    adopt_slurm_ranks(environment)
    assert environment == SLURM | change


def test_what_gpus_need_of_the_environment_is_set_but_what_is_there_stays():
    environment = {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}
    prepare_for_gpus(environment)
    assert environment == {**ON_GPUS, "CUDA_DEVICE_MAX_CONNECTIONS": "8"}
