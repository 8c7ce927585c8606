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
import resource
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from tst_study.config import Config
from tst_study.data.of_config import fingerprints, open_held_out, open_stream
from tst_study.data.token_stream import TokenStream
from tst_study.devices import peak_flops
from tst_study.errors import UserError
from tst_study.evaluate import evaluate
from tst_study.launch_facts import launch_facts
from tst_study.learning_rate import is_annealed, learning_rate_factor
from tst_study.megatron import experts
from tst_study.megatron.checkpoint import Checkpoints
from tst_study.megatron.initialization import EMBEDDINGS, initialize
from tst_study.megatron.model import (
    NEXT_TOKEN,
    Objective,
    SuperposedGPT,
    Targets,
    build_model,
    superposition_objective,
)
from tst_study.megatron.optimizer import AdamW, with_gradient_buffers
from tst_study.megatron.process_groups import Ranks, process_groups
from tst_study.memory_reuse import keep_freed_memory
from tst_study.phase_plan import plan_phases
from tst_study.progress import Progress
from tst_study.run_header import header_of
from tst_study.run_record import RunWriter, State
from tst_study.stop_request import StopRequest, listening

HEARTBEAT_SECONDS = 2.0


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
    if config.execution.threads:
        torch.set_num_threads(config.execution.threads)
    if not torch.cuda.is_available():
        _be_deterministic()
        keep_freed_memory()
    stream, data = open_stream(config), fingerprints(config)
    with listening() as stop, process_groups(config.execution) as ranks:
        writer = RunWriter(folder, header_of(config, data)) if ranks.is_first else None
        ranks.barrier()  # the folder is checked and made
        try:
            return _run(config, Path(folder), stream, ranks, writer, stop, progress)
        except BaseException as error:
            if writer is not None:
                with suppress(UserError):  # on a full disk `error` says more than these would
                    writer.status("failed", writer.last_step, f"{type(error).__name__}: {error}")
                    writer.end_segment(f"{type(error).__name__}: {error}")
            raise
        finally:
            if writer is not None:
                writer.close()


def _run(
    config: Config,
    folder: Path,
    stream: TokenStream,
    ranks: Ranks,
    writer: RunWriter | None,
    stop: StopRequest,
    progress: bool,
) -> State:
    plan, execution = plan_phases(config), config.execution
    steps = plan.steps
    held_out = open_held_out(config)
    share = _share_of_batch(config, ranks)
    micro_batch = execution.micro_batch or share

    model = build_model(config)
    data_parallel = with_gradient_buffers(model)
    optimizer = AdamW(data_parallel, config.optimizer)
    checkpoints = Checkpoints(folder / "checkpoints", execution.keep_checkpoints)
    common = checkpoints.load_last(model, optimizer)
    first_step: int = common["step"] if common else 0
    training_seconds: float = common["training_seconds"] if common else 0.0

    superposition = superposition_objective(config.superposition)
    flops_per_step = writer.header["flops"]["per_step"] if writer else 0
    clock = _Clock(ranks, flops_per_step, config.numerics.dtype)
    state: State = "running"
    message = ""
    if writer is not None:
        writer.start_segment(
            resumed_from=common["step"] if common else None,
            facts={**launch_facts(), **_devices(ranks), "execution": execution.model_dump()},
        )
        writer.status("running", first_step, phase=plan.phase(first_step))
    with Progress(config.name, steps, enabled=progress and ranks.is_first) as line:
        for step in range(first_step, steps):
            clock.start()
            if step == plan.superposed_steps > 0:
                _switch(config, model, optimizer)
            phase = plan.phase(step)
            objective = superposition if phase == "superposition" else NEXT_TOKEN

            # --- gradients of the step's exact mean loss, summed over micro-batches and ranks
            optimizer.zero_gradients()
            loss = torch.zeros((), device=ranks.device)
            for bags, targets in _micro_batches(
                stream, step, objective, ranks, share, micro_batch, config
            ):
                part = data_parallel(bags, targets)
                part.backward()
                loss += part.detach()

            # --- update
            learning_rate = config.optimizer.learning_rate * learning_rate_factor(
                config.schedule, step
            )
            gradient_norm = optimizer.step(learning_rate)
            training_seconds += clock.stop()
            clock.steps += 1

            # --- record: counters say what has been done after `done` steps
            done = step + 1
            last = done == steps
            counters: dict[str, Any] = {
                "segment": writer.segment if writer else 0,
                "step": done,
                "phase": phase,
                "raw_tokens": plan.raw_tokens(done),
                "latent_tokens": plan.latent_tokens(done),
                "epochs": stream.epochs(done),
                "flops": flops_per_step * done,
            }
            if done % execution.log_every == 0 or last or done == plan.superposed_steps:
                clock.start()
                value, norm = float(ranks.sum_over_data(loss)), float(gradient_norm)
                training_seconds += clock.stop()  # on a GPU, the wait for the steps queued above
                raw_tokens = plan.raw_tokens(done) - plan.raw_tokens(done - clock.steps)
                speed = clock.speed(raw_tokens)
                if writer is not None:
                    writer.metrics(
                        counters
                        | {
                            "bag_size": objective.bag_size,
                            "loss_name": objective.name,
                            "loss": value,
                            "learning_rate": learning_rate,
                            "gradient_norm": norm,
                            "training_seconds": training_seconds,
                        }
                        | speed
                    )
                    line.show(done, phase, objective.name, value, speed["tokens_per_second"])
                    line.heartbeat(writer, HEARTBEAT_SECONDS, force=last)
                if not math.isfinite(value) or value > config.numerics.divergence_loss:
                    state, message = "diverged", f"{objective.name} loss {value} at step {done}"
                    break

            if _is_due(done, execution.evaluate_every) or last:
                began = time.perf_counter()
                result = evaluate(model, held_out, ranks, micro_batch)
                if writer is not None:
                    writer.evaluation(
                        counters
                        | {
                            "eval_set": f"{held_out.name}-{held_out.fingerprint[:16]}",
                            "nats_per_token": result.nats_per_token,
                            "bits_per_byte": held_out.bits_per_byte(result.nats_per_token),
                            "standard_error": result.standard_error,
                            "tokens": result.tokens,
                            "annealed": is_annealed(config.schedule, done),
                            "seconds": time.perf_counter() - began,
                            "training_seconds": training_seconds,
                        }
                    )

            stopped = ranks.any(stop.signal is not None) and not last
            if _is_due(done, execution.checkpoint_every) or last or stopped:
                checkpoints.save(done, model, optimizer, {"training_seconds": training_seconds})
                if writer is not None:
                    writer.status("running", done, last_checkpoint=done)
            if stopped:
                state, message = "preempted", f"{stop.signal or 'a signal'} at step {done}"
                break
        else:
            state = "done"
    if writer is not None:
        writer.status(state, done if first_step < steps else steps, message, seconds_left=None)
        writer.end_segment(message or state)
    return state


def _micro_batches(
    stream: TokenStream,
    step: int,
    objective: Objective,
    ranks: Ranks,
    share: int,
    micro_batch: int,
    config: Config,
) -> Iterator[tuple[torch.Tensor, Targets]]:
    """This rank's sequences of a step, folded, with what makes the step's mean loss exact."""
    start = ranks.data_rank * share
    ids, labels = (
        torch.from_numpy(array).to(ranks.device)
        for array in stream.batch(step, start, start + share)
    )
    # An offset's mean is over its valid targets in the whole step, not over a micro-batch's.
    valid_counts = ranks.sum_over_data(objective.count_targets(labels))
    if config.model.experts is not None:
        positions = config.batch.sequences * config.batch.sequence_length
        experts.begin_step(positions, ranks.device)
    for rows in zip(ids.split(micro_batch), labels.split(micro_batch), strict=True):
        yield objective.fold(rows[0]), Targets(rows[1], valid_counts, objective)


def _switch(config: Config, model: SuperposedGPT, optimizer: AdamW) -> None:
    """What the paper's ablations do between the phases. By default: nothing."""
    if config.superposition.reinitialize_at_switch:
        # Other weights than at the start, but the same for all runs of a seed.
        initialize(model, config.model, config.seed + 2**31, lambda name: name in EMBEDDINGS)
        optimizer.copy_from_model()
    if config.superposition.optimizer_at_switch == "reset":
        optimizer.reset()


def _share_of_batch(config: Config, ranks: Ranks) -> int:
    """Sequences per step and rank. `UserError` where they do not divide."""
    share, left = divmod(config.batch.sequences, ranks.data_size)
    if left:
        raise UserError(
            f"batch.sequences = {config.batch.sequences} does not divide by the {ranks.data_size} "
            "data-parallel ranks; change one of them"
        )
    micro_batch = config.execution.micro_batch
    if micro_batch is not None and share % micro_batch:
        raise UserError(
            f"execution.micro_batch = {micro_batch} does not divide the {share} sequences of a rank"
        )
    return share


class _Clock:
    """Seconds of steps, and what they come to."""

    def __init__(self, ranks: Ranks, flops_per_step: int, dtype: str) -> None:
        self.device = ranks.device
        self.flops_per_step = flops_per_step
        self.peak = None
        if self.device.type == "cuda":
            peak = peak_flops(torch.cuda.get_device_name(self.device), dtype)
            self.peak = peak * ranks.world_size if peak else None
        self.steps, self.seconds, self._began = 0, 0.0, 0.0

    def start(self) -> None:
        self._began = time.perf_counter()

    def stop(self) -> float:
        """Seconds since `start`."""
        seconds = time.perf_counter() - self._began
        self.seconds += seconds
        return seconds

    def speed(self, raw_tokens: int) -> dict[str, Any]:
        """Of the steps since the last call."""
        seconds, steps = self.seconds, self.steps
        self.seconds, self.steps = 0.0, 0
        return {
            "step_seconds": seconds / steps,
            "tokens_per_second": raw_tokens / seconds,
            "mfu": self.flops_per_step * steps / seconds / self.peak if self.peak else None,
            "peak_memory": _peak_memory(self.device),
        }


def _peak_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


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
