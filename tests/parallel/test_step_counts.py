"""A step's waits of the host and its messages are counted, without a clock or a GPU.

Ranks are real processes over gloo. An operation counts as a wait where it would make the host wait
for all that a GPU has queued: a number that is read, a size that depends on numbers, a tensor that
is made on the device from the host's numbers. What kernels wait for inside is not seen.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.distributed import run_ranks
from tst_study import train
from tst_study.bookkeeping import Bookkeeper
from tst_study.config import schema as config
from tst_study.config.schema import Config
from tst_study.cost.traffic import count_traffic

aten = torch.ops.aten
SIZED_BY_NUMBERS = {
    aten.nonzero.default,
    aten.masked_select.default,
    aten.repeat_interleave.Tensor,
    aten._unique2.default,
    aten.bincount.default,
}
BY_INDEX = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}
READS = {Tensor.tolist, Tensor.numpy}
FROM_THE_HOST = {torch.tensor, torch.as_tensor}
ON_THE_HOST_ALREADY = {"sort_chunks_by_idxs", "_sizes_are_on_the_host", "summary", "_rounded"}
"""Functions that read what one wait before has brought."""
KINDS = {
    "allreduce": "all-reduce",
    "allgather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "alltoall": "all-to-all",
}


@dataclass
class Counts:
    """Waits and messages of a rank."""

    waits: Counter[str] = field(default_factory=Counter)
    """Number of waits by the function that waits."""
    messages: Counter[str] = field(default_factory=Counter)
    """Number of messages by kind; none where a rank is alone in its group."""
    sent: float = 0.0
    """Bytes to other ranks, by the shortest rings."""


@contextmanager
def counting() -> Iterator[Counts]:
    """Count what this thread does while the block runs."""
    counts = Counts()
    exchange = MoEAlltoAllTokenDispatcher._maybe_dtoh_and_synchronize

    def counted_exchange(self: Any, point: str, *more: Any) -> Any:
        if point == self.cuda_sync_point:  # on a GPU it waits here for the copies in its queue
            counts.waits["sizes of messages to experts"] += 1
        return exchange(self, point, *more)

    MoEAlltoAllTokenDispatcher._maybe_dtoh_and_synchronize = counted_exchange
    try:
        with _Operations(counts), _Functions(counts):
            yield counts
    finally:
        MoEAlltoAllTokenDispatcher._maybe_dtoh_and_synchronize = exchange


class _Operations(TorchDispatchMode):
    """Messages, and what waits, wherever it is called from: backward passes and C++ too."""

    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self.counts = counts

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if operation.namespace == "c10d":
            self._note_message(operation._schema.name.removeprefix("c10d::"), args)
        by_mask = operation in BY_INDEX and any(
            isinstance(x, Tensor) and x.dtype == torch.bool for x in args[1]
        )
        if by_mask or operation in SIZED_BY_NUMBERS:
            _note_wait(self.counts)
        elif operation == aten._local_scalar_dense.default:
            _note_read(self.counts)
        return operation(*args, **(kwargs or {}))

    def _note_message(self, name: str, args: Any) -> None:
        script = next(x for x in tree_leaves(args) if isinstance(x, torch.ScriptObject))
        ranks = dist.ProcessGroup.unbox(script).size()
        if ranks == 1:
            return
        kind = next(kind for start, kind in KINDS.items() if name.strip("_").startswith(start))
        self.counts.messages[kind] += 1
        # An all-to-all brings other numbers of bytes than it sends: output, then input.
        tensors = args[1] if kind == "all-to-all" else args
        size = max(x.nbytes for x in tree_leaves(tensors) if isinstance(x, Tensor))
        self.counts.sent += size * (ranks - 1) / ranks * (2 if kind == "all-reduce" else 1)


class _Functions(TorchFunctionMode):
    """Methods that bring a tensor to the host or from it, which on a processor do nothing."""

    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self.counts = counts

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        if function is Tensor.cpu or (function in FROM_THE_HOST and named.get("device")):
            _note_wait(self.counts)
        elif function in READS:
            _note_read(self.counts)
        return function(*args, **named)


def _note_wait(counts: Counts) -> None:
    counts.waits[_asker()] += 1


def _note_read(counts: Counts) -> None:
    if not ON_THE_HOST_ALREADY & set(_asker().split(".")):
        _note_wait(counts)


def _asker() -> str:
    """Name of the function of ours or Megatron's that an operation is called by."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith((_TORCH, __file__)):
        frame = frame.f_back
    return frame.f_code.co_qualname


_TORCH = str(Path(torch.__file__).parent)


DENSE = {"preset": "laptop-64"}
EXPERTS = {"preset": "laptop-moe"}
TENSOR = {"tensor": 2, "sequence_parallel": True}
SHARED = {"optimizer": "distributed", "overlap_gradients": True}
LAYOUTS: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "one process": (1, DENSE, {}),
    "data parallel": (2, DENSE, {}),
    "data parallel, optimizer shared, overlapped": (2, DENSE, SHARED),
    "tensor and sequence parallel": (2, DENSE, TENSOR),
    "experts in one process": (1, EXPERTS, {}),
    "expert parallel": (2, EXPERTS, {"expert": 2}),
    "tensor, sequence and expert parallel": (2, EXPERTS, TENSOR | {"expert": 2}),
}
MICRO_BATCHES = 2
SUPERPOSED, RECOVERING = 1, 3
"""Steps that are counted: not the first of a launch, which sets up more."""


def of_layout(name: str, corpus: Path) -> tuple[int, Config]:
    """Four steps of two layers on eight sequences of 64, s = 4."""
    ranks, model, parallel = LAYOUTS[name]
    share = 8 // (1 if "tensor" in parallel else ranks)
    return ranks, config.from_dict(
        {
            "model": model,
            "superposition": {"bag_size": 4, "step_ratio": 0.5},
            "data": {"corpora": [{"path": str(corpus)}]},
            "batch": {"sequences": 8, "sequence_length": 64},
            "optimizer": {"learning_rate": 1e-3},
            "schedule": {"steps": 4, "warmup_steps": 0},
            "execution": {
                "threads": 1,
                "micro_batch": share // MICRO_BATCHES,
                "log_every": 4,
                "parallel": parallel,
            },
        }
    )


def _run_counted(config: Config, folder: Path) -> list[Counts]:
    """Train on this rank: of every step, and of the last row of the log."""
    counted: list[tuple[str, Counts]] = []
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((train.Trainer, "step"), (Bookkeeper, "log_loss")):
            patch.setattr(owner, name, _watched(owner, name, counted))
        patch.setattr(Bookkeeper, "evaluate", lambda *unused: True)
        train.train(config, folder, progress=False)
    return [counts for name, counts in counted if name == "step"] + [counted[-1][1]]


def _watched(owner: type, name: str, counted: list[tuple[str, Counts]]) -> Any:
    method = getattr(owner, name)

    def watched(*args: Any, **named: Any) -> Any:
        with counting() as counts:
            result = method(*args, **named)
        counted.append((name, counts))
        return result

    return watched


LAYERS = 2
Counted = Callable[[str], list[list[Counts]]]


@pytest.fixture(scope="module")
def counted(words: Path, tmp_path_factory: pytest.TempPathFactory) -> Counted:
    """Per rank: of every step of a run, and of the last row of its log; once per layout."""

    @cache
    def counts_of(name: str) -> list[list[Counts]]:
        ranks, config = of_layout(name, words)
        return run_ranks(ranks, _run_counted, config, tmp_path_factory.mktemp("counted"))

    return counts_of


@pytest.mark.parametrize("name", LAYOUTS)
def test_superposition_waits_for_nothing_more_and_sends_nothing_more_often(
    counted: Counted, name: str
) -> None:
    for steps in counted(name):
        superposed, recovering = steps[SUPERPOSED], steps[RECOVERING]
        assert superposed.waits == recovering.waits
        assert superposed.messages == recovering.messages


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_host_waits_only_for_the_sizes_of_messages_to_experts(
    counted: Counted, name: str
) -> None:
    _, _, parallel = LAYOUTS[name]
    expected = LAYERS * MICRO_BATCHES if "expert" in parallel else 0
    for *steps, log in counted(name):
        assert [step.waits.total() for step in steps[1:]] == [expected] * 3
        assert log.waits.total() == (3 if "expert" in name else 2)


@pytest.mark.parametrize("name", LAYOUTS)
def test_ranks_send_the_bytes_that_a_plan_counts(counted: Counted, words: Path, name: str) -> None:
    ranks, config = of_layout(name, words)
    planned = count_traffic(config, ranks, per_node=ranks)
    sent = sum(steps[RECOVERING].sent for steps in counted(name)) / ranks
    assert sent == pytest.approx(planned.node, rel=0.05, abs=2e4)
    assert planned.network == 0


def test_what_waits_is_seen_wherever_it_is() -> None:
    x = torch.arange(6.0)
    with counting() as counts:
        for wait in (float, bool, torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.cpu):
            wait(x[1])
        x[x > 2]
        x.masked_select(x > 2).nonzero()
        torch.tensor([1.0], device="cpu")
    assert counts.waits.total() == 9
    with counting() as counts:
        x.nonzero_static(size=5)
        torch.full((), 1.0, device="cpu")
        torch.tensor([1.0]).to("cpu", non_blocking=True)
    assert counts.waits.total() == 0
