"""The defaults of a run on GPUs, and `parallel = "auto"`: the least divided layout that fits.

The choices are tried in this order, because each costs more than the one before: data parallelism
with a shared optimizer and experts spread over at most a node, the feed-forward layers computed
again, tensor parallelism within a node, whole layers computed again, experts spread over nodes,
pipeline stages. Where several sizes of expert parallelism and micro-batches fit, the one that
moves its bytes in the shortest time is taken (`traffic.py`). `parallel_layout.py` says what can
work at all, `memory.py` what fits.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

from tst_study.config.optimizer_kinds import OPTIMIZER_KINDS
from tst_study.config.schema import Config, Parallel, Recompute
from tst_study.cost.devices import Device, device_named
from tst_study.cost.memory import estimate_memory
from tst_study.cost.parallel_layout import (
    check,
    data_ranks,
    divisors,
    layout_of,
    works,
)
from tst_study.cost.traffic import count_traffic
from tst_study.errors import UserError
from tst_study.text import memory_size

USABLE = 0.9
"""The share of a device's memory that a layout may fill; libraries, fragments and communication
need the rest."""
USUAL = "H100"
"""The device whose rates and node size stand in for those of an unknown one."""


class Choice(NamedTuple):
    config: Config
    """The config with its layout, micro-batch and recomputation filled in."""
    reason: str


class _Candidate(NamedTuple):
    config: Config
    memory: int


class _Place(NamedTuple):
    """The ranks that a layout is for."""

    ranks: int
    memory: int
    """Bytes of each rank's device."""
    device: Device
    per_node: int
    on_gpu: bool

    @property
    def usable(self) -> int:
        return int(USABLE * self.memory)


def with_gpu_defaults(config: Config) -> Config:
    """Fill in bfloat16 and `parallel = "auto"` where the config names neither.

    The defaults of the keys themselves are a laptop's.
    """
    if "dtype" not in config.numerics.model_fields_set:
        numerics = config.numerics.model_copy(update={"dtype": "bfloat16"})
        config = config.model_copy(update={"numerics": numerics})
    named = "parallel" in config.execution.model_fields_set
    return config if named else config.executed(parallel="auto")


def resolve(
    config: Config,
    ranks: int,
    memory: int,
    *,
    on_gpu: bool,
    device: str | None = None,
    per_node: int | None = None,
) -> Choice:
    """Choose a layout that fits in the place of `"auto"`, and say why.

    A layout that the config names stays. On GPUs its keys that the config does not name are filled
    in, and it gets the largest micro-batch that fits. A micro-batch or recomputation that the user
    set stays.

    `memory`: bytes of one rank's device; `device`: its name; `per_node`: ranks of a node, by
    default the device's usual number. Raises `UserError` where nothing fits.
    """
    known = device_named(device or "") or device_named(USUAL)
    assert known is not None
    place = _Place(ranks, memory, known, per_node or known.per_node, on_gpu)
    parallel = config.execution.parallel
    if parallel != "auto":
        return _as_named(config, parallel, place) if on_gpu else Choice(config, "as configured")
    preferred: _Candidate | None = None
    least: _Candidate | None = None
    for alternatives in _candidates(config, place):
        chosen = _quickest(alternatives, place)
        if chosen is not None:
            why = f"{describe(chosen.config, ranks)}: {memory_size(chosen.memory)}"
            why += f" of {memory_size(place.usable)} usable"
            if ranks > 1 and on_gpu:
                why += f"; {count_traffic(chosen.config, ranks, place.per_node)}"
            if preferred is not None:
                before = f"{describe(preferred.config, ranks)} ({memory_size(preferred.memory)})"
                why += f"; preferred, but too large: {before}"
            return Choice(chosen.config, why)
        preferred = min(alternatives, key=_memory)
        least = min(least or preferred, preferred, key=_memory)
    if least is None:
        raise UserError(
            f'execution.parallel = "auto": batch.sequences = {config.batch.sequences} divides in '
            f"no layout over {ranks} ranks; change one of them"
        )
    raise UserError(
        f'execution.parallel = "auto": no layout on {ranks} ranks fits '
        f"{memory_size(place.usable)} ({USABLE:.0%} of {memory_size(memory)}); the least needs "
        f"{memory_size(least.memory)}: use more ranks, or lower batch.sequence_length"
    )


def _memory(candidate: _Candidate) -> int:
    return candidate.memory


def _quickest(alternatives: list[_Candidate], place: _Place) -> _Candidate | None:
    """The one of those that fit whose bytes take the shortest time; None where none fits."""

    def seconds(candidate: _Candidate) -> float:
        traffic = count_traffic(candidate.config, place.ranks, place.per_node)
        return traffic.seconds(place.device)

    fitting = [candidate for candidate in alternatives if candidate.memory <= place.usable]
    return min(fitting, key=seconds, default=None)


def _as_named(config: Config, parallel: Parallel, place: _Place) -> Choice:
    """A layout that the config names, on GPUs. Raises `UserError` where it does not fit them."""
    ranks, least = place.ranks, 0
    check(config, ranks)
    named = parallel.model_dump(include=parallel.model_fields_set)
    parallel = parallel.model_copy(update=_data_parallelism(config, parallel, place) | named)
    share = config.batch.sequences // data_ranks(parallel, ranks)
    for micro_batch in _micro_batches(config, share):
        candidate = config.executed(parallel=parallel, micro_batch=micro_batch)
        least = estimate_memory(candidate, ranks, on_gpu=True).peak
        # The estimate is no reason to refuse what may just fit.
        is_last = micro_batch in (1, config.execution.micro_batch)
        if least <= place.usable or (is_last and least <= place.memory):
            return Choice(candidate, f"as configured: {describe(candidate, ranks)}")
    undecided = config.executed(parallel="auto", micro_batch=None)
    others = (_quickest(group, place) for group in _candidates(undecided, place))
    nearest = next((other.config for other in others if other is not None), None)
    raise UserError(
        f"execution.parallel: needs {memory_size(least)} of a GPU's {memory_size(place.memory)}; "
        + ("use more ranks" if nearest is None else f'"auto" takes {describe(nearest, ranks)}')
    )


def describe(config: Config, ranks: int) -> str:
    """Describe a resolved layout in one line."""
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


def _candidates(config: Config, place: _Place) -> Iterator[list[_Candidate]]:
    """Groups of layouts that can work at all, in the order of preference.

    Within a group only expert parallelism and the micro-batch differ.
    """
    ranks, per_node, experts = place.ranks, place.per_node, config.model.experts
    stages = divisors(config.model.layers, at_most=ranks)
    expert_sizes = divisors(experts.count, at_most=ranks) if experts else [1]
    in_a_node = [size for size in expert_sizes if per_node % size == 0]
    over_nodes = [size for size in expert_sizes if per_node % size]
    parts: tuple[tuple[Recompute, ...], ...] = (("none", "feed_forward"), ("layer",))
    tensor_sizes = [size for size in _powers_of_two(per_node) if per_node % size == 0]
    for pipeline, sizes, part, tensor in product(
        stages, (in_a_node, over_nodes), parts, tensor_sizes
    ):
        for recompute in part:
            if config.execution.recompute not in ("none", recompute):
                continue
            group = [
                candidate
                for expert in sizes
                for candidate in _sized(config, place, tensor, pipeline, expert, recompute)
            ]
            if group:
                yield group


def _sized(
    config: Config, place: _Place, tensor: int, pipeline: int, expert: int, recompute: Recompute
) -> Iterator[_Candidate]:
    """A layout of these sizes with every micro-batch; nothing where it cannot work."""
    ranks = place.ranks
    if ranks % (tensor * pipeline) or config.batch.sequences % (ranks // (tensor * pipeline)):
        return
    parallel = Parallel(
        tensor=tensor, sequence_parallel=tensor > 1, pipeline=pipeline, expert=expert
    )
    parallel = parallel.model_copy(update=_data_parallelism(config, parallel, place))
    if not works(config, parallel, ranks):
        return
    for micro_batch in _micro_batches(
        config, config.batch.sequences // data_ranks(parallel, ranks)
    ):
        changes = {"parallel": parallel, "micro_batch": micro_batch, "recompute": recompute}
        candidate = config.executed(**changes)
        memory = estimate_memory(candidate, ranks, on_gpu=place.on_gpu).peak
        yield _Candidate(candidate, memory)


def _data_parallelism(config: Config, parallel: Parallel, place: _Place) -> dict[str, Any]:
    """The keys of a layout that data-parallel ranks allow: a shared optimizer and, on GPUs,
    messages during the passes. Keys that the layout's author named are respected."""
    several = data_ranks(parallel, place.ranks) > 1
    matrices = OPTIMIZER_KINDS[config.optimizer.kind].needs_whole_matrices
    named = {key: getattr(parallel, key) for key in parallel.model_fields_set}
    optimizer = named.get("optimizer", "distributed" if several and not matrices else "replicated")
    overlaps = place.on_gpu and several and parallel.pipeline == 1
    overlaps = named.get("overlap_gradients", overlaps)
    return {
        "optimizer": optimizer,
        "overlap_gradients": overlaps,
        "overlap_weights": overlaps and optimizer == "distributed",
    }


def _micro_batches(config: Config, share: int) -> list[int]:
    """Sizes that divide a rank's share of the batch: powers of two and the share, largest first."""
    if config.execution.micro_batch is not None:
        return [config.execution.micro_batch] if share % config.execution.micro_batch == 0 else []
    return [size for size in sorted({share, *_powers_of_two(share)})[::-1] if share % size == 0]


def _powers_of_two(at_most: int) -> list[int]:
    return [2**n for n in range(at_most.bit_length())]
