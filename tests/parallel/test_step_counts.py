"""How often a step makes the host wait, and what it sends."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.step_counts import (
    LAYOUTS,
    MICRO_BATCHES,
    RECOVERING,
    SUPERPOSED,
    Counts,
    counting,
    counts_of,
)

LAYERS, BAG_SIZE = 2, 4


Counted = Callable[[str], list[list[Counts]]]


@pytest.fixture(scope="module")
def counted(words: Path, tmp_path_factory: pytest.TempPathFactory) -> Counted:
    """Once per layout."""
    folder = tmp_path_factory.mktemp("counted")
    return cache(lambda name: counts_of(name, words, folder / name))


@pytest.mark.parametrize("name", LAYOUTS)
def test_superposition_waits_for_nothing_more_and_sends_nothing_more_often(
    counted: Counted, name: str
) -> None:
    for steps in counted(name):
        superposed, recovering = steps[SUPERPOSED], steps[RECOVERING]
        assert superposed.waits == recovering.waits
        assert superposed.messages == recovering.messages
        longer = superposed.sizes - recovering.sizes
        del longer["all-to-all"]  # which differ with what the router does
        of_positions = 4 * 8 * 64 if "tensor" in LAYOUTS[name][2] else 0
        of_batch = 8 if "data" in name or name.startswith("expert parallel") else 0
        assert longer.total() == (BAG_SIZE - 1) * (of_positions + of_batch)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_host_waits_only_for_the_sizes_of_messages_to_experts(
    counted: Counted, name: str
) -> None:
    _, _, parallel = LAYOUTS[name]
    expected = LAYERS * MICRO_BATCHES if "expert" in parallel else 0
    if parallel.get("dispatcher") == "allgather":
        expected *= 3
    for *steps, log in counted(name):
        assert [step.waits.total() for step in steps[1:]] == [expected] * 3
        assert log.waits.total() == (3 if "expert" in name else 2)


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
