"""The training loop: the superposition phase, the switch, and the recovery phase.

A step of either phase runs L latent positions of each sequence. Let x_0, x_1, … be the raw tokens
of a sequence, E the embedding, f the model with its head, and g the weights of a bag's s targets.
Then the paper's method (mode `full`, loss `mce`, mean-pooled bags) is:

    phase           superposition (first r of the steps)             recovery, and a baseline
    raw tokens      s·L per sequence                                 L per sequence
    input k         1/s · sum_i E[x_{k·s + i}],  i = 0 … s-1         E[x_k]
    logits          z_k = f(inputs 0 … k)                            the same
    loss of k       -sum_i g_i log softmax(z_k)[x_{(k+1)·s + i}]     -log softmax(z_k)[x_{k+1}]
                    / sum_i g_i
    update          the same in both: losses averaged over all positions of the step; gradients
                    summed over micro-batches and ranks, and clipped; AdamW or Muon at the
                    schedule's learning rate

`Trainer.step` is this table in code; other modes and losses are other objectives. The
switch, at step `superposed_steps`, changes the `objective` and the raw tokens per sequence, and
nothing else unless an ablation asks for it. What a step reads, its learning rate and its phase are
pure functions of the step. So a launch that resumes from a checkpoint continues as if the run had
never stopped.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.attention import sdpa_kernel

from tst_study.batches import StepBatches
from tst_study.bookkeeping import Bookkeeper, DivergedError
from tst_study.config.phase_plan import PhasePlan, learning_rate, plan_phases
from tst_study.config.schema import Config, from_dict, to_dict
from tst_study.cost.parallel_layout import layout_of
from tst_study.data.run_data import fingerprints_and_held_out
from tst_study.huggingface.start import load_weights
from tst_study.model.experts import RoutingLog
from tst_study.model.initialization import EMBEDDINGS, initialize
from tst_study.model.layers import ATTENTION, attention_backend, compile_layers
from tst_study.model.model import build_model
from tst_study.parallel.events import Due, TimedEvents
from tst_study.parallel.forward_backward import forward_backward, gradient_buffers, micro_batches
from tst_study.parallel.optimizer import ModelOptimizer
from tst_study.parallel.process_groups import (
    Launch,
    StoppedError,
    barrier,
    choose_device,
    other_ranks_failing,
    process_groups,
    with_layout,
)
from tst_study.process.host import StopRequest, keep_freed_memory, listening
from tst_study.process.rank_environment import rank_variable
from tst_study.record.log import run_log
from tst_study.record.reader import State
from tst_study.record.writer import mark
from tst_study.superposition.loss_kinds import is_own


def train(config: Config, folder: str | Path, *, progress: bool = True) -> State:
    """Train one run to its end, or until a signal stops it. A run that has a checkpoint is resumed.

    `folder`: a new folder, or that of this run; the caller should have locked it (`file_lock`).
    `progress`: whether to show how far the run is.

    Returns `done`, `diverged`, or `preempted` if a signal stopped the run after a checkpoint.
    Raises `UserError` for what the user can mend in config, data, folder, disk or devices, and
    `OtherRankError` if another rank has failed or hangs.
    """
    folder = Path(folder)
    if is_own(config.superposition.loss):  # its code is imported, or refused
        config = from_dict(to_dict(config))
    config, why_layout = with_layout(config)
    device = choose_device(config.execution)
    if config.execution.threads:
        torch.set_num_threads(config.execution.threads)
    if device.type == "cpu":
        _be_deterministic()
        keep_freed_memory()
    attention = attention_backend(config, device)
    try:
        with (
            listening() as stop,
            process_groups(config, stop) as ranks,
            sdpa_kernel(ATTENTION[attention]),
        ):
            launch = Launch(config, ranks, attention, why_layout)
            with other_ranks_failing(ranks.rank):  # one rank reads the files for all
                data, held_out = ranks.from_first(partial(fingerprints_and_held_out, config))
            with (
                run_log(config, data, folder, writes=ranks.is_first, progress=progress) as log,
                other_ranks_failing(ranks.rank),
            ):
                barrier()  # past this, rank 0 has found that the folder belongs to this run
                trainer = Trainer(launch)
                bookkeeper = Bookkeeper(trainer, folder, log, data, held_out)
                try:
                    return _run(trainer, bookkeeper, stop)
                except DivergedError as error:
                    log.end("diverged", error.step, str(error))
                    return "diverged"
    except StoppedError as stopped:
        if rank_variable("RANK") == 0:
            mark(folder, config, "preempted", str(stopped))
        return "preempted"


def _run(trainer: Trainer, bookkeeper: Bookkeeper, stop: StopRequest) -> State:
    config, ranks, plan = trainer.config, trainer.ranks, trainer.plan
    first, last = bookkeeper.resume(), config.schedule.last_step
    timed = TimedEvents(config.execution, ranks, stop)
    for step in range(first, last):
        if step == plan.superposed_steps > 0:
            trainer.switch()

        done = step + 1
        due = Due(config, plan, done, logs=timed.logs)
        with bookkeeper.clock.timing(steps=1):
            loss, norm = trainer.step(step, recording=due.logs)

        # Messages between ranks wait for the work that the device has queued, so they are timed.
        with bookkeeper.clock.timing():
            timed.poll(logged=due.logs)
        stops = timed.stops and not due.is_last
        saves = due.saves or timed.saves or stops
        if due.logs or due.evaluates or saves:
            bookkeeper.log_loss(done, loss, norm, due)
        if due.evaluates:
            bookkeeper.evaluate(done)
        if saves:
            bookkeeper.save(done)
            timed.saved()
        if stops:
            bookkeeper.log.end("preempted", done, f"{stop.signal or 'a signal'} at step {done}")
            return "preempted"
    bookkeeper.log.end("done", last)
    return "done"


class Trainer:
    """Model, optimizer and batches of this rank."""

    def __init__(self, launch: Launch) -> None:
        self.launch, self.config, self.ranks = launch, launch.config, launch.ranks
        config = launch.config
        self.plan: PhasePlan = plan_phases(config)
        self.batches = StepBatches(config, self.plan, self.ranks)
        self.model = build_model(config)
        if config.weights_folder:
            load_weights(self.model, config.model, config.weights_folder)
        if launch.compiles:
            compile_layers(self.model.decoder.layers)
            self.model.compiled_loss = launch.on_gpu
        self.routing = RoutingLog.of(self.model)
        self.data_parallel = gradient_buffers(self.model, layout_of(config))
        self.optimizer = ModelOptimizer(self.data_parallel, config.optimizer)

    def step(self, step: int, *, recording: bool) -> tuple[Tensor, Tensor]:
        """Update the weights once. The module's docstring has the formulas of both phases.

        Returns this rank's summand of the step's loss, and the norm of the whole gradient before
        clipping. `recording`: also collect the routing statistics of the experts for the log.
        """
        # All that differs between phases: bag size, tokens per position, weights and loss.
        objective = self.plan.objective(step)
        self.optimizer.zero_gradients()
        if self.routing is not None:
            positions = self.plan.reads(step).positions
            self.routing.begin_step(positions, self.ranks.device, recording=recording)
        # (b, s·L) while bags are read, else (b, L); the labels are shifted by one.
        ids, labels = self.batches(step)
        # The mean at each offset is over its valid targets in the whole step, not in a micro-batch.
        valid_counts = self.ranks.sum_over_data(objective.count_targets(labels))
        # In superposed steps, tokens become bags (b, L, s); the model pools their embeddings, runs
        # L positions and compares its logits with the next bag. The losses of micro-batches and
        # ranks add up to the exact mean loss of the step.
        parts = micro_batches(ids, labels, objective, valid_counts, self.launch.micro_batch)
        loss = forward_backward(self.data_parallel, parts)
        return loss, self.optimizer.step(learning_rate(self.config, step))

    def switch(self) -> None:
        """Apply the ablations that act between the phases; by default there are none."""
        config = self.config
        if config.superposition.reinitialize_at_switch:
            # The new weights are drawn by another seed than the initial weights.
            initialize(self.model, config.model, config.seed + 2**31, EMBEDDINGS.__contains__)
            self.optimizer.copy_from_model()
        if config.superposition.optimizer_at_switch == "reset":
            self.optimizer.reset()


def _be_deterministic() -> None:
    """Make two runs of one config agree bit for bit on CPUs."""
    torch.use_deterministic_algorithms(True)
    # By default, deterministic mode also fills every new tensor with NaN, which would take one more
    # pass over the memory of each.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
