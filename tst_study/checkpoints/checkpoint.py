"""Saves and restores all the state that a run needs to resume exactly, as distributed
checkpoints."""

import os
import shutil
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch.distributed as dist

import tst_study.model  # noqa: F401  # before megatron.core, which it prepares

# isort: split
from megatron.core.dist_checkpointing.mapping import ShardedStateDict

from tst_study.atomic_files import FULL
from tst_study.checkpoints.places import (
    checkpoint_folder,
    checkpoint_place,
    checkpoint_steps,
    damage,
    digests_of,
    identity_of,
    write_digests,
)
from tst_study.checkpoints.reader import CheckpointReader, reason_of
from tst_study.checkpoints.writer import Shards, shards_of, write_checkpoint
from tst_study.errors import UserError
from tst_study.model.model import SuperposedGPT
from tst_study.parallel.optimizer import ModelOptimizer
from tst_study.parallel.process_groups import barrier

PARTIAL = "partial-"


class Checkpoints:
    """The checkpoints of one run folder; `step-N` holds the state after N steps.

    A checkpoint is written to `partial-step-N` and renamed when it is whole. A launch that is
    killed while saving thus leaves a partial folder, which is never read and which the next save
    removes.
    """

    def __init__(self, run: Path, keep: int, keep_steps: Collection[int] = ()) -> None:
        """`run`: the run folder. Checkpoints after the steps `keep_steps` always stay; of the
        others, `save` keeps the last `keep`."""
        self.run = run
        self.folder = checkpoint_folder(run)
        self.keep = keep
        self.keep_steps = keep_steps

    def save(
        self, step: int, model: SuperposedGPT, optimizer: ModelOptimizer, common: dict[str, Any]
    ) -> None:
        """Write a checkpoint of the state after `step` steps. All ranks must call this together.

        `common`: small plain values to store with it; those of rank 0 are written. Raises
        `UserError` if the checkpoint cannot be written; earlier checkpoints then stay.
        """
        place, first = checkpoint_place(self.run, step), dist.get_rank() == 0
        beside = self.folder / f"{PARTIAL}{place.name}"
        try:
            if first:
                for left_by_a_killed_launch in self.folder.glob(f"{PARTIAL}*"):
                    shutil.rmtree(left_by_a_killed_launch, ignore_errors=True)
                beside.mkdir(parents=True)
            barrier()
            model_state = _weights(model)
            state = optimizer.sharded_state_dict(model_state)
            shards = shards_of({"model": model_state, "optimizer": state.pop("tensors")})
            if first:
                common = {**common, "step": step}
            digests = write_checkpoint(beside, shards, {"optimizer": state, "common": common})
            if first:
                described = {path.name for path in beside.iterdir()} - digests.keys()
                digests |= digests_of(beside, described)
                write_digests(beside, digests, identity_of(self.run), step)
                if place.exists():  # a damaged one, passed over when the run resumed
                    shutil.rmtree(place)
                _sync(*beside.iterdir(), beside)
                os.rename(beside, place)
                _sync(self.folder)
                for old in self._not_kept(step):
                    # If one cannot be removed, training goes on, and the next save tries again.
                    shutil.rmtree(checkpoint_place(self.run, old), ignore_errors=True)
        except Exception as error:
            reason = reason_of(error)
            if first:
                shutil.rmtree(beside, ignore_errors=True)
            # Another rank's error arrives as text, so a full disk is recognised by its message.
            full = any(os.strerror(number) in reason for number in FULL)
            raise UserError(
                f"{place}: cannot be written ({reason}); {'free some space' if full else 'mend it'}"
                " and start the run again: it resumes from its last checkpoint"
            ) from error
        barrier()

    def _not_kept(self, step: int) -> list[int]:
        passing = [saved for saved in checkpoint_steps(self.run) if saved not in self.keep_steps]
        # Checkpoints of later steps exist only if they were damaged when the run resumed, so that
        # it went on from an earlier one.
        beyond = [saved for saved in passing if saved > step]
        return beyond + passing[: -self.keep - len(beyond)]

    def load_last(self, model: SuperposedGPT, optimizer: ModelOptimizer) -> dict[str, Any] | None:
        """Restore model and optimizer in place from the last checkpoint that is not damaged.

        Returns its `common`, or None if the run has no checkpoint. If later checkpoints are
        damaged, the last of them is reported on stderr. Raises `UserError` if all are damaged.
        """
        newest = ""
        # All ranks try the checkpoints that the first one sees: on a network file system another
        # node may list an older state of the folder.
        listed: list[list[int]] = [[]] * dist.get_world_size()
        dist.all_gather_object(listed, checkpoint_steps(self.run))
        for step in reversed(listed[0]):
            problem = self._problem(step)
            if problem is None:
                if newest and dist.get_rank() == 0:
                    print(f"{newest}; going on from step {step}", file=sys.stderr)
                return self._restore(step, model, optimizer)
            newest = newest or f"{checkpoint_place(self.run, step)}: cannot be read ({problem})"
        if newest:
            raise UserError(
                f"{newest}, and no checkpoint before it is whole; delete {self.folder} to train "
                "from the first step"
            )
        return None

    def load(self, step: int, model: SuperposedGPT, optimizer: ModelOptimizer) -> dict[str, Any]:
        """Restore model and optimizer in place from the checkpoint after `step` steps, and return
        its `common`. Raises `UserError` if it is missing or damaged."""
        problem = self._problem(step)
        if problem is not None:
            raise UserError(
                f"{checkpoint_place(self.run, step)}: cannot be read ({problem}); delete it and "
                "start its run again, to go on from the one before"
            )
        return self._restore(step, model, optimizer)

    def load_weights(self, step: int, model: SuperposedGPT) -> None:
        """Restore the model's weights alone, in place, from the checkpoint after `step` steps.

        Digests are not compared here, because `trained_run.open_run`, with which callers find the
        checkpoint, has compared them. Raises `UserError` if the checkpoint cannot be read.
        """
        _fill(checkpoint_place(self.run, step), shards_of({"model": _weights(model)}))

    def _problem(self, step: int) -> str | None:
        """Return what is wrong with a checkpoint, or None; all ranks get the same answer."""
        problems: list[str | None] = [None] * dist.get_world_size()
        place = checkpoint_place(self.run, step)
        dist.all_gather_object(problems, damage(place, dist.get_rank(), len(problems)))
        return next(filter(None, problems), None)

    def _restore(
        self, step: int, model: SuperposedGPT, optimizer: ModelOptimizer
    ) -> dict[str, Any]:
        place, model_state = checkpoint_place(self.run, step), _weights(model)
        wanted = optimizer.sharded_state_dict(model_state)["tensors"]
        # A model that is not in float32 has float32 main weights in the optimizer. Its own weights
        # then need not be read: each rank reads its part of the main weights, and `restored` copies
        # them into the model and sends them to the ranks that lack them.
        shards = shards_of(wanted if "main" in wanted else {"model": model_state, **wanted})
        state = _fill(place, shards)
        optimizer.restored(int(state["optimizer"]["steps_taken"]))
        common: dict[str, Any] = state["common"]
        return common


def _fill(place: Path, shards: Shards) -> dict[str, Any]:
    """Read this rank's parts of the tensors into `shards`, and return the checkpoint's other values
    (`CheckpointReader.common`)."""
    reader = CheckpointReader(place)
    reader.fill({index: shard.tensor for index, shard in shards.items()})
    return reader.common


def _weights(model: SuperposedGPT) -> ShardedStateDict:
    """Return the model's weights, without the empty extra states of some of Megatron's classes."""
    state = model.sharded_state_dict()
    return {name: value for name, value in state.items() if "_extra_state" not in name}


def _sync(*paths: Path) -> None:
    """Flush files and folders to the disk, so that after a power failure no renamed checkpoint
    lacks its files."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
