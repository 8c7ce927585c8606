"""Jobs that are stopped: by preemption, by their time, by hand, by the death of a node."""

import time
from pathlib import Path
from threading import Timer

import pytest

from tests.experiments.fake_training import config
from tests.slurm.cluster import Cluster
from tests.slurm.conftest import entered, profile
from tests.slurm.test_launching import (
    launches,
    rows,
    run_state,
    seeded,
    state,
    study_of,
    submit,
    wait_for_end,
    wait_until,
)
from tst_study.experiments.slurm.profile import Resources
from tst_study.experiments.state.jobs import cancel_runs
from tst_study.record import reader as run_record

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("without_data")]
MOVED = ("seconds_70", "seconds_10")
TIMED = ("seconds_60", "deaf_2", "slow_40", "slow-start")


@pytest.fixture(scope="module")
def timed(running_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs whose time is up in the middle of them, beside the other tests: Slurm limits time in
    minutes and looks at it twice a minute, so that the warning comes within 30 seconds. A warning
    during the start-up, or a late one, is followed by the end at 45 seconds, before the first run's
    own."""
    root = tmp_path_factory.mktemp("timed")
    with entered(running_cluster):
        submit(seeded(*TIMED), root, profile(resources=Resources(time="1"), signal_seconds=59))
    return root


@pytest.fixture(scope="module")
def moved(running_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs whose time would be up in the middle of them, but one is suspended for as long as
    the other's limit is extended by; beside the other tests."""
    root = tmp_path_factory.mktemp("moved")
    with entered(running_cluster):
        submit(seeded(*MOVED), root, profile(resources=Resources(time="1"), signal_seconds=4))
        wait_until(lambda: all(is_training(root, name, 2) for name in MOVED))
        longer, suspended = (row.job for row in rows(seeded(*MOVED), root))
        running_cluster.control("update", f"JobId={longer}", "TimeLimit=9")
        running_cluster.control("suspend", suspended)
        (row,) = (row for row in rows(seeded(*MOVED), root) if row.job == suspended)
        assert (row.state, "SUSPENDED" in row.message) == ("running", True)
    Timer(70.0, running_cluster.control, ("resume", suspended)).start()
    return root


def is_training(root: Path, name: str, step: int = 5) -> bool:
    paths = list(root.glob(f"{name}-*/status.json"))
    return bool(paths) and run_state(root, name)["step"] >= step


def resumed_from(root: Path, name: str) -> list[int | None]:
    (folder,) = root.glob(f"{name}-*")
    return [row["resumed_from"] for row in run_record.read(folder).segments]


@pytest.mark.usefixtures("timed", "moved")  # which begin here, beside these
def test_scontrol_requeue_and_a_dead_node_resume_from_disk(cluster, tmp_path):
    names = ("seconds_20", "seconds_20.1")
    # A node each.
    submit(seeded(*names), tmp_path, profile(resources=Resources(time="10", cpus_per_task=8)))

    def requeue(job: str) -> None:
        cluster.control("requeue", job)

    def lose_its_node(job: str) -> None:
        node = cluster.run("squeue", "-h", f"-j{job}", "-o%N")
        cluster.kill_node(node)
        time.sleep(1.0)
        cluster.start_node(node)

    left = dict(zip(names, (requeue, lose_its_node), strict=True))

    def struck() -> bool:
        """Each as soon as it trains: the other may wait for a node longer than it lasts."""
        for name, row in zip(names, rows(seeded(*names), tmp_path), strict=True):
            if name in left and is_training(tmp_path, name):
                left.pop(name)(row.job)
        return not left

    wait_until(struck)
    wait_for_end(tmp_path)
    for name in names:
        first, second = resumed_from(tmp_path, name)
        assert (first, state(tmp_path, name)) == (None, "done")
        assert (second or 0) >= 5


def test_a_suspended_or_extended_job_is_not_stopped_by_the_limit_that_it_had(cluster, moved):
    wait_for_end(moved, 300.0)
    for name in MOVED:
        assert (state(moved, name), resumed_from(moved, name)) == ("done", [None])


def test_cancel_checkpoints_and_is_not_undone(cluster, tmp_path):
    names = ("seconds_6", "seconds_0.3")
    submit(seeded(*names), tmp_path)
    wait_until(lambda: is_training(tmp_path, "seconds_6"))
    (cancelled,) = cancel_runs(tmp_path, "seconds_6-")
    wait_for_end(tmp_path)
    found = {row.run_id.rsplit("-", 1)[0]: row for row in rows(seeded(*names), tmp_path)}
    assert (found["seconds_6"].state, found["seconds_0.3"].state) == ("cancelled", "done")
    assert launches(tmp_path)["seconds_6"] == 1
    assert [run.run_id for run in submit(seeded(*names), tmp_path).new] == [cancelled]
    wait_for_end(tmp_path)
    assert state(tmp_path, "seconds_6") == "done"


def test_time_that_is_up_checkpoints_and_requeues(cluster, timed):
    wait_for_end(timed)
    first, *later = resumed_from(timed, TIMED[0])
    assert (first, state(timed, TIMED[0])) == (None, "done")
    assert later
    assert all(later)


@pytest.mark.parametrize("name", ["deaf_2", "slow_40", "slow-start"])
def test_the_limit_ends_no_run_whose_ranks_do_not_obey(cluster, timed, name):
    """A rank that is stopped, a checkpoint that takes for ever, a start-up that is too long."""
    wait_for_end(timed)
    assert launches(timed)[name] > 1
    assert state(timed, name) == "done"


@pytest.mark.parametrize("name", ["seconds_8", "deaf_2"])
def test_preemption_checkpoints_and_requeues_whether_ranks_obey_or_not(
    cluster, timed, tmp_path, name
):
    wait_for_end(timed)
    for partition, what in (("low", name), ("high", "seconds_0.5")):
        how = Resources(partition=partition, time="10", nodes=4, cpus_per_task=8)
        study = study_of(config(what, "batch.sequences=32"))
        submit(study, tmp_path / partition, profile(resources=how))
        if partition == "low":
            wait_until(lambda: is_training(tmp_path / "low", name, step=3))
    wait_for_end(tmp_path / "high")
    wait_for_end(tmp_path / "low")
    first, second, *_ = resumed_from(tmp_path / "low", name)
    assert (first, state(tmp_path / "low", name)) == (None, "done")
    assert (second or 0) >= 3
