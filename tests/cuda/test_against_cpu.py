"""On a GPU: the losses and gradients of a CPU. `make gpu` runs the same checks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import gpu

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
]


def test_losses_and_gradients_are_those_of_a_cpu(tmp_path: Path) -> None:
    arguments = ["--parts", "reference", "correctness", "--work", str(tmp_path)]
    subprocess.run([sys.executable, gpu.__file__, *arguments, "--to", str(tmp_path)], timeout=600)
    checks = json.loads((tmp_path / "correctness.json").read_text())["checks"]
    assert checks
    assert [check for check in checks if not check["passed"]] == []
