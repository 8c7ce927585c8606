"""The launcher: never twice, never lost, and a failed run takes no other with it."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from multiprocessing import forkserver
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

from tests.experiments import fake_training
from tests.experiments.fake_training import at, config, launches, study_of
from tests.experiments.test_studies import BestAt
from tests.record.test_record import DATA
from tests.slurm.test_launching import run_state, wait_until
from tst_study import file_lock
from tst_study.config.schema import Config, to_toml
from tst_study.data import run_data
from tst_study.errors import OtherRankError, UserError
from tst_study.experiments import cli
from tst_study.experiments.launcher import LAUNCHERS, Options, launcher_of, launchers
from tst_study.experiments.launches import RETRIES
from tst_study.experiments.local import local_launcher as launcher_local
from tst_study.experiments.local import queue as local_queue
from tst_study.experiments.local.local_launcher import Local
from tst_study.experiments.local.progress import _summary
from tst_study.experiments.local.queue import Queue, StoppedError, launch
from tst_study.experiments.plan.planned_run import PlannedRun, state
from tst_study.experiments.plan.planner import Planner
from tst_study.experiments.run_process import Exit, Rank, cancel_mark, train_rank
from tst_study.experiments.state.jobs import cancel_runs
from tst_study.experiments.state.plan_table import table
from tst_study.experiments.state.status import left_runs
from tst_study.experiments.studies.catalogue import load
from tst_study.experiments.study import Results, Study
from tst_study.process import host
from tst_study.process.host import cores
from tst_study.record import reader as run_record

ROOT = Path(__file__).parents[2]
WITH_TESTS = os.environ | {"PYTHONPATH": str(ROOT)}
CONTEXT = local_queue._context
AUTO = "execution.device=auto"


@pytest.fixture(autouse=True)
def _without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_data, "fingerprints", lambda config: DATA)
    context = multiprocessing.get_context("forkserver")
    monkeypatch.setattr(local_queue, "_context", lambda config: context)


def submit(study: Study, root: Path, parallel: int = 2) -> Queue:
    return launch(at(study, root), Options(parallel=parallel), target=fake_training.run)


def test_same_identity_is_the_same_run_whatever_its_name(tmp_path):
    submit(study_of(config("a"), config("b")), tmp_path)
    assert launches(tmp_path) == {"a": 1}
    submit(study_of(config("renamed")), tmp_path)
    assert launches(tmp_path) == {"a": 1}


def test_failed_run_ends_neither_study_nor_others_and_is_tried_again_next_time(tmp_path):
    names = ("fail", "bug", "killed", "good", "diverge")
    study = study_of(*(config(name, f"seed={n}") for n, name in enumerate(names)))
    queue = submit(study, tmp_path)
    assert {run.config.name for run in queue.over.values()} == {"good", "diverge"}
    reasons = "\n".join(why for _, why in queue.failed.values())
    assert "corpus: too short; give more text" in reasons
    assert "ZeroDivisionError: division by zero" in reasons
    assert "given up: launches in a row without a new checkpoint: 4 (its process was" in reasons
    assert "killed by SIGKILL, as when memory runs out" in reasons
    assert all(run_state(tmp_path, name)["state"] == "failed" for name in ("fail", "bug", "killed"))
    assert "Traceback" in next(tmp_path.glob("bug-*/job/log.txt")).read_text()
    # A launcher that is still at work might start them again.
    assert cancel_runs(tmp_path, "killed") == [run.name for run in tmp_path.glob("killed-*")]
    (tmp_path / "healed").touch()
    queue = submit(study, tmp_path)
    assert not queue.failed
    again = RETRIES + 2
    assert launches(tmp_path) == {
        "fail": 2, "bug": again, "killed": again, "good": 1, "diverge": 1,
    }  # fmt: skip


def test_a_fork_server_out_of_reach_does_not_end_the_launcher(tmp_path, monkeypatch):
    """As if somebody had cleaned `TMPDIR`, in which the server's socket lies; and if the server is
    killed while it loads, as it is where memory runs out."""
    server = forkserver._forkserver  # type: ignore[attr-defined]
    server.ensure_running()
    with monkeypatch.context() as away:
        away.setattr(server, "_forkserver_address", str(tmp_path / "gone"))
        submit(study_of(config("run")), tmp_path)
    (tmp_path / "dies.py").write_text("import os; os.kill(os.getpid(), 9)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(server, "_preload_modules", ["dies"])
    os.kill(server._forkserver_pid, signal.SIGKILL)
    os.waitid(os.P_PID, server._forkserver_pid, os.WEXITED | os.WNOWAIT)
    submit(study_of(config("another", "seed=1")), tmp_path)
    assert launches(tmp_path) == {"run": 1, "another": 1}


def test_runs_that_failed_are_told_even_if_no_report_can_be_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(launcher_local, "launch", partial(launch, target=fake_training.run))
    (tmp_path / "report").touch()
    with pytest.raises(UserError, match="report: cannot be written"):
        Local(Options()).submit(at(study_of(config("fail")), tmp_path))
    assert "corpus: too short; give more text" in capsys.readouterr().err


CHOICES = """
study = "two-choices"
base = "run.toml"
order = "setups"
[arms]
baseline = {}
"s4-r0.25" = {bag_size = 4, step_ratio = 0.25}
[setups]
base = {skip = true}
diverge_ = {arms = ["baseline"], cross = {"optimizer.learning_rate" = [1e-3, 2e-3]}}
nothing = {best_of = ["diverge_"]}
good = {arms = ["baseline"], seeds = [1], cross = {"optimizer.learning_rate" = [1e-3, 2e-3]}}
best = {best_of = ["good"], name = "good", seeds = [1]}
"""


def test_a_choice_whose_candidates_all_diverge_ends_alone_and_says_so(
    tmp_path, monkeypatch, capsys
):
    file = tmp_path / "two-choices.toml"
    file.write_text(CHOICES)
    (tmp_path / "run.toml").write_text(to_toml(config("any", "schedule.warmup_steps=5")))
    study = load(str(file), runs=tmp_path)
    submit(study, tmp_path)
    tried = ("diverge_-100-baseline-{}-seed0", "good-100-baseline-{}-seed1")
    names = [name.format(rate) for name in tried for rate in ("lr0.001", "lr0.002")]
    assert launches(tmp_path) == dict.fromkeys([*names, "good-100-s4-r0.25-lr0.001-seed1"], 1)
    planner = Planner(at(study, tmp_path))
    assert len(planner.decided()) == len(planner.whole()) == 5
    (line,) = planner.dead_ends()
    assert line == "diverge_: every candidate diverged; try lower learning rates"
    assert line in table(planner)
    # Submitted again, it has nothing to do, and says why.
    monkeypatch.setattr(launcher_local, "collect", lambda *words: [])
    with pytest.raises(typer.Exit) as ended:
        cli.submit([str(file)], runs=tmp_path)
    assert ended.value.exit_code == 1
    assert capsys.readouterr().err == f"error: {line}\n"
    # With one more rate, another may become the best: until then its followers are not given up.
    file.write_text(CHOICES.replace("2e-3]}}\nbest", "2e-3, 4e-3]}}\nbest"))
    with pytest.raises(UserError, match="lacks results that --left depends on"):
        left_runs(load(str(file), runs=tmp_path))
    monkeypatch.setattr(launcher_local, "launch", partial(launch, target=fake_training.run))
    with pytest.raises(typer.Exit):
        cli.submit([str(file)], runs=tmp_path)
    assert (tmp_path / "no_longer_asked.csv").read_text() == "run,reason\n"


def test_two_submitters_at_once_start_each_run_once_and_no_more_than_asked_for(tmp_path):
    configs = [config(f"seconds_0.2{n}", f"seed={n}") for n in range(6)]
    study, done, at_once = at(study_of(*configs), tmp_path), list[Queue](), list[int]()

    def look(queue: Queue) -> None:
        at_once.append(len(queue.running))

    def submit() -> None:
        done.append(launch(study, Options(parallel=2), look, target=fake_training.run))

    threads = [threading.Thread(target=submit) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert [len(queue.over) for queue in done] == [6, 6]
    assert set(launches(tmp_path).values()) == {1}
    assert max(at_once) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_stops_runs_behind_a_checkpoint_within_seconds(tmp_path, number):
    study = study_of(config("seconds_3600", "seed=0"), config("seconds_61", "seed=1"))
    assert stopped_by(number, study, tmp_path) == 128 + number
    for name in ("seconds_3600", "seconds_61"):
        said = run_state(tmp_path, name)
        assert (said["state"], said["message"].partition(" ")[0]) == ("preempted", "SIGTERM")
    assert not any(map(file_lock.is_held, tmp_path.iterdir()))


def stopped_by(number: signal.Signals, study: Study, root: Path) -> int:
    """Exit status of a launcher that gets a signal as soon as all runs have begun."""

    def stop_soon() -> None:
        wait_until(lambda: len(list(root.glob("*/checkpoints/*"))) == len(study.runs(BestAt())))
        os.kill(os.getpid(), number)

    threading.Thread(target=stop_soon).start()
    with pytest.raises(StoppedError) as stopped:
        submit(study, root)
    return stopped.value.status


def test_a_run_that_does_not_stop_in_time_is_killed_and_said_to_be_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(local_queue, "PATIENCE", 1.0)
    stopped_by(signal.SIGINT, study_of(config("slow_60")), tmp_path)
    said = run_state(tmp_path, "slow_60")
    assert (said["state"], said["message"]) == ("preempted", "stopped with the launcher")


def test_a_study_whose_folder_is_deleted_is_said_and_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(local_queue, "GONE_SECONDS", 0.3)
    root = tmp_path / "runs"

    def delete(queue: Queue) -> None:
        if any((run.folder / "run.json").exists() for run in queue.running.values()):
            root.rename(tmp_path / "deleted")

    study = at(study_of(config("seconds_600")), root)
    with pytest.raises(UserError, match="runs: was deleted or is out of reach since 0 s; its runs"):
        launch(study, Options(), delete, target=fake_training.run)
    assert not multiprocessing.active_children()


def test_runs_that_another_launcher_trains_count(tmp_path):
    study = at(study_of(config("a", "seed=0"), config("b", "seed=1")), tmp_path)
    held, _ = Planner(study).decided()
    at_once: list[tuple[bool, int]] = []
    said: list[str] = []

    def look(queue: Queue) -> None:
        at_once.append((file_lock.is_held(held.folder), len(queue.running)))
        said.append(_summary(queue))
        if len(at_once) == 10:
            stack.close()

    with ExitStack() as stack:
        stack.enter_context(file_lock.hold(held.folder))
        launch(study, Options(parallel=1), look, target=fake_training.run)
    assert at_once[:9] == [(True, 0)] * 9
    assert said[1:9] == ["0 of 2 runs over | 0 running | 1 in another process"] * 8
    assert launches(tmp_path) == {"a": 1, "b": 1}


LAUNCHER = """
import sys
from pathlib import Path
from tests.experiments import fake_training
from tests.experiments.fake_training import at, config, study_of
from tests.record.test_record import DATA
from tests.slurm.test_launching import wait_until
from tst_study.data import run_data
from tst_study.experiments.launcher import Options, launcher_of
from tst_study.experiments.local.queue import launch
run_data.fingerprints = lambda config: DATA
study = at(study_of(config("seconds_3600", "execution.device=" + sys.argv[2])), Path(sys.argv[1]))
if __name__ == "__main__":
    launch(study, Options(), target=fake_training.run)
"""


def test_runs_share_the_gpus_of_a_machine_each_with_its_own(tmp_path, monkeypatch):
    """Two ranks a run on five devices: two runs at a time, and one device is left."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,GPU-a1,5,MIG-b/1/0,1")
    most = 0

    def training(*words: object, **more: object) -> Queue:
        def look(queue: Queue) -> None:
            nonlocal most
            most = max(most, len(queue.running))

        return launch(*words[:2], look, target=fake_training.run, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(launcher_local, "launch", training)
    monkeypatch.setattr(launcher_local, "collect", lambda *words: [])
    study = study_of(*(config(f"seconds_0.{n}", f"seed={n}", AUTO) for n in range(5, 9)))
    launcher = launcher_of("gpus", Options(processes=2))
    assert launcher.submit(at(study, tmp_path / "runs")) == 0
    records = [run_record.read(path) for path in (tmp_path / "runs").glob("seconds*")]
    segments = [record.segments for record in records]
    assert [len(rows) for rows in segments] == [1] * 4
    devices = {record.header["config"]["execution"]["device"] for record in records}
    assert devices == {"cuda"}  # with `auto` they would do without one
    assert {rows[0]["devices_seen"] for rows in segments} == {"0,GPU-a1", "5,MIG-b/1/0"}
    assert all(int(rows[0]["port_seen"]) > 0 for rows in segments)  # where its ranks meet
    assert most == 2
    for count, said in ((6, "GPUs on this machine: 5, of which each run needs 6"), (1, "")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "" if count == 1 else "0,1,2,3,4")
        with pytest.raises(UserError, match=said or "GPUs on this machine: 0"):
            launcher_of("gpus", Options(processes=count)).submit(study)


def test_a_launcher_of_another_package_is_found_by_its_entry_point(tmp_path, monkeypatch, capsys):
    facts = tmp_path / "theirs-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[tst_study.launchers]\ntheirs = theirs:Theirs\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match="launcher theirs: No module named 'theirs'; reinstall"):
        launcher_of("theirs")
    assert [type(each).__name__ for each in launchers()] == [
        path.partition(":")[2] for path in LAUNCHERS.values()
    ]
    assert "left out: launcher theirs" in capsys.readouterr().err
    (tmp_path / "theirs.py").write_text("class Theirs:\n    def __init__(self, options): ...\n")
    assert type(launcher_of("theirs")).__name__ == "Theirs"
    profile = tmp_path / "theirs.toml"
    profile.write_text("launcher = 'theirs'")
    assert type(launcher_of(None, Options(profile=profile))).__name__ == "Theirs"


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_runs_end_with_a_launcher_that_is_killed(tmp_path, device):
    """After a checkpoint, whether they were forked from the server or spawned."""
    root, script = tmp_path / "runs", tmp_path / "launcher.py"
    script.write_text(LAUNCHER)
    launcher = subprocess.Popen([sys.executable, script, root, device], env=WITH_TESTS)
    wait_until(lambda: any(root.glob("*/checkpoints/*")))
    launcher.kill()
    launcher.wait()
    (folder,) = root.glob("seconds_3600-*")
    wait_until(lambda: not file_lock.is_held(folder))
    assert run_state(root, "seconds_3600")["message"].startswith("SIGTERM at step ")
    assert run_record.read(folder).header["config"]["execution"]["device"] == device


def test_what_was_preempted_or_killed_is_taken_up_again_as_long_as_it_gets_on(tmp_path):
    names = ("hops_4", "stuck", "crash_2")
    queue = submit(study_of(*(config(name, f"seed={n}") for n, name in enumerate(names))), tmp_path)
    assert {run.config.name for run in queue.over.values()} == {"hops_4", "crash_2"}
    assert launches(tmp_path) == {"hops_4": 5, "stuck": RETRIES + 1, "crash_2": 3}
    assert run_state(tmp_path, "stuck")["state"] == "failed"


def test_a_failure_for_want_of_another_rank_may_pass(tmp_path, monkeypatch):
    def fail(*unused: object, **more: object) -> None:
        raise OtherRankError("rank 1: all_reduce did not come to its end")

    fake = SimpleNamespace(train=fail)
    monkeypatch.setitem(sys.modules, "tst_study.train", fake)  # type: ignore[arg-type]
    assert train_rank(config("one"), tmp_path, 0) == Exit.CRASHED


def test_a_rank_that_failed_for_good_speaks_for_all():
    def ended(*codes: int) -> int | None:
        ranks = [SimpleNamespace(exitcode=code, close=lambda: None) for code in codes]
        return local_queue._ended(ranks)  # type: ignore[arg-type]

    assert ended(-signal.SIGKILL, Exit.FAILED) == Exit.FAILED
    assert ended(Exit.CRASHED, -signal.SIGKILL) == Exit.CRASHED
    assert ended(-signal.SIGKILL, -signal.SIGSEGV) == -signal.SIGSEGV
    assert ended(-signal.SIGKILL, -signal.SIGKILL) == -signal.SIGKILL
    assert ended(Exit.HELD, Exit.FAILED) == Exit.HELD
    assert ended(Exit.OVER, Exit.OVER) == Exit.OVER


def test_branches_wait_for_their_trunk_and_fail_with_it(tmp_path):
    branches = [config(f"branch{r}", f"superposition.step_ratio={r}") for r in (0.2, 0.3)]
    study, trunk = at(study_of(*branches), tmp_path), "trunk-s4-20steps-seed0"

    def look(queue: Queue) -> None:
        prefixes = [run.prefix for run in queue.running.values() if run.prefix]
        assert all(state(prefix) == "done" for prefix in prefixes)

    (tmp_path / "no_trunks").touch()
    queue = launch(study, Options(parallel=3), look, target=fake_training.run)
    reasons = [why.partition(trunk)[0] for _, why in queue.failed.values()]
    assert reasons == ["this trunk fails", *["its shared prefix run "] * 2]
    assert launches(tmp_path) == {trunk: 1}
    (tmp_path / "no_trunks").unlink()
    launch(study, Options(parallel=3), look, target=fake_training.run)
    assert launches(tmp_path) == {trunk: 2, "branch0.2": 1, "branch0.3": 1}


def test_a_wanted_run_gets_a_prefix_run_that_results_add(tmp_path):
    """As `retry` launches: the run shares no steps with another before the first one is over."""
    first, own = config("run_3", "seed=1"), config("run_2", "superposition.step_ratio=0.2")
    more = config("run_1", "superposition.step_ratio=0.3")

    def grows(results: Results) -> list[Config]:
        return [first, own] if results.held_out(first) is None else [first, own, more]

    def wanted(run: PlannedRun) -> bool:
        return run.config.name in ("run_3", "run_2")

    study = replace(study_of(), runs=grows, folder=tmp_path)
    launch(study, Options(parallel=1), wanted=wanted, target=fake_training.run)
    assert launches(tmp_path) == {"run_3": 1, "trunk-s4-20steps-seed0": 1, "run_2": 1}


def test_cancel_ends_what_runs_and_what_waits_until_it_is_submitted_again(tmp_path):
    """Runs that wait are not started in place of those that were stopped."""
    waiting = config("seconds_0.1", "seed=2")
    study = study_of(config("seconds_3600", "seed=0"), waiting, config("run", "seed=1"))

    def cancel_soon() -> None:
        wait_until(lambda: bool(launches(tmp_path)))
        time.sleep(0.3)
        cancelled.extend(cancel_runs(tmp_path, "seconds"))

    cancelled: list[str] = []
    threading.Thread(target=cancel_soon).start()
    queue = submit(study, tmp_path, parallel=1)
    assert len(cancelled) == 2
    assert "1 of 3 runs over | 0 running | 2 failed or cancelled" in _summary(queue)
    assert {run.run_id: why for run, why in queue.failed.values()} == dict.fromkeys(
        cancelled, "cancelled"
    )
    assert run_state(tmp_path, "seconds_3600")["state"] == "preempted"
    assert launches(tmp_path) == {"seconds_3600": 1, "run": 1}
    submit(study_of(waiting), tmp_path)
    assert launches(tmp_path) == {"seconds_3600": 1, "run": 1, "seconds_0.1": 1}


def cancelled_first(config: Config, folder: Path, rank: Rank) -> None:
    """As if `cancel` had come while this process was on its way."""
    cancel_mark(folder).touch()
    fake_training.run(config, folder, rank)


def test_a_run_that_is_cancelled_as_it_starts_is_not_trained(tmp_path):
    queue = launch(at(study_of(config("run")), tmp_path), Options(), target=cancelled_first)
    assert [why for _, why in queue.failed.values()] == ["cancelled"]
    assert launches(tmp_path) == {}


def test_folder_of_another_run_is_refused(tmp_path):
    study = study_of(config("run"))
    submit(study, tmp_path)
    (path,) = tmp_path.glob("run-*/run.json")
    header = json.loads(path.read_text())
    path.write_text(json.dumps({**header, "fingerprint": "0" * 64}))
    with pytest.raises(UserError, match=r"holds run 0{16}, not [0-9a-f]{16} of this study"):
        submit(study, tmp_path)


@pytest.mark.parametrize(
    ("device", "method", "at_a_time"),
    [("cpu", "forkserver", cores()), ("auto", "spawn", 1), ("cuda", "spawn", 1)],
)
def test_runs_that_may_take_the_gpu_are_spawned_and_have_it_alone(
    tmp_path, device, method, at_a_time
):
    one = config("one", f"execution.device={device}")
    assert CONTEXT(one).get_start_method() == method
    assert local_queue.fitting(Planner(at(study_of(one), tmp_path)).decided(), 1) == at_a_time


@pytest.mark.parametrize(("limit", "count"), [("max 100000", 8), ("150000 100000", 2)])
def test_a_container_s_limit_of_time_counts_as_its_cores(tmp_path, monkeypatch, limit, count):
    (tmp_path / "cpu.max").write_text(f"{limit}\n")
    monkeypatch.setattr(host, "CPU_LIMIT", tmp_path / "cpu.max")
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)))
    assert cores() == count


def test_studies_of_laptop_models_stay_on_processors():
    for scale in ("smoke", "quick", "laptop", "desktop", "one-gpu", "paper"):
        devices = {run.execution.device for run in load("headline", scale).runs(BestAt())}
        assert devices == {"auto" if scale in ("one-gpu", "paper") else "cpu"}
