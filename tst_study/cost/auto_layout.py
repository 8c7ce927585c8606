"""`parallel = "auto"`: the least divided layout of a model that fits its ranks and their memory.

In this order, because each costs more than the one before: data parallelism with the optimizer's
state shared, tensor parallelism within a node, whole layers computed again, pipeline stages. Of
the layouts of one kind (sizes of expert groups, micro-batches) the one whose step should be the
shortest (`step_time.py`) is taken. `parallel_layout.py` says what can work at all, `memory.py` what
fits.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from tst_study.config import Config, Parallel, Recompute
from tst_study.configuration.optimizer_kinds import OPTIMIZER_KINDS
from tst_study.cost.devices import PROCESSOR, Device, device_named
from tst_study.cost.memory import estimate_memory
from tst_study.cost.parallel_layout import data_ranks, divisors, layout_of, layout_problem
from tst_study.cost.step_time import GPUS_PER_NODE, step_time
from tst_study.errors import UserError
from tst_study.units import memory_size

USABLE = 0.9
"""Of a device's memory: the rest is for the libraries, fragments and communication."""
USUAL_GPU = "H100"
"""Whose speeds are taken where those of the device are not known."""


@dataclass(frozen=True)
class Choice:
    config: Config
    """With the layout, micro-batch and recomputation filled in."""
    reason: str


@dataclass(frozen=True)
class _Candidate:
    config: Config
    memory: int


def resolve(
    config: Config, ranks: int, memory: int, *, on_gpu: bool, device: str | None = None
) -> Choice:
    """A config whose layout is `"auto"` with one that fits, and why; others as they are.

    `memory`: bytes of one rank's device; `device`: its name. A micro-batch or recomputation that
    the user set stays. Raises `UserError` where nothing fits.
    """
    if config.execution.parallel != "auto":
        return Choice(config, "as configured")
    speeds = device_named(device or USUAL_GPU) or device_named(USUAL_GPU) if on_gpu else PROCESSOR
    assert speeds is not None
    room = int(USABLE * memory)
    too_large: list[_Candidate] = []
    for kind in _kinds(config, ranks):
        candidates = list(_candidates(config, ranks, kind, on_gpu))
        fitting = [one for one in candidates if one.memory <= room]
        if fitting:
            chosen = min(fitting, key=lambda one: _cost(one, ranks, speeds))
            why = f"{describe(chosen.config, ranks)}: {memory_size(chosen.memory)}"
            why += f" of {memory_size(room)} usable"
            if too_large:
                before = describe(too_large[-1].config, ranks)
                why += (
                    f"; less divided, but too large: {before} ({memory_size(too_large[-1].memory)})"
                )
            return Choice(chosen.config, why)
        too_large += sorted(candidates, key=lambda one: one.memory, reverse=True)
    if not too_large:
        raise UserError(
            f'execution.parallel = "auto": batch.sequences = {config.batch.sequences} divides in '
            f"no layout over {ranks} ranks; change one of them"
        )
    least = min(one.memory for one in too_large)
    raise UserError(
        f'execution.parallel = "auto": no layout on {ranks} ranks fits {memory_size(room)} '
        f"({USABLE:.0%} of {memory_size(memory)}); the least needs {memory_size(least)}: use more "
        "ranks, or lower batch.sequence_length"
    )


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


_Kind = tuple[int, tuple[Recompute, ...], int]
"""How far a model is divided: pipeline stages, what may be computed again, tensor ranks."""


def _kinds(config: Config, ranks: int) -> Iterator[_Kind]:
    """In the order of preference."""
    wanted = config.execution.recompute
    recomputes: tuple[tuple[Recompute, ...], ...] = (("none", "feed_forward"), ("layer",))
    for pipeline in divisors(config.model.layers, at_most=ranks):
        for recompute in recomputes:
            allowed = tuple(one for one in recompute if wanted in ("none", one))
            for tensor in _powers_of_two(min(GPUS_PER_NODE, ranks)):
                if ranks % (tensor * pipeline) == 0:
                    yield pipeline, allowed, tensor


def _candidates(config: Config, ranks: int, kind: _Kind, on_gpu: bool) -> Iterator[_Candidate]:
    experts = config.model.experts
    pipeline, recomputes, tensor = kind
    can_share = not OPTIMIZER_KINDS[config.optimizer.kind].needs_whole_matrices
    sharers = ranks // (tensor * pipeline)
    if config.batch.sequences % sharers:
        return
    micro_batches = _micro_batches(config, config.batch.sequences // sharers)
    expert_sizes = divisors(experts.count, at_most=ranks) if experts else [1]
    shares, overlaps = can_share and sharers > 1, on_gpu and sharers > 1 and pipeline == 1
    for expert, micro_batch, recompute in product(expert_sizes, micro_batches, recomputes):
        parallel = Parallel(
            tensor=tensor,
            sequence_parallel=tensor > 1,
            pipeline=pipeline,
            expert=expert,
            optimizer="distributed" if shares else "replicated",
            overlap_gradients=overlaps,
            overlap_weights=overlaps and shares,
        )
        changes = {"parallel": parallel, "micro_batch": micro_batch, "recompute": recompute}
        candidate = config.executed(**changes)
        if layout_problem(candidate, parallel, ranks) is None:
            yield _Candidate(candidate, estimate_memory(candidate, ranks, on_gpu=on_gpu).total)


def _micro_batches(config: Config, share: int) -> list[int]:
    if config.execution.micro_batch is not None:
        return [config.execution.micro_batch] if share % config.execution.micro_batch == 0 else []
    return [size for size in _powers_of_two(share) if share % size == 0] or [share]


def _cost(candidate: _Candidate, ranks: int, speeds: Device) -> tuple[int, bool, int]:
    """Seconds of a step, as far as the model can tell them apart (2%); then nothing computed again;
    then memory."""
    seconds = step_time(candidate.config, ranks, speeds).total
    again = candidate.config.execution.recompute != "none"
    return round(math.log(seconds) / 0.02), again, candidate.memory


def _powers_of_two(at_most: int) -> list[int]:
    return [2**n for n in range(at_most.bit_length())]
