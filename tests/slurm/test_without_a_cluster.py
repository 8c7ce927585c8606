"""What of it needs no Slurm, or no more of it than a program that says a line."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import pytest

from experiments.launcher import Options, the_only_submitter
from experiments.run_process import write_config
from experiments.runs.clean import delete, not_needed
from experiments.slurm import code_copy, submission
from experiments.slurm.batch_script import array_script
from experiments.slurm.code_copy import keep_code
from experiments.slurm.launcher import Slurm
from experiments.slurm.profile import Profile, Resources
from experiments.slurm.submission import Submission
from tests.examples import example
from tests.slurm.test_launching import wait_until
from tst_study.errors import UserError


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


@pytest.mark.parametrize(
    ("options", "there"),
    [
        ({"mail-user": "gpu-team@example.org"}, False),
        ({"gres": "gpu:a100:2"}, True),
        ({"gres": "lustre"}, False),
        ({"tres_per_node": "gres/gpu:1"}, True),
        ({"gpus": 4}, True),
        ({"gpus": False}, False),
    ],
)
def test_options_of_sbatch_that_ask_for_a_gpu_are_told(
    options: dict[str, str | int | bool], there: bool
) -> None:
    assert Profile(sbatch=options).on_gpu(Resources()) == there


@pytest.mark.usefixtures("programs")
def test_an_option_that_is_turned_off_is_not_there(tmp_path: Path) -> None:
    how = Profile(sbatch={"exclusive": False, "hold": True})
    one = submission.new(tmp_path, "", ["a"], Path("code"))
    script = array_script(one, tmp_path, how, Resources())
    assert "#SBATCH --hold\n" in script
    assert "exclusive" not in script


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
    monkeypatch.setattr("experiments.slurm.launcher.SECOND_LOOK", 0.0)
    one, looks = submitted(tmp_path / "runs", programs), tmp_path / "looks"
    line = f"12|0|PENDING|BeginTime|tst-study:{one.id}"
    says(programs / "squeue", f'echo x >>{looks}; [ $(wc -l <{looks}) -lt 4 ] || echo "{line}"')
    found = not_needed(tmp_path / "runs")
    assert {one.path.parent.name for one in found} == {"slurm", "code"}
    assert delete(tmp_path / "runs", found) == []
    assert Path(one.code).is_dir()


@pytest.mark.parametrize(
    ("program", "line", "told"),
    [
        ("scontrol", "JobState=FAILED Reason=None Comment={comment}", True),
        ("scontrol", "JobState=FAILED Reason=None Comment=grant", False),
        ("scontrol", "JobState=FAILED Reason=None", False),
        ("sacct", "12_0|FAILED|{comment}|{name}", True),
        ("sacct", "12_0|FAILED||{name}", True),  # comments are not kept there
        ("sacct", "12_0|FAILED||other", False),
        ("sacct", "12_0|FAILED|grant|{name}", False),
    ],
)
def test_a_stranger_s_job_of_the_same_id_is_not_taken_for_ours(
    tmp_path: Path, programs: Path, program: str, line: str, told: bool
) -> None:
    """Of ours, which has left the queue, the controller or the accounts may know the end."""
    one = submitted(tmp_path / "runs", programs)
    for name in ("squeue", "scontrol", "sacct"):
        says(programs / name, "")
    said = line.format(comment=one.comment, name=one.name)
    if program == "scontrol":
        said = f"JobId=13 ArrayJobId=12 ArrayTaskId=0 {said}"
    says(programs / program, f"echo '{said}'")
    (job,) = Slurm(Options()).jobs(tmp_path / "runs").values()
    assert job.state == ("failed" if told else "forgotten")


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


def test_clean_takes_half_a_copy_of_the_code_and_nothing_like_it(tmp_path: Path) -> None:
    half, other = (keep_code(tmp_path).with_name(f".0123456789ab.{n}") for n in (1, 2))
    (half / "tst_study").mkdir(parents=True)
    (other / "thesis").mkdir(parents=True)
    (tmp_path / "a-01230123" / "job").mkdir(parents=True)
    write_config(example(), tmp_path / "a-01230123")
    delete(tmp_path, not_needed(tmp_path))
    assert list(half.parent.iterdir()) == [other]


def test_bytes_that_are_no_text_hide_no_job(tmp_path: Path, programs: Path) -> None:
    one = submitted(tmp_path, programs)
    ours = f"12|0|RUNNING|None|{one.comment}"
    says(programs / "squeue", f"printf '9|0|RUNNING|None|caf\\351\\n'; echo '{ours}'")
    assert [job.state for job in Slurm(Options()).jobs(tmp_path).values()] == ["running"]
