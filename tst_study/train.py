"""The training loop: superposition, switch, recovery, top to bottom.

One step of either phase runs `sequences · sequence_length` latent positions:

    token stream → fold into bags → embed and average → GPT → loss against the next bag
                 → sum gradients → clip → AdamW at the schedule's learning rate

The switch at step `superposed_steps` changes the fold and the loss and nothing else. What a step
reads, its learning rate and its phase are pure functions of the step, so a launch that resumes
from a checkpoint goes on exactly where the last one was.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any

import torch

from tst_study.compute_cost import count_flops
from tst_study.config import Config
from tst_study.data.run_data import fingerprints, open_held_out, open_stream
from tst_study.data.token_stream import TokenStream
from tst_study.evaluate import evaluate
from tst_study.huggingface.weights import initial_weights
from tst_study.learning_rate import is_annealed, learning_rate_factor
from tst_study.megatron.checkpoint import Checkpoints
from tst_study.megatron.collective_errors import collectives_named
from tst_study.megatron.experts import RoutingLog
from tst_study.megatron.fork import fork_from_trunk
from tst_study.megatron.forward_backward import MicroBatch, forward_backward
from tst_study.megatron.gradient_buffers import GradientBuffers
from tst_study.megatron.initialization import EMBEDDINGS, initialize
from tst_study.megatron.layers import compile_layers
from tst_study.megatron.model import (
    NEXT_TOKEN,
    Objective,
    SuperposedGPT,
    Targets,
    build_model,
    superposition_objective,
)
from tst_study.megatron.optimizer import AdamW
from tst_study.megatron.process_groups import Ranks, process_groups, with_layout
from tst_study.megatron.weights import load_weights
from tst_study.memory_reuse import keep_freed_memory
from tst_study.parallel_layout import layout_of
from tst_study.phase_plan import plan_phases
from tst_study.run_log import RunLog, run_log
from tst_study.run_record import State
from tst_study.step_clock import StepClock
from tst_study.stop_request import StopRequest, listening


def train(config: Config, folder: str | Path, *, progress: bool = True) -> State:
    """Train one run to its end, or to the signal that stops it; resumes by itself.

    Args:
        config: the run.
        folder: its run folder (made, or one of the same run).
        progress: show a live line on the terminal.

    Returns:
        `done`; `diverged`; or `preempted` when a signal asked for a checkpoint and a stop.

    Raises:
        UserError: config, data, folder or disk need the user's attention.
    """
    folder = Path(folder)
    config, why_layout = with_layout(config)
    if config.execution.threads:
        torch.set_num_threads(config.execution.threads)
    if not torch.cuda.is_available():
        _be_deterministic()
        keep_freed_memory()
    data = fingerprints(config)
    with (
        listening() as stop,
        process_groups(config) as ranks,
        run_log(config, data, folder, writes=ranks.is_first, progress=progress) as log,
        collectives_named(ranks.rank),
    ):
        ranks.barrier()  # rank 0 has found the folder to be of this run, or raised
        return _run(config, folder, ranks, log, stop, why_layout)


def _run(
    config: Config, folder: Path, ranks: Ranks, log: RunLog, stop: StopRequest, why_layout: str
) -> State:
    plan, execution = plan_phases(config), config.execution
    share = config.batch.sequences // ranks.data_size
    micro_batch = execution.micro_batch or share
    flops_per_step = count_flops(config).per_step

    torch.manual_seed(config.seed)  # nothing draws from it today, but checkpoints hold its state
    stream, held_out = open_stream(config), open_held_out(config)
    model = build_model(config)
    if execution.compile:
        compile_layers(model.decoder.layers)
    routing = RoutingLog.of(model)
    data_parallel = GradientBuffers(model, layout_of(config))
    optimizer = AdamW(data_parallel, config.optimizer)
    checkpoints = Checkpoints(folder, execution.keep_checkpoints, execution.keep_steps)

    resumed = (
        checkpoints.load_last(model, optimizer)
        or fork_from_trunk(config, model, optimizer, log)
        or {"step": None, "training_seconds": 0.0}
    )
    if resumed["step"] is None and config.initial_weights is not None:
        load_weights(model, initial_weights(config))
        optimizer.copy_from_model()
    clock = StepClock(
        ranks.device,
        ranks.world_size,
        flops_per_step,
        config.numerics.dtype,
        resumed["training_seconds"],
    )
    log.start(config, resumed_from=resumed["step"], layout_chosen=why_layout, **_devices(ranks))
    superposition = superposition_objective(config.superposition)

    end = config.schedule.stop_after or plan.steps
    for step in range(resumed["step"] or 0, end):
        if step == plan.superposed_steps > 0:
            _switch(config, model, optimizer)
        phase = plan.phase(step)
        objective = superposition if phase == "superposition" else NEXT_TOKEN
        learning_rate = config.optimizer.learning_rate * learning_rate_factor(config.schedule, step)

        done = step + 1
        last, switches = done == end, done == plan.superposed_steps
        forks = done in execution.keep_steps  # other runs fork here, maybe at their switch
        evaluates = last or _is_due(done, execution.evaluate_every)
        logs = last or switches or forks or _is_due(done, execution.log_every)

        with clock.step():
            # Parts add up, over micro-batches and ranks, to the exact mean loss of the step.
            optimizer.zero_gradients()
            if routing is not None:
                routing.begin_step(config.batch.positions, ranks.device, recording=logs)
            batch = _micro_batches(config, stream, step, objective, ranks, share)
            loss = forward_backward(data_parallel, batch)
            gradient_norm = optimizer.step(learning_rate)

        stopped = ranks.any(stop.signal is not None) and not last
        saves = last or stopped or forks or _is_due(done, execution.checkpoint_every)
        counters: dict[str, Any] = {  # what has been done after `done` steps
            "step": done,
            "phase": phase,
            "raw_tokens": plan.raw_tokens(done),
            "latent_tokens": plan.latent_tokens(done),
            "epochs": stream.epochs(done),
            "flops": flops_per_step * done,
        }
        if logs or evaluates or saves:
            with clock.waiting():
                value, norm = float(ranks.sum_over_batch(loss)), float(gradient_norm)
            diverged = not math.isfinite(value) or value > config.numerics.divergence_loss
            if logs or diverged:
                row = {
                    "bag_size": objective.bag_size,
                    "loss_name": objective.name,
                    "loss": value,
                    "learning_rate": learning_rate,
                    "gradient_norm": norm,
                }
                if routing is not None and logs:
                    row["moe"] = routing.summary(every_expert=evaluates or switches or forks)
                log.metrics(counters | row | clock.speed(plan, done), last=last)
            if diverged:
                log.end("diverged", done, f"{objective.name} loss {value} at step {done}")
                return "diverged"

        if evaluates:
            began = time.perf_counter()
            result = evaluate(model, held_out, ranks, micro_batch)
            row = {
                "eval_set": f"{held_out.name}-{held_out.fingerprint[:16]}",
                "nats_per_token": result.nats_per_token,
                "bits_per_byte": held_out.bits_per_byte(result.nats_per_token),
                "standard_error": result.standard_error,
                "tokens": result.tokens,
                "annealed": is_annealed(config.schedule, done),
                "seconds": time.perf_counter() - began,
                "training_seconds": clock.training_seconds,
            }
            log.evaluation(counters | row)

        if saves:
            checkpoints.save(done, model, optimizer, {"training_seconds": clock.training_seconds})
            log.checkpoint(done)
        if stopped:
            log.end("preempted", done, f"{stop.signal or 'a signal'} at step {done}")
            return "preempted"

    log.end("done", end)
    return "done"


def _micro_batches(
    config: Config,
    stream: TokenStream,
    step: int,
    objective: Objective,
    ranks: Ranks,
    share: int,
) -> list[MicroBatch]:
    """This rank's sequences of a step, folded, with what makes the step's mean loss exact."""
    start = ranks.data_rank * share
    ids, labels = (
        torch.from_numpy(array).to(ranks.device)
        for array in stream.batch(step, start, start + share)
    )
    # An offset's mean is over its valid targets in the whole step, not over a micro-batch's.
    valid_counts = ranks.sum_over_data(objective.count_targets(labels))
    size = config.execution.micro_batch or share
    return [
        (objective.fold(some_ids), Targets(some_labels, valid_counts, objective))
        for some_ids, some_labels in zip(ids.split(size), labels.split(size), strict=True)
    ]


def _switch(config: Config, model: SuperposedGPT, optimizer: AdamW) -> None:
    """What the paper's ablations do between the phases. By default: nothing."""
    if config.superposition.reinitialize_at_switch:
        # Other weights than at the start, but the same for all runs of a seed.
        initialize(model, config.model, config.seed + 2**31, lambda name: name in EMBEDDINGS)
        optimizer.copy_from_model()
    if config.superposition.optimizer_at_switch == "reset":
        optimizer.reset()


def _be_deterministic() -> None:
    """Two runs of one config agree bit for bit on processors."""
    torch.use_deterministic_algorithms(True)
    # It would also fill every new tensor with NaN, which costs a pass over memory each.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _is_due(done: int, every: int | None) -> bool:
    return every is not None and done % every == 0


def _devices(ranks: Ranks) -> dict[str, Any]:
    name = "cpu"
    if ranks.device.type == "cuda":
        name = torch.cuda.get_device_name(ranks.device)
    return {
        "devices": {"name": name, "count": ranks.world_size, "threads": torch.get_num_threads()},
        "cpu_count": os.cpu_count(),
    }
