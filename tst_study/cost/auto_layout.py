"""The choice of a layout, that is, of how a run is split over ranks: the defaults of a run on GPUs,
and `parallel = "auto"`.

For `"auto"` the following are tried in this order, because each costs more than the one before. The
first that fits the memory is taken.

1. data parallelism, with a distributed optimizer if the update rule allows it, and with experts
   spread over a number of ranks that divides the number in a node
2. tensor parallelism within a node as well
3. recomputation of each layer in the backward pass, first without and then with tensor parallelism
4. experts spread over any number of ranks, again in the order of 1 to 3

If several sizes of expert parallelism or several micro-batches fit, the combination whose bytes
move in the shortest time is taken (`traffic.py`). `parallel_layout.py` says which layouts can work
at all, and `memory.py` how much memory they need.
"""

from collections.abc import Iterator
from itertools import groupby, product
from typing import Any, NamedTuple, get_args

from tst_study.config.optimizer_kinds import OPTIMIZER_KINDS
from tst_study.config.phase_plan import plan_phases
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


class ChosenLayout(NamedTuple):
    """A config that can be trained, and why its layout was chosen."""

    config: Config
    """The config with a layout and, on GPUs or under `"auto"`, a micro-batch."""
    reason: str
    """The reason in one line, which the run's record keeps for each launch."""


class _Candidate(NamedTuple):
    config: Config
    memory: int
    """Estimated bytes on the fullest rank."""
    seconds: float
    """The time that the transfers of a step take (`Traffic.seconds`)."""


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
    """Fill in bfloat16 if the config does not name `numerics.dtype`, and `parallel = "auto"` if it
    does not name `execution.parallel`.

    `tst-study train` calls this on a machine with a GPU, unless `execution.device` is "cpu". The
    defaults in the schema suit a laptop.
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
) -> ChosenLayout:
    """Replace `parallel = "auto"` by a layout that fits, and give the reason for the choice.

    A layout that the config names is kept. On CPUs such a config is returned unchanged and
    unchecked. On GPUs the layout gets the largest micro-batch that fits, and its keys `optimizer`
    and `overlap_gradients` are filled in unless the config sets them.

    A micro-batch that the config sets is always kept, and so is `recompute = "layer"`. Under
    `"auto"`, `recompute = "none"` may become `"layer"`.

    Args:
        ranks: processes in all.
        memory: bytes of one rank's device.
        device: the name of the GPU; the rates of an H100 are assumed if it is None or not listed.
        per_node: ranks of one node; by default the usual number of such devices in a node.

    Raises:
        UserError: no layout fits, the batch does not divide, or, on GPUs, the named layout cannot
            work on `ranks` ranks.
    """
    known = device_or_usual(device)
    place = _Place(ranks, memory, known, per_node or known.per_node, on_gpu)
    parallel = config.execution.parallel
    if parallel != "auto":
        return (
            _as_named(config, parallel, place) if on_gpu else ChosenLayout(config, "as configured")
        )
    preferred: list[_Candidate] = []
    for alternatives in _candidates(config, place):
        chosen = _quickest(alternatives, place)
        if chosen is not None:
            parts = [f"{_described(chosen, ranks)} of {memory_size(place.usable)} usable"]
            if ranks > 1 and on_gpu:
                parts.append(str(count_traffic(chosen.config, ranks, place.per_node)))
            if preferred:
                parts.append(f"preferred, but too large: {_described(preferred[-1], ranks)}")
            return ChosenLayout(chosen.config, "; ".join(parts))
        preferred.append(min(alternatives, key=lambda candidate: candidate.memory))
    if not preferred:
        micro = config.execution.micro_batch
        batches = f" in micro-batches of {micro}" if micro else ""
        raise UserError(
            f'execution.parallel = "auto": batch.sequences = {config.batch.sequences}{batches} '
            f"divides in no layout over {ranks} ranks; change one of them"
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
    """Return the layout that fits and whose bytes move in the shortest time; None if none fits."""
    fitting = (candidate for candidate in alternatives if candidate.memory <= place.usable)
    return min(fitting, key=lambda candidate: candidate.seconds, default=None)


def _as_named(config: Config, parallel: Parallel, place: _Place) -> ChosenLayout:
    """Complete, for GPUs, a layout that the config names. Raises `UserError` if it cannot work or
    does not fit."""
    check(config, place.ranks)
    candidates = list(_sized(config, parallel, config.execution.recompute, place))
    for candidate in candidates:
        # The memory is only estimated, so a layout that might just fit is not refused: with the
        # smallest micro-batch it is allowed to fill the whole device.
        limit = place.memory if candidate is candidates[-1] else place.usable
        if candidate.memory <= limit:
            return ChosenLayout(
                candidate.config, f"as configured: {_described(candidate, place.ranks)}"
            )
    raise UserError(
        f"execution.parallel: needs {memory_size(candidates[-1].memory)} of a GPU's "
        f'{memory_size(place.memory)}; use more ranks, or "auto", which finds a layout that fits'
    )


def describe(config: Config, ranks: int) -> str:
    """Describe the layout, micro-batch and recomputation of a config in one line. Raises
    `ValueError` if the layout is still `"auto"`."""
    parallel, execution = layout_of(config), config.execution
    parts = [
        f"{name} {size}"
        for name, size in (("tensor", parallel.tensor), ("expert", parallel.expert))
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
    """Yield groups of layouts that can work at all, the most preferred group first.

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
    """Yield a layout with each micro-batch that the batch allows, the largest first. Yields nothing
    if the batch does not divide by the data-parallel ranks."""
    named = parallel.model_dump(include=parallel.model_fields_set)
    parallel = parallel.model_copy(update=_data_parallelism(config, parallel, place) | named)
    share = config.batch.sequences // data_ranks(parallel, place.ranks)
    rest = plan_phases(config).reads(0).sequences % data_ranks(parallel, place.ranks)
    for micro_batch in [] if rest else _micro_batches(config, share):
        changes = {"parallel": parallel, "micro_batch": micro_batch, "recompute": recompute}
        candidate = config.executed(**changes)
        memory = estimate_memory(candidate, place.ranks, on_gpu=place.on_gpu).total
        traffic = count_traffic(candidate, place.ranks, place.per_node)
        yield _Candidate(candidate, memory, traffic.seconds(place.device))


def _data_parallelism(config: Config, parallel: Parallel, place: _Place) -> dict[str, Any]:
    """Choose the keys of a layout that concern data-parallel ranks: whether the optimizer's state
    is distributed over them and, on GPUs, whether gradients are summed during the backward
    pass."""
    several = data_ranks(parallel, place.ranks) > 1
    matrices = OPTIMIZER_KINDS[config.optimizer.kind].needs_whole_matrices
    optimizer = "distributed" if several and not matrices else "replicated"
    return {"optimizer": optimizer, "overlap_gradients": place.on_gpu and several}


def _micro_batches(config: Config, share: int) -> list[int]:
    """List the micro-batches to try, the largest first: only the configured one, or else one rank's
    share of the batch and the powers of two. Those that do not divide the share are left out."""
    if config.execution.micro_batch is not None:
        return [config.execution.micro_batch] if share % config.execution.micro_batch == 0 else []
    return [size for size in sorted({share, *_powers_of_two(share)})[::-1] if share % size == 0]


def _powers_of_two(at_most: int) -> list[int]:
    return [2**n for n in range(at_most.bit_length())]
