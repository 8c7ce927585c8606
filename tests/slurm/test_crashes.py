"""Stopped and crashed runs, and runs that are held, come back by themselves."""

from contextlib import ExitStack
from pathlib import Path
from threading import Timer

import pytest

from tests.slurm.cluster import LIMITS_MEMORY, Cluster
from tests.slurm.conftest import HUNGRY, entered, profile
from tests.slurm.test_launching import (
    at,
    launches,
    rows,
    seeded,
    state,
    submit,
    wait_for_end,
    wait_until,
)
from tests.slurm.test_without_a_cluster import says
from tests.tiny_runs import tiny
from tst_study import file_lock
from tst_study.experiments.launches import remark
from tst_study.experiments.plan.planner import Planner
from tst_study.experiments.slurm.profile import Profile, Resources
from tst_study.experiments.study import Study

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("cluster")]
fake = pytest.mark.usefixtures("without_data")


@pytest.fixture(scope="module")
def held(running_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that another process holds for longer than a launch waits, beside the other tests."""
    root, study = tmp_path_factory.mktemp("held"), seeded("a")
    with entered(running_cluster):
        submit(study, root, profile(sbatch={"begin": "now+2"}))
        (run,) = Planner(at(study, root)).decided()
    lock = ExitStack()
    lock.enter_context(file_lock.hold(run.folder))
    Timer(32.0, lock.close).start()
    return root


@fake
@pytest.mark.usefixtures("held")  # which begins here, beside this
def test_what_gets_on_is_launched_again_and_what_gets_nowhere_is_given_up(cluster, tmp_path):
    """Two retries are allowed; one run is requeued five times, with a new checkpoint each time. The
    first answer of the controller is lost."""
    study = seeded("hops_5", "crash_2", "stuck", "fail", "bug", "good")
    lost = f"mkdir {tmp_path}/lost 2>&- && echo Zero Bytes were transmitted or received >&2"
    says(tmp_path / "scontrol", f'{lost} && exit 1; exec {cluster.prefix}/usr/bin/scontrol "$@"')
    setup = (*profile().setup, f"PATH={tmp_path}:$PATH")
    submit(study, tmp_path, profile(retries=2, setup=setup))
    wanted = ("in a row without a new checkpoint: 1", "last: stopped by a signal")
    wait_until(lambda: any(all(w in row.message for w in wanted) for row in rows(study, tmp_path)))
    wait_for_end(tmp_path)
    assert launches(tmp_path) == {
        "hops_5": 6, "crash_2": 3, "stuck": 3, "fail": 1, "bug": 3, "good": 1,
    }  # fmt: skip
    _, _, stuck, fail, bug, _ = found = rows(study, tmp_path)
    assert [row.state for row in found] == ["done", "done", "failed", "failed", "failed", "done"]
    given_up = "given up: launches in a row without a new checkpoint: 3"
    assert stuck.message == f"{given_up} (stopped by a signal): stopped at once"
    assert fail.message == "corpus: too short; give more text"
    assert bug.message.startswith(f"{given_up} (")
    assert bug.message.endswith("code 70): ZeroDivisionError: division by zero")
    (log,) = tmp_path.glob("bug-*/job/log.txt")
    assert "Traceback" in log.read_text()
    (tmp_path / "healed").touch()
    assert len(submit(study, tmp_path, profile(retries=0)).new) == 3
    wait_for_end(tmp_path)
    assert launches(tmp_path)["stuck"] == 4  # a new submission counts anew
    assert state(tmp_path, "fail") == state(tmp_path, "bug") == "done"


@fake
@pytest.mark.skipif(not LIMITS_MEMORY, reason="needs control groups of version 1, as root")
def test_a_job_without_memory_enough_is_given_up_and_its_limit_named(tmp_path):
    ranks, script, less = tmp_path / "ranks", tmp_path / "script", Resources(memory_gb=0.2)
    submit(seeded("hungry_400"), ranks, profile(resources=less))
    submit(seeded("a"), script, profile(resources=less, setup=(HUNGRY,)))
    wait_for_end(ranks)
    (row,) = rows(seeded("hungry_400"), ranks)
    assert (row.state, launches(ranks)) == ("failed", {"hungry_400": 1})
    assert "task 0: Out Of Memory: raise memory_gb, now 0.2" in row.message
    wait_for_end(script)
    (row,) = rows(seeded("a"), script)
    why, key = f"job {row.job}: OUT_OF_MEMORY; oom-kill event", "raise memory_gb (now 205M)"
    assert (row.state, row.message) == ("failed", f"{why}; in slurm.toml, {key}; see sinfo -o %m")


@fake
def test_a_dead_rank_takes_its_job_down_and_the_job_comes_back(tmp_path):
    (tmp_path / "kill_a_rank").touch()
    two = Resources(time="10", nodes=2, tasks_per_node=1, cpus_per_task=2)
    submit(seeded("seconds_4"), tmp_path, profile(resources=two))
    wait_for_end(tmp_path)
    assert (state(tmp_path, "seconds_4"), launches(tmp_path)) == ("done", {"seconds_4": 2})
    (folder,) = tmp_path.glob("seconds_4-*")
    assert ": task 1: Killed, for its memory? Raise memory_gb, now 1.95" in remark(folder)


def test_a_run_that_is_held_is_waited_for(held):
    """By a process that ends when the job is back in the queue."""
    wait_for_end(held)
    assert (state(held, "a"), launches(held)) == ("done", {"a": 1})
    (folder,) = held.glob("a-*")
    assert remark(folder) == ""  # it does not count


def test_a_job_with_gpus_does_not_train_without_one(words, tmp_path):
    """The cluster's GPUs are pretended: a driver that is not there."""
    study = Study("real", "test", "Real", "", {}, lambda results: [tiny(words, "name=gpu")])
    submit(study, tmp_path, Profile(resources=Resources(time="10", gpus_per_node=1)))
    wait_for_end(tmp_path)
    (row,) = rows(study, tmp_path)
    assert (row.state, row.step) == ("failed", 0)
    assert "driver" in row.message
    assert "--nv" in row.message
