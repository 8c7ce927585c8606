"""`parallel = "auto"`: the cheapest layout of a model that fits a number of ranks and their memory.

Candidates are all that `parallel_layout.py` lets pass; whether one fits says `memory_model.py`; how
long a step of it takes follows from assumed speeds, stated below and not measured. So the choice is
a good start, and the reason that comes with it says what to vary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from tst_study.compute_cost import count_flops
from tst_study.config import Config, Parallel
from tst_study.errors import UserError
from tst_study.memory_model import estimate_memory, held_parameters
from tst_study.optimizer_kinds import OPTIMIZER_KINDS
from tst_study.parallel_layout import data_ranks, first_problem, layout_of
from tst_study.units import memory_size

USABLE = 0.9
"""Of a device's memory: the rest is for the libraries, fragments and communication."""

# What a step is assumed to take, in seconds, where nothing was measured.
USEFUL_FLOPS = 4e14
"""Per second and device: four tenths of a present GPU's peak in bfloat16."""
BYTES_WITHIN_NODE, BYTES_BETWEEN_NODES = 4e11, 4e10
"""Per second and device."""
SECONDS_TO_START_A_LAYER = 3e-4
"""Forward and backward, however small: what Python and kernel launches cost."""
SECONDS_TO_MEET = 5e-5
"""Of a collective, however small."""
GPUS_PER_NODE = 8
"""Tensor ranks stay within a node."""
RECOMPUTE = {"none": 0.0, "feed_forward": 0.2, "layer": 1 / 3}
"""More work, as a share of a step's."""
FULL_SPEED_POSITIONS = 4096
"""Below so many positions of a micro-batch per tensor rank, matrix products are short of work."""


@dataclass(frozen=True)
class Choice:
    config: Config
    """With the layout, micro-batch and recomputation filled in."""
    reason: str


@dataclass(frozen=True)
class _Candidate:
    config: Config
    seconds: float
    memory: int


def resolve(config: Config, ranks: int, memory: int, *, on_gpu: bool) -> Choice:
    """A config whose layout is `"auto"` with one that fits, and why; others as they are.

    `memory`: bytes of one rank's device. A micro-batch or recomputation that the user set stays.
    Raises `UserError` where nothing fits.
    """
    if config.execution.parallel != "auto":
        return Choice(config, "as configured")
    candidates = sorted(
        _candidates(config, ranks, on_gpu),
        key=lambda c: (float(f"{c.seconds:.2g}"), layout_of(c.config).pipeline, c.seconds),
    )
    if not candidates:
        raise UserError(
            f'execution.parallel = "auto": batch.sequences = {config.batch.sequences} divides in '
            f"no layout over {ranks} ranks; change one of them"
        )
    room = int(USABLE * memory)
    chosen = next((c for c in candidates if c.memory <= room), None)
    if chosen is None:
        least = min(c.memory for c in candidates)
        raise UserError(
            f'execution.parallel = "auto": no layout on {ranks} ranks fits {memory_size(room)} '
            f"({USABLE:.0%} of {memory_size(memory)}); the least needs {memory_size(least)}: use "
            "more ranks, or lower batch.sequence_length"
        )
    cheaper = candidates[0]
    used = f"{memory_size(chosen.memory)} of {memory_size(room)} usable"
    why = f"{describe(chosen.config, ranks)}: {used}"
    if cheaper is not chosen:
        too_large = f"{describe(cheaper.config, ranks)} ({memory_size(cheaper.memory)})"
        why += f"; cheaper, but too large: {too_large}"
    return Choice(chosen.config, why)


def describe(config: Config, ranks: int) -> str:
    """One line about a resolved layout."""
    parallel, execution = layout_of(config), config.execution
    parts = [
        f"{name} {size}"
        for name, size in (
            ("tensor", parallel.tensor),
            ("expert", parallel.expert),
            ("pipeline", parallel.pipeline),
        )
        if size > 1
    ]
    parts.append(f"data {data_ranks(parallel, ranks)}")
    if parallel.optimizer == "distributed":
        parts.append("distributed optimizer")
    if execution.micro_batch is not None:
        parts.append(f"micro-batch {execution.micro_batch}")
    if execution.recompute != "none":
        parts.append(f"recomputing each {execution.recompute}")
    return ", ".join(parts)


def _candidates(config: Config, ranks: int, on_gpu: bool) -> Iterator[_Candidate]:
    experts = config.model.experts
    can_share = not OPTIMIZER_KINDS[config.optimizer.kind].needs_whole_matrices
    for tensor, pipeline, expert in product(
        _powers_of_two(min(GPUS_PER_NODE, ranks)),
        _divisors(config.model.layers, ranks),
        _divisors(experts.count, ranks) if experts else [1],
    ):
        if ranks % (tensor * pipeline):
            continue
        parallel = Parallel(
            tensor=tensor,
            sequence_parallel=tensor > 1,
            pipeline=pipeline,
            expert=expert,
            optimizer="distributed" if can_share and ranks > tensor * pipeline else "replicated",
        )
        sharers = data_ranks(parallel, ranks)
        if config.batch.sequences % sharers:
            continue
        share = config.batch.sequences // sharers
        for micro_batch in _micro_batches(config, share):
            for recompute in RECOMPUTE:
                if config.execution.recompute not in ("none", recompute):
                    continue
                execution = config.execution.model_copy(
                    update={
                        "parallel": parallel,
                        "micro_batch": micro_batch,
                        "recompute": recompute,
                    }
                )
                candidate = config.model_copy(update={"execution": execution})
                if first_problem(candidate, parallel, ranks) is None:
                    yield _Candidate(
                        candidate,
                        _seconds(candidate, parallel, ranks),
                        estimate_memory(candidate, ranks, on_gpu=on_gpu).total,
                    )


def _micro_batches(config: Config, share: int) -> list[int]:
    if config.execution.micro_batch is not None:
        return [config.execution.micro_batch] if share % config.execution.micro_batch == 0 else []
    return [size for size in _powers_of_two(share) if share % size == 0] or [share]


def _seconds(config: Config, parallel: Parallel, ranks: int) -> float:
    """Of a step: arithmetic, its bubble, and communication as if nothing overlapped."""
    sharers = data_ranks(parallel, ranks)
    share = config.batch.sequences // sharers
    micro_batch = config.execution.micro_batch or share
    positions = micro_batch * config.batch.sequence_length / parallel.tensor
    work = count_flops(config).per_step / ranks / USEFUL_FLOPS
    work *= 1.0 + 0.1 * max(0.0, math.log2(FULL_SPEED_POSITIONS / positions))
    layers = config.model.layers // parallel.pipeline
    work = max(work, SECONDS_TO_START_A_LAYER * layers * (share // micro_batch))
    work *= 1.0 + RECOMPUTE[config.execution.recompute]
    work *= 1.0 + (parallel.pipeline - 1) / (share // micro_batch)
    return work + _gradients(config, parallel, ranks) + _activations(config, parallel, share)


def _gradients(config: Config, parallel: Parallel, ranks: int) -> float:
    """Gradients summed in float32, weights given back in the model's type."""
    held = held_parameters(config.model, parallel, stage=0)
    width = 4 + (2 if config.numerics.dtype == "bfloat16" else 4)
    of_experts = parallel.expert * parallel.expert_tensor_ranks
    dense_ranks = data_ranks(parallel, ranks)
    expert_ranks = ranks // (parallel.pipeline * of_experts)
    return _transfer(width * held.dense, dense_ranks, parallel.tensor) + _transfer(
        width * held.experts, expert_ranks, of_experts
    )


def _activations(config: Config, parallel: Parallel, share: int) -> float:
    """Sums over tensor ranks, four a layer and direction; exchanges with experts, two each; and
    what a pipeline stage hands on."""
    model = config.model
    width = 2 if config.numerics.dtype == "bfloat16" else 4
    layers = model.layers // parallel.pipeline
    one = width * model.hidden_size * share * config.batch.sequence_length
    micro_batches = share // (config.execution.micro_batch or share)
    seconds = _transfer(8 * layers * one, parallel.tensor, 1, 8 * layers * micro_batches)
    if parallel.pipeline > 1:  # stages are far apart
        seconds += 2 * (one / BYTES_BETWEEN_NODES + micro_batches * SECONDS_TO_MEET)
    if model.experts is not None:
        copies = model.experts.per_token * one / parallel.tensor
        times = 4 * layers * micro_batches
        seconds += _transfer(4 * layers * copies, parallel.expert, parallel.tensor, times)
    return seconds


def _transfer(size: float, members: int, stride: int, times: int = 1) -> float:
    """Seconds of `times` collectives of `members` ranks that lie `stride` apart."""
    if members == 1:
        return 0.0
    speed = BYTES_WITHIN_NODE if members * stride <= GPUS_PER_NODE else BYTES_BETWEEN_NODES
    return size * (members - 1) / members / speed + times * SECONDS_TO_MEET


def _powers_of_two(at_most: int) -> list[int]:
    return [2**n for n in range(at_most.bit_length()) if 2**n <= at_most]


def _divisors(number: int, at_most: int) -> list[int]:
    return [d for d in range(1, min(number, at_most) + 1) if number % d == 0]
