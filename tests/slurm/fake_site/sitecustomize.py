"""Puts the fake trainer into the jobs of the Slurm tests, and the fake sweep where they want one.

Python imports this file at its start where a job's profile has put its folder on the path.
"""

import os

import fake_trainer

fake_trainer.install()
if "TST_STUDY_FIRST_RATE" in os.environ:
    from fake_sweep import STUDY

    from tst_study.data import run_data
    from tst_study.experiments.studies.catalogue import STUDIES

    run_data.fingerprints = lambda config: fake_trainer.DATA
    STUDIES["fake-sweep"] = STUDY
