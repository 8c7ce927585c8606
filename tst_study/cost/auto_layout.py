"""What a GPU gets where a config names nothing, and `parallel = "auto"`: the least divided layout
of a model that fits its ranks and their memory.

In this order, because each costs more than the one before: data parallelism with the optimizer's
state shared, experts spread over ranks, tensor parallelism within a node, whole layers computed
again, pipeline stages; with each, the largest micro-batch that fits. `parallel_layout.py` says what
can work at all, `memory.py` what fits.
"""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from tst_study.config.optimizer_kinds import OPTIMIZER_KINDS
from tst_study.config.schema import Config, Parallel, Recompute
from tst_study.cost.devices import device_named
from tst_study.cost.memory import estimate_memory
from tst_study.cost.parallel_layout import (
    check,
    data_ranks,
    divisors,
    layout_of,
    works,
)
from tst_study.errors import UserError
from tst_study.text import memory_size

USABLE = 0.9
"""Of a device's memory: the rest is for the libraries, fragments and communication."""
GPUS_PER_NODE = 8
"""Of a device that is not known."""


class Choice(NamedTuple):
    config: Config
    """With the layout, micro-batch and recomputation filled in."""
    reason: str


class _Candidate(NamedTuple):
    config: Config
    memory: int


def with_gpu_defaults(config: Config) -> Config:
    """On a GPU, where the config names none: bfloat16 and a layout that fits. The defaults of the
    keys themselves are a laptop's."""
    if "dtype" not in config.numerics.model_fields_set:
        numerics = config.numerics.model_copy(update={"dtype": "bfloat16"})
        config = config.model_copy(update={"numerics": numerics})
    named = "parallel" in config.execution.model_fields_set
    return config if named else config.executed(parallel="auto")


def resolve(
    config: Config, ranks: int, memory: int, *, on_gpu: bool, device: str | None = None
) -> Choice:
    """A config whose layout is `"auto"` with one that fits, and why. A layout that the config
    names stays; on a GPU it gets the largest micro-batch that fits.

    `memory`: bytes of one rank's device; `device`: its name. A micro-batch or recomputation that
    the user set stays. Raises `UserError` where nothing fits, with what does.
    """
    known = device_named(device or "")
    room = int(USABLE * memory)
    per_node = known.per_node if known else GPUS_PER_NODE
    parallel = config.execution.parallel
    if parallel != "auto":
        if not on_gpu:
            return Choice(config, "as configured")
        check(config, ranks)
        return _as_laid_out(config, parallel, ranks, memory, per_node)
    larger: _Candidate | None = None
    least: _Candidate | None = None
    for candidate in _candidates(config, ranks, per_node, on_gpu=on_gpu):
        if candidate.memory <= room:
            why = f"{describe(candidate.config, ranks)}: {memory_size(candidate.memory)}"
            why += f" of {memory_size(room)} usable"
            if larger is not None:
                before = f"{describe(larger.config, ranks)} ({memory_size(larger.memory)})"
                why += f"; less divided, but too large: {before}"
            return Choice(candidate.config, why)
        larger = candidate
        least = min(least or candidate, candidate, key=lambda one: one.memory)
    if least is None:
        raise UserError(
            f'execution.parallel = "auto": batch.sequences = {config.batch.sequences} divides in '
            f"no layout over {ranks} ranks; change one of them"
        )
    raise UserError(
        f'execution.parallel = "auto": no layout on {ranks} ranks fits {memory_size(room)} '
        f"({USABLE:.0%} of {memory_size(memory)}); the least needs {memory_size(least.memory)}: "
        "use more ranks, or lower batch.sequence_length"
    )


def _as_laid_out(
    config: Config, parallel: Parallel, ranks: int, memory: int, per_node: int
) -> Choice:
    """A layout that the config names, on GPUs. Raises `UserError` where it does not fit them."""
    room, least = int(USABLE * memory), 0
    share = config.batch.sequences // data_ranks(parallel, ranks)
    for micro_batch in _micro_batches(config, share):
        candidate = config.executed(micro_batch=micro_batch)
        least = estimate_memory(candidate, ranks, on_gpu=True).peak
        # The estimate is no reason to refuse what may just fit.
        if least <= room or (micro_batch in (1, config.execution.micro_batch) and least <= memory):
            return Choice(candidate, f"as configured: {describe(candidate, ranks)}")
    undecided = config.executed(parallel="auto", micro_batch=None)
    others = _candidates(undecided, ranks, per_node, on_gpu=True)
    nearest = next((one.config for one in others if one.memory <= room), None)
    raise UserError(
        f"execution.parallel: needs {memory_size(least)} of a GPU's {memory_size(memory)}; "
        + ("use more ranks" if nearest is None else f'"auto" takes {describe(nearest, ranks)}')
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


def _candidates(config: Config, ranks: int, per_node: int, *, on_gpu: bool) -> Iterator[_Candidate]:
    """In the order of preference, those that can work at all."""
    wanted, experts = config.execution.recompute, config.model.experts
    can_share = not OPTIMIZER_KINDS[config.optimizer.kind].needs_whole_matrices
    stages = divisors(config.model.layers, at_most=ranks)
    expert_sizes = divisors(experts.count, at_most=ranks) if experts else [1]
    parts: tuple[tuple[Recompute, ...], ...] = (("none", "feed_forward"), ("layer",))
    tensor_sizes = _powers_of_two(min(per_node, ranks))
    for pipeline, part, tensor, expert in product(stages, parts, tensor_sizes, expert_sizes):
        recomputes = [one for one in part if wanted in ("none", one)]
        if ranks % (tensor * pipeline) or config.batch.sequences % (ranks // (tensor * pipeline)):
            continue
        sharers = ranks // (tensor * pipeline)
        shares, overlaps = can_share and sharers > 1, on_gpu and sharers > 1 and pipeline == 1
        parallel = Parallel(
            tensor=tensor,
            sequence_parallel=tensor > 1,
            pipeline=pipeline,
            expert=expert,
            optimizer="distributed" if shares else "replicated",
            overlap_gradients=overlaps,
            overlap_weights=overlaps and shares,
        )
        micro_batches = _micro_batches(config, config.batch.sequences // sharers)
        for recompute, micro_batch in product(recomputes, micro_batches):
            changes = {"parallel": parallel, "micro_batch": micro_batch, "recompute": recompute}
            candidate = config.executed(**changes)
            if works(candidate, parallel, ranks):
                yield _Candidate(candidate, estimate_memory(candidate, ranks, on_gpu=on_gpu).peak)


def _micro_batches(config: Config, share: int) -> list[int]:
    """The largest first; a whole share is the plain way where it is not a power of two."""
    if config.execution.micro_batch is not None:
        return [config.execution.micro_batch] if share % config.execution.micro_batch == 0 else []
    return [size for size in sorted({share, *_powers_of_two(share)})[::-1] if share % size == 0]


def _powers_of_two(at_most: int) -> list[int]:
    return [2**n for n in range(at_most.bit_length())]
