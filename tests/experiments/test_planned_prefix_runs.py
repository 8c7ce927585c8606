"""Shared prefix runs are found by identity, save what they say, and leave alone what has begun."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.examples import example
from tests.record.test_record import DATA
from tst_study.checkpoints.places import checkpoint_folder, checkpoint_place
from tst_study.config.schema import Config
from tst_study.errors import UserError
from tst_study.experiments.launcher import Options, launcher_of
from tst_study.experiments.plan.planned_run import PlannedRun, total_flops
from tst_study.experiments.plan.planner import Planner, prefixes_of
from tst_study.experiments.run_process import write_config
from tst_study.experiments.studies import catalogue
from tst_study.experiments.study import Study
from tst_study.record import reader as run_record
from tst_study.record.writer import RunWriter, header_of

pytestmark = pytest.mark.usefixtures("without_data")


def planner(*configs: Config, root: Path = Path("none"), share: bool = True) -> Planner:
    runs = list(configs)
    return Planner(Study("s", "test", "S", "", {}, lambda results: runs, root, share))


def one(s: int, r: float, *more: str) -> Config:
    override = f"superposition={{bag_size={s}, step_ratio={r}}}"
    return example(override, f"name=s{s}-r{r}-{'-'.join(more)}", *more)


def saved(planning: Planner) -> float:
    return 1 - total_flops(planning.decided()) / total_flops(planning.asked_for())


def test_the_papers_whole_grid_is_trained_for_little_more_than_half():
    shared, alone = (catalogue.load("bag-grid", "paper", share=share) for share in (True, False))
    assert saved(Planner(shared)) == pytest.approx(0.458, abs=0.001)
    assert saved(Planner(alone)) == 0.0


def test_trunks_stand_before_their_branches_and_name_their_forks():
    planned = planner(one(1, 0.0), one(4, 0.2), one(4, 0.5), one(4, 0.3), one(8, 0.2)).decided()
    names = [run.config.name.removesuffix("-") for run in planned]
    assert names[:2] == ["s1-r0.0", "trunk-s4-30steps-seed0"]
    assert names[2:] == ["s4-r0.2", "s4-r0.5", "s4-r0.3", "s8-r0.2"]
    prefix = planned[1]
    assert (prefix.config.role, prefix.config.execution.keep_steps) == ("trunk", (20, 30))
    forks = [run.config.execution.fork_from for run in planned[2:5]]
    assert [fork.step if fork else None for fork in forks] == [20, 30, 30]
    assert {fork.folder for fork in forks if fork} == {str(prefix.folder)}
    assert [run.prefix for run in planned] == [None, None, prefix, prefix, prefix, None]


def test_a_trunk_gets_the_resources_of_its_longest_branch_too(tmp_path):
    profile = tmp_path / "slurm.toml"
    rules = {"s4-r0.2-*": "nodes = 2", "s4-r0.5-*": "nodes = 8", "trunk-*": "tasks_per_node = 3"}
    parts = (f"[[runs]]\nmatch = '{k}'\nresources = {{{v}}}\n" for k, v in rules.items())
    profile.write_text("".join(parts))
    launcher = launcher_of("slurm", Options(profile=profile))
    planned = planner(one(4, 0.2), one(4, 0.5), one(4, 0.3))

    def ranks(study: Study) -> list[tuple[str, int]]:
        runs = planned.decided()
        return [(run.config.name, launcher.allocation(study, run).ranks) for run in runs]

    first, *others = ranks(planned.study)
    assert first == ("trunk-s4-30steps-seed0", 24)
    assert others == [("s4-r0.2-", 2), ("s4-r0.5-", 8), ("s4-r0.3-", 1)]
    own = {"gpus_per_node": 5, "nodes": 2}
    asked = replace(planned.study, resources_of=lambda c: own if "r0.5" in c.name else {})
    assert ranks(asked) == [(first[0], 10), ("s4-r0.2-", 2), ("s4-r0.5-", 10), ("s4-r0.3-", 1)]
    wrong = replace(asked, resources_of=lambda c: {"gpus": 8}, sources=("ours.toml",))
    with pytest.raises(UserError, match=r"^ours.toml: \[resources\], for trunk-.*: gpus: unknown"):
        ranks(wrong)


def test_a_branch_is_the_same_run_as_the_unforked_one():
    configs = (one(4, 0.2), one(4, 0.5))
    shared = {run.fingerprint for run in planner(*configs).decided() if run.prefix}
    assert shared == {run.fingerprint for run in planner(*configs, share=False).decided()}


def test_lengths_of_a_baseline_share_what_is_stable_of_the_second_longest():
    lengths = [
        example("superposition={}", f"schedule.steps={n}", f"name=n{n}",
                f"execution.log_every={every}", f"execution.evaluate_every={every}")
        for n, every in ((100, 20), (200, 30), (400, 50))
    ]  # fmt: skip
    planned = planner(*lengths).decided()
    prefix = planned[0].config
    assert prefix.schedule.stop_after == 180
    assert prefix.execution.keep_steps == (90, 180)
    # A branch takes rows over, so that the shared prefix run must have every row of every branch.
    assert (prefix.execution.log_every, prefix.execution.evaluate_every) == (10, 10)


def begin(run: PlannedRun, state: run_record.State) -> None:
    writer = RunWriter(run.folder, header_of(run.config, DATA))
    writer.status(state, 1)
    for step in (1, *run.config.execution.keep_steps):
        checkpoint_place(run.folder, step).mkdir(parents=True)


def test_what_has_begun_goes_on_alone(tmp_path):
    planning = planner(one(4, 0.2), one(4, 0.3), one(4, 0.5), root=tmp_path)
    first = planning.decided()[1]
    begin(first, "preempted")
    planned = planning.decided()
    branches = [run for run in planned if run.config.role != "trunk"]
    assert [bool(run.prefix) for run in branches] == [False, True, True]
    begin(planned[2], "done")
    # Two would have to wait for a shared prefix run that serves one of them: it is left out,
    assert all(run.config.role != "trunk" for run in planning.decided())
    # unless it is there already.
    begin(prefixes_of(planning.asked_for(), planning)[0].run, "done")
    assert [run.config.role for run in planning.decided()].count("trunk") == 1


def test_the_trunk_of_a_study_is_the_same_however_far_the_study_is(tmp_path):
    planning = planner(one(4, 0.2), one(4, 0.3), one(4, 0.5), root=tmp_path)
    before = planning.decided()[0].fingerprint
    begin(planning.decided()[3], "done")
    assert planning.decided()[0].fingerprint == before


def test_branches_of_a_diverged_trunk_are_trained_alone(tmp_path):
    planning = planner(one(4, 0.2), one(4, 0.5), root=tmp_path)
    begin(planning.decided()[0], "diverged")
    assert [run.prefix for run in planning.decided()] == [None, None]


def test_branches_of_a_trunk_whose_checkpoints_are_gone_are_trained_alone(tmp_path):
    planning = planner(one(4, 0.2), one(4, 0.3), one(4, 0.5), root=tmp_path)
    prefix = planning.decided()[0]
    begin(prefix, "done")
    assert [run.prefix == prefix for run in planning.decided()[1:]] == [True] * 3
    checkpoint_place(prefix.folder, 20).rmdir()
    branches = [run.config.name for run in planning.decided() if run.prefix]
    assert branches == ["s4-r0.3-", "s4-r0.5-"]
    shutil.rmtree(checkpoint_folder(prefix.folder))
    assert [run.prefix for run in planning.decided()] == [None] * 3


def test_a_branch_that_is_added_while_its_trunk_trains_does_not_wait_for_it(tmp_path):
    """The shared prefix run keeps what it was asked for when it was handed over."""
    prefix = planner(one(4, 0.2), one(4, 0.4), one(4, 0.6), root=tmp_path).decided()[0]
    write_config(prefix.config, prefix.folder)
    after = planner(*(one(4, r) for r in (0.2, 0.3, 0.4, 0.6)), root=tmp_path)
    assert [bool(run.prefix) for run in after.decided()[1:]] == [True, False, True, True]
    # It is past step 20 and left no checkpoint there; by chance it left one at step 30.
    checkpoint_place(prefix.folder, 30).mkdir(parents=True)
    RunWriter(prefix.folder, header_of(prefix.config, DATA)).status("running", 31)
    assert [bool(run.prefix) for run in after.decided()[1:]] == [False, True, True, True]
