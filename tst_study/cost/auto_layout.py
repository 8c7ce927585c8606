"""The defaults of a run on GPUs, and `parallel = "auto"`: the least divided layout that fits.

The choices are tried in this order, because each costs more than the one before: data parallelism
with a distributed optimizer and experts spread over at most a node; tensor parallelism within a
node; recomputation of each layer in the backward pass; experts spread over several nodes. Where
several sizes of expert parallelism or micro-batches fit, the combination whose bytes move in the
shortest time is taken (`traffic.py`).
`parallel_layout.py` says what can work at all, `memory.py` what fits.
"""

from collections.abc import Iterator
from itertools import groupby, product
from typing import Any, NamedTuple, get_args

from tst_study.config.optimizer_kinds import OPTIMIZER_KINDS
from tst_study.config.schema import Config, Parallel, Recompute
from tst_study.cost.devices import Device, device_or_usual
from tst_study.cost.memory import estimate_memory
from tst_study.cost.parallel_layout import check, data_ranks, divisors, layout_of, works
from tst_study.cost.traffic import count_traffic
from tst_study.errors import UserError
from tst_study.text import memory_size

USABLE = 0.9
"""The share of a device's memory that a layout may fill; libraries, fragmentation and
communication buffers need the rest."""


class Choice(NamedTuple):
    config: Config
    """The config with its layout, micro-batch and recomputation filled in."""
    reason: str


class _Candidate(NamedTuple):
    config: Config
    memory: int
    seconds: float
    """The time that its bytes take (`traffic.py`)."""


class _Place(NamedTuple):
    """The ranks that a layout is chosen for, and the devices that they run on."""

    ranks: int
    memory: int
    """Bytes of each rank's device."""
    device: Device
    per_node: int
    """Ranks of one node."""
    on_gpu: bool

    @property
    def usable(self) -> int:
        return int(USABLE * self.memory)


def with_gpu_defaults(config: Config) -> Config:
    """Fill in bfloat16 where the config names no number format, and `parallel = "auto"` where it
    names no layout.

    The defaults in the schema suit a laptop.
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
    """Replace `parallel = "auto"` by a layout that fits, and give the reason for the choice.

    A layout that the config names is kept. On GPUs the keys that the config leaves out are filled
    in, and the layout gets the largest micro-batch that fits; on CPUs the config is returned
    unchanged and unchecked. A micro-batch that the config sets is always kept, and so is
    `recompute = "layer"`; under `"auto"`, `recompute = "none"` may become `"layer"`.

    `memory`: bytes of one rank's device; `device`: its name, an H100 if it is not known;
    `per_node`: ranks of a node, by default the device's usual number. Raises `UserError` where
    nothing fits, and on GPUs where a named layout cannot work on `ranks` ranks.
    """
    known = device_or_usual(device)
    place = _Place(ranks, memory, known, per_node or known.per_node, on_gpu)
    parallel = config.execution.parallel
    if parallel != "auto":
        return _as_named(config, parallel, place) if on_gpu else Choice(config, "as configured")
    preferred: list[_Candidate] = []
    for alternatives in _candidates(config, place):
        chosen = _quickest(alternatives, place)
        if chosen is not None:
            parts = [f"{_described(chosen, ranks)} of {memory_size(place.usable)} usable"]
            if ranks > 1 and on_gpu:
                parts.append(str(count_traffic(chosen.config, ranks, place.per_node)))
            if preferred:
                parts.append(f"preferred, but too large: {_described(preferred[-1], ranks)}")
            return Choice(chosen.config, "; ".join(parts))
        preferred.append(min(alternatives, key=lambda candidate: candidate.memory))
    if not preferred:
        raise UserError(
            f'execution.parallel = "auto": batch.sequences = {config.batch.sequences} divides in '
            f"no layout over {ranks} ranks; change one of them"
        )
    least = min(candidate.memory for candidate in preferred)
    raise UserError(
        f'execution.parallel = "auto": no layout on {ranks} ranks fits '
        f"{memory_size(place.usable)} ({USABLE:.0%} of {memory_size(memory)}); the least needs "
        f"{memory_size(least)}: use more ranks, or lower batch.sequence_length"
    )


def _described(candidate: _Candidate, ranks: int) -> str:
    return f"{describe(candidate.config, ranks)}: {memory_size(candidate.memory)}"


def _quickest(alternatives: list[_Candidate], place: _Place) -> _Candidate | None:
    """Choose, among the layouts that fit, the one whose bytes move in the shortest time; None if
    none fits."""
    fitting = (candidate for candidate in alternatives if candidate.memory <= place.usable)
    return min(fitting, key=lambda candidate: candidate.seconds, default=None)


def _as_named(config: Config, parallel: Parallel, place: _Place) -> Choice:
    """Complete a layout that the config names, on GPUs. Raises `UserError` if it cannot work or
    does not fit."""
    check(config, place.ranks)
    candidates = list(_sized(config, parallel, config.execution.recompute, place))
    for candidate in candidates:
        # An estimate is no reason to refuse a layout that may just fit: the smallest micro-batch
        # may fill the whole device.
        limit = place.memory if candidate is candidates[-1] else place.usable
        if candidate.memory <= limit:
            return Choice(candidate.config, f"as configured: {_described(candidate, place.ranks)}")
    raise UserError(
        f"execution.parallel: needs {memory_size(candidates[-1].memory)} of a GPU's "
        f'{memory_size(place.memory)}; use more ranks, or "auto", which finds a layout that fits'
    )


def describe(config: Config, ranks: int) -> str:
    """Describe a resolved layout in one line."""
    parallel, execution = layout_of(config), config.execution
    parts = [
        f"{name} {size}"
        for name, size in (
            ("tensor", parallel.tensor),
            ("expert", parallel.expert),
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
    """Yield groups of layouts that can work at all, the preferred group first.

    The layouts of a group differ only in expert parallelism and the micro-batch.
    """
    ranks, per_node, experts = place.ranks, place.per_node, config.model.experts
    wanted = config.execution.recompute
    tensor_sizes = [size for size in _powers_of_two(per_node) if per_node % size == 0]
    expert_sizes = divisors(experts.count, at_most=ranks) if experts else [1]
    recomputes = [kind for kind in get_args(Recompute) if wanted in ("none", kind)]

    def preference(sizes: tuple[int, int, Recompute]) -> tuple[int, ...]:
        tensor, expert, recompute = sizes
        return per_node % expert > 0, recompute == "layer", tensor

    every = sorted(product(tensor_sizes, expert_sizes, recomputes), key=preference)
    for _, group in groupby(every, preference):
        candidates: list[_Candidate] = []
        for tensor, expert, recompute in group:
            parallel = Parallel(tensor=tensor, sequence_parallel=tensor > 1, expert=expert)
            if works(config, parallel, ranks):
                candidates += _sized(config, parallel, recompute, place)
        if candidates:
            yield candidates


def _sized(
    config: Config, parallel: Parallel, recompute: Recompute, place: _Place
) -> Iterator[_Candidate]:
    """Yield a layout once with each micro-batch that the batch allows, the largest first; nothing
    where the batch does not divide by the data-parallel ranks."""
    named = parallel.model_dump(include=parallel.model_fields_set)
    parallel = parallel.model_copy(update=_data_parallelism(config, parallel, place) | named)
    share, rest = divmod(config.batch.sequences, data_ranks(parallel, place.ranks))
    for micro_batch in [] if rest else _micro_batches(config, share):
        changes = {"parallel": parallel, "micro_batch": micro_batch, "recompute": recompute}
        candidate = config.executed(**changes)
        memory = estimate_memory(candidate, place.ranks, on_gpu=place.on_gpu).total
        traffic = count_traffic(candidate, place.ranks, place.per_node)
        yield _Candidate(candidate, memory, traffic.seconds(place.device))


def _data_parallelism(config: Config, parallel: Parallel, place: _Place) -> dict[str, Any]:
    """Choose the keys of a layout that concern data-parallel ranks: whether they distribute the
    optimizer and, on GPUs, sum gradients during the backward pass."""
    several = data_ranks(parallel, place.ranks) > 1
    matrices = OPTIMIZER_KINDS[config.optimizer.kind].needs_whole_matrices
    optimizer = "distributed" if several and not matrices else "replicated"
    return {"optimizer": optimizer, "overlap_gradients": place.on_gpu and several}


def _micro_batches(config: Config, share: int) -> list[int]:
    """List the micro-batches to try, largest first: the configured one alone, or else one rank's
    share of the batch and the powers of two; each only if it divides that share."""
    if config.execution.micro_batch is not None:
        return [config.execution.micro_batch] if share % config.execution.micro_batch == 0 else []
    return [size for size in sorted({share, *_powers_of_two(share)})[::-1] if share % size == 0]


def _powers_of_two(at_most: int) -> list[int]:
    return [2**n for n in range(at_most.bit_length())]
