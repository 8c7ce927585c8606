"""Runs of the fake trainer on this machine: what each does is told by its name."""

from __future__ import annotations

from pathlib import Path

from experiments import run_process
from tests.examples import example
from tests.slurm.fake_site.fake_trainer import install
from tst_study.config.schema import Config


def config(name: str, *overrides: str) -> Config:
    return example(f"name={name}", "data.corpora=[{path='none'}]", *overrides)


def run(config: Config, folder: Path, rank: run_process.Rank) -> None:
    """The launcher's target: the real child process around the fake trainer."""
    install()
    run_process.run(config, folder, rank)
