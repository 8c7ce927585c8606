"""Submit commands that are killed: each run is started once and none is lost."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.experiments.fake_training import config, study_of
from tests.slurm.conftest import profile
from tests.slurm.test_launching import launches, seeded, submit, wait_for_end, wait_until
from tst_study.atomic_files import write_json
from tst_study.errors import UserError
from tst_study.experiments.slurm import submission
from tst_study.experiments.state.jobs import cancel_runs
from tst_study.experiments.state.status import rows_below

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("without_data")]
NAMES = ("a", "b", "seconds_0.2")
FORK = multiprocessing.get_context("fork")


def dying(real: Callable[..., Any], when: Callable[..., bool]) -> Callable[..., Any]:
    def called(*arguments: Any, **more: Any) -> Any:
        if when(*arguments):
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **more)

    return called


def die_before_sbatch() -> None:
    submission.call = dying(submission.call, lambda *words: words[0] == "sbatch")  # type: ignore[assignment]


def die_behind_sbatch() -> None:
    is_job = lambda path, *content: path.name == "job.json"  # noqa: E731
    submission.write_json = dying(submission.write_json, is_job)  # type: ignore[assignment]


def die_with_a_held_array() -> None:
    submission.call = dying(submission.call, lambda *words: words[1] == "release")  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("prepare", "new"), [(die_before_sbatch, 3), (die_behind_sbatch, 0)], ids=["before", "behind"]
)
def test_a_killed_submitter_loses_no_run_and_its_jobs_are_adopted(cluster, tmp_path, prepare, new):
    def killed() -> None:
        prepare()
        submit(seeded(*NAMES), tmp_path)

    process = FORK.Process(target=killed)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    (intent,) = submission.all_of(tmp_path)
    assert intent.job_id is None
    done = submit(seeded(*NAMES), tmp_path)
    assert (len(done.new), len(done.adopted) + len(done.over)) == (new, 3 - new)
    assert submission.all_of(tmp_path)[-1].job_id
    wait_for_end(tmp_path)
    assert launches(tmp_path) == dict.fromkeys(NAMES, 1)


def test_an_array_that_a_killed_submitter_left_held_is_let_go(cluster, tmp_path):
    branches = [config(f"a{r}", f"superposition.step_ratio={r}") for r in (0.2, 0.3)]

    def killed() -> None:
        die_with_a_held_array()
        submit(study_of(*branches), tmp_path)

    process = FORK.Process(target=killed)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert len(submit(study_of(*branches), tmp_path).adopted) == 3
    wait_for_end(tmp_path)
    assert set(launches(tmp_path).values()) == {1}
    assert len(launches(tmp_path)) == 3


def test_killed_while_sbatch_runs_the_next_one_waits_for_its_answer(cluster, tmp_path, monkeypatch):
    """The answer comes a second after the first command was killed."""
    slow = tmp_path / "slow" / "sbatch"
    slow.parent.mkdir()
    real = f"{cluster.prefix}/usr/bin/sbatch"
    slow.write_text(f'#!/bin/sh\ntouch {tmp_path}/asked\nsleep 1\nexec {real} "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    root = tmp_path / "runs"
    submitter = FORK.Process(target=submit, args=(seeded(*NAMES), root))
    submitter.start()
    wait_until((tmp_path / "asked").exists)
    submitter.kill()
    submitter.join()
    done = submit(seeded(*NAMES), root)
    assert (len(done.new), len(done.adopted) + len(done.over)) == (0, 3)
    wait_for_end(root)
    assert launches(root) == dict.fromkeys(NAMES, 1)


def test_without_locks_singleton_and_the_run_lock_keep_two_submitters_apart(
    cluster, tmp_path, monkeypatch
):
    """A file system on which the study's lock does not reach the other login node."""
    monkeypatch.setattr("fcntl.flock", lambda *arguments: None)
    monkeypatch.setattr("tst_study.experiments.slurm.submit.known_jobs", lambda root: {})
    for _ in range(2):
        assert len(submit(seeded(*NAMES), tmp_path).new) == 3
    wait_for_end(tmp_path)
    assert launches(tmp_path) == dict.fromkeys(NAMES, 1)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_jobs_of_another_user_are_named_adopted_and_left(cluster, tmp_path, capsys):
    study, root = seeded(*NAMES), tmp_path / "shared"
    real = submission.call

    def call(*words: str, **more: Any) -> str:
        return real(*words[:1], *["--uid=65534"] * (words[0] == "sbatch"), *words[1:], **more)

    with pytest.MonkeyPatch.context() as nobody:
        nobody.setattr(submission, "call", call)
        nobody.setattr(os, "getuid", lambda: 65534)
        nobody.setattr(submission.getpass, "getuser", lambda: "nobody")
        submit(study, root, profile(sbatch={"begin": "now+1hour"}))
    assert {row.state for row in rows_below(root)} == {"queued"}
    assert all("of nobody" in row.message for row in rows_below(root))
    done = submit(study, root)
    assert (len(done.new), len(done.adopted), done.others) == (0, 3, ["jobs of nobody"])
    assert cancel_runs(root, "") == []
    assert capsys.readouterr().err.count("left alone: ") == 3
    cluster.run("scancel", "--user=nobody")
    wait_for_end(root)


def test_ids_that_begin_anew_harm_nothing(cluster, tmp_path):
    """A job of another submission has the id that this study once got: it is not taken for ours."""
    study, ours = seeded("seconds_1"), tmp_path / "ours"
    submit(study, tmp_path / "other")
    (other,) = submission.all_of(tmp_path / "other")
    lost = submission.new(ours, ["seconds_1-0", *other.runs])
    lost.folder.mkdir(parents=True)
    (lost.folder / submission.RUNS).write_text("\n".join(lost.runs))
    write_json(lost.folder / "job.json", {"job": other.job_id})
    assert len(submit(study, ours).new) == 1
    wait_for_end(ours)
    assert launches(ours) == {"seconds_1": 1}


def test_without_a_controller_nothing_is_submitted_and_jobs_outlive_it(cluster, tmp_path, capsys):
    study = seeded("seconds_12")
    submit(study, tmp_path, profile(answer_seconds=2))
    wait_until(lambda: bool(launches(tmp_path)))
    # It saves its state every five seconds; one that forgot that a job began would drain the node.
    time.sleep(6.0)
    cluster.kill("slurmctld")
    try:
        with pytest.raises(UserError, match="squeue: "):
            submit(study, tmp_path)
        # The runs' own words need no Slurm.
        assert [row.state for row in rows_below(tmp_path)] == ["running"]
        assert "without job states: squeue: " in capsys.readouterr().err
    finally:
        cluster.start_controller()
    wait_until(lambda: "RUNNING" in cluster.run("squeue", "-h", "-o%T"))
    wait_for_end(tmp_path)
    assert launches(tmp_path) == {"seconds_12": 1}


def test_what_an_enclosing_job_left_in_the_environment_does_not_reach_sbatch(
    cluster, tmp_path, monkeypatch
):
    monkeypatch.setenv("SBATCH_PARTITION", "nowhere")
    monkeypatch.setenv("SLURM_NTASKS", "64")
    monkeypatch.setenv("RANK", "3")
    submit(seeded("a"), tmp_path)
    wait_for_end(tmp_path)
    assert launches(tmp_path) == {"a": 1}
