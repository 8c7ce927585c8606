"""The script for GPU machines, run whole at its smallest on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu, gpu_parts
from benchmarks.gpu import Outcome
from benchmarks.gpu_correctness import Check, compare, made
from benchmarks.gpu_layouts import layouts
from benchmarks.gpu_parts import Part, Request

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="make gpu runs it in earnest")


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("records")
    parts = [name for name in gpu_parts.PARTS if name != "layouts"]  # of processes; see below
    arguments = ["--device", "cpu", "--small", "--in-process", "--to", str(folder)]
    status = gpu.main([*arguments, "--parts", *parts])
    (path,) = folder.glob("cpu-small-*.json")
    assert status == 0
    return json.loads(path.read_text())


def test_every_part_is_done_and_the_record_says_so(record: dict[str, Any]) -> None:
    assert record["passed"]
    failures = {name: part["failure"] for name, part in record["parts"].items()}
    assert set(failures.values()) == {None}, failures


def test_the_record_says_where_and_with_what_it_was_made(record: dict[str, Any]) -> None:
    machine = record["machine"]
    assert machine["device"] == "cpu"
    assert machine["versions"]["torch"] == torch.__version__
    assert {"date", "driver", "processor", "code", "python"} <= machine.keys()


def test_losses_and_gradients_are_checked_for_both_models_and_both_phases(
    record: dict[str, Any],
) -> None:
    checks = record["parts"]["correctness"]["results"]["checks"]
    names = {check["name"] for check in checks}
    assert {"an expert without positions", "experts, next token, computed again"} <= names
    for case in ("dense, next token", "dense, full", "dense, output only", "experts, full"):
        assert {case, f"{case}, bfloat16"} <= names
    assert all(check["error"] <= check["tolerance"] for check in checks)


def test_steps_have_speed_in_both_phases_but_no_mfu_and_no_peak_memory_on_a_cpu(
    record: dict[str, Any],
) -> None:
    results = record["parts"]["steps-270m"]["results"]
    first, second = results["package"]["phase 1"], results["package"]["phase 2"]
    ratio = first["raw_tokens_per_second"] / first["latent_tokens_per_second"]
    assert ratio == pytest.approx(results["shape"]["bag_size"])
    assert second["raw_tokens_per_second"] == second["latent_tokens_per_second"] > 0
    assert first["mfu"] is first["peak_memory"] is None
    assert results["plain"]["phase 2"]["step_seconds"] > 0


def test_the_pair_spends_the_same_flops_in_both_arms(record: dict[str, Any]) -> None:
    pair = record["parts"]["pair"]["results"]
    assert pair["baseline"]["flops"] == pair["superposition"]["flops"]
    assert pair["superposition"]["raw_tokens"] > pair["baseline"]["raw_tokens"]
    assert pair["baseline"]["annealed"]
    assert pair["superposition"]["annealed"]


def test_a_part_that_hangs_is_stopped_and_keeps_what_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = tmp_path / "hanging.py"
    hanging.write_text(
        "import json, pathlib, sys, time\n"
        "work = pathlib.Path(sys.argv[sys.argv.index('--work') + 1])\n"
        "(work / 'loss.json').write_text(json.dumps({'kept': 1}))\n"
        "time.sleep(60)\n"
    )
    monkeypatch.setattr(gpu, "__file__", str(hanging))
    outcome = gpu.run_apart("loss", Request("cpu", True, tmp_path, seconds=2.0))
    assert (outcome.state, outcome.results) == ("out of time", {"kept": 1})


def test_a_part_that_fails_is_recorded_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(request: Request) -> Iterator[tuple[str, Any]]:
        yield "kept", 1
        raise RuntimeError("no such kernel")

    module = sys.modules[__name__]
    monkeypatch.setattr(module, "failing", failing, raising=False)
    monkeypatch.setitem(gpu_parts.PARTS, "steps-270m", Part(f"{__name__}:failing", 0.2, 0.0))
    arguments = ["--device", "cpu", "--small", "--in-process", "--to", str(tmp_path)]
    assert gpu.main([*arguments, "--parts", "steps-270m", "loss"]) == 0  # no check was asked for
    (path,) = tmp_path.glob("*.json")
    parts = json.loads(path.read_text())["parts"]
    assert parts["steps-270m"]["failure"] == "RuntimeError: no such kernel"
    assert parts["steps-270m"]["results"] == {"kept": 1}
    assert parts["loss"]["state"] == "done"


@pytest.mark.parametrize("wrong", [torch.tensor([1.0, 2.1]), torch.tensor([1.0, torch.nan])])
def test_a_wrong_gradient_fails_its_check(wrong: torch.Tensor) -> None:
    right = torch.tensor([1.0, 2.0])
    names = ["case: loss", "case: gradient of a", "case: gradient of b"]
    expected = dict.fromkeys(names, right)
    loss, gradient = compare({**expected, "case: gradient of a": wrong}, expected)
    assert loss.passed
    assert not gradient.passed
    assert gradient.worst == "gradient of a"


def test_without_its_checks_a_run_has_not_passed(tmp_path: Path) -> None:
    # No reference was made, so nothing can be compared.
    arguments = ["--device", "cpu", "--small", "--in-process", "--to", str(tmp_path)]
    assert gpu.main([*arguments, "--parts", "correctness"]) == 1


def test_a_machine_without_a_gpu_is_told_so_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpu.main(["--to", str(tmp_path)]) == 2
    assert capsys.readouterr().out.startswith("error: --device cuda: no GPU here")
    assert not list(tmp_path.iterdir())


def test_a_check_that_throws_is_failed_and_the_others_are_made() -> None:
    def throws() -> list[Check]:
        raise RuntimeError("no such kernel")

    (check,) = made("kernels", throws)
    assert (check.passed, check.worst) == (False, "RuntimeError: no such kernel")


def test_an_interpreter_without_the_packages_is_named_with_what_it_lacks() -> None:
    command = [sys.executable, "-I", "-S", gpu.__file__]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {sys.executable} lacks torch, megatron, ")
    assert len(done.stderr.splitlines()) == 1


def test_two_ranks_without_two_gpus_are_left_out_and_nothing_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    results = dict(layouts(Request("cuda", False, tmp_path, 1.0)))
    assert list(results) == ["left out"]
    assert gpu._correct({"layouts": Outcome("done", results=results)})


@pytest.mark.slow
def test_layouts_of_two_ranks_are_those_of_one(tmp_path: Path) -> None:
    arguments = ["--device", "cpu", "--small", "--in-process", "--to", str(tmp_path)]
    assert gpu.main([*arguments, "--parts", "layouts"]) == 0
    (path,) = tmp_path.glob("*.json")
    checks = json.loads(path.read_text())["parts"]["layouts"]["results"]["checks"]
    assert [check["name"] for check in checks] == ["tensor and sequence", "killed and resumed"]


@pytest.mark.slow
def test_the_parts_run_as_processes_of_their_own(tmp_path: Path) -> None:
    arguments = ["--device", "cpu", "--small", "--to", str(tmp_path)]
    assert gpu.main([*arguments, "--parts", "reference", "correctness", "loss"]) == 0
