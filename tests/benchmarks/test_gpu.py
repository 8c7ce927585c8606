"""The script for GPU machines, run whole at its smallest on the CPU."""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu
from benchmarks.gpu_correctness import checked
from tst_study.analysis.tables.archive import read_archive

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="make gpu runs it in earnest")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def parts(work: Path) -> dict[str, dict[str, Any]]:
    """Results by part, run in this process; steps of one dense model stand for those of both."""
    request = argparse.Namespace(
        device="cpu", small=True, work=work, runs=work / "kept", ends=time.monotonic() + 1e3
    )
    names = [name for name in gpu.PARTS if name != "steps-270m"]
    for name in names:
        gpu.run_part(name, gpu.PARTS[name][0], request)
    return {name: json.loads((request.work / f"{name}.json").read_text()) for name in names}


def test_losses_and_gradients_are_checked_for_both_models_and_both_phases(
    parts: dict[str, dict[str, Any]],
) -> None:
    checks = parts["correctness"]["checks"]
    names = {(check["name"], check["kind"]) for check in checks}
    assert ("an expert without positions", "bfloat16") in names
    for case in ("dense, next token", "dense, full", "dense, output only", "experts, full"):
        assert {(case, kind) for kind in ("loss", "tensors", "bfloat16")} < names
        ways = {check.get("attention") for check in checks if check["name"] == case} - {None}
        assert ways == set(parts["correctness"]["attention"][case.partition(",")[0]])
    assert [check for check in checks if not check["passed"]] == []


def test_steps_of_both_phases_are_timed_without_mfu_and_peak_memory_on_a_cpu(
    parts: dict[str, dict[str, Any]],
) -> None:
    results = parts["steps-600m"]
    both = ("baseline", "superposed", "plain PyTorch")
    assert list(results) == [*(f"{name}, compiled" for name in both), *both]
    assert all(row["latent_tokens_per_second"] > 0 for row in results.values())
    assert results["superposed"]["mfu"] is results["superposed"]["peak_memory"] is None
    rows = gpu.table({"parts": {name: {"results": part} for name, part in parts.items()}})
    assert any(row.startswith("| moe-10b, superposed |") for row in rows)


def test_a_run_that_was_stopped_is_compared_with_one_that_was_not(
    parts: dict[str, dict[str, Any]],
) -> None:
    assert parts["saving"]["resumed"] == {"same bits": True, "largest difference of a loss": 0.0}
    assert all(parts["saving"][f"{name} seconds"] > 0 for name in ("save", "load", "evaluation"))


def test_arms_spend_the_same_flops_read_nothing_twice_and_are_kept(
    parts: dict[str, dict[str, Any]], work: Path
) -> None:
    arms = [parts["runs"][f"{arm}-0"] for arm in ("baseline", "output-only", "power-law")]
    assert len({arm["flops"] for arm in arms}) == 1
    assert all(arm["annealed"] and arm["epochs"] < 1 for arm in arms)
    assert arms[2]["raw_tokens"] > arms[0]["raw_tokens"]
    assert len(read_archive(work / "kept" / "archive").runs) == 3


def test_a_part_that_hangs_is_stopped_and_keeps_what_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(gpu.PARTS, "loss", ("tests.benchmarks.test_gpu:hanging", 90.0))
    options = argparse.Namespace(work=tmp_path)
    # Long enough for a busy machine to import torch and this file.
    outcome = gpu.run_apart("loss", options, seconds=40.0)
    assert (outcome["state"], outcome["results"]) == ("out of time", {"kept": 1})


def hanging(request: argparse.Namespace) -> Iterator[tuple[str, int]]:
    yield "kept", 1
    time.sleep(90)


@pytest.mark.parametrize("wrong", [torch.tensor([1.0, 2.1]), torch.tensor([1.0, torch.nan])])
def test_a_wrong_gradient_fails_its_check(wrong: torch.Tensor) -> None:
    names = ["case: loss", "case: gradient of a", "case: gradient of b"]
    expected = dict.fromkeys(names, torch.tensor([1.0, 2.0]))
    found = {**expected, "case: gradient of a": wrong}
    loss, gradient = checked("kernels", lambda: found, expected, {})
    assert loss["passed"]
    assert not gradient["passed"]
    assert gradient["worst"] == "gradient of a"


def test_before_its_reference_a_run_fails_and_its_record_is_written_all_the_same(
    tmp_path: Path,
) -> None:
    arguments = ["--device", "cpu", "--small", "--to", str(tmp_path)]
    assert gpu.main([*arguments, "--parts", "correctness", "reference"]) == 1  # the wrong way round
    (path,) = tmp_path.glob("cpu-small-*.json")
    record = json.loads(path.read_text())
    assert not record["passed"]
    assert "reference.pt" in record["parts"]["correctness"]["failure"]
    assert record["machine"]["versions"]["torch"] == torch.__version__


@pytest.mark.parametrize(
    ("command", "status", "said"),
    [
        ([], 2, "error: --device cuda: no GPU here"),
        (["-I", "-S"], 1, f"error: {sys.executable} lacks torch, megatron, "),
    ],
)
def test_a_machine_that_will_not_do_is_told_why_in_one_line(
    command: list[str], status: int, said: str
) -> None:
    done = subprocess.run(
        [sys.executable, *command, gpu.__file__], capture_output=True, text=True, check=False
    )
    assert done.returncode == status
    assert (done.stdout + done.stderr).startswith(said)
    assert len((done.stdout + done.stderr).splitlines()) == 1


def test_the_checks_need_their_reference(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu.main(["--device", "cpu", "--parts", "correctness"])
    assert "needs the part reference" in capsys.readouterr().err
