"""Status and progress are read from run folders alone."""

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.examples import example
from tests.record.test_record import evaluation, open_run
from tst_study import file_lock
from tst_study.errors import UserError
from tst_study.experiments import run_process
from tst_study.experiments.launcher import submission_lock
from tst_study.experiments.local.progress import shown, time_left
from tst_study.experiments.local.queue import Queue
from tst_study.experiments.plan.planned_run import PlannedRun, totals
from tst_study.experiments.run_process import Exit, cancel_mark, train_rank, write_config
from tst_study.experiments.state import status
from tst_study.experiments.state.status_screen import lines
from tst_study.record import reader as run_record
from tst_study.text import big, duration, shortened, wrapped


def test_a_run_that_says_it_runs_while_no_process_does_is_interrupted(tmp_path):
    open_run(tmp_path).status("running", 3, loss=4.0, phase="recovery", seconds_left=9.0)
    row = status.row(tmp_path)
    assert (row.state, row.step, row.seconds_left) == ("interrupted", 3, None)
    with file_lock.hold(tmp_path):
        running = status.row(tmp_path)
    assert (running.state, running.phase, running.seconds_left) == ("running", "recovery", 9.0)
    cancel_mark(tmp_path).touch()
    assert status.row(tmp_path).state == "cancelled"


def refusing(number: int) -> Callable[..., None]:
    def flock(*arguments: int) -> None:
        raise OSError(number, os.strerror(number))

    return flock


def test_the_owner_of_a_lock_is_the_process_that_holds_it_and_no_earlier_one(tmp_path):
    path = file_lock.lock_path(tmp_path)
    with file_lock.hold(tmp_path):
        assert file_lock.owner(tmp_path) == os.getpid()
    assert path.read_text() == ""
    # A holder was killed, another process has its id, and the next holder has not written yet.
    path.write_text(f"{os.getppid()} on {os.uname().nodename}\n")
    with open(path) as held:
        assert file_lock.take(held.fileno(), path, file_lock.EXCLUSIVE)
        assert file_lock.owner(tmp_path) is None


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch, capsys):
    """As Lustre answers where it is mounted without `-o flock`."""

    monkeypatch.setattr("fcntl.flock", refusing(errno.ENOSYS))
    said = r"cannot be locked \(Function not implemented\); .*-o flock\), or choose a folder"
    with (
        pytest.raises(UserError, match=f"{tmp_path}/.submit.lock: {said}"),
        submission_lock(tmp_path),
    ):
        pass
    assert train_rank(example(), tmp_path, 0) == Exit.FAILED
    assert re.search(f"{tmp_path}/job/lock: {said}", capsys.readouterr().out)
    ended = run_record.read_status(tmp_path)
    assert re.search(said, ended["message"])


def test_a_run_whose_files_are_out_of_reach_may_be_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr(run_process, "AWAY_SECONDS", 0.0)
    monkeypatch.setattr(Path, "read_bytes", refusing(errno.ESTALE))
    assert train_rank(example(), tmp_path, 0) == Exit.CRASHED


def test_a_file_system_that_fails_for_now_is_not_said_to_lack_locks(tmp_path, monkeypatch):
    monkeypatch.setattr("fcntl.flock", refusing(errno.EIO))
    with pytest.raises(OSError, match="Input/output error") as raised, submission_lock(tmp_path):
        pass
    assert raised.value.filename == f"{tmp_path}/.submit.lock"
    assert train_rank(example(), tmp_path, 0) == Exit.CRASHED


def test_runs_that_failed_before_they_wrote_a_record_are_shown(tmp_path):
    open_run(tmp_path / "a").status("done", 100)
    (tmp_path / "b").mkdir()
    unknown_key = '{"state": "failed", "heartbeat": 0, "step": 0, "steps": 9, "message": "no data"'
    (tmp_path / "b" / "status.json").write_text(f'{unknown_key}, "last_checkpoint": null}}')
    rows = status.rows_below(tmp_path)
    assert [row.state for row in rows] == ["done", "failed"]
    assert totals(row.state for row in rows) == "1 done, 1 failed"


def status_row(run_id: str, **more: Any) -> status.StatusRow:
    known = {"state": "running", "step": 12_300, "steps": 20_000, "phase": "superposition"}
    known |= {"loss": 3.25, "tokens_per_second": 51_234.0, "seconds_left": 5400.0, "message": ""}
    return status.StatusRow(run_id, **(known | {"job": "123_4", "held_out": 3.5} | more))


@pytest.mark.parametrize("width", [80, 100])
def test_a_narrow_terminal_loses_columns_first_and_never_step_or_time_left(width):
    told = "its shared prefix run trunk-s4-20000steps-seed0-0123abcd: failed"
    short = status_row("laptop-64-1500-s4-r0.25-seed0-0123abcd", message=told)
    head, row, *below = lines([short], width)
    assert all(text in row for text in (short.run_id, "12,300/20,000", "90.0 min"))
    assert "tokens/s" not in head
    assert max(map(len, (head, row, *below))) <= width
    assert " ".join(" ".join(below).split()) == told
    names = [f"prose-20000-s4-r0.25-power_law-lr0.002-seed{seed}-0123abcd" for seed in range(2)]
    _, *narrow = lines([status_row(name) for name in names], width)
    for seed, line in enumerate(narrow):
        assert {"s4", "r0.25", f"seed{seed}", "0123abcd"} <= set(line.split()[0].split("-"))
        assert all(text in line for text in ("12,300/20,000", "90.0 min"))
        assert len(line) <= width
    wide = lines([status_row(name) for name in names])[1:]
    assert [line.split()[0] for line in wide] == names


def test_names_and_sentences_are_cut_where_people_would():
    assert shortened("abcdefghij", 7) == "ab…ghij"
    assert wrapped(["  of two-sided tests"], 12) == ["  of", "    two-sided", "    tests"]


def test_held_out_loss_stands_beside_that_of_training(tmp_path):
    writer = open_run(tmp_path)
    segment = writer.start_segment(None, {})
    assert status.row(tmp_path).held_out is None
    for step, loss in ((50, 3.5), (100, 3.25)):
        writer.evaluation(evaluation(segment, step, loss))
    writer.status("done", 100, loss=3.9)
    with open(tmp_path / "evals.jsonl", "a") as file:
        file.write('{"task": "arc_easy", "metrics": {}}\n{"nats_per_tok')
    row = status.row(tmp_path)
    assert (row.loss, row.held_out) == (3.9, 3.25)
    assert "3.900    3.2500" in lines([row])[1]


def test_a_branch_says_what_blocks_it_and_a_cancelled_run_that_it_was(tmp_path):
    open_run(tmp_path / "trunk", "role=trunk").status("running", 3)
    branch = example(f"execution.fork_from={{folder='{tmp_path}/trunk', step=15}}")
    write_config(branch, tmp_path / "branch")
    open_run(tmp_path / "stopped", "seed=1").status("preempted", 60, "SIGTERM at step 60")
    (tmp_path / "stopped" / "job").mkdir()
    (tmp_path / "stopped" / "job" / "cancelled").touch()
    rows = {row.run_id: row for row in status.rows_below(tmp_path)}
    assert (rows["stopped"].state, rows["stopped"].message) == ("cancelled", "SIGTERM at step 60")
    why = "its shared prefix run trunk: interrupted"
    assert (rows["branch"].state, rows["branch"].message) == ("blocked", why)
    with file_lock.hold(tmp_path / "trunk"):
        assert status.rows_below(tmp_path)[0].state == "waiting"


DURATIONS = {-1: "0 s", 59.4: "59 s", 187: "3.1 min", 7387: "2.1 h", 1e8: "27,778 h", None: "–"}
NUMBERS = {0: "0", 999.4: "999", 999.6: "1k", 1_234: "1.23k", 999_600: "1M"}


def test_durations_and_numbers_have_a_unit():
    assert {seconds: duration(seconds) for seconds in DURATIONS} == DURATIONS
    assert {value: big(value) for value in NUMBERS} == NUMBERS


def planned(tmp_path: Path, name: str, steps: int) -> PlannedRun:
    config = example(f"name={name}", f"schedule.steps={steps}")
    return PlannedRun(config, f"{name}-fingerprint", tmp_path / name)


def test_time_left_follows_the_runs_own_and_slots(tmp_path):
    runs = [planned(tmp_path, name, 1000) for name in ("a", "b", "c")]
    queue = Queue(decided=runs, whole=runs, running={runs[0].fingerprint: runs[0]}, slots=2)
    writer = open_run(runs[0].folder, "name=a", "schedule.steps=1000")
    with file_lock.hold(runs[0].folder):
        writer.status("running", 100)
        assert time_left(queue) is None
        writer.status("running", 49, seconds_left=300.0)  # the first steps are slow
        assert time_left(queue) is None
        # 0.1 s a step: 80 s and twice 100 s, two at a time.
        writer.status("running", 200, seconds_left=80.0)
        assert time_left(queue) == pytest.approx(140.0)


def test_progress_is_plain_lines_in_a_file(tmp_path, capsys):
    run = planned(tmp_path, "a", 1000)
    queue = Queue(decided=[run], whole=[run], running={run.fingerprint: run})
    with shown(every=0.0) as draw:
        draw(queue)
        assert capsys.readouterr().out.endswith("time left: measuring | a starting\n")
        open_run(run.folder, "name=a", "schedule.steps=1000").status("running", 7, loss=3.25)
        draw(queue)
    said = "0 of 1 runs over | 1 running | time left: measuring | a 7/1000 loss 3.250"
    assert capsys.readouterr().out.endswith(f"{said}\n")
