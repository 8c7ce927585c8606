"""Which layouts work for a model on a number of ranks: refusals with the nearest that does.

Every rule here is either arithmetic (what does not divide) or a row of the table in
`docs/parallel.md`.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tst_study.config.optimizer_kinds import OPTIMIZER_KINDS
from tst_study.config.schema import Config, Model, Parallel
from tst_study.errors import UserError


@dataclass(frozen=True)
class Problem:
    """Why a layout cannot be, and the change that comes nearest to it."""

    key: str
    value: Any
    reason: str
    nearest: dict[str, Any]

    def __str__(self) -> str:
        change = ", ".join(f"{key} = {json.dumps(value)}" for key, value in self.nearest.items())
        return f"{self.key} = {json.dumps(self.value)}: {self.reason}; nearest that works: {change}"


def layout_of(config: Config) -> Parallel:
    """The layout that a config names. Raises `ValueError` for `"auto"` that is not resolved."""
    parallel = config.execution.parallel
    if parallel == "auto":
        raise ValueError('execution.parallel = "auto" must be resolved first (auto_layout.py)')
    return parallel


def check(config: Config, ranks: int) -> None:
    """Raise `UserError`, one line, where the config's layout cannot work on `ranks` processes."""
    problem = layout_problem(config, layout_of(config), ranks)
    if problem is not None:
        raise UserError(str(problem))


def layout_problem(config: Config, parallel: Parallel, ranks: int) -> Problem | None:
    """None where the layout works."""
    return next(_problems(config, parallel, ranks), None)


def least_ranks(parallel: Parallel) -> int:
    """The fewest processes that make up one whole model."""
    of_a_stage = math.lcm(parallel.tensor, parallel.expert * parallel.expert_tensor_ranks)
    return of_a_stage * parallel.pipeline


def data_ranks(parallel: Parallel, ranks: int) -> int:
    """Among how many a batch is shared."""
    return ranks // (parallel.tensor * parallel.pipeline)


def bucket_weights(weights: int, ranks: int) -> int:
    """How many of a rank's `weights` are summed over `ranks` at a time, where sums are overlapped
    with the backward pass: 16 parts, or fewer where a rank's share of one would be below 2^16
    numbers, whose message would take longer to start than to send; but never fewer than four."""
    return max(1, min(weights // 4, max(weights // 16, 2**16 * ranks)))


def _problems(config: Config, parallel: Parallel, ranks: int) -> Iterator[Problem]:
    yield from _tensor_problems(config, parallel)
    experts = config.model.experts
    if experts is not None:
        yield from _indivisible("expert", parallel.expert, "model.experts.count", experts.count)
        width, sharers = experts.feed_forward_size, parallel.expert_tensor_ranks
        yield from _indivisible("tensor", sharers, "model.experts.feed_forward_size", width)
    yield from _indivisible("pipeline", parallel.pipeline, "model.layers", config.model.layers)
    yield from _optimizer_problems(config, parallel)
    if parallel.overlap_weights and not (
        parallel.optimizer == "distributed" and parallel.overlap_gradients
    ):
        yield _problem(
            "overlap_weights",
            True,
            'it needs the shares of optimizer = "distributed" and the buckets of overlap_gradients',
            overlap_weights=False,
        )
    yield from _rank_problems(config, parallel, ranks)


def tensor_sizes(model: Model) -> list[int]:
    """How many tensor ranks the model's numbers allow."""
    common = math.gcd(*_shared_by_tensor_ranks(model).values())
    return divisors(common, at_most=common)


def _shared_by_tensor_ranks(model: Model) -> dict[str, int]:
    shared = {
        "model.attention_heads": model.attention_heads,
        "model.key_value_heads": model.key_value_heads,
        "model.vocabulary_size": model.vocabulary_size,
    }
    if model.experts is None:
        shared["model.feed_forward_size"] = model.feed_forward_size
    return shared


def _tensor_problems(config: Config, parallel: Parallel) -> Iterator[Problem]:
    model, size = config.model, parallel.tensor
    shared = _shared_by_tensor_ranks(model)
    for key, number in shared.items():
        yield from _indivisible("tensor", size, key, number, *shared.values())
    if parallel.sequence_parallel and size == 1:
        yield _problem(
            "sequence_parallel", True, "there is one tensor rank", sequence_parallel=False
        )
    if parallel.sequence_parallel and config.batch.sequence_length % size:
        yield _problem(
            "sequence_parallel",
            True,
            f"batch.sequence_length = {config.batch.sequence_length} does not divide by "
            f"tensor = {size}",
            sequence_parallel=False,
        )
    if model.experts is not None and size > 1 and not parallel.sequence_parallel:
        yield _problem(
            "sequence_parallel",
            False,
            "with experts on several tensor ranks, each would route all positions anew",
            sequence_parallel=True,
        )


def _optimizer_problems(config: Config, parallel: Parallel) -> Iterator[Problem]:
    kind = config.optimizer.kind
    if not OPTIMIZER_KINDS[kind].needs_whole_matrices:
        return
    reason = f'optimizer.kind = "{kind}" needs whole matrices on a rank'
    if parallel.optimizer == "distributed":
        yield _problem("optimizer", "distributed", reason, optimizer="replicated")
    if parallel.tensor > 1:
        yield _problem("tensor", parallel.tensor, reason, tensor=1, sequence_parallel=False)


def _rank_problems(config: Config, parallel: Parallel, ranks: int) -> Iterator[Problem]:
    model_ranks = parallel.tensor * parallel.pipeline
    if ranks % model_ranks:
        yield _problem(
            "tensor",
            parallel.tensor,
            f"tensor · pipeline = {model_ranks} does not divide the {ranks} processes",
            tensor=_largest_divisor(parallel.tensor, ranks),
            pipeline=_largest_divisor(
                parallel.pipeline, ranks // _largest_divisor(parallel.tensor, ranks)
            ),
        )
        return
    of_a_stage = ranks // parallel.pipeline
    experts = config.model.experts
    if experts and of_a_stage % (parallel.expert * parallel.expert_tensor_ranks):
        yield _problem(
            "expert",
            parallel.expert,
            f"it does not divide the {of_a_stage} processes of a pipeline stage",
            expert=_largest_divisor(parallel.expert, of_a_stage, experts.count),
        )
    sharers = data_ranks(parallel, ranks)
    if config.batch.sequences % sharers:
        raise UserError(
            f"batch.sequences = {config.batch.sequences} does not divide by the {sharers} "
            "data-parallel ranks; change one of them"
        )
    share, micro_batch = config.batch.sequences // sharers, config.execution.micro_batch
    if micro_batch is not None and share % micro_batch:
        raise UserError(
            f"execution.micro_batch = {micro_batch} does not divide the {share} sequences of a "
            f"rank; nearest that works: {_largest_divisor(micro_batch, share)}"
        )


def _problem(key: str, value: Any, reason: str, **nearest: Any) -> Problem:
    return Problem(f"execution.parallel.{key}", value, reason, nearest)


def _indivisible(key: str, size: int, name: str, number: int, *others: int) -> Iterator[Problem]:
    """Where a number of the config does not divide by a size of the layout; the nearest size
    divides `others`, too."""
    if number % size:
        nearest = {key: _largest_divisor(size, number, *others)}
        yield _problem(key, size, f"{name} = {number} does not divide by it", **nearest)


def divisors(number: int, at_most: int) -> list[int]:
    """In order."""
    return [d for d in range(1, min(number, at_most) + 1) if number % d == 0]


def _largest_divisor(at_most: int, *numbers: int) -> int:
    """The largest number up to `at_most` that divides all of `numbers`."""
    return next(d for d in range(at_most, 0, -1) if all(n % d == 0 for n in numbers))
