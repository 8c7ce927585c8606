"""A run that begins at a checkpoint of its trunk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tst_study.checkpoints.checkpoint import Checkpoints
from tst_study.checkpoints.trained_run import fork_point
from tst_study.config.schema import Config
from tst_study.model.model import SuperposedGPT
from tst_study.parallel.optimizer import ModelOptimizer
from tst_study.record.log import RunLog


def fork_from_trunk(
    config: Config,
    data: dict[str, Any],
    model: SuperposedGPT,
    optimizer: ModelOptimizer,
    log: RunLog,
) -> dict[str, Any] | None:
    """Restore the trunk's state and take over its rows; None where the run begins by itself.

    `data`: fingerprints of the run's own text.
    Raises `UserError` where the folder does not hold a trunk of this run, or not that checkpoint.
    """
    fork = fork_point(config, data)
    if fork is None:
        return None
    folder = Path(fork.folder)
    common = Checkpoints(folder, keep=1).load(fork.step, model, optimizer)
    log.forked(config, folder, fork.step)
    return common
