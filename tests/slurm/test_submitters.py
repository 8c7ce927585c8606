"""Submit commands that are killed: each run is started once and none is lost."""

import getpass
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.experiments.fake_training import config, study_of
from tests.slurm.conftest import profile
from tests.slurm.test_launching import launches, seeded, submit, wait_for_end, wait_until
from tests.slurm.test_without_a_cluster import says
from tst_study.atomic_files import write_json
from tst_study.errors import UserError
from tst_study.experiments.slurm import submission
from tst_study.experiments.state.jobs import cancel_runs
from tst_study.experiments.state.status import rows_below
from tst_study.experiments.study import Study

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("without_data")]
NAMES = ("a", "b", "seconds_0.2")
FORK = multiprocessing.get_context("fork")


def forked(do: Callable[[], object]) -> int | None:
    process = FORK.Process(target=do)
    process.start()
    process.join(60)
    return process.exitcode


DEATHS: dict[str, tuple[str, Callable[..., bool]]] = {
    "before sbatch": ("call", lambda *words: words[0] == "sbatch"),
    "behind sbatch": ("write_json", lambda path, *content: path.name == "job.json"),
    "with a held array": ("call", lambda *words: words[1] == "release"),
}
"""The function of `submission` that a submit command begins as it is killed, and with what."""


def submit_and_die(when: str, study: Study, root: Path) -> None:
    name, is_last = DEATHS[when]
    real = getattr(submission, name)

    def dying(*arguments: Any, **more: Any) -> Any:
        if is_last(*arguments):
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **more)

    def killed() -> None:
        setattr(submission, name, dying)
        submit(study, root)

    assert forked(killed) == -signal.SIGKILL


@pytest.mark.parametrize(("when", "new"), [("before sbatch", 3), ("behind sbatch", 0)])
def test_a_killed_submitter_loses_no_run_and_its_jobs_are_adopted(cluster, tmp_path, when, new):
    submit_and_die(when, seeded(*NAMES), tmp_path)
    (intent,) = submission.all_of(tmp_path)
    assert intent.job_id is None
    done = submit(seeded(*NAMES), tmp_path)
    assert (len(done.new), len(done.adopted) + len(done.over)) == (new, 3 - new)
    assert submission.all_of(tmp_path)[-1].job_id
    wait_for_end(tmp_path)
    assert launches(tmp_path) == dict.fromkeys(NAMES, 1)


def test_an_array_that_a_killed_submitter_left_held_is_let_go(cluster, tmp_path):
    branches = [config(f"a{r}", f"superposition.step_ratio={r}") for r in (0.2, 0.3)]
    submit_and_die("with a held array", study_of(*branches), tmp_path)
    assert len(submit(study_of(*branches), tmp_path).adopted) == 3
    wait_for_end(tmp_path)
    assert set(launches(tmp_path).values()) == {1}
    assert len(launches(tmp_path)) == 3


def test_killed_while_sbatch_runs_the_next_one_waits_for_its_answer(cluster, tmp_path, monkeypatch):
    """The answer comes a second after the first command was killed."""
    slow = tmp_path / "slow" / "sbatch"
    slow.parent.mkdir()
    says(slow, f'touch {tmp_path}/asked; sleep 1; exec {cluster.prefix}/usr/bin/sbatch "$@"')
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
    monkeypatch.setattr("tst_study.experiments.slurm.submit.known_jobs", lambda *of: {})
    for _ in range(2):
        assert len(submit(seeded(*NAMES), tmp_path).new) == 3
    wait_for_end(tmp_path)
    assert launches(tmp_path) == dict.fromkeys(NAMES, 1)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_jobs_of_another_user_are_named_adopted_and_left(cluster, monkeypatch):
    """Also where Slurm shows nobody the jobs of others."""
    monkeypatch.setattr(submission, "SECOND_LOOK", 0.0)
    study, root, owner = seeded(*NAMES), cluster.folder / "shared", getpass.getuser()

    def look() -> None:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        assert {row.state for row in rows_below(root)} == {"queued"}
        assert all(f"of {owner}" in row.message for row in rows_below(root))
        done = submit(study, root)
        assert (len(done.new), len(done.adopted), done.others) == (0, 3, [f"jobs of {owner}"])
        assert cancel_runs(root, "") == []

    umask = os.umask(0)
    submit(study, root, profile(sbatch={"begin": "now+1hour"}))
    os.umask(umask)
    configuration = cluster.folder / "slurm.conf"
    text = configuration.read_text()
    for private in ("jobs", "none"):
        configuration.write_text(f"{text}PrivateData={private}\n")
        cluster.control("reconfigure")
        assert forked(look) == 0
    assert len(cancel_runs(root, "")) == 3
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
    study, how = seeded("seconds_12"), profile(answer_seconds=2)
    submit(study, tmp_path, how)
    wait_until(lambda: bool(launches(tmp_path)))
    # It saves its state every five seconds; one that forgot that a job began would drain the node.
    time.sleep(6.0)
    cluster.kill("slurmctld")
    try:
        with pytest.raises(UserError, match="squeue: "):
            submit(study, tmp_path, how)
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
