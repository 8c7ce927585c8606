"""Jobs that follow the runs: they collect the study or submit the rest; and refusals of Slurm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.experiments.fake_training import config
from tests.slurm import fake_site
from tests.slurm.cluster import Cluster
from tests.slurm.conftest import profile
from tests.slurm.test_launching import (
    ROOT,
    at,
    launches,
    rows,
    seeded,
    state,
    study_of,
    submit,
    wait_for_end,
)
from tst_study.experiments.launcher import Options
from tst_study.experiments.slurm import submission
from tst_study.experiments.slurm.commands import SlurmError
from tst_study.experiments.slurm.profile import Resources, SmallJob
from tst_study.experiments.slurm.slurm_launcher import Slurm
from tst_study.experiments.slurm.submit import submit_to_slurm
from tst_study.experiments.state.jobs import cancel_runs
from tst_study.experiments.state.status import stopped
from tst_study.experiments.studies import catalogue

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("cluster", "without_data")]
SITE = Path(fake_site.__path__[0])


def collected(root: Path) -> Any:
    return json.loads((root / "report" / "collected.json").read_text())


def test_half_a_refusal_says_what_was_queued_and_is_made_up_later(
    cluster: Cluster, tmp_path: Path
) -> None:
    study = seeded("a", "elsewhere")
    wrong = {"match": "elsewhere", "resources": {"partition": "nowhere"}}
    done = submit_to_slurm(at(study, tmp_path), profile(runs=(wrong,)), Options())
    assert ([run.config.name for run in done.new], len(done.not_queued)) == (["a"], 1)
    text = "\n".join(done.lines())
    assert "1 submitted in 1 array" in text
    assert "1 not submitted: submit again when Slurm takes more" in text
    assert "refused: sbatch: " in text
    cluster.run("scancel", done.follow_ups["collect"])
    again = submit_to_slurm(at(study, tmp_path), profile(), Options(collects=False))
    assert [run.config.name for run in again.new] == ["elsewhere"]
    wait_for_end(tmp_path)
    assert launches(tmp_path) == {"a": 1, "elsewhere": 1}


def test_a_job_after_all_others_collects_whatever_came_of_them(tmp_path: Path) -> None:
    """Refused, it stops the submission before anything is queued. Left out, it is made up by the
    next submission, although nothing is left to train; but once, as long as nothing else has
    ended."""
    study = seeded("a", "fail")
    nowhere = profile(small=SmallJob(partition="nowhere"))
    with pytest.raises(SlurmError, match="the job that collects the study: sbatch: "):
        submit_to_slurm(at(study, tmp_path), nowhere, Options())
    assert not submission.all_of(tmp_path)
    submit(study, tmp_path)
    wait_for_end(tmp_path)
    only_new = submit_to_slurm(at(study, tmp_path), profile(), Options(only_new=True))
    assert (only_new.new, [*only_new.follow_ups]) == ([], ["collect"])
    wait_for_end(tmp_path)
    found = collected(tmp_path)
    assert [name.rsplit("-", 1)[0] for name in found["over"]] == ["a"]
    ((missing, why),) = found["missing"].items()
    assert missing.startswith("fail-")
    assert why == "failed corpus: too short; give more text"
    assert len((tmp_path / "report" / "runs.csv").read_text().splitlines()) == 3
    logs = [path.read_text() for path in (tmp_path / "slurm").glob("*/*_log.out")]
    assert any(f"{missing}: failed corpus: too short" in log for log in logs)
    assert not submit_to_slurm(at(study, tmp_path), profile(), Options(only_new=True)).follow_ups


def test_small_jobs_have_resources_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the account, also by its variable alone; they are warned at their end only."""
    monkeypatch.setenv("SBATCH_ACCOUNT", "team")
    big = profile(
        resources=Resources(time="10", gpus_per_node=2, cpus_per_task=4, partition="main"),
        sbatch={"exclusive": True, "hold": True},
        qos=None,
        small=SmallJob(time="5", memory_gb=0.5, sbatch={"hold": True}),
    )
    submit_to_slurm(at(seeded("a"), tmp_path), big, Options())
    training, small = (
        (one.folder(tmp_path) / "script.sh").read_text() for one in submission.all_of(tmp_path)
    )
    for option in ("--gpus-per-node=2", "--exclusive", "--partition=main", "--cpus-per-task=4"):
        assert f"#SBATCH {option}\n" in training
        assert option.partition("=")[0] + "=4" not in small
        assert option not in small
    for option in ("--time=5", "--mem=512M", "--cpus-per-task=1"):
        assert f"#SBATCH {option}\n" in small
    assert "export SBATCH_ACCOUNT=team\n" in small
    assert "#SBATCH --signal=USR2@1\n" in small
    assert len(cancel_runs(tmp_path, "")) == 1  # the small job is cancelled too, and is no run
    wait_for_end(tmp_path)


def fake_sweep(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, first: str) -> tuple[Slurm, Path]:
    """A launcher whose profile tells jobs of the study, too."""
    monkeypatch.setenv("TST_STUDY_FIRST_RATE", first)
    monkeypatch.syspath_prepend(str(SITE))
    monkeypatch.setitem(catalogue.STUDIES, "fake-sweep", __import__("fake_sweep").STUDY)
    path = tmp_path / "slurm.toml"
    lines = [f"export PYTHONPATH='{SITE}:{ROOT}'", f"export TST_STUDY_FIRST_RATE={first}"]
    path.write_text(f"setup = {json.dumps(lines)}\n[resources]\ntime = '10'\n")
    return Slurm(Options(profile=path)), tmp_path / "runs"


def test_what_a_sweep_decides_is_submitted_by_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launcher, root = fake_sweep(monkeypatch, tmp_path, "a")
    assert launcher.submit(catalogue.load("fake-sweep", "smoke", root)) == 0
    assert "1 more depend on their results: job " in capsys.readouterr().out
    wait_for_end(root)
    assert launches(root) == {"a": 1, "b": 1, "pair": 1}
    assert len(collected(root)["over"]) == 3


def test_a_sweep_that_fails_is_not_tried_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher, root = fake_sweep(monkeypatch, tmp_path, "fail")
    launcher.submit(catalogue.load("fake-sweep", "smoke", root))
    wait_for_end(root)
    assert launches(root) == {"fail": 1, "b": 1}
    assert len(collected(root)["missing"]) == 1


def test_cancelled_and_blocked_runs_say_why_and_are_what_retry_takes(tmp_path: Path) -> None:
    branches = [config(f"branch{r}", f"superposition.step_ratio={r}") for r in (0.2, 0.3)]
    chosen = study_of(*branches, config("a", "seed=1"), config("never", "seed=2"))
    (tmp_path / "no_trunks").touch()
    first = study_of(*branches, config("a", "seed=1"))
    submit(first, tmp_path, profile(retries=0, runs=(), sbatch={"begin": "now+5"}))
    assert len(cancel_runs(tmp_path, "a-")) == 1
    wait_for_end(tmp_path)
    found = {row.run_id.rsplit("-", 1)[0]: row for row in rows(chosen, tmp_path)}
    prefix = found.pop("trunk-s4-20steps-seed0")
    assert {name: row.state for name, row in found.items()} == {
        "branch0.2": "blocked", "branch0.3": "blocked", "a": "cancelled", "never": "waiting",
    }  # fmt: skip
    assert found["branch0.2"].message == f"its shared prefix run {prefix.run_id}: failed"
    assert (prefix.message, prefix.steps) == ("this trunk fails", 20)
    (tmp_path / "no_trunks").unlink()
    wanted = stopped(at(chosen, tmp_path), "")
    done = submit_to_slurm(at(chosen, tmp_path), profile(), Options(collects=False), wanted)
    assert sorted(run.config.name for run in done.new) == [
        "a", "branch0.2", "branch0.3", "trunk-s4-20steps-seed0",
    ]  # fmt: skip
    wait_for_end(tmp_path)
    assert launches(tmp_path)["a"] == 1
    assert state(tmp_path, "branch0.2") == "done"
