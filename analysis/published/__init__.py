"""The paper's numbers: files (`README.md` says how each was obtained), set-ups, readers, runs.

Published losses are final training losses, smoothed by an unknown amount, of one run each: an
evaluation set of their own (`as_runs.EVAL_SET`), never to be put beside held-out loss.
"""

from analysis.published.as_runs import runs
from analysis.published.files import (
    LEARNING_RATE,
    PARAMS,
    TASKS,
    curves,
    downstream_grid,
    fingerprints,
    headline_runs,
    loss_grid,
    mutual_information,
    step_flops,
)

__all__ = [
    "LEARNING_RATE",
    "PARAMS",
    "TASKS",
    "curves",
    "downstream_grid",
    "fingerprints",
    "headline_runs",
    "loss_grid",
    "mutual_information",
    "runs",
    "step_flops",
]
