"""When jobs have ended: collecting, scripts run by hand, and a controller that has forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.state.jobs import log_tails
from experiments.state.status import rows_of
from tests.slurm.cluster import Cluster
from tests.slurm.conftest import enter, profile, started
from tests.slurm.test_launching import launches, seeded, state, submit, wait_for_end, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("without_data")]


def test_the_script_in_a_run_folder_runs_it_again(cluster: Cluster, tmp_path: Path) -> None:
    study = seeded("bug")
    submit(study, tmp_path, profile(retries=0))
    wait_for_end(tmp_path)
    assert "ZeroDivisionError" in "\n".join(log_tails(tmp_path, "", 30))
    (tmp_path / "healed").touch()
    (script,) = tmp_path.glob("bug-*/job/run.sh")
    cluster.run("sbatch", "--wait", str(script))
    assert state(tmp_path, "bug") == "done"
    assert launches(tmp_path) == {"bug": 2}


@pytest.fixture
def cluster_with_accounts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    cluster = started(nodes=1, with_accounts=True)
    enter(cluster, monkeypatch)
    yield cluster
    cluster.stop()


def test_with_slurmdbd_a_forgotten_job_still_has_an_end(
    cluster_with_accounts: Cluster, tmp_path: Path
) -> None:
    """The controller loses its state, and with it every job; the accounts have them all."""
    cluster = cluster_with_accounts
    study = seeded("seconds_5", "a")
    submit(study, tmp_path)
    wait_until(lambda: len(launches(tmp_path)) == 2)
    killed = next(row.job for row in rows_of(study, tmp_path) if row.run_id.startswith("seconds"))
    assert cluster.kill_tasks(killed) > 1  # its script, too: nobody is left to say why
    wait_for_end(tmp_path)
    # The controller hands jobs on to the accounts a few seconds after their end.
    wait_until(lambda: "FAILED" in cluster.run("sacct", "--noheader", "--allocations"))
    cluster.kill("slurmctld")
    cluster.forget()
    cluster.start_controller()
    rows = {row.run_id.rsplit("-", 1)[0]: row for row in rows_of(study, tmp_path)}
    assert cluster.run("squeue", "-h", "--states=all") == ""
    assert (rows["seconds_5"].state, rows["a"].state) == ("failed", "done")
    assert rows["seconds_5"].message.endswith("FAILED")
    assert len(submit(study, tmp_path).new) == 1
    wait_for_end(tmp_path)
    assert launches(tmp_path) == {"seconds_5": 2, "a": 1}
