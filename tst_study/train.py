"""The training loop: superposition, switch, recovery, top to bottom.

One step of either phase runs `sequences · sequence_length` latent positions:

    token stream → fold into bags → embed and average → GPT → loss against the next bag
                 → sum gradients → clip → AdamW or Muon at the schedule's learning rate

The switch at step `superposed_steps` changes the fold and the loss and nothing else. What a step
reads, its learning rate and its phase are pure functions of the step, so a launch that resumes
from a checkpoint continues exactly where the last one was.
"""

from __future__ import annotations

import math
import os
import time
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import sdpa_kernel

from tst_study.checkpoints.checkpoint import Checkpoints
from tst_study.checkpoints.trained_run import fork_point
from tst_study.config.phase_plan import PhasePlan, is_annealed, learning_rate_factor, plan_phases
from tst_study.config.schema import Config
from tst_study.cost.compute import count_flops
from tst_study.cost.parallel_layout import layout_of
from tst_study.data.held_out import HeldOut
from tst_study.data.permutation import permutation_key, permuted
from tst_study.data.run_data import fingerprints_and_held_out, open_stream
from tst_study.evaluation.evaluate import evaluate
from tst_study.model.experts import RoutingLog
from tst_study.model.initialization import EMBEDDINGS, initialize
from tst_study.model.layers import ATTENTION, attention_backend, compile_layers
from tst_study.model.model import SuperposedGPT, build_model
from tst_study.parallel.collective_errors import collectives_named
from tst_study.parallel.forward_backward import MicroBatch, forward_backward, micro_batches
from tst_study.parallel.gradient_buffers import GradientBuffers
from tst_study.parallel.optimizer import ModelOptimizer
from tst_study.parallel.process_groups import Ranks, choose_device, process_groups, with_layout
from tst_study.parallel.timed_events import TimedEvents
from tst_study.process.host import keep_freed_memory
from tst_study.process.read_ahead import ReadAhead
from tst_study.process.step_clock import StepClock
from tst_study.process.stop_request import StopRequest, listening
from tst_study.record.log import RunLog, run_log
from tst_study.record.reader import State
from tst_study.superposition import shuffle_bags
from tst_study.superposition.steps import Objective


def train(config: Config, folder: str | Path, *, progress: bool = True) -> State:
    """Train one run to its end, or to the signal that stops it; resumes by itself.

    `folder`: made, or one of the same run. Returns `done`; `diverged`; or `preempted` when a signal
    asked for a checkpoint and a stop. Raises `UserError` where config, data, folder or disk need
    the user's attention.
    """
    folder = Path(folder)
    config, why_layout = with_layout(config)
    device = choose_device(config.execution)
    if config.execution.threads:
        torch.set_num_threads(config.execution.threads)
    if device.type == "cpu":
        _be_deterministic()
        keep_freed_memory()
    attention = attention_backend(config, device)
    chosen = {"layout_chosen": why_layout, "attention": attention}
    with listening() as stop, process_groups(config) as ranks, sdpa_kernel(ATTENTION[attention]):
        with collectives_named(ranks.rank):  # one rank reads the files for all
            data, held_out = ranks.from_first(partial(fingerprints_and_held_out, config))
        with (
            run_log(config, data, folder, writes=ranks.is_first, progress=progress) as log,
            collectives_named(ranks.rank),
        ):
            ranks.barrier()  # rank 0 has found the folder to be of this run, or raised
            trainer = _Trainer(config, folder, ranks, log, data, held_out)
            with closing(trainer):
                try:
                    return _run(trainer, stop, chosen)
                except _DivergedError as error:
                    trainer.finish_save(error.step)
                    log.end("diverged", error.step, str(error))
                    return "diverged"


def _run(trainer: _Trainer, stop: StopRequest, chosen: dict[str, str]) -> State:
    config, ranks, log, plan = trainer.config, trainer.ranks, trainer.log, trainer.plan
    first, end = trainer.resume(chosen), config.schedule.last_step
    if trainer.owes_evaluation and not trainer.evaluate(first, stop):
        return _stopped(log, first, stop)
    timed = TimedEvents(config.execution, ranks, stop)
    for step in range(first, end):
        if step == plan.superposed_steps > 0:
            _switch(config, trainer.model, trainer.optimizer)

        done = step + 1
        due = _Due(config, plan, done, last=done == end, logs=timed.logs)
        loss, norm = trainer.step(step, recording=due.logs)

        with trainer.clock.waiting():  # ranks that ask each other wait for what is queued
            if step == first:
                ranks.wait_at_most(config.execution.timeout_seconds)
            timed.poll(logged=due.logs, writing=trainer.checkpoints.writing)
        if timed.written:
            trainer.finish_save(done)
        stopped = timed.stops and not due.last
        saves = due.saves or timed.saves or stopped
        if due.logs or due.evaluates or saves:
            trainer.log_loss(done, loss, norm, due)
        evaluated = not due.evaluates or trainer.evaluate(done, stop)
        if saves or not evaluated:
            ends = due.last or stopped or not evaluated
            trainer.save(done, owes_evaluation=not evaluated, waits=ends)
            timed.saved()
        if stopped or not evaluated:
            return _stopped(log, done, stop)
    log.end("done", end)
    return "done"


def _stopped(log: RunLog, done: int, stop: StopRequest) -> State:
    log.end("preempted", done, f"{stop.signal or 'a signal'} at step {done}")
    return "preempted"


class _StoppedError(Exception):
    """A signal came during an evaluation."""


class _DivergedError(Exception):
    """A loss is not finite, or beyond the bound: the same one on all ranks."""

    def __init__(self, loss: str, value: float, step: int) -> None:
        super().__init__(f"{loss} loss {value} at step {step}")
        self.step = step


class _Due:
    """What comes after `done` steps."""

    def __init__(
        self, config: Config, plan: PhasePlan, done: int, *, last: bool, logs: bool
    ) -> None:
        def is_multiple_of(every: int | None) -> bool:
            return every is not None and done % every == 0

        execution = config.execution
        forks = done in execution.keep_steps  # other runs fork here, maybe at their switch
        self.last, self.turns = last, forks or done == plan.superposed_steps
        self.logs = last or logs or self.turns or is_multiple_of(execution.log_every)
        self.evaluates = last or is_multiple_of(execution.evaluate_every)
        self.saves = last or forks or is_multiple_of(execution.checkpoint_every)


class _Trainer:
    """Data, model and optimizer of this rank, and what the loop does with them."""

    def __init__(
        self,
        config: Config,
        folder: Path,
        ranks: Ranks,
        log: RunLog,
        data: dict[str, Any],
        held_out: HeldOut,
    ) -> None:
        self.config, self.ranks, self.log = config, ranks, log
        self.data, self.held_out = data, held_out
        self.plan, execution = plan_phases(config), config.execution
        self.share = config.batch.sequences // ranks.data_size
        self.micro_batch = execution.micro_batch or self.share
        torch.manual_seed(config.seed)  # nothing draws from it today; checkpoints hold its state
        self.stream = open_stream(config)
        self.ahead: ReadAhead[list[Tensor]] | None = None
        if _reads_ahead(ranks.device):
            last = config.schedule.last_step
            self.ahead = ReadAhead(self._read, last, partial(_use, ranks.device))
        self.model = build_model(config)
        if execution.compiles(on_gpu=ranks.device.type == "cuda"):
            compile_layers(self.model.decoder.layers)
            self.model.compiled_loss = ranks.device.type == "cuda"
        self.routing = RoutingLog.of(self.model)
        self.data_parallel = GradientBuffers(self.model, layout_of(config))
        self.optimizer = ModelOptimizer(self.data_parallel, config.optimizer)
        self.checkpoints = Checkpoints(folder, execution.keep_checkpoints, execution.keep_steps)
        flops = count_flops(config).per_step
        self.owes_evaluation = False
        self.clock = StepClock(ranks.device, ranks.world_size, flops, config.numerics.dtype)

    def resume(self, chosen: dict[str, str]) -> int:
        """Go on from the last checkpoint, or begin at the trunk's; returns the steps done.
        `chosen`: what this launch has decided by itself, for the record."""
        config = self.config
        restored = self.checkpoints.load_last(self.model, self.optimizer)
        if restored is not None:
            # Stopped in the middle of an evaluation, which only this launch can make up.
            self.owes_evaluation = restored.get("owes_evaluation", False)
        else:
            restored = self._forked()
        if restored is not None:
            self.clock.training_seconds = restored["training_seconds"]
        done = restored["step"] if restored else None
        damaged = {"damaged_checkpoints": self.checkpoints.damaged}
        self.log.start(config, done, **chosen, **damaged, **_devices(self.ranks))
        return done or 0

    def _forked(self) -> dict[str, Any] | None:
        """Restore the trunk's state and take over its rows; None where the run begins by itself."""
        fork = fork_point(self.config, self.data)
        if fork is None:
            return None
        folder = Path(fork.folder)
        common = Checkpoints(folder, keep=1).load(fork.step, self.model, self.optimizer)
        self.log.forked(self.config, folder, fork.step)
        return common

    def objective(self, step: int) -> Objective:
        return self.plan.objective(step)

    def learning_rate(self, step: int) -> float:
        peak = self.config.optimizer.learning_rate
        return peak * learning_rate_factor(self.config.schedule, step)

    def step(self, step: int, *, recording: bool) -> tuple[Tensor, Tensor]:
        """One update of the weights; returns this rank's summand of the step's loss, and the norm
        of its gradient."""
        with self.clock.step():
            self.optimizer.zero_gradients()
            if self.routing is not None:
                positions = self.config.batch.positions
                self.routing.begin_step(positions, self.ranks.device, recording=recording)
            # Parts add up, over micro-batches and ranks, to the exact mean loss of the step.
            loss = forward_backward(self.data_parallel, self._batch(step))
            return loss, self.optimizer.step(self.learning_rate(step))

    def _batch(self, step: int) -> list[MicroBatch]:
        """This rank's sequences of a step, folded, with what makes the step's mean loss exact."""
        objective = self.objective(step)
        sequences = self.ahead(step) if self.ahead else self._read(step)
        ids, labels = (x.to(self.ranks.device, non_blocking=True) for x in sequences)
        # An offset's mean is over its valid targets in the whole step, not over a micro-batch's.
        valid_counts = self.ranks.sum_over_data(objective.count_targets(labels))
        return micro_batches(ids, labels, objective, valid_counts, self.micro_batch)

    def _read(self, step: int) -> list[Tensor]:
        """Ids and labels on the host, where a GPU can copy them while it computes."""
        start = self.ranks.data_rank * self.share
        if self._shuffles(step):
            tensors = [rows[start : start + self.share] for rows in self._shuffled(step)]
        else:
            arrays = self.stream.batch(step, start, start + self.share)
            tensors = [torch.from_numpy(array) for array in arrays]
        return [x.pin_memory() for x in tensors] if self.ranks.device.type == "cuda" else tensors

    def _shuffles(self, step: int) -> bool:
        superposed = self.plan.phase(step) == "superposition"
        return superposed and self.config.superposition.shuffle_targets

    def _shuffled(self, step: int) -> list[Tensor]:
        """All sequences of a step, the bags of their labels in places that depend on seed and step
        alone: each rank sees the same order."""
        arrays = self.stream.batch(step, 0, self.config.batch.sequences)
        ids, labels = (torch.from_numpy(array) for array in arrays)
        size = self.plan.bag_size
        bags = labels.shape[0] * (labels.shape[1] // size - 1)
        key = permutation_key(self.config.order_seed, step)
        order = torch.from_numpy(permuted(np.arange(bags), bags, key))
        return [ids, shuffle_bags(labels, size, order)]

    def close(self) -> None:
        """End the threads that read ahead and write a checkpoint."""
        if self.ahead:
            self.ahead.close()
            self.ahead = None  # no cycle of references outlives the run
        self.checkpoints.close()

    def log_loss(self, done: int, loss: Tensor, norm: Tensor, due: _Due) -> None:
        """Log the last step where that is due. Raises `_DivergedError`."""
        with self.clock.waiting():
            value, gradient_norm = float(self.ranks.sum_over_batch(loss)), float(norm)
        objective = self.objective(done - 1)
        diverged = not math.isfinite(value) or value > self.config.numerics.divergence_loss
        if due.logs or diverged:
            row = {
                "bag_size": objective.bag_size,
                "loss_name": objective.name,
                "loss": value,
                "learning_rate": self.learning_rate(done - 1),
                "gradient_norm": gradient_norm,
            }
            if self.routing is not None and due.logs:
                row["moe"] = self.routing.summary(every_expert=due.evaluates or due.turns)
            row |= self.clock.speed(self.plan, done)
            self.log.metrics(self._counters(done) | row, last=due.last)
        if diverged:
            raise _DivergedError(objective.name, value, done)

    def evaluate(self, done: int, stop: StopRequest) -> bool:
        """The held-out next-token loss, by which alone methods are compared; False where a signal
        stopped it half-way. Raises `_DivergedError`: nothing can be compared with no number."""
        held_out, began = self.held_out, time.perf_counter()
        of = held_out.predicted_tokens

        def look(tokens: int) -> None:
            if any(self.ranks.largest([stop.signal is not None])):
                raise _StoppedError
            self.log.evaluating(done, tokens, of)

        try:
            result = evaluate(self.model, held_out, self.ranks, self.micro_batch, look)
        except _StoppedError:
            return False
        if not math.isfinite(result.nats_per_token):
            raise _DivergedError("held-out", result.nats_per_token, done)
        row = {
            "eval_set": f"{held_out.name}-{held_out.fingerprint[:16]}",
            **asdict(result),
            "bits_per_byte": held_out.bits_per_byte(result.nats_per_token),
            "annealed": is_annealed(self.config.schedule, done),
            "seconds": time.perf_counter() - began,
            "training_seconds": self.clock.training_seconds,
        }
        self.log.evaluation(self._counters(done) | row)
        return True

    def _counters(self, done: int) -> dict[str, Any]:
        """What has been done after `done` steps."""
        return {
            **self.plan.counters(done),
            "epochs": self.stream.epochs(done),
            "flops": self.clock.flops_per_step * done,
        }

    def save(self, done: int, *, owes_evaluation: bool, waits: bool) -> None:
        """Begin a checkpoint, after the one before; to its end where the run waits for it."""
        self.finish_save(done)
        common: dict[str, Any] = {"training_seconds": self.clock.training_seconds}
        common |= {"owes_evaluation": True} if owes_evaluation else {}
        on_gpu = self.ranks.device.type == "cuda"
        goes_on = not waits and self.config.execution.trains_while_saving(on_gpu=on_gpu)
        self.checkpoints.begin(done, self.model, self.optimizer, common, while_training=goes_on)
        if not goes_on:
            self.finish_save(done)

    def finish_save(self, done: int) -> None:
        """Put the checkpoint that is being written, if one is, into its place; all ranks
        together."""
        saved = self.checkpoints.finish()
        if saved is not None:
            self.log.checkpoint(done, saved)


def _switch(config: Config, model: SuperposedGPT, optimizer: ModelOptimizer) -> None:
    """What the paper's ablations do between the phases. By default: nothing."""
    if config.superposition.reinitialize_at_switch:
        optimizer.model.await_weights()
        # Other weights than at the start, but the same for all runs of a seed.
        initialize(model, config.model, config.seed + 2**31, lambda name: name in EMBEDDINGS)
        optimizer.copy_from_model()
    if config.superposition.optimizer_at_switch == "reset":
        optimizer.reset()


def _reads_ahead(device: torch.device) -> bool:
    """On processors the thread would take the time that it saves."""
    return device.type == "cuda"


def _use(device: torch.device) -> None:
    """Tell a new thread its GPU: otherwise it pins memory for the first one, and fills a part of
    it."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def _be_deterministic() -> None:
    """Two runs of one config agree bit for bit on processors."""
    torch.use_deterministic_algorithms(True)
    # It would also fill every new tensor with NaN, which costs a pass over memory each.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _devices(ranks: Ranks) -> dict[str, Any]:
    name = "cpu"
    if ranks.device.type == "cuda":
        name = torch.cuda.get_device_name(ranks.device)
    return {
        "devices": {"name": name, "count": ranks.world_size, "threads": torch.get_num_threads()},
        "cpu_count": os.cpu_count(),
    }
