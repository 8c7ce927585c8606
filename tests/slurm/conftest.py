"""One cluster for all Slurm tests of a session."""

import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.fake_site.fake_trainer import DATA
from tst_study.data import run_data
from tst_study.experiments.slurm.profile import Profile, Resources


@contextmanager
def running(kind: type[Cluster]) -> Iterator[Cluster]:
    """It ends with the session, also where that is told to stop, as `.ci/run` does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    cluster = kind()
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def running_cluster() -> Iterator[Cluster]:
    with running(Cluster) as cluster:
        yield cluster


@pytest.fixture
def cluster(running_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """The cluster, known to this process by its environment."""
    enter(running_cluster, monkeypatch)
    return running_cluster


def enter(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)


@contextmanager
def entered(cluster: Cluster) -> Iterator[pytest.MonkeyPatch]:
    """Known to this process, whose studies read nothing, for the length of a block: for what is
    submitted once and waited for by several tests."""
    with pytest.MonkeyPatch.context() as patch:
        enter(cluster, patch)
        patch.setattr(run_data, "fingerprints", lambda config: DATA)
        yield patch


HUNGRY = "x=$(head -c 400000000 /dev/zero | tr '\\0' x); sleep 30"
"""A line of set-up by which the batch script itself takes 400 MB."""


def profile(**settings: object) -> Profile:
    """Small jobs with the fake trainer."""
    site = Path(__file__).parent / "fake_site"
    defaults: dict[str, object] = {
        "resources": Resources(time="10", partition="main"),
        "signal_seconds": 30,
        "setup": (f"export PYTHONPATH={shlex.quote(str(site))}",),
    }
    return Profile.model_validate(defaults | settings)
