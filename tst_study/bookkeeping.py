"""Everything that the training loop does besides training: it logs, evaluates, saves checkpoints
and resumes from them."""

import math
import os
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from tst_study.batches import StepBatches
from tst_study.checkpoints.checkpoint import Checkpoints
from tst_study.checkpoints.trained_run import fork_point
from tst_study.config.phase_plan import PhasePlan, is_annealed, learning_rate
from tst_study.cost.compute import flops_until
from tst_study.data.held_out import HeldOut
from tst_study.held_out_loss import evaluate
from tst_study.model.experts import RoutingLog
from tst_study.model.model import SuperposedGPT
from tst_study.parallel.events import Due
from tst_study.parallel.optimizer import ModelOptimizer
from tst_study.parallel.process_groups import Launch, Ranks
from tst_study.process.step_clock import StepClock
from tst_study.record.log import RunLog


class Training(Protocol):
    """The parts of a `Trainer` that a `Bookkeeper` reads."""

    launch: Launch
    plan: PhasePlan
    model: SuperposedGPT
    optimizer: ModelOptimizer
    batches: StepBatches
    routing: RoutingLog | None


class DivergedError(Exception):
    """The training loss is above `numerics.divergence_loss`, or the training or held-out loss is
    not finite. All ranks raise it at the same step, since losses are summed over them."""

    def __init__(self, loss: str, value: float, step: int) -> None:
        super().__init__(f"{loss} loss {value} at step {step}")
        self.step = step


class Bookkeeper:
    """Logs, evaluates, saves and restores the run of one trainer."""

    def __init__(
        self, trainer: Training, folder: Path, log: RunLog, data: dict[str, Any], held_out: HeldOut
    ) -> None:
        """`data`: the run's fingerprints (`data.run_data.fingerprints`)."""
        self.launch = trainer.launch
        self.config, self.ranks = self.launch.config, self.launch.ranks
        self.model, self.optimizer, self.batches = trainer.model, trainer.optimizer, trainer.batches
        self.plan, self.routing = trainer.plan, trainer.routing
        self.log, self.data, self.held_out = log, data, held_out
        execution = self.config.execution
        self.checkpoints = Checkpoints(folder, execution.keep_checkpoints, execution.keep_steps)
        ranks, flops = self.ranks, partial(flops_until, self.config.model, self.plan)
        self.clock = StepClock(ranks.device, ranks.world_size, flops, self.config.numerics.dtype)

    def resume(self) -> int:
        """Restore the last checkpoint, start the log, and return the number of steps done.

        If this run has no checkpoint, the one that `execution.fork_from` names is restored
        (`fork_point`). That checkpoint belongs to a shared prefix run, which trained the first
        steps of several runs once. If there is neither, the run begins at step 0.
        """
        config = self.config
        restored = self.checkpoints.load_last(self.model, self.optimizer)
        fork = None if restored else fork_point(config, self.data)
        if fork is not None:
            folder = Path(fork.folder)
            prefix = Checkpoints(folder, keep=1)
            restored = prefix.load(fork.step, self.model, self.optimizer)
            self.log.forked(config, folder, fork.step)
        if restored is not None:
            self.clock.training_seconds = restored["training_seconds"]
        done = restored["step"] if restored else None
        self.log.start(config, done, **self.launch.record(), **_devices(self.ranks))
        return done or 0

    def log_loss(self, done: int, loss: Tensor, norm: Tensor, due: Due) -> None:
        """Log the loss of the last step if a row of the log is due, or if the run has diverged.

        Reading the loss waits for the device, so the loop calls this only after steps that are
        logged, evaluated or saved. Raises `DivergedError` if the run has diverged, which is noticed
        only after such a step.
        """
        with self.clock.timing():
            value, gradient_norm = float(self.ranks.sum_over_data(loss)), float(norm)
        objective = self.plan.objective(done - 1)
        diverged = not math.isfinite(value) or value > self.config.numerics.divergence_loss
        if due.logs or diverged:
            row = {
                "bag_size": objective.bag_size,
                "loss_name": objective.name,
                "loss": value,
                "learning_rate": learning_rate(self.config, done - 1),
                "gradient_norm": gradient_norm,
            }
            if self.routing is not None and due.logs:
                row["moe"] = self.routing.summary()
            row |= self.clock.speed(self.plan, done)
            self.log.metrics(self._counters(done) | row, last=due.is_last)
        if diverged:
            raise DivergedError(objective.name, value, done)

    def evaluate(self, done: int) -> None:
        """Log the held-out next-token loss, the only quantity by which methods are compared.

        Raises `DivergedError` if it is not finite.
        """
        held_out, began = self.held_out, time.perf_counter()

        def say(tokens: int) -> None:
            self.log.evaluating(done, tokens, held_out.predicted_tokens)

        result = evaluate(self.model, held_out, self.ranks, say)
        # Losses so far apart that their squares overflow have no standard error.
        if not math.isfinite(result.nats_per_token + result.standard_error):
            raise DivergedError("held-out", result.nats_per_token, done)
        row = {
            "eval_set": f"{held_out.name}-{held_out.fingerprint[:16]}",
            **asdict(result),
            "bits_per_byte": held_out.bits_per_byte(result.nats_per_token),
            "annealed": is_annealed(self.config.schedule, done),
            "seconds": time.perf_counter() - began,
            "training_seconds": self.clock.training_seconds,
        }
        self.log.evaluation(self._counters(done) | row)

    def _counters(self, done: int) -> dict[str, Any]:
        """Return the counters of a row after `done` steps: step, phase, tokens, epochs and
        FLOPs."""
        return {
            **self.plan.counters(done),
            "epochs": self.batches.stream.epochs(done),
            "flops": self.clock.flops(done),
        }

    def save(self, done: int) -> None:
        """Write a checkpoint of the state after `done` steps; training waits for it."""
        common = {"training_seconds": self.clock.training_seconds}
        self.checkpoints.save(done, self.model, self.optimizer, common)
        self.log.checkpoint(done)


def _devices(ranks: Ranks) -> dict[str, Any]:
    on_gpu = ranks.device.type == "cuda"
    name = torch.cuda.get_device_name(ranks.device) if on_gpu else "cpu"
    return {
        "devices": {"name": name, "count": ranks.world_size, "threads": torch.get_num_threads()},
        "cpu_count": os.cpu_count(),
    }
