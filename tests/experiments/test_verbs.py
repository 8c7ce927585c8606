"""collect, logs and clean, on folders as a study leaves them."""

import json
import multiprocessing
import os
import signal
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

from tests.experiments import fake_training
from tests.experiments.fake_training import at, config, study_of
from tests.experiments.test_planned_prefix_runs import begin, one, planner
from tests.input.answers import answer, refusal
from tests.record.test_record import DATA, evaluation, metrics, open_run
from tst_study import file_lock
from tst_study.analysis.tables import source
from tst_study.analysis.verdict.question import register
from tst_study.checkpoints.places import checkpoint_steps
from tst_study.data import run_data
from tst_study.errors import UserError
from tst_study.experiments import cli
from tst_study.experiments.launcher import Options
from tst_study.experiments.local import queue as local_queue
from tst_study.experiments.local.queue import launch
from tst_study.experiments.plan.planner import Planner
from tst_study.experiments.run_process import write_config
from tst_study.experiments.state.clean import delete, not_needed
from tst_study.experiments.state.collect import collect, keep
from tst_study.experiments.state.jobs import cancel_runs, log_tails
from tst_study.experiments.state.status import rows_below, rows_of_study, stopped
from tst_study.experiments.studies.catalogue import folder_of, load
from tst_study.record import reader as run_record


def finished(folder: Path, *overrides: str) -> None:
    writer = open_run(folder, *overrides)
    segment = writer.start_segment(None, {"code": {"commit": "a" * 40, "dirty": False}})
    writer.evaluation({**evaluation(segment, 100, 3.0), "annealed": True})
    writer.status("done", 100)


def test_collect_writes_tables_and_names_what_is_missing(tmp_path):
    finished(tmp_path / "a")
    open_run(tmp_path / "b", "seed=1").status("failed", 3, "disk full")
    said = collect(tmp_path, partial(rows_below, tmp_path))
    assert {"1 runs over, 1 missing", "  b: failed disk full"} <= {*said}
    assert len(pd.read_csv(tmp_path / "report" / "runs.csv")) == 2
    assert (tmp_path / "report" / "report.html").exists()


def test_a_damaged_run_is_one_row_and_all_others_go_on(tmp_path, monkeypatch):
    """As a full disk leaves it, or a machine that has lost its power."""
    monkeypatch.setattr(run_data, "fingerprints", lambda config: DATA)
    monkeypatch.setattr(
        local_queue, "_context", lambda _: multiprocessing.get_context("forkserver")
    )
    configs = [config(name, f"seed={n}") for n, name in enumerate(("bad", "fail", "good"))]
    study = at(study_of(*configs), tmp_path)
    bad, fail, good = Planner(study).decided()
    for run in (bad, fail):
        write_config(run.config, run.folder)
        writer = open_run(run.folder, f"name={run.config.name}", f"seed={run.config.seed}")
        writer.status("running", 3)
    (bad.folder / "status.json").write_bytes(b"")
    damage = f"{bad.folder}/status.json: is damaged (Invalid JSON"
    with file_lock.hold(bad.folder), file_lock.hold(fail.folder):
        rows = {row.run_id: row for row in rows_of_study(study)}
        assert rows[bad.run_id].message.startswith(damage)
        states = [rows[run.run_id].state for run in (bad, fail, good)]
        assert states == ["damaged", "running", "waiting"]
        asked: list[tuple[int, int]] = []
        with monkeypatch.context() as patch:
            patch.setattr("os.kill", lambda *words: asked.append(words))
            assert set(cancel_runs(tmp_path, "")) == {bad.run_id, fail.run_id}
        assert asked == [(os.getpid(), signal.SIGTERM)] * 2
    assert f"=== {bad.run_id}: damaged {damage}" in "\n".join(log_tails(tmp_path, "", 9))
    assert not_needed(tmp_path) == []
    assert f"  {bad.run_id}: damaged {damage}" in "\n".join(
        collect(tmp_path, partial(rows_of_study, study))
    )
    assert stopped(study, "")(bad)
    for _ in range(2):  # the second time it matters whether a run has ended
        register(tmp_path, load("tuned", "smoke").questions)
    queue = launch(study, Options(), target=fake_training.run)
    assert {run.run_id for run in queue.over.values()} == {good.run_id}
    why = {run.run_id: why for run, why in queue.failed.values()}
    assert why[bad.run_id].startswith(damage)
    assert why[bad.run_id].endswith("; move its folder away")
    assert why[fail.run_id] == "corpus: too short; give more text"


def test_a_study_of_one_s_own_goes_by_its_name(tmp_path, monkeypatch):
    """Below `runs/`, as `train` puts it; a folder of text of the same name does not hide it."""
    monkeypatch.chdir(tmp_path)
    finished(Path("runs/mine/run"))
    assert folder_of("mine", "quick") == Path("runs/mine")
    Path("mine").mkdir()
    assert folder_of("mine", "quick") == Path("runs/mine")
    finished(Path("mine/run"))
    assert folder_of("mine", "quick") == Path("mine")
    assert folder_of("runs/mine", "quick") == Path("runs/mine")
    assert folder_of("laptop", "smoke") == Path("runs/laptop-smoke")
    with pytest.raises(UserError, match=r"yours: no such folder or study; .* there are: mine$"):
        folder_of("yours", "quick")


def test_collect_misses_runs_of_the_study_that_never_began(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run_data, "fingerprints", lambda config: DATA)
    study = load("headline", "smoke", tmp_path)
    runs = Planner(study).decided()
    begin(runs[0], "failed")
    cli.collect(["headline"], "smoke", tmp_path)
    said = capsys.readouterr().out
    assert f"0 runs over, {len(runs)} missing" in said
    assert "No run is over yet." in said
    for run, state in zip(runs, ["failed", *["waiting"] * (len(runs) - 1)], strict=True):
        assert f"  {run.run_id}: {state}\n" in said
    cli.collect(["reinitialise"], "smoke", tmp_path, no_share=True)
    assert "trunk-" not in capsys.readouterr().out
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)  # the text is not there, as it may be in a checkout
    cli.collect(["headline"], "smoke", tmp_path)
    said = capsys.readouterr()
    assert "0 runs over, 1 missing" in said.out
    assert said.err.startswith("only runs that have a folder are shown: ")
    with pytest.raises(UserError, match="nowhere: no such folder; submit the study first"):
        cli.collect(["headline"], "smoke", tmp_path / "nowhere")
    assert not capsys.readouterr().err


def test_what_is_over_is_kept_with_about_a_hundred_rows_of_its_curve(tmp_path):
    """Also what diverged before its first evaluation."""
    runs, kept = tmp_path / "runs", tmp_path / "kept"
    writer = open_run(runs / "a")
    segment = writer.start_segment(None, {})
    for step in range(1, 501):
        writer.metrics(metrics(segment, step, 4.0))
    for step in (77, 500):
        writer.evaluation({**evaluation(segment, step, 3.0), "annealed": step == 500})
    writer.status("done", 500)
    diverged = open_run(runs / "b", "seed=1")
    diverged.metrics(metrics(diverged.start_segment(None, {}), 1, 99.0))
    diverged.status("diverged", 1, "loss nan")
    open_run(runs / "c", "seed=2").status("failed", 3, "disk full")
    assert keep(runs, kept) == keep(runs, kept)
    with pytest.raises(UserError, match="; name a folder elsewhere"):
        keep(runs, runs / "kept")
    archive = source.read_tables(kept)
    assert sorted(archive.runs["state"]) == ["diverged", "done"]
    assert 100 <= len(archive.curves) <= 105
    assert {1, 77, 500} <= {*archive.curves["step"]}


def test_logs_show_what_failed_unless_runs_are_named(tmp_path):
    finished(tmp_path / "good")
    open_run(tmp_path / "bad", "seed=1").status("failed", 3, "disk full")
    for name in ("good", "bad"):
        (tmp_path / name / "job").mkdir()
        (tmp_path / name / "job" / "log.txt").write_text(f"one\ntwo\nthree of {name}\n")
    (tmp_path / "bad" / "job" / "log-rank1.txt").write_text("the other rank\n")
    shown = "\n".join(log_tails(tmp_path, "", lines=2))
    assert "=== bad: failed disk full" in shown
    assert "the other rank" in shown
    assert shown.endswith("two\nthree of bad")
    assert "three of good" in "\n".join(log_tails(tmp_path, "goo", lines=9))


def test_a_run_s_own_folder_may_stand_for_it(tmp_path):
    for name, seed in (("bad", 1), ("worse", 2)):
        open_run(tmp_path / name, f"seed={seed}").status("failed", 3, "disk full")
    assert answer(["logs", "bad"], tmp_path).out.startswith("=== bad: failed disk full")
    assert "worse" not in answer(["status", "bad"], tmp_path).out
    (row,) = json.loads(answer(["status", "bad", "--json"], tmp_path).out)
    assert (row["run_id"], row["state"], row["step"]) == ("bad", "failed", 3)
    for name in ("bad2", "my[1]"):
        open_run(tmp_path / name, "seed=3").status("failed", 3, "disk full")
        assert answer(["logs", name], tmp_path).out.startswith(f"=== {name}: ")
    assert "bad2" not in answer(["status", "bad"], tmp_path).out
    (tmp_path / "bad/checkpoints").mkdir()
    for name, place in ((".", "bad"), ("..", "bad/checkpoints")):
        assert answer(["logs", name], tmp_path / place).out.startswith("=== bad: ")


def test_a_pattern_that_names_no_run_is_refused(tmp_path):
    open_run(tmp_path / "runs" / "laptop-smoke" / "bad").status("failed", 3, "disk full")
    for verb in ("plan", "logs"):
        said = refusal([verb, "laptop", "zzz", "--scale", "smoke"], tmp_path)
        assert "'zzz'" in said
        assert str(Path("runs/laptop-smoke")) in said


def with_checkpoints(folder: Path, *steps: int) -> None:
    for step in steps:
        (folder / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)


def test_clean_keeps_records_and_last_checkpoints(tmp_path):
    finished(tmp_path / "done", "execution.keep_steps=[30]")  # asked for
    with_checkpoints(tmp_path / "done", 30, 50, 100)
    open_run(tmp_path / "stopped", "seed=1").status("preempted", 60)
    with_checkpoints(tmp_path / "stopped", 30, 60)
    unneeded = tmp_path / "done" / "checkpoints" / "step-00000050"
    for given, answered in (([], "could be deleted"), (["--yes"], "deleted")):
        assert unneeded.exists()
        shown = answer(["clean", ".", *given], tmp_path).out.splitlines()
        assert f"{unneeded.relative_to(tmp_path)}  not the last" in shown[0]
        assert f"MiB {answered}" in shown[1]
    assert not unneeded.exists()
    assert not not_needed(tmp_path)
    assert run_record.read(tmp_path / "done").state == "done"


def test_a_folder_of_studies_is_no_study(tmp_path):
    finished(tmp_path / "one" / "done")
    asks = (partial(cancel_runs, tmp_path), lambda text: list(log_tails(tmp_path, text, 1)))
    for ask in (*asks, lambda _: rows_below(tmp_path), lambda _: not_needed(tmp_path / "one/done")):
        with pytest.raises(UserError, match=r"is no study's folder; name one, such as .*/one$"):
            ask("")


@pytest.mark.usefixtures("without_data")
def test_clean_keeps_a_trunk_until_every_branch_of_the_study_has_forked(tmp_path):
    """Also one that was refused or is yet to be started, and so has no folder."""
    planning = planner(*(one(4, r) for r in (0.2, 0.3, 0.5)), root=tmp_path)
    prefix, first, last, submitted = planning.decided()
    for run in (prefix, first):
        begin(run, "done")
    write_config(submitted.config, submitted.folder)

    def cleaned(planning: Planner | None) -> set[str]:
        return {found.path.parent.parent.name for found in not_needed(tmp_path, planning)}

    assert not cleaned(planning)
    begin(submitted, "done")
    assert not cleaned(planning)
    begin(last, "done")
    assert cleaned(planning) == {prefix.run_id}
    other_scale = planner(one(4, 0.2), one(4, 0.3), root=tmp_path)
    assert not cleaned(other_scale)
    assert not cleaned(None)
    delete(tmp_path, planning)
    assert not checkpoint_steps(prefix.folder)


def test_clean_follows_no_link_out_of_the_study_and_refuses_what_is_none(tmp_path):
    study, elsewhere = tmp_path / "study", tmp_path / "elsewhere"
    finished(study / "done")
    for step in (50, 100):
        (elsewhere / f"step-{step:08d}").mkdir(parents=True)
    (study / "done" / "checkpoints").symlink_to(elsewhere)
    assert not not_needed(study)
    with pytest.raises(UserError, match="no run folder there; name the folder"):
        not_needed(elsewhere)
