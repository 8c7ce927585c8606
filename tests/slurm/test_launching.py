"""Studies on a real Slurm: each run is trained once, by the code that was submitted."""

import re
import shlex
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.experiments.fake_training import at, config, launches, study_of
from tests.slurm.conftest import profile
from tst_study.experiments.launcher import Options
from tst_study.experiments.slurm import submission
from tst_study.experiments.slurm.commands import call
from tst_study.experiments.slurm.profile import Profile
from tst_study.experiments.slurm.slurm_launcher import Slurm
from tst_study.experiments.slurm.submission import in_the_queue
from tst_study.experiments.slurm.submit import Submitted, submit_to_slurm
from tst_study.experiments.state.jobs import cancel_runs
from tst_study.experiments.state.status import StatusRow, rows_of_study, stopped
from tst_study.experiments.study import Study
from tst_study.record import reader as run_record

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("cluster", "without_data")]


def seeded(*names: str) -> Study:
    return study_of(*(config(name, f"seed={seed}") for seed, name in enumerate(names)))


def rows(study: Study, root: Path) -> list[StatusRow]:
    return rows_of_study(at(study, root))


def submit(study: Study, root: Path, how: Profile | None = None) -> Submitted:
    return submit_to_slurm(at(study, root), how or profile(), Options())


def state(root: Path, name: str) -> str:
    return run_state(root, name)["state"]


def run_state(root: Path, name: str) -> run_record.Status:
    (folder,) = root.glob(f"{name}-*")
    return run_record.read_status(folder)


def wait_until(condition: Callable[[], bool], seconds: float = 600.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited for too long"
        time.sleep(0.1)


def wait_for_end(root: Path, seconds: float = 180.0) -> None:
    """Until no job of the study is left in the queue; a job that is put back into it may be missing
    for a moment."""

    def ended() -> bool:
        ours = {array.folder.name for array in submission.all_of(root)}
        return not any(job.is_active for key, job in in_the_queue().items() if key[0] in ours)

    wait_until(ended, seconds)
    if not all(
        run_record.is_over(root / run) for one in submission.all_of(root) for run in one.runs
    ):
        time.sleep(submission.SECOND_LOOK)
        wait_until(ended, seconds)


def test_arrays_are_as_large_as_slurm_takes_them(tmp_path, monkeypatch):
    """1,001 elements at most, on this cluster."""
    study = seeded(*["a"] * 1000)
    calls = []
    monkeypatch.setattr(submission, "call", lambda *c, **more: calls.append(c) or call(*c, **more))
    held = profile(sbatch={"begin": "now+1hour"})
    done = submit(study, tmp_path, held)
    assert (len(done.new), len(done.arrays)) == (1000, 1)
    assert [c[0] for c in calls].count("sbatch") == 1
    assert len(cancel_runs(tmp_path, "")) == 1000
    wait_for_end(tmp_path)


def test_jobs_run_the_copy_of_the_code_that_was_submitted(tmp_path):
    """Whatever is edited in the checkout while they wait; and a folder's name is no pattern."""
    root = tmp_path / "100%a of %j"
    submit(seeded("a"), root)
    wait_for_end(root)
    (run,) = root.glob("a-*")
    (row,) = run_record.read(run).segments
    assert row["package"].startswith(f"{root}/code/")
    assert all(path.exists() for path in Slurm(Options()).logs(root, run.name))


def test_ranks_get_what_was_set_up_whatever_export_says_or_train_nothing(cluster, tmp_path):
    """The fake trainer, too, is on a path that only the set-up exports."""
    here = [f"export {name}={shlex.quote(value)}" for name, value in cluster.environment.items()]
    ways = {
        "none": profile(sbatch={"export": "NONE"}, setup=(*profile().setup, *here)),
        "lost": profile(srun=("--export=NONE",)),
        "no-srun": profile(sbatch={"export": "NONE"}),
    }
    for name, how in ways.items():
        submit(seeded("a"), tmp_path / name, how)
    told = {}
    for name in ways:
        wait_for_end(tmp_path / name)
        (row,) = rows(seeded("a"), tmp_path / name)
        told[name] = (row.state, row.message)
    assert told["none"][0] == "done"
    (run,) = (tmp_path / "none").glob("a-*")
    assert run_record.read(run).segments[0]["package"].startswith(f"{tmp_path}/none/code/")
    wrong = r"the ranks run .*/tst_study, not the study's copy .*: PYTHONPATH or "
    assert (told["lost"][0], bool(re.match(wrong, told["lost"][1]))) == ("failed", True)
    missing = rf"srun: not on the PATH of node .*{socket.gethostname()}.*; .* in `setup`"
    assert (told["no-srun"][0], bool(re.match(missing, told["no-srun"][1]))) == ("failed", True)


def test_parallel_bounds_a_whole_submission_and_branches_wait_in_the_array_of_their_trunk(
    cluster, tmp_path
):
    """Two trunks with two branches each, and a run with resources of its own: two arrays."""
    branches = [
        config(f"seconds_1.{seed}{r}", f"superposition.step_ratio=0.{r}", f"seed={seed}")
        for seed in (1, 2) for r in (2, 3)
    ]  # fmt: skip
    study = study_of(*branches, config("seconds_1", "seed=3"))
    alone = {"match": "seconds_1", "resources": {"cpus_per_task": 2}}
    done = submit(study, tmp_path, profile(parallel=2, runs=(alone,)))
    assert len(done.new) == 7
    assert ["runs: 6, at a time: 1" in done.arrays[0], len(done.arrays)] == [True, 2]
    most = 0

    def ended() -> bool:
        nonlocal most
        ours = [job for run, job in submission.tasks(tmp_path)]
        most = max(most, sum(job.state == "running" for job in ours))
        return not any(job.is_active for job in ours)

    wait_until(ended, 180.0)
    assert most == 2
    assert {row.state for row in rows(study, tmp_path)} == {"done"}
    begun = {path.parent.name: path.stat().st_ctime for path in tmp_path.glob("*/launches")}
    assert set(launches(tmp_path).values()) == {1}
    for seed in (1, 2):
        (trunk,) = (when for name, when in begun.items() if f"trunk-s4-20steps-seed{seed}" in name)
        assert all(
            trunk < when for name, when in begun.items() if name.startswith(f"seconds_1.{seed}")
        )


def test_half_a_refusal_says_what_was_queued_and_is_made_up_later(tmp_path):
    study = seeded("a", "elsewhere")
    wrong = {"match": "elsewhere", "resources": {"partition": "nowhere"}}
    text = "\n".join(submit(study, tmp_path, profile(runs=(wrong,))).lines())
    assert "1 submitted in 1 array" in text
    assert "refused: sbatch: " in text
    assert [run.config.name for run in submit(study, tmp_path).new] == ["elsewhere"]
    wait_for_end(tmp_path)
    assert launches(tmp_path) == {"a": 1, "elsewhere": 1}


def test_cancelled_and_blocked_runs_say_why_and_are_what_retry_takes(tmp_path):
    branches = [config(f"branch{r}", f"superposition.step_ratio={r}") for r in (0.2, 0.3)]
    chosen = study_of(*branches, config("a", "seed=1"), config("never", "seed=2"))
    (tmp_path / "no_trunks").touch()
    first = study_of(*branches, config("a", "seed=1"))
    submit(first, tmp_path, profile(retries=0, sbatch={"begin": "now+5"}))
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
    done = submit_to_slurm(
        at(chosen, tmp_path), profile(), Options(), stopped(at(chosen, tmp_path), "")
    )
    assert sorted(run.config.name for run in done.new) == [
        "a", "branch0.2", "branch0.3", "trunk-s4-20steps-seed0",
    ]  # fmt: skip
    wait_for_end(tmp_path)
    assert launches(tmp_path)["a"] == 1
    assert state(tmp_path, "branch0.2") == "done"
