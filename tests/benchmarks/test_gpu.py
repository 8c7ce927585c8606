"""The script for GPU machines, run at its smallest on the CPU."""

import argparse
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu, gpu_speed
from benchmarks.gpu_correctness import checked, reference
from tst_study.analysis.tables.archive import read_archive

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="make gpu runs it in earnest")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def parts(work: Path) -> dict[str, dict[str, Any]]:
    """Results by part, run in this process; steps of one dense model stand for those of both."""
    request = argparse.Namespace(device="cpu", small=True, minutes=9, work=work, to=work)
    request.archive, request.ends = work / "kept", time.monotonic() + 1e6
    names = [name for name in gpu.PARTS if name != "steps-270m"]
    assert [name for name in names if not gpu.run_part(name, gpu.PARTS[name], request)] == []
    return {name: json.loads((work / f"{name}.json").read_text()) for name in names}


def test_losses_and_gradients_are_checked_for_both_models_and_both_phases(parts):
    checks = parts["correctness"]["checks"]
    names = {(check["name"], check["kind"]) for check in checks}
    assert ("an expert without positions", "bfloat16") in names
    for case in ("dense, next token", "dense, full", "dense, output only", "experts, full"):
        assert {(case, kind) for kind in ("loss", "tensors", "bfloat16")} < names
    assert gpu.verdict({"state": "done", "results": {"checks": checks}}) == "passed"


def test_a_reference_of_the_same_code_is_kept_and_another_is_computed_again(
    parts, tmp_path, work, monkeypatch
):
    assert parts["reference"]["computed"] == "here"
    ((_, said),) = reference(argparse.Namespace(small=True, to=work))
    assert said == f"before, with torch {torch.__version__}"
    kept = torch.load(work / "reference.pt")
    torch.save({**kept, "code": "other"}, tmp_path / "reference.pt")
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert not gpu.main(["--device=cpu", "--small", "--parts=reference", f"--to={tmp_path}"])
    assert torch.load(tmp_path / "reference.pt")["code"] == kept["code"]
    assert "is damaged or of other code" in next(tmp_path.glob("cpu-*.json")).read_text()


def test_steps_of_both_phases_are_compared_with_plain_pytorch_and_with_a_measured_product(parts):
    results = parts["steps-600m"]
    assert results["superposed"]["mfu"] is results["superposed"]["peak_memory"] is None
    product = results["ceiling"]["flops_per_second"]
    for name in ("baseline", "superposed", "plain PyTorch"):
        row = results[name]
        assert row["mfu_of_product"] == row["flops_per_second"] / product > 0
        for low, ratio, high in row["over"].values():
            assert 0 < low <= ratio <= high
    rows = gpu.table({"parts": {name: {"results": part} for name, part in parts.items()}})
    assert any(row.startswith("| moe-10b, superposed |") for row in rows)


def test_arms_spend_the_same_flops_read_nothing_twice_and_are_kept(parts, work):
    pair, third = parts["runs"], parts["more-runs"]["both-sides-0"]
    assert pair["resumed"] == {"same bits": True, "largest difference of a loss": 0.0}
    arms = [pair["baseline-0"], pair["output-only-0"], third]
    assert len({arm["flops"] for arm in arms}) == 1
    assert all(arm["annealed"] and arm["epochs"] < 1 for arm in arms)
    assert arms[2]["raw_tokens"] > arms[0]["raw_tokens"]
    assert len(read_archive(work / "kept").runs) == 3


CUT = """
import argparse, sys
from pathlib import Path
from benchmarks import gpu_speed
work = Path(sys.argv[1])
request = argparse.Namespace(device="cpu", small=True, work=work, archive=work / "cut")
list(gpu_speed._trained([("output-only", 0)], 10**5, request))
"""


def test_a_run_that_is_killed_leaves_its_losses_beside_the_archive(parts, work):
    curve = work / "cut-at-work" / "output-only-0" / "metrics.jsonl"
    with subprocess.Popen([sys.executable, "-c", CUT, work]) as process:
        while not (curve.exists() and "\n" in curve.read_text()):
            assert process.poll() is None
            time.sleep(0.05)
        process.kill()
    assert json.loads(curve.read_text().splitlines()[0])["loss"] > 0
    assert not (work / "kept-at-work").exists()  # its runs ended and are in the archive


SLOW = """
import sys
from benchmarks import gpu
gpu.PARTS = {name: gpu.Kind("tests.benchmarks.slow_part:slow", 60) for name in ("a", "b")}
gpu.main(["--device", "cpu", "--minutes", "1e4", "--to", sys.argv[1]])
"""


def test_a_killed_run_leaves_its_record_and_the_next_one_starts_clean(tmp_path, monkeypatch):
    """Both are ended while the first part is at work and the second waits for it."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for number, ended in ((signal.SIGKILL, "killed, or not yet"), (signal.SIGTERM, "SIGTERM")):
        to = tmp_path / number.name
        with subprocess.Popen([sys.executable, "-c", SLOW, to], stdout=subprocess.PIPE) as process:
            while _states(to).get("a") != "cut":
                assert process.poll() is None
                time.sleep(0.05)
            assert len(list(tmp_path.glob(f"{gpu.WORK}*"))) == 1
            process.send_signal(number)
            # Parts hold the other end of this pipe: it closes once none is left.
            process.communicate()
        record = json.loads(next(to.glob("cpu-*.json")).read_text())
        assert (record["ended"], _states(to)) == (ended, {"a": "cut", "b": "not begun"})
        assert record["machine"]["versions"]["torch"] == torch.__version__
    assert not list(tmp_path.glob(f"{gpu.WORK}*"))


def _states(folder: Path) -> dict[str, str]:
    for path in folder.glob("*.json"):
        return {name: part["state"] for name, part in json.loads(path.read_text())["parts"].items()}
    return {}


@pytest.mark.parametrize("wrong", [torch.tensor([1.0, 2.1]), torch.tensor([1.0, torch.nan])])
def test_a_wrong_gradient_fails_its_check(wrong):
    names = ["case: loss", "case: gradient of a", "case: gradient of b"]
    expected = dict.fromkeys(names, torch.tensor([1.0, 2.0]))
    found = {**expected, "case: gradient of a": wrong}
    loss, gradient = checked("kernels", lambda: found, expected, {})
    assert loss["passed"]
    assert not gradient["passed"]
    assert gradient["worst"] == "gradient of a"
    verdicts = [
        gpu.verdict({"state": state, "results": {"checks": checks}})
        for state, checks in (("done", [loss, gradient]), ("cut", [loss]))
    ]
    assert verdicts == [
        "FAILED: 1 of 2 checks failed, and the part was done",
        "NOT SHOWN: 0 of 1 checks failed, and the part was cut",
    ]


def test_a_part_that_fails_keeps_what_it_had(tmp_path):
    request = argparse.Namespace(device="cpu", small=True, work=tmp_path, to=tmp_path)
    assert not gpu.run_part("correctness", gpu.PARTS["correctness"], request)  # has no reference
    assert "reference.pt" in json.loads((tmp_path / "correctness.json").read_text())["failure"]
    assert gpu.run_part("more-runs", gpu.PARTS["more-runs"], request)  # is not begun without a pair


def test_no_more_runs_begin_when_the_time_is_over(tmp_path):
    pair = {f"{arm}-0": {"seconds": 9.0} for arm in gpu_speed.ARMS}
    (tmp_path / "runs.json").write_text(json.dumps({"steps": 20, **pair}))
    late = argparse.Namespace(device="cpu", small=False, work=tmp_path, ends=time.monotonic() - 40)
    assert list(gpu_speed.more_runs(late)) == []


def test_a_machine_that_will_not_do_is_told_why_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert gpu.main(["--to", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("error: no GPU here")
    assert not list(tmp_path.iterdir())
    done = subprocess.run(
        [sys.executable, "-I", "-S", gpu.__file__], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {sys.executable} lacks torch, megatron, ")


def test_a_python_with_torch_for_gpus_is_found_without_importing_torch(tmp_path):
    for package in ("megatron", "torch/lib"):
        (tmp_path / package).mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").write_text("raise AssertionError")
    (tmp_path / "torch" / "lib" / "libtorch_cuda.so").touch()
    python = tmp_path / "python"
    found = f"PYTHONPATH={tmp_path} exec {sys.executable}"
    python.write_text(f'#!/bin/sh\n[ "$1" = -c ] || exec echo "$@"\n{found} "$@"\n')
    python.chmod(0o755)
    command = ["make", "-C", gpu.ROOT, "-s", "--no-print-directory", "gpu"]
    command += [f"PYTHON=false {python}"]
    assert subprocess.check_output(command, text=True) == "benchmarks/gpu.py --minutes 9\n"


def test_the_checks_need_their_reference(capsys):
    with pytest.raises(SystemExit):
        gpu.main(["--device", "cpu", "--parts", "correctness"])
    assert "needs the part reference" in capsys.readouterr().err
