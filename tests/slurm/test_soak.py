"""One study while everything around it is killed at random: each run ends, once, bit for bit."""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.test_submitters import FORK
from tests.tiny_runs import assert_same_run, run, tiny
from tst_study.config.schema import Config
from tst_study.errors import UserError
from tst_study.experiments.launcher import Options
from tst_study.experiments.plan.planner import Planner
from tst_study.experiments.slurm.profile import Profile, Resources
from tst_study.experiments.slurm.submit import submit_to_slurm
from tst_study.experiments.study import Study
from tst_study.record import reader as run_record

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

RUNS, RATIOS = 40, (0.2, 0.3, 0.4, 0.5)
SETTINGS = ("schedule.steps=200", "execution.log_every=20", "execution.checkpoint_every=20")
MINUTES = 60
LAUNCH = b"-m\0tst_study.experiments.slurm.launch"
TASKS = ((b"-m\0tst_study.experiments.rank", LAUNCH), (LAUNCH,))
"""Ranks with their srun; the process that has started them."""


def settings_of(seed: int, ratio: float | None) -> tuple[str, ...]:
    size = 1 if ratio is None else 4
    name = f"seed{seed}-{'baseline' if ratio is None else f'r{ratio}'}"
    superposition = f"superposition={{bag_size={size}, step_ratio={ratio or 0.0}}}"
    return (*SETTINGS, superposition, f"seed={seed}", f"name={name}")


def all_settings() -> Iterator[tuple[str, ...]]:
    return (settings_of(seed, ratio) for seed in count() for ratio in (None, *RATIOS))


class Soak:
    """A study, the cluster that trains it, and who kills what."""

    def __init__(self, cluster: Cluster, configs: Iterator[Config], root: Path) -> None:
        self.cluster, self.root = cluster, root
        self.configs = list(islice(configs, RUNS))
        self.more = configs
        self.study = Study("soak", "test", "Soak", "", {}, lambda results: self.configs, root)
        self.profile = Profile(resources=Resources(time="30"), retries=20, parallel=4)
        self.dice = random.Random(0)
        self.killed: Counter[str] = Counter()
        self.kills: list[Callable[[], bool]] = [
            *[self.kill_a_task] * 14,
            *[self.kill_a_node] * 6,
            *[self.kill_the_controller] * 4,
            *[self.kill_a_submitter] * 6,
        ]
        self.dice.shuffle(self.kills)

    def submit(self) -> None:
        try:
            submit_to_slurm(self.study, self.profile, Options())
        except UserError as error:  # a controller that is being started again
            print(error)

    def submitted_in_a_process(self, seconds: float = 120.0) -> bool:
        """Whether it came to its end before it was killed."""
        process = FORK.Process(target=self.submit)
        process.start()
        process.join(seconds)
        alive = process.is_alive()
        if alive:
            process.kill()
            process.join()
        return not alive

    def kill_a_task(self) -> bool:
        running = self.cluster.run("squeue", "-h", "--states=RUNNING", "-o%F_%K").split()
        words = self.dice.choice(TASKS)
        return bool(running) and self.cluster.kill_tasks(self.dice.choice(running), *words) > 0

    def kill_a_node(self) -> bool:
        """Its daemon alone: the jobs on it live on, and are told to another one seconds later."""
        node = self.dice.choice(self.cluster.nodes)
        self.cluster.kill(node)
        time.sleep(self.dice.uniform(0.0, 8.0))
        self.cluster.start_node(node)
        return True

    def kill_the_controller(self) -> bool:
        """It writes its state every five seconds; one that forgot that a job began would have its
        node drained, which is Slurm's own affair: nothing starts in the seconds before."""
        self.cluster.control("update", "PartitionName=main", "State=DOWN")
        time.sleep(7.0)
        self.cluster.kill("slurmctld")
        time.sleep(self.dice.uniform(0.0, 3.0))
        self.cluster.start_controller()
        self.cluster.control("update", "PartitionName=main", "State=UP")
        return True

    def kill_a_submitter(self) -> bool:
        return not self.submitted_in_a_process(self.dice.uniform(0.0, 1.5))

    def is_over(self) -> bool:
        planned = Planner(self.study).decided()
        return all(run_record.is_over(run.folder) for run in planned)

    def go(self) -> None:
        deadline = time.monotonic() + 60 * MINUTES
        self.submit()
        while True:
            if self.is_over():
                if not self.kills:
                    return
                # A fast machine trains more runs before everything was killed.
                self.configs += islice(self.more, 4)
            assert time.monotonic() < deadline, f"after {self.killed}: not over"
            time.sleep(self.dice.uniform(0.5, 4.0))
            if self.kills and self.kills[-1]():
                self.killed[self.kills.pop().__name__] += 1
            self.submitted_in_a_process()


def test_thirty_kills_lose_no_run_repeat_none_and_change_no_bit(cluster, words, tmp_path):
    soak = Soak(cluster, (tiny(words, *settings) for settings in all_settings()), tmp_path / "runs")
    soak.go()
    assert soak.killed.total() == 30, soak.killed
    chosen = list(islice(all_settings(), len(soak.configs)))
    folders = run_record.find_run_folders(soak.root)
    assert len(folders) > len(chosen) >= RUNS  # shared prefix runs are runs, too
    launches = 0
    for folder in folders:
        record = run_record.read(folder)
        assert record.state == "done"
        ends = [row["ended"] for row in record.segments]
        assert ends.count("done") == 1
        assert ends[-1] == "done"
        launches += len(ends)
        for before, after in zip(record.segments, record.segments[1:], strict=False):
            assert before["end"] is None or before["end"] <= after["start"]
    print(f"{launches} launches of {len(folders)} runs; killed {dict(soak.killed)}")
    for settings in chosen:
        alone = tmp_path / "alone" / settings[-1]
        run(words, alone, *settings)
        (folder,) = soak.root.glob(f"{settings[-1].removeprefix('name=')}-*")
        assert_same_run(alone, folder)
