"""`tst-study train` as a user starts it: processes of their own, killed, stopped and resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.tiny_runs import assert_same_run, logged_step, run, tiny
from tst_study import run_record
from tst_study.config_toml import to_toml

ROOT = Path(__file__).parents[1]
SETTINGS = ("schedule.steps=300", "execution.checkpoint_every=30", "execution.evaluate_every=100")


def launch(config_file: Path, folder: Path, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tst_study", "train", str(config_file)]
    return subprocess.Popen(
        [*command, "--folder", str(folder)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_step(process: subprocess.Popen[str], folder: Path, step: int) -> None:
    while logged_step(folder) < step:
        assert process.poll() is None
        time.sleep(0.005)


def test_a_run_that_is_killed_then_stopped_then_left_alone(words: Path, tmp_path: Path) -> None:
    file, folder = tmp_path / "run.toml", tmp_path / "broken"
    file.write_text(to_toml(tiny(words, *SETTINGS)))

    first = launch(file, folder)
    wait_for_step(first, folder, 70)
    first.kill()
    assert first.wait() == -signal.SIGKILL

    second = launch(file, folder)
    wait_for_step(second, folder, 130)
    second.send_signal(signal.SIGTERM)
    asked = time.monotonic()
    out, error = second.communicate()
    assert time.monotonic() - asked < 20.0
    assert (second.returncode, out.splitlines()[-1], error) == (1, f"preempted: {folder}", "")
    assert run_record.read(folder).state == "preempted"

    third = launch(file, folder)
    out, error = third.communicate()
    assert (third.returncode, out.splitlines()[-1], error) == (0, f"done: {folder}", "")
    record = run_record.read(folder)
    assert [segment["ended"].split()[0] for segment in record.segments] == [
        "lost",
        "SIGTERM",
        "done",
    ]
    run(words, tmp_path / "unbroken", *SETTINGS)
    assert_same_run(folder, tmp_path / "unbroken")


def test_the_ranks_that_torchrun_starts_train_one_run(words: Path, tmp_path: Path) -> None:
    file, folder = tmp_path / "run.toml", tmp_path / "two"
    file.write_text(to_toml(tiny(words)))
    ranks = [
        # What torchrun sets, but for its rendezvous: a file instead of a port that may be taken.
        launch(file, folder, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", **address())
        for rank in range(2)
    ]
    said = [process.communicate() for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], said
    assert said[0][0].splitlines()[-1] == f"done: {folder}"
    assert said[1][0] == ""
    record = run_record.read(folder)
    assert record.segments[0]["devices"]["count"] == 2
    assert len(record.metrics) == 20


def address() -> dict[str, str]:
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(20_000 + os.getpid() % 10_000)}


def test_a_full_disk_is_one_line_and_status_two(words: Path, tmp_path: Path) -> None:
    """The limit on the size of a file stands for the disk: the kernel refuses to write on."""
    file, folder = tmp_path / "run.toml", tmp_path / "run"
    file.write_text(to_toml(tiny(words, "model.hidden_size=64", "schedule.steps=4")))
    program = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))\n"
        "from tst_study.command_line import main\n"
        f"sys.argv = ['tst-study', 'train', {str(file)!r}, '--folder', {str(folder)!r}]\n"
        "main()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: ")
    assert ended.stderr.count("\n") == 1
    assert "step-00000004: cannot be written (" in ended.stderr
    assert "File too large" in ended.stderr
    assert run_record.read(folder).state == "failed"
