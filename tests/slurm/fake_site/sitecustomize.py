"""Puts the fake trainer into the jobs of the Slurm tests.

Python imports this file at its start where a job's profile has put its folder on the path.
"""

import fake_trainer

fake_trainer.install()
