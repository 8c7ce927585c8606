"""Limits of a real Slurm: of accounts, partitions, arrays and jobs, and of memory."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.experiments.fake_training import at
from tests.slurm.accounts import LimitedCluster
from tests.slurm.conftest import HUNGRY, entered, profile, running
from tests.slurm.test_launching import launches, rows, seeded, submit, wait_for_end, wait_until
from tst_study.experiments.launcher import Job, Options, submission_lock
from tst_study.experiments.slurm import follow_up, slurm_launcher, submission
from tst_study.experiments.slurm.batch_script import array_script
from tst_study.experiments.slurm.commands import LimitError, SlurmError, advised, call
from tst_study.experiments.slurm.profile import Resources
from tst_study.experiments.slurm.slurm_launcher import Slurm
from tst_study.experiments.slurm.submission import known_jobs
from tst_study.experiments.slurm.submit import submit_to_slurm
from tst_study.experiments.state.jobs import cancel_runs

pytestmark = pytest.mark.slurm
LATER = {"begin": "now+1hour"}
SHORT = {"sbatch": {"qos": "short"}}


@pytest.fixture(scope="module", autouse=True)
def _limited() -> Iterator[None]:
    with running(LimitedCluster) as cluster, entered(cluster):
        yield


KEYS = [
    ({"time": "60"}, SHORT, "lower time (now 60); see scontrol show partition, sacctmgr show qos"),
    ({"time": "40", "partition": "small"}, {}, "lower time (now 40)"),
    ({"memory_gb": 3.0}, SHORT, "change memory_gb (now 3072M)"),
    ({"memory_gb": 3.0, "partition": "small"}, {}, "change memory_gb (now 3072M)"),
    ({"cpus_per_task": 5}, SHORT, "change cpus_per_task (now 5)"),
    ({"cpus_per_task": 9}, {}, "change cpus_per_task (now 9)"),
    ({"nodes": 2}, SHORT, "change nodes (now 2)"),
    ({"nodes": 3, "partition": "small"}, {}, "change nodes (now 3)"),
    ({"gpus_per_node": 5}, {}, "change gpus_per_node, gpu_type or what else [resources] asks for"),
    ({"gpus_per_node": 1, "gpu_type": "h100"}, {}, "change gpus_per_node, gpu_type or"),
    ({"partition": "nowhere"}, {}, "change partition (now nowhere); see sinfo"),
    ({}, {"account": "nobody"}, "change account (now nobody); see sacctmgr show assoc"),
    ({}, {"sbatch": {"qos": "none"}}, "change qos of sbatch (now none)"),
    ({}, {"sbatch": {"constraint": "a|b"}}, "change constraint of sbatch (now 'a|b')"),
    ({}, {"sbatch": {"reservation": "x"}}, "change reservation of sbatch (now x)"),
]


@pytest.mark.parametrize(("resources", "more", "said"), KEYS, ids=range(len(KEYS)))
def test_a_refusal_names_the_key_its_value_and_what_to_do(tmp_path, resources, more, said):
    how = profile(resources=Resources(**{"time": "10", **resources}), **more)
    script = array_script(submission.new(tmp_path, ["a"]), tmp_path, how, how.resources)
    with pytest.raises(SlurmError) as refusal:
        call("sbatch", standard_input=script)
    assert f"; in slurm.toml, {said}" in advised(str(refusal.value), script)


@pytest.mark.parametrize("dry", [False, True])
def test_what_slurm_refuses_is_not_taken_for_submitted(tmp_path, dry):
    """Though it may be listed as a job that failed."""
    study, how = at(seeded("a"), tmp_path), profile(resources=Resources(cpus_per_task=9))
    with pytest.raises(SlurmError, match=r"; in slurm\.toml, change "):
        submit_to_slurm(study, how, Options(dry=dry))
    assert not known_jobs(tmp_path)


def test_so_does_a_job_that_waits_for_ever_and_the_one_that_would_submit_more(tmp_path):
    how = profile(resources=Resources(time="60"), sbatch={"qos": "patient"})
    submit(seeded("a"), tmp_path, how)
    key = "in slurm.toml, lower time (now 60); see scontrol show partition, sacctmgr show qos"
    said = f"QOSMaxWallDurationPerJobLimit; {key}"
    wait_until(lambda: [row.message for row in rows(seeded("a"), tmp_path)] == [said], 60.0)
    cancel_runs(tmp_path, "")
    how = profile(follow_up={"partition": "nowhere"})
    study, options = at(seeded("a"), tmp_path), Options(command=("submit", "ours"))
    jobs = {"a": Job("12_0", "running")}
    with submission_lock(tmp_path) as lock:
        said = follow_up.arranged(study, how, options, tmp_path, jobs, lock, is_new=True)
    assert said.startswith("when they are there: tst-study submit ours --top-up (a job that would")
    assert said.endswith("; in slurm.toml, change partition (now nowhere); see sinfo)")


def test_a_limit_on_queued_jobs_is_filled_and_topped_up_as_room_appears(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(slurm_launcher, "ROOM_SECONDS", 0.5)
    slurm = Slurm(Options(profile=Path("slurm.toml"), top_up=True))
    slurm.profile = profile(sbatch={"qos": "three"})
    assert slurm.submit(at(seeded("a", "b", "c", "d", "e"), tmp_path)) == 0
    said = capsys.readouterr().out
    assert "3 submitted in 2 arrays" in said
    assert re.search("^refused: .* QOSMaxSubmitJobPerUserLimit .*limits\\)$", said, re.MULTILINE)
    assert "2 not submitted; submit --top-up does so as Slurm has room" in said
    wait_for_end(tmp_path)
    assert launches(tmp_path) == dict.fromkeys("abcde", 1)


def test_so_are_those_of_an_association_and_arrays_are_cut_to_what_slurm_takes(tmp_path):
    few = submit(seeded(*["a"] * 5), tmp_path / "few", profile(account="few", sbatch=LATER))
    assert (len(few.new), len(few.arrays), few.largest) == (2, 1, 0)
    assert "AssocMaxSubmitJobLimit" in str(few.refused)
    done = submit(seeded(*["a"] * 12), tmp_path, profile(array=5000, sbatch=LATER))
    assert (len(done.new), len(done.arrays), done.refused) == (12, 4, None)
    assert "Slurm refused larger arrays; say array = 3 in slurm.toml" in done.lines()
    assert len(cancel_runs(tmp_path, "")) == 12
    cancel_runs(tmp_path / "few", "")


def test_what_slurm_ends_for_its_memory_is_not_tried_again_and_its_limit_named(tmp_path):
    """Ranks, and the batch script itself."""
    less = Resources(time="10", memory_gb=0.2)
    submit(seeded("hungry_400"), tmp_path / "ranks", profile(resources=less))
    submit(seeded("a"), tmp_path / "script", profile(resources=less, setup=(HUNGRY,)))
    for root in (tmp_path / "ranks", tmp_path / "script"):
        wait_for_end(root)
    (row,) = rows(seeded("hungry_400"), tmp_path / "ranks")
    assert (row.state, launches(tmp_path / "ranks")) == ("failed", {"hungry_400": 1})
    assert "task 0: Killed (exceeded memory limit): raise memory_gb, now 0.2" in row.message
    (row,) = rows(seeded("a"), tmp_path / "script")
    key = "in slurm.toml, raise memory_gb (now 205M); see sinfo -o %m"
    said = f"job {row.job}: FAILED; exceeded memory limit; {key}"
    assert (row.state, row.message) == ("failed", said)


def test_a_queue_that_is_full_is_told_from_a_controller_that_is_down(tmp_path):
    """Of all users' jobs. The last test, for Slurm takes a minute to forget jobs."""
    how = profile(answer_seconds=3, array=5, sbatch=LATER)
    done = submit(seeded(*["a"] * 60), tmp_path, how)
    assert isinstance(done.refused, LimitError)
    full = "no answer in 3 s; it waits: sbatch: error: Slurm temporarily unable to accept job"
    assert full in str(done.refused)
    left = 60 - len(done.new)
    assert f"{left} not submitted; submit --top-up does so as Slurm has room" in done.lines()
    assert done.new
    cancel_runs(tmp_path, "")
