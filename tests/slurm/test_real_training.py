"""The real trainer as jobs: several ranks on several nodes, and a study from text to report."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm.test_launching import ROOT, rows, submit, wait_for_end, wait_until
from tests.slurm.test_without_a_cluster import says
from tests.tiny_runs import assert_same_run, logged_step, run, tiny
from tst_study.config.schema import to_toml
from tst_study.data.manifest import read_manifest
from tst_study.data.preparation.prepare import merge, prepare
from tst_study.data.preparation.request import Request
from tst_study.experiments.slurm.profile import Profile, Resources
from tst_study.experiments.study import Study
from tst_study.record import reader as run_record

pytestmark = pytest.mark.slurm


def test_two_nodes_of_two_ranks_train_what_one_process_trains(cluster, words, tmp_path):
    """TP2 × DP2 across the switch, on pretended GPUs; tensor ranks share a node."""
    config = tiny(words, "execution.parallel.tensor=2", "execution.device=cpu", "name=four")
    study = Study("real", "test", "Real", "", {}, lambda results: [config])
    four = Resources(nodes=2, tasks_per_node=2, gpus_per_node=2, time="10")
    submit(study, tmp_path / "runs", Profile(resources=four))
    alone = run(words, tmp_path / "alone", "name=four")
    wait_for_end(tmp_path / "runs")
    (folder,) = (tmp_path / "runs").glob("four-*")
    record = run_record.read(folder)
    assert record.state == "done", (folder / "job" / "log.txt").read_text()
    assert record.segments[0]["devices"]["count"] == 4
    assert record.header["fingerprint"] == alone.header["fingerprint"]
    for one, other in zip(record.metrics, alone.metrics, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
    loss = alone.evals[-1]["nats_per_token"]
    assert record.evals[-1]["nats_per_token"] == pytest.approx(loss, rel=1e-5)
    assert len(list((folder / "job").glob("log*.txt"))) == 4


def test_a_requeued_run_ends_in_the_bits_of_an_unbroken_one(cluster, words, tmp_path):
    """Told to stop by the signal that Slurm sends before a job's time is up."""
    settings = ("schedule.steps=600", "execution.log_every=10", "name=long")
    study = Study("real", "test", "Real", "", {}, lambda results: [tiny(words, *settings)])
    submit(study, tmp_path / "runs", Profile(resources=Resources(time="10")))
    (folder,) = (tmp_path / "runs").glob("long-*")
    wait_until(lambda: logged_step(folder) >= 50)
    (row,) = rows(study, tmp_path / "runs")
    cluster.run("scancel", "--signal=USR2", row.job)
    wait_for_end(tmp_path / "runs")
    assert len(run_record.read(folder).segments) == 2, (folder / "job" / "log.txt").read_text()
    run(words, tmp_path / "alone", *settings)
    assert_same_run(tmp_path / "alone", folder)


PROFILE = """
parallel = 2
signal_seconds = 60
[resources]
time = "20"
partition = "main"
memory_gb = 1.0
[[runs]]
match = "trunk-*"
resources = {cpus_per_task = 2}
"""


def tst_study(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tst_study", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )


def test_a_study_from_text_to_report(cluster, tmp_path):
    """The same command as on a laptop, but for the launcher; the verbs of a day with it."""
    study = ("reinitialise", "--scale", "smoke")
    (tmp_path / "slurm.toml").write_text(PROFILE)
    submitted = tst_study("submit", *study, "--launcher", "slurm", cwd=tmp_path)
    assert submitted.returncode == 0, submitted.stderr
    assert "4 submitted in 3 arrays" in submitted.stdout
    root = tmp_path / "runs" / "reinitialise-smoke"
    wait_for_end(root, 600.0)  # four real jobs, on whatever else the machine has to do
    ended = tst_study("status", *study, cwd=tmp_path).stdout
    assert ended.splitlines()[0] == "runs/reinitialise-smoke: 4 done", ended
    assert "4 runs over, 0 missing" in tst_study("collect", *study, cwd=tmp_path).stdout
    assert (root / "report" / "report.html").exists()
    record = run_record.read(next(root.glob("*-superposed-reinitialize_at_switch-*")))
    assert record.segments[0]["forked_from"]["run_id"].startswith("trunk-s4-50steps-seed0-")
    trunk = run_record.read(next(root.glob("trunk-*")))
    assert record.segments[1]["code"] == trunk.segments[0]["code"]


def test_the_array_of_the_documents_prepares_what_one_process_prepares(cluster, tmp_path):
    """`docs/data.md` with other names, 4 shards and without the hours."""
    command = tmp_path / "tst-study"  # the interpreter's own path may have a space in it
    says(command, f'exec {shlex.quote(sys.executable)} -m tst_study "$@"')
    (line,) = re.findall("^sbatch .*", (ROOT / "docs" / "data.md").read_text(), re.MULTILINE)
    for ours, here in {
        "=1-64 ": "=1-4 ",
        "_ID/64": "_ID/4",
        " --cpus-per-task=8 --time=8:00:00": "",
        '"texts/*.jsonl.zst"': "text.jsonl",
        "--tokenizer tokenizer.json": "--tokenizer bpe:300",
        "tst-study data": f"{command} data",
    }.items():
        assert ours in line
        line = line.replace(ours, here)
    texts = [f"Text {k} of some that are {'very ' * (k % 50)}short." for k in range(20_000)]
    with open(tmp_path / "text.jsonl", "w") as file:
        file.writelines(f'{{"text": "{text}"}}\n' for text in texts)
    done = subprocess.run(shlex.split(line), cwd=tmp_path, capture_output=True, text=True)
    logs = [path.read_text() for path in tmp_path.glob("slurm-*.out")]
    assert (done.returncode, len(logs)) == (0, 4), (done.stderr, logs)
    request = Request([str(tmp_path / "text.jsonl")], "bpe:300")
    prepare(request, tmp_path / "alone")
    assert merge(tmp_path / "prepared" / "mine") == read_manifest(tmp_path / "alone")


GRID = """
study = "ours"
base = "run.toml"
seeds = [1]
[arms]
baseline = {}
both = {bag_size = 4, step_ratio = 0.3}
[tune]
"optimizer.learning_rate" = [1e-3, 2e-3]
per = "baseline"
seeds = [100]
extend = 0
[resources.base]
cpus_per_task = 2
"""


def test_a_grid_is_tuned_and_a_last_job_submits_what_depends_on_that(cluster, words, tmp_path):
    (tmp_path / "slurm.toml").write_text(PROFILE)
    (tmp_path / "run.toml").write_text(to_toml(tiny(words)))
    (tmp_path / "ours.toml").write_text(GRID)
    submitted = tst_study("submit", "ours.toml", "--launcher", "slurm", cwd=tmp_path)
    assert submitted.returncode == 0, submitted.stderr
    command = "tst-study submit ours.toml --launcher slurm --top-up"
    (line,) = re.findall("^2 more depend on these results: (.*)", submitted.stdout, re.MULTILINE)
    assert re.fullmatch(rf"job [0-9]+ submits them; or do so by: {command}", line)
    again = tst_study("submit", "ours.toml", "--launcher", "slurm", cwd=tmp_path).stdout
    assert line in again  # no second one while that one waits
    root = tmp_path / "runs" / "ours"
    (kept,) = root.glob("code/*/study/ours.toml")
    assert kept.read_text() == GRID
    wait_for_end(root, 900.0)
    ended = tst_study("status", "ours.toml", cwd=tmp_path).stdout
    assert ended.splitlines()[0] == "runs/ours: 4 done", ended
    scripts = [path.read_text() for path in root.glob("slurm/*/script.sh")]
    assert sum("--cpus-per-task=2" in script for script in scripts) == 2
