"""Stopped and crashed runs, runs that are held and jobs on bad nodes come back by themselves."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.conftest import profile
from tests.slurm.test_launching import (
    at,
    launches,
    rows,
    run_state,
    seeded,
    state,
    submit,
    wait_for_end,
    wait_until,
)
from tests.tiny_runs import tiny
from tst_study import file_lock
from tst_study.experiments.plan.planner import Planner
from tst_study.experiments.slurm.profile import Profile, Resources
from tst_study.experiments.state.status import StatusRow
from tst_study.experiments.study import Study

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("cluster")]
fake = pytest.mark.usefixtures("without_data")


def the_row(study: Study, root: Path) -> StatusRow:
    (row,) = rows(study, root)
    return row


@fake
def test_what_gets_on_is_launched_again_and_what_gets_nowhere_is_given_up(tmp_path: Path) -> None:
    """Two retries are allowed; one run is requeued five times, with a new checkpoint each time."""
    study = seeded("hops_5", "crash_2", "stuck")
    submit(study, tmp_path, profile(retries=2))
    said: set[str] = set()

    def both_said() -> bool:
        said.update(row.message for row in rows(study, tmp_path))
        wanted = ("crashes: 1", "in a row without a new checkpoint: 1")
        return all(any(words in message for message in said) for words in wanted)

    wait_until(both_said)
    wait_for_end(tmp_path)
    assert launches(tmp_path) == {"hops_5": 6, "crash_2": 3, "stuck": 3}
    assert [row.state for row in rows(study, tmp_path)] == ["done", "done", "failed"]
    given_up = "given up: launches in a row without a new checkpoint: 3: stopped at once"
    assert run_state(tmp_path, "stuck")["message"] == given_up
    submit(study, tmp_path, profile(retries=0))
    wait_for_end(tmp_path)
    assert launches(tmp_path)["stuck"] == 4  # a new submission counts anew


@fake
def test_a_dead_rank_takes_its_job_down_and_the_job_comes_back(tmp_path: Path) -> None:
    (tmp_path / "kill_a_rank").touch()
    two = Resources(time="10", nodes=2, tasks_per_node=1)
    submit(seeded("seconds_4"), tmp_path, profile(resources=two))
    wait_for_end(tmp_path)
    assert (state(tmp_path, "seconds_4"), launches(tmp_path)) == ("done", {"seconds_4": 2})
    (noted,) = tmp_path.glob("seconds_4-*/job/launches")
    _, outcome, *_, node, words = noted.read_text().strip().split(" ", 5)
    assert outcome == "crash"
    assert words == f"{node}: task 1: Killed"


@fake
def test_a_node_on_which_a_run_crashed_twice_is_avoided(cluster: Cluster, tmp_path: Path) -> None:
    study = seeded("bad-node")
    submit(study, tmp_path)
    wait_until((tmp_path / "bad_node").exists)
    bad = (tmp_path / "bad_node").read_text()
    others = ",".join(node for node in cluster.nodes if node != bad)
    (tmp_path / "drained").touch()
    cluster.run("scontrol", "update", f"NodeName={others}", "State=drain", "Reason=test")
    try:
        wait_until(lambda: launches(tmp_path) == {"bad-node": 2})
    finally:
        cluster.run("scontrol", "update", f"NodeName={others}", "State=resume")
    (tmp_path / "drained").unlink()
    (folder,) = tmp_path.glob("bad-node-*")
    wait_until((folder / "job" / "avoided").exists)
    # Back in the queue, it stays there for as long as somebody looks at it.
    cluster.run("scontrol", "update", f"NodeName={others}", "State=drain", "Reason=test")
    try:
        wait_until(lambda: f"avoids {bad}" in the_row(study, tmp_path).message)
    finally:
        cluster.run("scontrol", "update", f"NodeName={others}", "State=resume")
    wait_for_end(tmp_path)
    assert state(tmp_path, "bad-node") == "done"  # which it never is on the bad node
    # A controller that is slow to hear of it starts the job there once more.
    assert launches(tmp_path)["bad-node"] in (3, 4)


@fake
@pytest.mark.parametrize(("held", "queued_again"), [(6.0, False), (32.0, True)])
def test_a_run_that_is_held_is_waited_for(tmp_path: Path, held: float, queued_again: bool) -> None:
    """An old process that ends seconds later; one that ends when the job is back in the queue."""
    study = seeded("a")
    submit(study, tmp_path, profile(sbatch={"begin": "now+2"}))
    (run,) = Planner(at(study, tmp_path)).decided()
    with file_lock.hold(run.folder):
        time.sleep(held)
    wait_for_end(tmp_path)
    assert (state(tmp_path, "a"), launches(tmp_path)) == ("done", {"a": 1})
    assert (run.folder / "job" / "launches").exists() == queued_again


def test_a_job_with_gpus_does_not_train_without_one(words: Path, tmp_path: Path) -> None:
    """The cluster's GPUs are pretended: a driver that is not there."""
    study = Study("real", "test", "Real", "", {}, lambda results: [tiny(words, "name=gpu")])
    submit(study, tmp_path, Profile(resources=Resources(time="10", gpus_per_node=1)))
    wait_for_end(tmp_path)
    row = the_row(study, tmp_path)
    assert (row.state, row.step) == ("failed", 0)
    assert "driver" in row.message
    assert "--nv" in row.message
