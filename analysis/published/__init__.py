"""The paper's numbers: files (`README.md` says how each was obtained), readers, set-ups, runs.

Published losses are final training losses, smoothed by an unknown amount, of one run each: an
evaluation set of their own (`EVAL_SET`), never to be put beside held-out loss.
"""

from analysis.published.as_runs import EVAL_SET, runs
from analysis.published.files import (
    FILES,
    FOLDER,
    TASKS,
    curves,
    downstream_grid,
    fingerprints,
    headline_runs,
    loss_grid,
    mutual_information,
)
from analysis.published.setups import LEARNING_RATE, PARAMS, model, step_flops

__all__ = [
    "EVAL_SET",
    "FILES",
    "FOLDER",
    "LEARNING_RATE",
    "PARAMS",
    "TASKS",
    "curves",
    "downstream_grid",
    "fingerprints",
    "headline_runs",
    "loss_grid",
    "model",
    "mutual_information",
    "runs",
    "step_flops",
]
