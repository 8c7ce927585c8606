"""What of it needs no Slurm, or no more of it than a program that says a line."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.examples import example
from tests.input.answers import answer
from tests.slurm.test_launching import wait_until
from tst_study.errors import UserError
from tst_study.experiments.launcher import Options, the_only_submitter
from tst_study.experiments.plan.planned_run import PlannedRun
from tst_study.experiments.run_process import write_config
from tst_study.experiments.slurm import batch_script, code_copy, submission
from tst_study.experiments.slurm.batch_script import array_script
from tst_study.experiments.slurm.code_copy import keep_code
from tst_study.experiments.slurm.commands import SlurmError
from tst_study.experiments.slurm.handing_over import short_times
from tst_study.experiments.slurm.launcher import Slurm
from tst_study.experiments.slurm.profile import Profile, Resources, load_profile
from tst_study.experiments.slurm.submission import Submission
from tst_study.experiments.state.clean import delete, not_needed
from tst_study.experiments.state.jobs import cancel_runs
from tst_study.record import lock as run_lock
from tst_study.record import reader as run_record
from tst_study.record.writer import mark


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose scripts are Slurm's programs; `srun` is there, as submitit asks for it."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    says(folder / "srun", "")
    return folder


def says(program: Path, shell: str) -> None:
    program.write_text(f"#!/bin/sh\n{shell}\n")
    program.chmod(0o755)


def test_a_second_submitter_says_that_it_waits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def submit() -> None:
        with the_only_submitter(tmp_path):
            print("my turn")

    second, said = Thread(target=submit), ""

    def waits() -> bool:
        nonlocal said
        said += capsys.readouterr().err
        return said == f"{tmp_path}: another command submits or cleans it; waiting\n"

    with the_only_submitter(tmp_path):
        second.start()
        wait_until(waits)
        assert second.is_alive()
    second.join()
    assert capsys.readouterr().out == "my turn\n"


def submitted(root: Path, programs: Path) -> Submission:
    """As job 12."""
    says(programs / "sbatch", "echo 12")
    one = submission.new(root, "", ["a-01230123"], keep_code(root))
    (root / one.runs[0] / "job").mkdir(parents=True)
    write_config(example(), root / one.runs[0])
    with the_only_submitter(root) as lock:
        assert submission.submit(one, root, "", lock) == "12"
    return one


def test_clean_looks_twice_for_a_job_that_goes_back_into_the_queue(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Missing for a moment: while the list is made, and at the first look of the deletion."""
    monkeypatch.setattr("tst_study.experiments.slurm.launcher.SECOND_LOOK", 0.0)
    one, looks = submitted(tmp_path / "runs", programs), tmp_path / "looks"
    line = f"12|0|PENDING|BeginTime|tst-study:{one.id}"
    says(programs / "squeue", f'echo x >>{looks}; [ $(wc -l <{looks}) -lt 4 ] || echo "{line}"')
    found = not_needed(tmp_path / "runs")
    assert {one.path.parent.name for one in found} == {"slurm", "code"}
    assert delete(tmp_path / "runs", found) == []
    assert Path(one.code).is_dir()


def test_a_copy_of_the_code_that_cannot_be_made_is_named_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = keep_code(tmp_path)
    made = place.rename(tmp_path / "made")
    place.touch()
    with pytest.raises(UserError, match=f"{place}: cannot be written"):
        keep_code(tmp_path)
    assert list(place.parent.iterdir()) == [place]
    place.unlink()
    # A faster submitter is no failure.
    monkeypatch.setattr(code_copy, "code_version", lambda: {"path": str(made.rename(place))})
    assert keep_code(tmp_path) == place
    assert list(place.parent.iterdir()) == [place]


def test_bytes_that_are_no_text_hide_no_job(tmp_path: Path, programs: Path) -> None:
    one = submitted(tmp_path, programs)
    ours = f"12|0|RUNNING|None|{one.comment}"
    says(programs / "squeue", f"printf '9|0|RUNNING|None|caf\\351\\n'; echo '{ours}'")
    assert [job.state for job in Slurm(Options()).jobs(tmp_path).values()] == ["running"]


AROUND = Path(batch_script.__file__).with_name("launch.sh")


def around(run: Path, programs: Path, shell: str) -> subprocess.CompletedProcess[str]:
    """Lines of a batch script, after `launch.sh` was sourced; requeueing ends nothing here."""
    says(programs / "squeue", "echo RUNNING")
    says(programs / "scontrol", f"echo $* >>'{run.parent}/asked'")
    says(programs / "sleep", "")
    words = f'TST_RUN="{run}" TST_RETRIES=1 SLURMD_NODENAME=n1\nSLURM_JOB_NUM_NODES=1\n'
    words += f"SLURM_JOB_ID=7 SLURM_JOB_NODELIST=n1\nsource {shlex.quote(str(AROUND))}\n"
    words += f"tst_begin\n{shell}\n"
    return subprocess.run(["bash", "-c", words], capture_output=True, text=True)


def told(run: Path) -> tuple[str, str]:
    status = run_record.read_status(run)
    assert status is not None
    return status["state"], status["message"]


def test_a_set_up_that_fails_is_the_runs_last_word(tmp_path: Path, programs: Path) -> None:
    run = tmp_path / "a-01230123"
    run.mkdir()
    mark(run, example(), "preempted", "SIGUSR2 at step 500")
    around(run, programs, """tst_stop 'module load cuda/12 | tee "/dev/null" && true'""")
    said = "set-up failed: module load cuda/12 | tee  /dev/null     true"
    assert told(run) == ("failed", said)
    mark(run, example(), "done", "")
    around(run, programs, "tst_stop x")
    assert told(run) == ("done", "")


def test_launches_that_cannot_be_counted_are_not_made_again(tmp_path: Path, programs: Path) -> None:
    """As on a full disk, on which no crash leaves a line."""
    run = tmp_path / "a-01230123"
    (run / "job" / "launches").mkdir(parents=True)
    done = around(run, programs, "touch $TST_RUN/job/srun.txt; tst_end 1")
    assert done.returncode == 1
    assert "cannot be written; submit again to go on" in done.stderr
    assert not (tmp_path / "asked").exists()
    (run / "job" / "launches").rmdir()
    for _ in range(2):
        around(run, programs, "touch $TST_RUN/job/srun.txt; tst_told=1; tst_end 1")
    assert (tmp_path / "asked").read_text().count("requeue 7") == 1
    assert told(run)[1].startswith("given up: launches in a row without a new checkpoint: 2")


def one_submission(root: Path) -> Submission:
    return submission.new(root, "", ["a"], Path("code"))


IN_IMAGE = f"""/bin/sh -c 'cd "$0" && exec "$@"' {shlex.quote(os.getcwd())} python -P"""


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize(
    ("how", "there", "absent"),
    [
        ({"sbatch": {"exclusive": False, "hold": True}}, "#SBATCH --hold\n", "exclusive"),
        ({"setup": ("# modules of the old cluster", "", "true")}, "modules of the old", "--gpu"),
        ({"python": "python"}, "python -P", IN_IMAGE),
        ({"container": "apptainer exec x.sif", "python": "python"}, IN_IMAGE, "--gpu"),
        ({"srun": ("--container-image=x.sqsh",), "python": "python"}, IN_IMAGE, "--gpu"),
        ({"sbatch": {"mail-user": "gpu-team@example.org"}}, "mail-user", '" --gpu '),
        ({"sbatch": {"gres": "lustre"}}, "--gres=lustre", '" --gpu '),
        ({"sbatch": {"gpus": False}}, "srun", '" --gpu '),
        ({"sbatch": {"gres": "gpu:a100:2"}}, '" --gpu ', IN_IMAGE),
        ({"sbatch": {"tres_per_node": "gres/gpu:1"}}, '" --gpu ', IN_IMAGE),
        ({"sbatch": {"gpus": 4}}, '" --gpu ', IN_IMAGE),
    ],
)
def test_what_a_profile_says_stands_in_the_script_which_is_bash(
    tmp_path: Path, how: dict[str, Any], there: str, absent: str
) -> None:
    script = array_script(one_submission(tmp_path), tmp_path, Profile(**how), Resources())
    assert there in script
    assert absent not in script
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0


def test_a_submission_of_which_a_run_is_held_has_not_ended(tmp_path: Path, programs: Path) -> None:
    """The controller has lost its state, and with it the job."""
    root = tmp_path / "runs"
    one = submitted(root, programs)
    says(programs / "squeue", "")
    with run_lock.hold(root / one.runs[0]):
        assert not_needed(root) == []
    assert {found.path.parent.name for found in not_needed(root)} == {"slurm", "code"}


def test_without_slurm_a_moved_study_is_cleaned_and_cancelled_here(
    tmp_path: Path, programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "runs"
    submitted(root, programs)
    assert cancel_runs(root, "") == ["a-01230123"]
    assert "without jobs that are queued: squeue" in capsys.readouterr().err
    with pytest.raises(SlurmError):
        cancel_runs(root, "no-such-run")
    assert not_needed(root) == []
    assert "without what jobs left: squeue" in capsys.readouterr().err


def site(programs: Path) -> None:
    """A cluster of which a login node can be asked, and no more."""
    says(programs / "sbatch", "echo slurm 22.05")
    says(programs / "squeue", "")
    says(programs / "scontrol", "")
    says(
        programs / "sinfo",
        "echo 'cpu*|(null)|16|2-00:00:00'; echo 'gpu|gpu:a100:4(S:0)|48|infinite'",
    )


def test_without_a_profile_submit_shows_one_for_the_cluster_that_it_sees(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tst_study.experiments.slurm.profile.PLACES", (Path("slurm.toml"),))
    site(programs)
    said = answer(["submit", "laptop", "--scale", "smoke", "--launcher", "slurm"], tmp_path)
    assert said.status == 2
    assert said.err.startswith("error: slurm.toml: missing")
    (tmp_path / "slurm.toml").write_text(said.out)
    got = load_profile(tmp_path / "slurm.toml").resources
    assert (got.partition, got.tasks_per_node, got.gpus_per_node) == ("gpu", 4, 4)
    assert (got.gpu_type, got.cpus_per_task, got.time) == ("a100", 12, "24:00:00")


def test_a_dry_run_shows_arrays_and_the_first_script_and_leaves_nothing(
    tmp_path: Path, programs: Path
) -> None:
    site(programs)
    (tmp_path / "slurm.toml").write_text('max_array = 3\n[resources]\ntime = "30"\n')
    words = ["submit", "laptop", "--scale", "smoke", "--launcher", "slurm", "--dry-run"]
    said = answer(words, tmp_path)
    assert (said.status, said.err) == (0, "")
    sizes = [int(n) for n in re.findall(r"^array\d: runs: (\d+); each: nodes: 1", said.out, re.M)]
    assert (sum(sizes), max(sizes)) == (8, 3)
    assert "#SBATCH --array=0-2%3" in said.out
    assert [path.name for path in tmp_path.iterdir() if path != programs] == ["slurm.toml"]
    says(programs / "sbatch", '[ "$1" != --test-only ] || { echo no such account >&2; exit 1; }')
    said = answer(words, tmp_path)
    assert (said.status, said.err) == (2, "error: sbatch: no such account\n")


@pytest.mark.parametrize(
    ("study", "profile", "reason"),
    [
        ("laptop --scale smoke", "[resources]\ntasks_per_node = 3", "on 3 ranks"),
        (
            "mixture-10b-a1b --scale paper",
            'device = "L4"\n[resources]\nnodes = 8\ntasks_per_node = 8\ngpus_per_node = 8',
            "of a GPU's 24.0 GB",
        ),
    ],
)
def test_a_layout_is_refused_before_hours_of_preparing(
    tmp_path: Path, programs: Path, study: str, profile: str, reason: str
) -> None:
    site(programs)
    (tmp_path / "slurm.toml").write_text(f"{profile}\n")
    said = answer(["submit", *study.split(), "--launcher", "slurm"], tmp_path)
    assert said.status == 2
    assert "cannot be trained on" in said.err
    assert reason in said.err
    assert not (tmp_path / "prepared").exists()


def test_a_time_shorter_than_the_last_start_up_is_warned_of(tmp_path: Path) -> None:
    run = PlannedRun(example("name=a"), "0" * 64, tmp_path / "a-01230123")
    (run.folder / "job").mkdir(parents=True)
    (run.folder / "job" / "launches").write_text("1 early 0 0 - 700 s\n1 69 0 5 - -\n")
    short, enough = (Profile(resources=Resources(time=time)) for time in ("16", "17"))
    (said,) = short_times([run], short)
    assert "700 s" in said
    assert "time = '16'" in said
    assert short_times([run], enough) == []
