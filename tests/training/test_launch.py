"""Ranks of one run: started on one machine or by Slurm, and what one says when another is gone."""

import faulthandler
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tests.tiny_runs import fork, logged_step, tiny
from tst_study import file_lock
from tst_study.command_line import main
from tst_study.config.schema import to_toml
from tst_study.process import local_ranks
from tst_study.process.rank_environment import ON_GPUS, adopt_slurm_ranks, prepare_for_gpus
from tst_study.record import reader as run_record

# Far longer than ranks of a busy machine are apart: waiting costs no processor time.
LONG = ("schedule.steps=10000000", "execution.log_every=5", "execution.timeout_seconds=60")


class Forked:
    """A rank that is forked where `subprocess.Popen` would start it anew, which saves the seconds
    of its imports."""

    def __init__(self, command, *, env, pass_fds, start_new_session):
        assert start_new_session

        def work() -> None:
            faulthandler.disable()  # it would print the stack of a rank that is aborted
            os.setsid()
            os.closerange(3, *pass_fds)
            os.closerange(pass_fds[0] + 1, 1024)
            os.environ.update(env)
            sys.argv = ["tst-study", *command[3:]]
            main()

        self.process = fork(work)
        self.kill, self.wait = self.process.kill, self.process.join

    def poll(self) -> int | None:
        return self.process.exitcode

    returncode = property(poll)

    def send_signal(self, number: int) -> None:
        os.kill(self.process.pid, number)


@dataclass(frozen=True)
class Running:
    """Two ranks in the middle of a long run, and their launcher."""

    folder: Path
    launcher: BaseProcess

    def rank(self, number: int) -> int:
        return psutil.Process(self.launcher.pid).children()[number].pid

    def said(self, stream: str) -> list[str]:
        """What launcher and ranks had said once they had all ended."""
        self.launcher.join()
        return self.folder.with_name(stream).read_text().splitlines()


@pytest.fixture
def running(words: Path, tmp_path: Path) -> Running:
    (tmp_path / "run.toml").write_text(to_toml(tiny(words, *LONG)))
    folder = tmp_path / "run"

    def launch() -> None:
        os.setsid()  # a group of its own, as a shell gives it
        for number, stream in enumerate(("stdout", "stderr"), 1):
            os.dup2(os.open(tmp_path / stream, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
            setattr(sys, stream, os.fdopen(number, "w", buffering=1))
        local_ranks.GRACE_SECONDS = 3.0
        local_ranks.subprocess = SimpleNamespace(Popen=Forked)
        sys.argv = ["tst-study", "train", str(tmp_path / "run.toml"), "--processes", "2"]
        sys.argv += ["--folder", str(folder)]
        main()

    launcher = fork(launch)
    while logged_step(folder) < 10:
        assert launcher.is_alive(), (tmp_path / "stderr").read_text()
        time.sleep(0.05)
    return Running(folder, launcher)


def test_two_processes_train_a_run(words, tmp_path):
    config, folder = tmp_path / "run.toml", tmp_path / "run"
    config.write_text(to_toml(tiny(words, "execution.parallel=auto")))
    train = ["-m", "tst_study", "train", config, "--processes", "2", "--folder", folder]
    # As some job managers do for a job of one process.
    alone = {"RANK": "0", "WORLD_SIZE": "1"}
    done = subprocess.run(
        [sys.executable, *train], env=os.environ | alone, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines().count(f"done: {folder}") == 1
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
    os.kill(running.rank(rank), number)
    errors = running.said("stderr")
    assert running.launcher.exitcode != 0
    assert any(said in line for line in errors), errors
    assert sum(line.startswith("error:") for line in errors) <= 1, errors
    status = run_record.read_status(running.folder)
    assert status["state"] == "failed"
    assert re.search(recorded, status["message"])
    assert status["step"] > 0


@pytest.mark.parametrize("refused", [True, False])
def test_a_start_that_is_cut_short_leaves_no_rank(monkeypatch, refused):
    started = []

    class Sleeping(subprocess.Popen):
        def __init__(self, command, **options):
            if started and refused:
                raise OSError("no more processes")
            super().__init__(["sleep", "1000"], **options)
            started.append(self)
            if len(started) == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(local_ranks, "subprocess", SimpleNamespace(Popen=Sleeping))
    with pytest.raises(OSError, match="no more") if refused else nullcontext():
        assert local_ranks.train_on_processes(3, []) == (1, "")
    assert len(started) == 2 - refused
    assert all(rank.returncode for rank in started)


def test_a_rank_that_a_signal_ended_is_named_before_one_that_failed_with_it(capsys):
    failed = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    killed = subprocess.Popen(["sleep", "1000"])
    killed.kill()
    failed.wait(), killed.wait()
    status, words = local_ranks._wait([failed, killed], [])
    assert (status, words.startswith(KILLED)) == (1, True)
    assert capsys.readouterr().err == f"error: {words}\n"
    assert local_ranks._wait([failed], []) == (3, "rank 0 failed; its own message says why")


def test_one_ctrl_c_stops_all_ranks_with_a_checkpoint(running):
    """A terminal sends Ctrl-C to its whole process group."""
    os.killpg(running.launcher.pid, signal.SIGINT)
    preempted = f"preempted: {running.folder}; the same command goes on from there"
    assert running.said("stdout")[-1] == preempted, running.said("stderr")
    assert run_record.read(running.folder).state == "preempted"
    assert list((running.folder / "checkpoints").glob("step-*"))


def test_ranks_listen_on_the_loopback_alone_and_do_not_outlive_their_launcher(running):
    """They write a checkpoint first."""
    ranks = psutil.Process(running.launcher.pid).children()
    doors = [door for rank in ranks for door in rank.net_connections() if door.status == "LISTEN"]
    assert {door.laddr.ip for door in doors} == {"127.0.0.1"}
    running.launcher.kill()
    psutil.wait_procs(ranks)
    assert "the launcher has ended" in running.said("stdout")
    assert run_record.read(running.folder).state == "preempted"
    assert list((running.folder / "checkpoints").glob("step-*"))
    assert not file_lock.is_held(running.folder)


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
