"""Distributed checkpoints: everything that a run needs to go on exactly, whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.mapping import ShardedStateDict
from torch.distributed.checkpoint.api import CheckpointException

from tst_study import run_record
from tst_study.checkpoint_pickles import read_pickles_as_data
from tst_study.checkpoint_places import place_of, steps_below
from tst_study.config import Config
from tst_study.data.of_config import fingerprints
from tst_study.errors import UserError
from tst_study.megatron.checkpoint_writer import write_in_this_process
from tst_study.megatron.model import SuperposedGPT
from tst_study.megatron.optimizer import ModelOptimizer
from tst_study.run_log import RunLog
from tst_study.trunk import check_fork

PARTIAL = "partial-"

# Damaged files fail in more ways than a list could name; torch's own exception is no `Exception`.
FAILURES = (Exception, CheckpointException)

write_in_this_process()
read_pickles_as_data()


class Checkpoints:
    """The checkpoints of one run folder; `step-N` holds the state after N steps.

    A checkpoint is written beside its place and renamed when it is whole, so a killed launch
    leaves at most a folder that no one reads and the next save removes.
    """

    def __init__(self, folder: Path, keep: int, keep_steps: Collection[int] = ()) -> None:
        """`keep`: how many of the last ones stay; those of `keep_steps` always do."""
        self.folder = folder
        self.keep = keep
        self.keep_steps = keep_steps

    def steps(self) -> list[int]:
        """Steps with a whole checkpoint, in order."""
        return steps_below(self.folder)

    def save(
        self, step: int, model: SuperposedGPT, optimizer: ModelOptimizer, common: dict[str, Any]
    ) -> None:
        """All ranks together. `common` is rank 0's: counters and whatever else is small.

        Raises `UserError` where the disk is full; earlier checkpoints stay.
        """
        place = place_of(self.folder, step)
        beside = self.folder / f"{PARTIAL}{place.name}"
        first = dist.get_rank() == 0
        try:
            if first:
                for left_by_a_killed_launch in self.folder.glob(f"{PARTIAL}*"):
                    shutil.rmtree(left_by_a_killed_launch, ignore_errors=True)
                beside.mkdir(parents=True)
            dist.barrier()
            model_state = _weights(model)
            state = {
                "model": model_state,
                "optimizer": optimizer.sharded_state_dict(model_state),
                "common": {**common, "step": step, "random_state": torch.get_rng_state()},
            }
            dist_checkpointing.save(state, str(beside), validate_access_integrity=False)
            dist.barrier()
        except FAILURES as error:
            if first:
                shutil.rmtree(beside, ignore_errors=True)
            reason = _refusal(self.folder) or _reason(error)
            raise UserError(
                f"{place}: cannot be written ({reason}); free some space and start the run again: "
                "it goes on from its last checkpoint"
            ) from error
        if first:
            if place.exists():  # a launch that was killed after its rename saves the step again
                shutil.rmtree(place)
            _sync(*beside.iterdir(), beside)
            os.rename(beside, place)
            _sync(self.folder)
            passing = [step for step in self.steps() if step not in self.keep_steps]
            for old in passing[: -self.keep]:
                shutil.rmtree(place_of(self.folder, old))
        dist.barrier()

    def load_last(self, model: SuperposedGPT, optimizer: ModelOptimizer) -> dict[str, Any] | None:
        """Restore model and optimizer in place; returns `common`, or None without a checkpoint."""
        steps = self.steps()
        return self.load(steps[-1], model, optimizer) if steps else None

    def load(self, step: int, model: SuperposedGPT, optimizer: ModelOptimizer) -> dict[str, Any]:
        """Restore the checkpoint after `step` in place; returns its `common`."""
        place = place_of(self.folder, step)
        model_state = _weights(model)
        wanted = {"model": model_state, "optimizer": optimizer.sharded_state_dict(model_state)}
        try:
            state = dist_checkpointing.load(wanted, str(place), validate_access_integrity=False)
        except FAILURES as error:
            raise UserError(
                f"{place}: cannot be read ({_reason(error)}); delete it to go on from the one "
                "before"
            ) from error
        model.load_state_dict(state["model"], strict=False)  # load() has missed nothing
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["common"]["random_state"])
        common: dict[str, Any] = state["common"]
        return common


def fork_from_trunk(
    config: Config, model: SuperposedGPT, optimizer: ModelOptimizer, log: RunLog
) -> dict[str, Any] | None:
    """Restore the trunk's state and take over its rows; None where the config names no trunk.

    Raises `UserError` where the folder does not hold a trunk of this run, or not that checkpoint.
    """
    fork = config.execution.fork_from
    if fork is None:
        return None
    folder = Path(fork.folder)
    check_fork(config, fingerprints(config), run_record.read_header(folder), fork.step)
    checkpoints = Checkpoints(folder / "checkpoints", keep=1)
    if fork.step not in checkpoints.steps():
        raise UserError(
            f"execution.fork_from: {folder} has no checkpoint of step {fork.step}; train the "
            "trunk first, or leave the key out to train the run from its first step"
        )
    common = checkpoints.load(fork.step, model, optimizer)
    log.forked(config, folder, fork.step)
    return common


def _weights(model: SuperposedGPT) -> ShardedStateDict:
    """Without the empty extra states that some of Megatron's classes have, and others have not."""
    state = model.sharded_state_dict()
    return {name: value for name, value in state.items() if not name.endswith("_extra_state")}


def _sync(*paths: Path) -> None:
    """To the disk, so that a rename never outlives what it names, even when the power goes."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _refusal(folder: Path) -> str | None:
    """What the disk says to a megabyte more. torch's zip writer, when it is refused a write, often
    complains of its own state alone."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(2**20))
            file.flush()
    except OSError as error:
        return error.strerror
    return None


def _reason(error: BaseException) -> str:
    """What went wrong at the bottom of it, in one line."""
    if isinstance(error, CheckpointException) and error.failures:
        error = next(iter(error.failures.values()))[0]
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).splitlines()[0] if str(error) else type(error).__name__
