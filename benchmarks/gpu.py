"""Everything to be known of one GPU machine, in one command and at most eight minutes.

    python benchmarks/gpu.py                            # make gpu
    python benchmarks/gpu.py --parts correctness loss   # some parts only
    python benchmarks/gpu.py --device cpu --small       # the same code, tiny, where no GPU is

Correctness against the CPU, speed and memory of loss and steps in bfloat16, and a short pair of
runs at matched FLOPs. Writes one JSON record, `<device>-<date>.json`, also when parts fail; exit
status 1 if a correctness check fails or could not be made.

Each part is a process of its own, so that a hanging kernel, a lost device or a full memory costs
that part and no other; one that overruns is stopped and keeps what it had found.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NEEDED = ("torch", "megatron", "numpy", "psutil", "pydantic", "rich", "tokenizers", "tomli_w")
LACKING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
if LACKING:
    sys.exit(
        f"error: {sys.executable} lacks {', '.join(LACKING)}; name a Python that has them "
        "(make gpu PYTHON=…), or install what requirements.lock names beside this machine's torch"
    )
sys.path.insert(0, str(ROOT))  # the machine need not have the package installed

import torch  # noqa: E402

from benchmarks.gpu_parts import PARTS, Request, run_part  # noqa: E402

SCHEMA_VERSION = 1
SECONDS_ALLOWED = 470.0
CHECKING = {"correctness", "layouts"}


@dataclass
class Outcome:
    state: str
    """done, failed, `out of time` (stopped, with what it had), or skipped (never begun)."""
    seconds: float = 0.0
    failure: str | None = None
    results: dict[str, Any] = field(default_factory=dict)


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    request = Request(options.device, options.small, options.work or Path(), options.budget)
    if options.part:  # this is the process of one part
        run_part(options.part, request)
        return 0
    if options.device == "cuda" and not torch.cuda.is_available():
        print("error: --device cuda: no GPU here; --device cpu --small tries the script without")
        return 2
    if options.work is not None:
        record = measure(options)
    else:
        with tempfile.TemporaryDirectory() as folder:
            options.work = Path(folder)
            record = measure(options)
    print(f"{write_record(record, options.to)}: {'passed' if record['passed'] else 'FAILED'}")
    return 0 if record["passed"] else 1


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run the parts in order and put their results together."""
    from benchmarks.machine import machine_facts

    began = time.monotonic()
    outcomes: dict[str, Outcome] = {}
    for name in options.parts:
        part = PARTS[name]
        seconds = min(part.share * options.budget, options.budget - (time.monotonic() - began))
        if seconds < part.least_share * options.budget:
            outcomes[name] = Outcome("skipped", failure="no time was left")
        else:
            request = Request(options.device, options.small, options.work, seconds)
            here = options.in_process
            outcomes[name] = run_here(name, request) if here else run_apart(name, request)
        print(f"{name}: {outcomes[name].state} in {outcomes[name].seconds:.0f} s", flush=True)
        if outcomes[name].failure:
            print(f"  {outcomes[name].failure}", flush=True)
    machine = machine_facts(options.device)
    machine["code"]["commit"] = machine["code"]["commit"] or options.commit
    return {
        "schema_version": SCHEMA_VERSION,
        "machine": machine,
        "small": options.small,
        "seconds_allowed": options.budget,
        "seconds": time.monotonic() - began,
        "passed": _correct(outcomes),
        "parts": {name: asdict(outcome) for name, outcome in outcomes.items()},
    }


def run_apart(name: str, request: Request) -> Outcome:
    """A part as a process; what it wrote by its end, or by the end of its time."""
    command = [sys.executable, __file__, "--part", name, "--device", request.device]
    command += ["--work", str(request.work), "--budget", str(request.seconds)]
    command += ["--small"] if request.small else []
    environment = {**os.environ, **PARTS[name].environment}
    began = time.monotonic()
    failure = None
    try:
        done = subprocess.run(
            command,
            env=environment,
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
            timeout=request.seconds,
        )
        state = "done" if done.returncode == 0 else "failed"
        if state == "failed":
            failure = f"exit status {done.returncode}: {done.stderr[-2000:]}"
    except subprocess.TimeoutExpired:
        state, failure = "out of time", f"stopped after {request.seconds:.0f} s"
    return Outcome(state, time.monotonic() - began, failure, request.read(name))


def run_here(name: str, request: Request) -> Outcome:
    """A part in this process: easier to debug, and quick to test."""
    began = time.monotonic()
    try:
        run_part(name, request)
        state, failure = "done", None
    except Exception as error:
        state, failure = "failed", f"{type(error).__name__}: {error}"
    return Outcome(state, time.monotonic() - began, failure, request.read(name))


def write_record(record: dict[str, Any], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    device = "-".join(record["machine"]["device"].lower().split())
    small = "-small" if record["small"] else ""
    path = folder / f"{device}{small}-{record['machine']['date'][:10]}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path


def _correct(outcomes: dict[str, Outcome]) -> bool:
    """Whether every check was made and passed; true where none was asked for."""
    for name in CHECKING & outcomes.keys():
        state, results = outcomes[name].state, outcomes[name].results
        checks = results.get("checks", [])
        made = state == "done" and bool(checks or "left out" in results)
        if not made or not all(check["passed"] for check in checks):
            return False
    return True


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny sizes: to try the script")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--to", type=Path, default=ROOT / "benchmarks" / "records")
    parser.add_argument("--budget", type=float, default=SECONDS_ALLOWED, help="seconds in all")
    parser.add_argument("--commit", help="of this code, where it lies here without its .git")
    parser.add_argument("--work", type=Path, help="folder for what parts leave (default: none)")
    parser.add_argument("--in-process", action="store_true", help="no processes of their own")
    parser.add_argument("--part", choices=list(PARTS), help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
