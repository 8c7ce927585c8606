"""The messages of a step are counted: superposition sends none more often, and all of them together
send what a plan counts. Ranks are real processes over gloo."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.distributed import run_ranks
from tests.parallel.test_parallel_layouts import DISTRIBUTED, EXPERT, SEQUENCE
from tests.tiny_runs import tiny
from tst_study import train
from tst_study.config.schema import Config
from tst_study.cost.traffic import count_traffic

KINDS = {
    "allreduce": "all-reduce",
    "allgather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "alltoall": "all-to-all",
}


class Messages(TorchDispatchMode):
    """The messages of this rank while the mode is entered, from backward passes and C++ too."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        """By kind; none where a rank is alone in its group."""
        self.sent = 0.0
        """Bytes to other ranks, by the shortest rings."""

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if operation.namespace == "c10d":
            self._note(operation._schema.name.removeprefix("c10d::"), args)
        return operation(*args, **(kwargs or {}))

    def _note(self, name: str, args: Any) -> None:
        script = next(x for x in tree_leaves(args) if isinstance(x, torch.ScriptObject))
        ranks = dist.ProcessGroup.unbox(script).size()
        if ranks == 1:
            return
        kind = next(kind for start, kind in KINDS.items() if name.strip("_").startswith(start))
        self.counts[kind] += 1
        # An all-to-all brings other numbers of bytes than it sends: output, then input.
        tensors = args[1] if kind == "all-to-all" else args
        size = max(x.nbytes for x in tree_leaves(tensors) if isinstance(x, Tensor))
        self.sent += size * (ranks - 1) / ranks * (2 if kind == "all-reduce" else 1)


DENSE, EXPERTS = "model={preset='laptop-64'}", "model={preset='laptop-moe'}"
SHARED = (*DISTRIBUTED, "execution.parallel.overlap_gradients=true")
LAYOUTS: dict[str, tuple[int, str, tuple[str, ...]]] = {
    "one process": (1, DENSE, ()),
    "data parallel": (2, DENSE, ()),
    "data parallel, optimizer shared, overlapped": (2, DENSE, SHARED),
    "tensor and sequence parallel": (2, DENSE, SEQUENCE),
    "experts in one process": (1, EXPERTS, ()),
    "expert parallel": (2, EXPERTS, EXPERT),
    "tensor, sequence and expert parallel": (2, EXPERTS, (*SEQUENCE, *EXPERT)),
}
BATCH = ("batch.sequences=8", "batch.sequence_length=64")
STEPS = ("schedule.steps=4", "schedule.warmup_steps=0", "execution.log_every=4")
SUPERPOSED, RECOVERING = 1, 3
"""Steps that are counted: not the first of a launch, which sets up more."""


def of_layout(name: str, corpus: Path) -> tuple[int, Config]:
    """Four steps of two layers on eight sequences of 64, s = 4."""
    ranks, model, layout = LAYOUTS[name]
    micro_batch = f"execution.micro_batch={4 if layout[:2] == SEQUENCE else 4 // ranks}"  # of two
    return ranks, tiny(corpus, model, *BATCH, *STEPS, micro_batch, *layout)


def counted(config: Config, folder: Path) -> list[tuple[Counter[str], float]]:
    """Train on this rank: of every step the messages by kind, and their bytes."""
    steps: list[Messages] = []
    step = train.Trainer.step

    def watched(*args: Any, **named: Any) -> Any:
        steps.append(Messages())
        with steps[-1]:
            return step(*args, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train.Trainer, "step", watched)
        train.train(config, folder, progress=False)
    return [(step.counts, step.sent) for step in steps]


@pytest.mark.parametrize("name", LAYOUTS)
def test_superposition_sends_nothing_more_often_and_all_sends_what_a_plan_counts(
    words, tmp_path, name
):
    ranks, config = of_layout(name, words)
    of_ranks = run_ranks(ranks, counted, config, tmp_path)
    for steps in of_ranks:
        assert steps[SUPERPOSED][0] == steps[RECOVERING][0]
    planned = count_traffic(config, ranks, per_node=ranks)
    sent = sum(steps[RECOVERING][1] for steps in of_ranks) / ranks
    assert sent == pytest.approx(planned.node, rel=0.05, abs=2e4)
    assert planned.network == 0
