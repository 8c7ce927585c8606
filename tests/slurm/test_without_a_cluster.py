"""The Slurm launcher where there is no Slurm, or programs in its place that print a line."""

import getpass
import os
import re
import shlex
import subprocess
import time
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.examples import example
from tests.experiments.fake_training import at, config, study_of
from tests.input.answers import answer
from tst_study.atomic_files import write_json
from tst_study.errors import UserError
from tst_study.experiments.code_copy import keep_code
from tst_study.experiments.launcher import Job, Options, submission_lock
from tst_study.experiments.launches import remark
from tst_study.experiments.plan.planner import Planner
from tst_study.experiments.run_process import cancel_mark, write_config
from tst_study.experiments.slurm import follow_up, submission, submit
from tst_study.experiments.slurm.batch_script import array_script
from tst_study.experiments.slurm.commands import SlurmError
from tst_study.experiments.slurm.profile import Profile, Resources
from tst_study.experiments.slurm.slurm_launcher import Slurm
from tst_study.experiments.slurm.submission import Submission, known_jobs
from tst_study.experiments.state.jobs import cancel_runs
from tst_study.experiments.state.status import rows_below
from tst_study.record import reader as run_record
from tst_study.record.writer import mark

ROOT = Path(__file__).parents[2]


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


def test_a_second_submitter_waits_and_says_so(tmp_path, capsys):
    turns = []

    def submit() -> None:
        with submission_lock(tmp_path):
            turns.append("second")

    second = Thread(target=submit)
    with submission_lock(tmp_path):
        second.start()
        time.sleep(0.5)
        turns.append("first")
    second.join()
    assert turns == ["first", "second"]
    said = f"{tmp_path}: another command submits or cleans it; waiting\n"
    assert capsys.readouterr().err == said


RUN = "a-01230123"


def submitted(root: Path, programs: Path) -> Submission:
    """As job 12."""
    says(programs / "sbatch", "echo Welcome to the cluster; echo '12;name'")
    one = submission.new(root, [RUN])
    write_config(example(), root / RUN)
    with submission_lock(root) as lock:
        assert submission.submit(one, "", lock) == "12"
    return one


def test_an_empty_answer_about_jobs_that_were_there_is_doubted_once(
    tmp_path, programs, monkeypatch
):
    one = submitted(tmp_path, programs)
    job = f"echo '12|0|PENDING|Priority|{one.comment} grant 42'"
    says(programs / "squeue", f"[ ! -e {tmp_path}/asked ] || {job}; touch {tmp_path}/asked")
    monkeypatch.setattr(submission, "SECOND_LOOK", 0.0)
    assert [job.state for job in Slurm(Options()).jobs(tmp_path).values()] == ["queued"]


@pytest.mark.parametrize(
    ("first", "second", "shown"),
    [
        ("RUNNING", "COMPLETED", ("12_0", "running")),
        ("RUNNING", "PENDING", ("13_0", "queued")),
        ("CANCELLED", "FAILED", ("13_0", "failed")),
        ("FAILED", "TIMEOUT", ("13_0", "ended")),
    ],
)
def test_a_runs_job_is_its_active_one_or_else_its_last(tmp_path, programs, first, second, shown):
    one, other = submitted(tmp_path, programs), submission.new(tmp_path, [RUN])
    says(programs / "sbatch", "echo 13")
    with submission_lock(tmp_path) as lock:
        submission.submit(other, "", lock)
    lines = f"12|0|{first}|None|{one.comment}\n13|0|{second}|None|{other.comment}"
    says(programs / "squeue", f"printf '{lines}'")
    (one.folder / "job.json").unlink()  # as if its command had been killed after `sbatch`
    job = known_jobs(tmp_path)[RUN]
    assert ((job.id, job.state), job.owner, one.job_id) == (shown, "", "12")


@pytest.mark.usefixtures("without_data")
def test_a_branch_waits_for_its_prefix_runs_active_job_and_has_none_without_it(tmp_path):
    branches = [config(f"b{r}", f"superposition.step_ratio={r}") for r in (0.2, 0.3)]
    runs = Planner(at(study_of(*branches), tmp_path)).decided()
    rest = [run for run in runs if run.prefix]
    needs = {run.fingerprint: Resources() for run in runs}
    one = rest[0].prefix.run_id
    for jobs in ({one: Job("12_0", "running")}, {one: Job("12_0", "queued")}):
        assert submit._next_array(rest, needs, jobs, 10) == (Resources(), "afterok:12_0", rest)
    for jobs in ({one: Job("12_0", "failed")}, {}):
        assert submit._next_array(rest, needs, jobs, 10) is None


def test_what_submits_further_runs_waits_for_all_active_jobs_and_is_replaced_by_new_ones(
    tmp_path, programs
):
    asked = tmp_path / "asked"
    site(programs)
    says(programs / "scancel", f"echo cancel $* >>{asked}")
    says(programs / "sbatch", f"grep -e --dependency $2 >>{asked}; echo 15")
    jobs = {
        "a": Job("12_0", "running"),
        "b": Job("13_0", "ended"),
        follow_up.RUN: Job("14_0", "queued"),
    }
    study, options = at(study_of(), tmp_path), Options(command=("submit", "ours"))
    with submission_lock(tmp_path) as lock:
        given = (study, Profile(), options, tmp_path, jobs, lock)
        assert follow_up.arranged(*given, is_new=False).startswith("job 14 submits them")
        assert not asked.exists()
        assert follow_up.arranged(*given, is_new=True).startswith("job 15 submits them")
        part = Options(command=("submit", "ours", "pilot"), is_part=True)
        told = follow_up.arranged(study, Profile(), part, *given[3:], is_new=False)
    assert told == "job 14 submits them; or do so by: tst-study submit ours --top-up"
    said = ["#SBATCH --dependency=afterany:12,singleton", "cancel 14_0"]
    assert asked.read_text().splitlines() == said


def test_status_prints_the_command_where_no_job_will_submit_what_waits(
    tmp_path, programs, monkeypatch
):
    monkeypatch.setattr(submission, "SECOND_LOOK", 0.0)
    submitted(tmp_path, programs)
    says(programs / "squeue", "")
    write_json(tmp_path / "slurm" / "command.json", ["submit", "our grid.toml", "--top-up"])
    waiting, command = [RUN, "b-45674567"], "tst-study submit 'our grid.toml' --top-up"
    assert Slurm(Options()).hint(tmp_path, waiting) == f"1 can be submitted now: {command}"
    assert Slurm(Options()).hint(tmp_path, waiting[:1]) == ""
    last = submission.new(tmp_path, ())
    with submission_lock(tmp_path) as lock:
        submission.submit(last, "", lock)
    says(programs / "squeue", f"echo '13|0|PENDING|Dependency|{last.comment}'")
    assert Slurm(Options()).hint(tmp_path, waiting) == ""


def test_cancel_marks_runs_and_takes_with_them_the_job_that_would_submit_more(tmp_path, programs):
    one, last = submitted(tmp_path, programs), submission.new(tmp_path, ())
    with submission_lock(tmp_path) as lock:
        submission.submit(last, "", lock)
    job = "printf '%s|0|PENDING|None|%s\\n'"
    says(programs / "squeue", f"{job} 12 {one.comment}; {job} 13 {last.comment}")
    says(programs / "scancel", f"echo $* >{tmp_path}/asked")
    assert Slurm(Options()).cancel(tmp_path, lambda run: True) == {RUN}
    assert (tmp_path / "asked").read_text() == "12_0 13_0\n"
    assert cancel_mark(tmp_path / RUN).exists()


def test_jobs_on_another_cluster_are_named_and_left(tmp_path, programs, capsys):
    says(programs / "scontrol", "echo 'ClusterName             = north'")
    submitted(tmp_path, programs)
    says(programs / "squeue", "")
    says(programs / "scontrol", "echo 'ClusterName             = south'")
    (job,) = Slurm(Options()).jobs(tmp_path).values()
    assert (job.state, job.remark) == ("queued", f"job 12_0 of {getpass.getuser()} on north")
    assert cancel_runs(tmp_path, "") == []
    assert "left alone: a-01230123: job 12_0 of" in capsys.readouterr().err


def test_bytes_that_are_no_text_hide_no_job(tmp_path, programs):
    one = submitted(tmp_path, programs)
    ours = f"12|0|RUNNING|None|{one.comment}"
    says(programs / "squeue", f"printf '9|0|RUNNING|None|caf\\351\\n'; echo '{ours}'")
    assert [job.state for job in Slurm(Options()).jobs(tmp_path).values()] == ["running"]


JOB = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "0", "SLURM_MEM_PER_NODE": "1536"}


def launched(
    root: Path, programs: Path, srun: str = "", end: str = "N/A", requeue: str = "", **how: Any
) -> subprocess.CompletedProcess[str]:
    """A launch by the batch script as it is; the controller ends a job that it requeues."""
    one = submission.new(root, [RUN])
    one.folder.mkdir(parents=True)
    (one.folder / submission.RUNS).write_text(f"{RUN}\n")
    write_config(example(), root / RUN)
    says(programs / "squeue", f'[ "$3" = --format=%e ] && echo {end} || echo RUNNING')
    says(programs / "scontrol", f"{requeue}\necho $* >>'{root}/asked'; kill -TERM $PPID")
    says(programs / "srun", f"cd {root / RUN}; {srun}")
    script = array_script(one, ROOT, Profile(retries=1, **how), Resources())
    with open(root / "output", "ab", 0) as output:
        output.write(b"slurmstepd-n1: error: Detected 1 oom-kill event(s) in an earlier launch\n")
        done = subprocess.run(["bash", "-c", script], env=os.environ | JOB, stderr=output)
    return subprocess.CompletedProcess([], done.returncode, "", (root / "output").read_text())


def told(root: Path) -> tuple[str, str]:
    status = run_record.read_status(root / RUN)
    return status["state"], status["message"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('load "cuda/12" | grep x || false', 'load "cuda/12" | grep x || false'),
        ("exit 0", "it ended early: a line of setup, or what it sources, calls exit"),
        ("sh -c 'kill -9 $$'", "sh -c 'kill -9 $$': killed, for its memory? Raise memory_gb"),
    ],
)
def test_a_set_up_that_fails_is_the_runs_last_word(tmp_path, programs, line, said):
    (tmp_path / RUN).mkdir()
    mark(tmp_path / RUN, example(), "preempted", "SIGUSR2 at step 500")
    assert launched(tmp_path, programs, "touch trained", setup=("true", line)).returncode == 1
    assert told(tmp_path) == ("failed", f"set-up failed: {said}")
    mark(tmp_path / RUN, example(), "done", "")
    launched(tmp_path, programs, "touch trained", setup=("true", line))
    assert told(tmp_path) == ("done", "")
    assert not (tmp_path / RUN / "trained").exists()


SLOW = "exec sleep 9 >&-"
ENDS = [
    ("echo 0 >job/ended", 0, None),
    ("echo 1 >job/ended; exit 1", 1, None),
    ("echo 75 >job/ended; exit 75", 69, ""),
    ("echo 69 >job/ended; exit 69", 69, "stopped by a signal"),
    ("echo 69 >job/ended; echo srun: error: n1: task 0: Exited with exit code 69 >&2; exit 69", 69,
     "stopped by a signal"),
    ("echo 69 >job/ended; echo srun: error: n1: task 1: Killed >&2; exit 137", 69,
     "n1: task 1: Killed, for its memory? Raise memory_gb, now 1.5"),
    ("exit 3", 69, "status 3"),
    (SLOW, 69, "stopped by the limit"),
]  # fmt: skip


@pytest.mark.parametrize(("srun", "status", "noted"), ENDS, ids=range(len(ENDS)))
def test_how_the_ranks_end_decides_what_becomes_of_the_job(tmp_path, programs, srun, status, noted):
    end = "2020-01-01T00:00:00" if srun == SLOW else "N/A"
    done = launched(tmp_path, programs, srun, end)
    assert done.returncode == status, done.stderr
    assert (tmp_path / "asked").exists() == (noted is not None)
    last = f"launched again: 1, in a row without a new checkpoint: 1, last: {noted}"
    assert remark(tmp_path / RUN) == (last if noted else "")


def test_a_job_without_memory_enough_is_not_launched_again_with_as_much(tmp_path, programs):
    """The rank that the kernel killed is named, not those that lost their connection to it."""
    errors = "srun: error: n2: task 1: Killed\nsrun: error: n1: task 0: Out Of Memory"
    assert launched(tmp_path, programs, f"printf '{errors}\n' >&2; exit 137").returncode == 1
    why = "n1: task 0: Out Of Memory: raise memory_gb, now 1.5"
    given_up = f"given up: launches in a row without a new checkpoint: 1 ({why})"
    assert told(tmp_path) == ("failed", given_up)


def test_a_requeue_that_is_refused_is_not_tried_again(tmp_path, programs):
    refused = f"echo >>{tmp_path}/tries; echo Requested operation is presently disabled >&2; exit 1"
    said = launched(tmp_path, programs, "exit 3", requeue=refused).stderr
    assert "not requeued: scontrol: Requested operation is presently disabled" in said
    assert (tmp_path / "tries").read_text() == "\n"


def test_a_job_of_a_cancelled_run_trains_nothing(tmp_path, programs):
    cancel_mark(tmp_path / RUN).parent.mkdir(parents=True)
    cancel_mark(tmp_path / RUN).touch()
    launched(tmp_path, programs, "touch trained")
    assert not (tmp_path / RUN / "trained").exists()
    assert not (tmp_path / "asked").exists()


def test_launches_that_cannot_be_counted_are_not_made_again(tmp_path, programs):
    """As on a full disk, on which no crash leaves a trace."""
    noted = tmp_path / RUN / "job" / "launches"
    noted.mkdir(parents=True)
    done = launched(tmp_path, programs, "exit 1")
    assert done.returncode == 1
    assert "launches: is a folder" in done.stderr
    assert "submit again to go on" in done.stderr
    assert not (tmp_path / "asked").exists()
    noted.rmdir()
    for _ in range(2):
        launched(tmp_path, programs, "exit 1")
    assert (tmp_path / "asked").read_text().count("requeue 7") == 1
    assert told(tmp_path)[1].startswith("given up: launches in a row without a new checkpoint: 2")


def test_a_file_system_that_is_away_for_a_while_costs_a_launch(tmp_path, programs):
    away = f"cd {tmp_path}; mv {RUN} away; (sleep 3; mv away {RUN}) >&- 2>&- & exit 1"
    assert launched(tmp_path, programs, away).returncode == 69
    assert (tmp_path / "asked").read_text() == "requeue 7_0\n"
    assert remark(tmp_path / RUN).endswith("last: status 1")


def script_of(root: Path, **how: Any) -> str:
    profile = Profile(**how)
    return array_script(submission.new(root, ["a"]), root / "code", profile, profile.resources)


def test_studies_of_one_name_in_two_checkouts_do_not_wait_for_each_other(tmp_path):
    """Equal submissions have equal names, and `singleton` keeps jobs of one name apart."""
    here, again, elsewhere = (
        submission.new(tmp_path / name, ["a"]).name for name in ("a/s", "a/s", "b/s")
    )
    assert here == again != elsewhere


TIMES = {"0": 0, "10": 600, "10:30": 630, "1:00:01": 3601, "2-12": 216_000, "1-0:1": 86_460}


@pytest.mark.parametrize("time", TIMES)
def test_a_time_is_read_as_slurm_reads_it(time):
    assert Resources(time=time).seconds == TIMES[time]


GPUS = Resources(gpus_per_node=2, gpu_type="a100")
IN_IMAGE = f"""/bin/sh -c 'cd "$0" && exec "$@"' {shlex.quote(os.getcwd())} python -P"""


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize(
    ("how", "there", "absent"),
    [
        ({"sbatch": {"nice": 5, "reboot": True}}, "#SBATCH --reboot\n", "wckey"),
        ({"answer_seconds": 90}, "export TST_ANSWER_SECONDS=90\n", "--gpu"),
        ({"sbatch": {"comment": "grant 42"}}, " grant 42'\n", "--hold"),
        ({"sbatch": {"gres": "tmp:1"}, "resources": GPUS}, "gres=gpu:a100:2,tmp:1\n", "--mem"),
        ({"sbatch": {"exclusive": False}, "setup": ("cd /",)}, f"cd {ROOT}\n", "exclusive"),
        ({"setup": ("# modules of the old cluster", "", "true")}, "modules of the old", "--gpu"),
        ({"python": "python"}, "python -P", IN_IMAGE),
        ({"container": "apptainer exec x.sif", "python": "python"}, IN_IMAGE, "--gpu"),
        ({"srun": ("--container-image=x.sqsh",), "python": "python"}, IN_IMAGE, "--gpu"),
        ({"resources": GPUS}, "#SBATCH --gres=gpu:a100:2\n", IN_IMAGE),
        ({"resources": GPUS}, '" --gpu\n', IN_IMAGE),
    ],
)
def test_what_a_profile_says_stands_in_the_script_which_is_bash(tmp_path, how, there, absent):
    script = script_of(tmp_path, **how)
    assert there in script
    assert absent not in script
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0


def test_the_copy_of_the_code_holds_the_files_of_the_study_and_changes_with_them(tmp_path):
    files = (tmp_path / "ours.py", tmp_path / "lab" / "rates.py")
    files[1].parent.mkdir()
    for path in files:
        path.write_text("RATE = 1\n")
    first = keep_code(tmp_path / "runs", files)
    assert (first / "study" / "lab" / "rates.py").read_text() == "RATE = 1\n"
    assert keep_code(tmp_path / "runs", files) == first != keep_code(tmp_path / "runs")
    files[0].write_text("RATE = 2\n")
    assert (keep_code(tmp_path / "runs", files) / "study" / "ours.py").read_text() == "RATE = 2\n"
    assert (first / "study" / "ours.py").read_text() == "RATE = 1\n"


def test_without_slurm_a_moved_study_is_cancelled_here(tmp_path, programs, capsys):
    root = tmp_path / "runs"
    submitted(root, programs)
    assert cancel_runs(root, "") == [RUN]
    assert "some queued jobs may remain: squeue" in capsys.readouterr().err
    with pytest.raises(SlurmError):
        cancel_runs(root, "no-such-run")


def site(programs: Path) -> None:
    """A cluster of which a login node can be asked, and no more."""
    says(programs / "sbatch", "echo 12")
    says(programs / "squeue", "")


def test_without_a_profile_nothing_is_submitted(tmp_path, programs):
    site(programs)
    said = answer(["submit", "laptop", "--scale", "smoke", "--launcher", "slurm"], tmp_path)
    assert (said.status, said.err.partition(";")[0]) == (2, "error: slurm.toml: missing")


def test_a_dry_run_shows_arrays_and_the_first_script_and_leaves_nothing(tmp_path, programs):
    site(programs)
    (tmp_path / "slurm.toml").write_text('parallel = 3\narray = 4\n[resources]\ntime = "30"\n')
    words = ["submit", "laptop", "--scale", "smoke", "--launcher", "slurm", "--dry-run"]
    said = answer(words, tmp_path)
    assert (said.status, said.err) == (0, "")
    line = r"^array[1-9]: runs: (\d+), at a time: (\d); each: nodes: 1"
    sizes, shares = zip(*re.findall(line, said.out, re.MULTILINE), strict=True)
    assert sum(map(int, sizes)) == 10
    assert max(map(int, sizes)) == 4
    assert sum(map(int, shares)) <= 3
    assert re.search(r"#SBATCH --array=0-3%1", said.out)
    assert "no cluster was asked" not in said.out
    assert [path.name for path in tmp_path.iterdir() if path != programs] == ["slurm.toml"]


def test_a_dry_run_needs_no_slurm(tmp_path):
    words = ["submit", "laptop", "--scale", "smoke", "--launcher", "slurm", "--dry-run"]
    said = answer(words, tmp_path, {"PATH": "/nowhere"})
    assert (said.status, said.err) == (0, "")
    assert "no cluster was asked" in said.out
    assert "#SBATCH --array=0-" in said.out


@pytest.mark.parametrize("verb", ["plan", "submit"])
def test_naming_a_profile_means_slurm(tmp_path, verb):
    (tmp_path / "slurm.toml").write_text("[resources]\ntasks_per_node = 3\n")
    words = [verb, "laptop", "--scale", "smoke", *["--dry-run"] * (verb == "submit")]
    here = answer(words, tmp_path, {"PATH": "/nowhere"})
    there = answer([*words, "--profile", "slurm.toml"], tmp_path, {"PATH": "/nowhere"})
    assert "on 3 ranks" not in here.out + here.err
    assert "on 3 ranks" in there.out + there.err


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        ('setup = ["true", "load (cuda"]', "setup = 'load (cuda': bash cannot read it (line 2: "),
        ('setup = ["export A=b \\\\"]', "bash cannot read it"),
    ],
)
@pytest.mark.parametrize("dry", [False, True])
@pytest.mark.usefixtures("without_data")
def test_what_slurm_would_refuse_is_refused_before_anything_is_queued(
    tmp_path, programs, profile, said, dry
):
    site(programs)
    (tmp_path / "slurm.toml").write_text(profile)
    options, root = Options(profile=tmp_path / "slurm.toml", dry=dry), tmp_path / "runs"
    with pytest.raises(UserError, match=re.escape(said)):
        Slurm(options).submit(at(study_of(config("a")), root))
    assert not known_jobs(root)


@pytest.mark.usefixtures("without_data")
def test_a_longer_time_to_answer_counts_for_earlier_jobs_too(tmp_path, programs, monkeypatch):
    monkeypatch.chdir(tmp_path)
    site(programs)
    study = at(study_of(config("a")), tmp_path / "runs")
    Path("slurm.toml").write_text("answer_seconds = 1")
    assert Slurm(Options()).submit(study) == 0
    (one,) = submission.all_of(study.folder)
    says(programs / "squeue", f"sleep 1.2; echo '12|0|PENDING|Priority|{one.comment}'")
    for ask in (Slurm(Options()).submit, lambda study: Slurm(Options()).jobs(study.folder)):
        with pytest.raises(SlurmError, match=r"squeue: no answer in 1 s; .* is answer_seconds"):
            ask(study)
    Path("slurm.toml").write_text("answer_seconds = 30")
    Slurm(Options()).submit(study)
    assert submission.all_of(study.folder) == [one]
    assert [row.state for row in rows_below(study.folder)] == ["queued"]
    assert len(cancel_runs(study.folder, "")) == 1


@pytest.mark.usefixtures("without_data")
def test_a_job_that_the_queue_lacks_for_a_moment_is_not_submitted_again(
    tmp_path, programs, monkeypatch
):
    """As one that is being requeued."""
    monkeypatch.setattr(submit, "SECOND_LOOK", 0.0)
    site(programs)
    study = at(study_of(config("a"), config("b", "seed=2")), tmp_path / "runs")
    submit.submit_to_slurm(study, Profile(), Options())
    (one,) = submission.all_of(study.folder)
    mark(study.folder / one.runs[0], config("a"), "done", "")
    over, there = (f"echo '12|{place}|{{}}|None|{one.comment}'" for place in (0, 1))
    again = f"[ ! -e {tmp_path}/asked ] || {there.format('PENDING')}; touch {tmp_path}/asked"
    says(programs / "squeue", f"{over.format('COMPLETED')}; {again}")
    done = submit.submit_to_slurm(study, Profile(), Options())
    assert (len(done.over), len(done.adopted), done.new) == (1, 1, [])


@pytest.mark.usefixtures("without_data")
def test_an_array_that_was_left_held_and_is_over_is_not_let_go(tmp_path, programs, monkeypatch):
    monkeypatch.setattr(submit, "SECOND_LOOK", 0.0)
    site(programs)
    study = at(study_of(config("a")), tmp_path / "runs")
    submit.submit_to_slurm(study, Profile(), Options())
    (one,) = submission.all_of(study.folder)
    write_json(one.folder / "waits.json", {0: [1]})
    says(programs / "squeue", f"echo '12|0|CANCELLED|None|{one.comment}'")
    says(programs / "scontrol", "echo Invalid job id specified >&2; exit 1")
    assert len(submit.submit_to_slurm(study, Profile(), Options()).new) == 1


@pytest.mark.usefixtures("without_data")
def test_a_damaged_run_is_not_submitted_and_all_others_are(tmp_path, programs, capsys):
    site(programs)
    study = at(study_of(config("a"), config("b", "seed=2")), tmp_path / "runs")
    bad, good = Planner(study).decided()
    bad.folder.mkdir(parents=True)
    (bad.folder / "run.json").touch()
    (tmp_path / "slurm.toml").touch()
    assert Slurm(Options(profile=tmp_path / "slurm.toml")).submit(study) == 1
    said = capsys.readouterr().out
    assert "1 submitted in 1 array" in said
    assert f"not submitted: {bad.run_id}: {bad.folder}/run.json: is damaged (Invalid JSON" in said
    (array,) = submission.all_of(study.folder)
    assert array.runs == (good.run_id,)
    (good.folder / "status.json").touch()  # damaged, too, when Slurm has forgotten its job
    assert Slurm(Options()).jobs(study.folder)[good.run_id].state == "ended"


def test_percent_signs_are_none_of_slurms_patterns(tmp_path, monkeypatch):
    (tmp_path / "%t of %j").mkdir()
    monkeypatch.chdir(tmp_path / "%t of %j")
    outputs = re.findall(r"'(?:--output=)?([^']*_log.out)'", script_of(Path("runs")))
    assert len(outputs) == 2
    assert all("/%%t of %%j/runs/" in output and "/%A_%a_" in output for output in outputs)


def test_a_model_that_does_not_fit_the_device_is_refused_before_hours_of_preparing(
    tmp_path, programs
):
    site(programs)
    small = 'device = "L4"\n[resources]\nnodes = 8\ntasks_per_node = 8\ngpus_per_node = 8\n'
    (tmp_path / "slurm.toml").write_text(small)
    words = ["submit", "mixture-10b-a1b", "--scale", "paper", "--launcher", "slurm"]
    said = answer(words, tmp_path)
    assert said.status == 2
    assert "of a GPU's 24.0 GB" in said.err
    assert not (tmp_path / "prepared").exists()
