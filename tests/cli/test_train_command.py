"""`tst-study train` as a user starts it: processes of their own, killed, stopped and resumed."""

import os
import pty
import resource
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.tiny_runs import assert_same_run, fork, logged_step, run, tiny
from tst_study.checkpoints.places import checkpoint_steps
from tst_study.command_line import main
from tst_study.config.schema import to_toml
from tst_study.process.host import listening
from tst_study.record import reader as run_record

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
SETTINGS = ("schedule.steps=200", "execution.checkpoint_every=30", "execution.evaluate_every=50")


def command(config_file: Path, folder: Path) -> list[str]:
    train = [sys.executable, "-m", "tst_study", "train", str(config_file)]
    return [*train, "--folder", str(folder)]


@pytest.mark.usefixtures("terminal")
def test_a_run_whose_terminal_hangs_up_is_then_stopped_then_left_alone(words, tmp_path):
    """As a dropped ssh session does: its terminal is gone, for the live line as well."""
    file, folder = tmp_path / "run.toml", tmp_path / "broken"
    file.write_text(to_toml(tiny(words, *SETTINGS)))

    process, terminal = pty.fork()
    if process == 0:
        os.chdir(ROOT)
        os.execve(sys.executable, command(file, folder), ENVIRONMENT)
    while logged_step(folder) < 10:
        if select.select([terminal], [], [], 0.01)[0]:
            os.read(terminal, 2**16)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 1
    status = run_record.read_status(folder)
    assert status["state"] == "preempted"
    assert status["message"].startswith("SIGHUP at step")
    assert checkpoint_steps(folder)[-1] == status["last_checkpoint"] == status["step"]

    second = subprocess.Popen(command(file, folder), cwd=ROOT, env=ENVIRONMENT, text=True, **PIPES)
    while logged_step(folder) < 130:
        assert second.poll() is None
        time.sleep(0.005)
    second.send_signal(signal.SIGTERM)
    out, error = second.communicate()
    preempted = f"preempted: {folder}; the same command goes on from there"
    assert (second.returncode, out.splitlines()[-1]) == (1, preempted)
    assert error in ("", "loading torch and Megatron-Core …\n")  # said where it takes long
    assert run_record.read(folder).state == "preempted"

    record = run(words, folder, *SETTINGS)
    ends = [segment["ended"].split()[0] for segment in record.segments]
    assert ends == ["SIGHUP", "SIGTERM", "done"]
    run(words, tmp_path / "unbroken", *SETTINGS)
    assert_same_run(folder, tmp_path / "unbroken")


def test_under_nohup_a_run_outlives_its_terminal():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with listening() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.signal is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_full_disk_is_one_line_and_status_two(words, tmp_path):
    """A limit on the size of files stands for the disk: it is the kernel that refuses to write."""
    file, folder = tmp_path / "run.toml", tmp_path / "run"
    file.write_text(to_toml(tiny(words, "model.hidden_size=64", "schedule.steps=4")))

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        sys.argv = ["tst-study", "train", str(file), "--folder", str(folder)]
        with open(tmp_path / "said", "w") as sys.stderr:
            main()

    process = fork(limited)
    process.join(300)
    assert process.exitcode == 2
    (line,) = (tmp_path / "said").read_text().splitlines()
    assert line.startswith(f"error: {folder}/checkpoints/step-00000004: cannot be written (")
    assert "File too large" in line
    assert run_record.read(folder).state == "failed"
