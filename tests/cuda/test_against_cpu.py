"""On a GPU: the losses and gradients of a CPU. `make gpu` runs the same checks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import gpu
from benchmarks.gpu_correctness import (
    bag_of_one_check,
    bfloat16_checks,
    compare,
    kernel_values,
    model_values,
)

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """Made by a process that sees no GPU: only there does megatron.core run on the CPU."""
    folder: Path = tmp_path_factory.mktemp("reference")
    arguments = ["--parts", "reference", "--work", str(folder), "--to", str(folder)]
    subprocess.run([sys.executable, gpu.__file__, *arguments], check=True, timeout=300)
    return torch.load(folder / "reference.pt")


def test_losses_and_gradients_are_those_of_a_cpu(expected: dict[str, torch.Tensor]) -> None:
    checks = compare(model_values("cuda") | kernel_values("cuda"), expected)
    assert [check for check in checks if not check.passed] == []


def test_losses_in_bfloat16_are_near_those_in_float32(expected: dict[str, torch.Tensor]) -> None:
    checks = bfloat16_checks("cuda", expected, small=False)
    assert [check for check in checks if not check.passed] == []


def test_a_bag_of_one_token_is_the_cross_entropy() -> None:
    assert bag_of_one_check("cuda").passed
