"""How often a step makes the host wait, and what it sends: the guide's tables, counted again."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.gpu_guide import GUIDE
from tests.step_counts import (
    LAYOUTS,
    MICRO_BATCHES,
    RECOVERING,
    SUPERPOSED,
    Counts,
    counting,
    counts_of,
    head_rows,
    head_traffic,
    row,
)
from tst_study.cost.step_time import HEAD_GRADIENT, HEAD_ONCE, LOGIT

LAYERS, BAG_SIZE = 2, 4


Counted = Callable[[str], list[list[Counts]]]


@pytest.fixture(scope="module")
def counted(words: Path, tmp_path_factory: pytest.TempPathFactory) -> Counted:
    """Once per layout."""
    folder = tmp_path_factory.mktemp("counted")
    return cache(lambda name: counts_of(name, words, folder / name))


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_guide_says_what_is_counted_today(counted: Counted, name: str) -> None:
    """`python -m tests.step_counts` writes its tables anew."""
    assert row(name, counted(name)) in GUIDE.read_text(encoding="utf8")


def test_so_it_does_of_head_and_loss() -> None:
    guide = GUIDE.read_text(encoding="utf8")
    assert all(line in guide for line in head_rows())


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


def test_the_model_of_a_step_takes_the_bytes_of_head_and_loss_that_are_counted() -> None:
    of_logits = head_traffic(lambda rows, words, width: rows * words)
    assert of_logits.bytes["the rest"] + 8 == LOGIT  # the softmax converts its input unseen
    of_head = head_traffic(lambda rows, words, width: words * width)
    # The model of a product counts each matrix once for each of the three.
    assert of_head.bytes.total() == HEAD_GRADIENT + HEAD_ONCE + 3 * 2
