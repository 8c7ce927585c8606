"""Runs of the fake trainer on this machine: what each does is told by its name."""

from dataclasses import replace
from pathlib import Path

from tests.examples import example
from tests.slurm.fake_site.fake_trainer import install
from tst_study.config.schema import Config
from tst_study.experiments import run_process
from tst_study.experiments.study import Study


def config(name: str, *overrides: str) -> Config:
    return example(f"name={name}", "data.corpora=[{path='none'}]", *overrides)


def run(config: Config, folder: Path, rank: run_process.Rank) -> None:
    """The launcher's target: the real child process around the fake trainer."""
    install()
    run_process.run(config, folder, rank)


def study_of(*configs: Config) -> Study:
    runs = list(configs)
    return Study("fake", "test", "A fake study", "Shows nothing.", {}, lambda results: runs)


def at(study: Study, folder: Path) -> Study:
    return replace(study, folder=folder)


def launches(root: Path) -> dict[str, int]:
    """How often each run was started, by its name."""
    return {
        path.parent.name.rsplit("-", 1)[0]: len(path.read_text())
        for path in root.glob("*/launches")
    }
