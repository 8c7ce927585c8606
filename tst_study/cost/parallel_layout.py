"""The rules that decide which layouts work for a model on a number of ranks.

A layout says how a run is split over ranks (`config.schema.Parallel`). Most rules are arithmetic: a
number of the model or the batch must divide by a number of ranks. The others exclude
combinations that are not supported, such as tensor parallelism with an optimizer that needs whole
matrices. `docs/parallel.md` lists which layouts are tested.
"""

import json
import math
from collections.abc import Iterator

from tst_study.config.optimizer_kinds import OPTIMIZER_KINDS
from tst_study.config.phase_plan import plan_phases
from tst_study.config.schema import EXPERT_UNIT, Config, Parallel
from tst_study.errors import UserError


def layout_of(config: Config) -> Parallel:
    """Return a config's layout. Raises `ValueError` if it is still `"auto"`."""
    parallel = config.execution.parallel
    if parallel == "auto":
        raise ValueError('execution.parallel = "auto" must be resolved first (auto_layout.py)')
    return parallel


def check(config: Config, ranks: int) -> None:
    """Raise `UserError`, with a one-line message, if the config's layout, batch or micro-batch
    cannot work on `ranks` processes."""
    parallel = layout_of(config)
    for key, reason in _problems(config, parallel, ranks):
        value = json.dumps(getattr(parallel, key))
        raise UserError(
            f"execution.parallel.{key} = {value}: {reason}; change one of them, or say "
            'execution.parallel = "auto", which finds a layout that works'
        )
    sequences, sharers = config.batch.sequences, data_ranks(parallel, ranks)
    small = plan_phases(config).reads(0)
    if small.sequences % sharers and not sequences % sharers:
        raise UserError(
            f"{' '.join(config.rivals)}: a small step's {small.sequences} sequences do not divide "
            f"by the {sharers} data-parallel ranks; take fewer ranks, or more batch.sequences"
        )
    if sequences % sharers:
        raise UserError(
            f"batch.sequences = {sequences} does not divide by the {sharers} data-parallel ranks; "
            "change one of them"
        )
    share, micro_batch = sequences // sharers, config.execution.micro_batch
    if micro_batch is not None and share % micro_batch:
        raise UserError(
            f"execution.micro_batch = {micro_batch} does not divide the {share} sequences of a "
            f"rank; nearest that works: {divisors(share, at_most=micro_batch)[-1]}"
        )


def works(config: Config, parallel: Parallel, ranks: int) -> bool:
    """Return whether a layout can work for this config on `ranks` processes. Whether the batch
    divides by the data-parallel ranks is not checked here."""
    return next(_problems(config, parallel, ranks), None) is None


def least_ranks(parallel: Parallel) -> int:
    """Return the smallest number of processes on which a layout can hold one whole model."""
    return math.lcm(parallel.tensor, parallel.expert * parallel.expert_tensor_ranks)


def data_ranks(parallel: Parallel, ranks: int) -> int:
    """Return the number of data-parallel ranks, among which the sequences of a batch are
    divided."""
    return ranks // parallel.tensor


def bucket_weights(weights: int, ranks: int) -> int:
    """Return the number of gradients in a bucket. A bucket is summed over `ranks` ranks as a whole,
    during the backward pass if gradients are overlapped.

    The gradients of a rank's `weights` weights make 16 buckets. They make fewer, but at least four,
    if each rank's share of a bucket would otherwise have fewer than 2^16 numbers, because a message
    that short takes longer to start than to send.
    """
    return max(1, min(weights // 4, max(weights // 16, 2**16 * ranks)))


def _problems(config: Config, parallel: Parallel, ranks: int) -> Iterator[tuple[str, str]]:
    """Yield each key of the layout whose value cannot work, and the reason why."""
    model, experts, tensor = config.model, config.model.experts, parallel.tensor
    # Tensor ranks divide these sizes among themselves.
    keys = ["attention_heads", "key_value_heads", "vocabulary_size"]
    keys += ["feed_forward_size"] * (experts is None)
    divided = [("tensor", tensor, f"model.{key}", getattr(model, key)) for key in keys]
    if experts is not None:
        width = experts.feed_forward_size
        sharers = parallel.expert_tensor_ranks * EXPERT_UNIT[config.numerics.dtype]
        divided.append(("expert", parallel.expert, "model.experts.count", experts.count))
        divided.append(("tensor", sharers, "model.experts.feed_forward_size", width))
    elif parallel.expert > 1:
        yield "expert", "it needs a model with experts"
    for key, size, name, number in divided:
        if number % size:
            yield key, f"{name} = {number} does not divide by {size}"
    plan, shares_positions = plan_phases(config), parallel.sequence_parallel
    length = plan.reads(0).length
    if shares_positions and tensor == 1:
        yield "sequence_parallel", "there is one tensor rank"
    if shares_positions and length % tensor:
        small = "" if length == config.batch.sequence_length else "in small steps, "
        reason = f"{small}batch.sequence_length = {length} does not divide by tensor = {tensor}"
        yield "sequence_parallel", reason
    if experts is not None and tensor > 1 and not shares_positions:
        reason = "with experts on several tensor ranks, each would route all positions anew"
        yield "sequence_parallel", reason
    kind, distributed = config.optimizer.kind, parallel.optimizer == "distributed"
    if OPTIMIZER_KINDS[kind].needs_whole_matrices:
        reason = f'optimizer.kind = "{kind}" needs whole matrices on a rank'
        if distributed:
            yield "optimizer", reason
        if tensor > 1:
            yield "tensor", reason
    if tensor > 1 and not (loss := plan.objective(0).loss).is_sharded:
        yield "tensor", f"superposition.loss = {loss.name!r} needs the whole vocabulary on a rank"
    if ranks % tensor:
        yield "tensor", f"it does not divide the {ranks} processes"
    if experts is not None and ranks % (parallel.expert * parallel.expert_tensor_ranks):
        yield "expert", f"it does not divide the {ranks} processes"


def divisors(number: int, at_most: int) -> list[int]:
    """Return the divisors of a number up to `at_most`, in ascending order."""
    return [d for d in range(1, min(number, at_most) + 1) if number % d == 0]
