"""Check and measure a machine with one GPU, with one command, in a given number of minutes.

    python benchmarks/gpu.py --minutes 9 --to DIR      # make gpu MINUTES=9 TO=DIR; also 25 or 240
    python benchmarks/gpu.py --parts steps-270m        # some parts only, in the order of PARTS
    python benchmarks/gpu.py --device cpu --parts reference --to DIR  # beforehand: carry DIR
    python benchmarks/gpu.py --device cpu --small      # the same code, tiny, without a GPU

It checks losses and gradients against the CPU's. It measures the speed and memory of whole steps
in bfloat16 beside those of plain PyTorch, trains a baseline and superposed runs, which are kept as
an archive beside the record, and times saving, loading, the loss and attention.

The record, `cuda-<date>.json`, is written from the start and again with every result. So it
holds all that was found until then, however this process ends: at its end, by SIGTERM, Ctrl-C or
SIGKILL. A part that did not end is called "cut" in it. At the end a table is printed from it. The
exit status is 1 if a correctness check failed, or was asked for and not made.

Each part is a process of its own, so that a hanging kernel, a lost device or a full memory costs
that part and no other. No part outlives this process.
"""

import argparse
import importlib.util
import json
import math
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from contextlib import suppress
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
NEEDED = (
    *("torch", "megatron", "numpy", "psutil", "pydantic", "rich", "tokenizers", "tomli_w"),
    *("pandas", "pyarrow", "scipy"),
)
LACKING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
if LACKING:
    sys.exit(
        f"error: {sys.executable} lacks {', '.join(LACKING)}; name a Python that has them "
        "(make gpu PYTHON=…), or install what requirements.lock names beside this machine's torch"
    )
sys.path.insert(0, str(ROOT))  # the machine need not have the package installed


class Kind(NamedTuple):
    """How a part is made."""

    made_by: str
    """The generator, as `module:function`, that yields the part's results as pairs (name, value).
    """
    seconds: float
    """Its share of nine minutes. It may also use what the parts before it left unused; so all parts
    together never take longer than they may. With other `--minutes` the seconds are in proportion.
    """
    needs: str = ""
    """A part for whose end this part waits."""


BESIDE = ("reference", "corpus")
"""Parts that need no GPU. They begin at once and run beside the others. The reference can be
computed on another machine and carried in `--to`."""
PARTS = {
    "reference": Kind("benchmarks.gpu_correctness:reference", 0),
    "corpus": Kind("benchmarks.gpu_speed:corpus", 0),
    "correctness": Kind("benchmarks.gpu_correctness:correctness", 90, "reference"),
    "steps-600m": Kind("benchmarks.gpu_speed:steps", 90),
    "runs": Kind("benchmarks.gpu_speed:runs", 160, "corpus"),
    "steps-moe-10b": Kind("benchmarks.gpu_speed:steps", 70),
    "saving": Kind("benchmarks.gpu_speed:saving", 40),
    "kernels": Kind("benchmarks.gpu_speed:kernels", 35),
    "steps-270m": Kind("benchmarks.gpu_speed:steps", 45),
    "more-runs": Kind("benchmarks.gpu_speed:more_runs", 0, "runs"),
}


WORK = "tst-study-gpu-"
"""What the names of temporary folders begin with, in which the parts of a run work."""


class Stopped(BaseException):
    """A signal asked this process to stop; its name is the message."""


def main(arguments: list[str] | None = None) -> int:
    """Run the parts, keep the record and print its table. Return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny sizes: to try the script")
    parser.add_argument(
        "--minutes", type=float, default=9.0, help="minutes that all parts may take together"
    )
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--to", type=Path, default=ROOT / "benchmarks" / "records")
    options = parser.parse_args(arguments)
    options.began = time.monotonic()
    for part in options.parts:
        if (other := PARTS[part].needs) and other not in options.parts:
            parser.error(f"the part {part} needs the part {other}: name both")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _stop)
    from tst_study.file_lock import hold, is_held

    for left in Path(tempfile.gettempdir()).glob(f"{WORK}*"):
        with suppress(OSError):  # another user's
            if not is_held(left):  # its run was killed
                shutil.rmtree(left)
    folder = tempfile.TemporaryDirectory(prefix=WORK, ignore_cleanup_errors=True)
    with folder as name, hold(Path(name)):
        options.work = Path(name)
        record = Record(options)
        try:
            # After the record is there, because importing torch can take a minute.
            import torch

            from benchmarks.measuring import machine_facts

            if options.device == "cuda" and not torch.cuda.is_available():
                record.path.unlink()
                print("error: no GPU here; --device cpu --small tries the script without one")
                return 2
            record.facts["machine"] = machine_facts(options.device)
            measure(options, record)
            record.end("after all parts")
        except Stopped as stopped:
            record.end(str(stopped))
    print("\n".join(table(record.facts)))
    print(f"{record.path}: correctness: {record.facts['correctness']}")
    return 0 if record.facts["correctness"] in ("passed", "not asked for") else 1


def _stop(number: int, _: Any) -> None:
    signal.signal(number, signal.SIG_IGN)  # once is enough: the record is being written
    raise Stopped(signal.Signals(number).name)


class Part:
    """A part, in a process of its own, which leads a process group."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        """Start the process, which imports what it needs and waits until `begin`."""
        context = get_context("spawn")
        self.path = options.work / f"{name}.json"
        self.began = self.taken = 0.0
        self.killed = ""
        theirs, self.pipe = context.Pipe()
        self.process = context.Process(target=run_apart, args=(name, PARTS[name], options, theirs))
        self.process.start()

    def begin(self, ends: float) -> None:
        """Let the part begin, and tell it when it will be stopped."""
        self.began = time.monotonic()
        self.pipe.send(ends)

    def outcome(self) -> dict[str, Any]:
        """How the part stands (not begun, done, failed or cut), its seconds and its results."""
        if alive := self.process.is_alive() and self.began > 0:
            self.taken = time.monotonic() - self.began
        results = json.loads(self.path.read_text()) if self.path.exists() else {}
        state, failure = "done", results.pop("failure", None)
        if self.began == 0:
            state = "not begun"
        elif alive or self.killed:
            state, failure = "cut", self.killed or "still at work when this was written"
        elif failure or self.process.exitcode:
            state, failure = "failed", failure or f"exit status {self.process.exitcode}"
        return {"state": state, "seconds": self.taken, "failure": failure, "results": results}

    def kill(self, why: str) -> None:
        """Kill the part, with the processes that it started, unless it has ended."""
        if self.process.is_alive():
            self.killed = why
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:  # it has not made its group yet
                self.process.kill()
            self.process.join()


class Record:
    """The record on disk, and the parts that were begun."""

    def __init__(self, options: argparse.Namespace) -> None:
        date = time.strftime("%Y-%m-%dT%H-%M-%S")
        self.path = options.to / f"{options.device}-{date}.json"
        options.archive = (options.to / f"runs-{date}").absolute()
        self.options, self.parts = options, dict[str, Part]()
        self.facts: dict[str, Any] = {
            "schema_version": 7,
            "machine": None,
            "small": options.small,
            "minutes": options.minutes,
            "ended": "killed, or not yet",
        }
        options.to.mkdir(parents=True, exist_ok=True)
        self.write()

    def write(self) -> None:
        """Write all that is known by now."""
        from tst_study.atomic_files import write_json

        parts: dict[str, Any] = {name: {"state": "not begun"} for name in self.options.parts}
        parts |= {name: part.outcome() for name, part in self.parts.items()}
        self.facts["seconds"] = time.monotonic() - self.options.began
        self.facts["correctness"] = verdict(parts.get("correctness"))
        self.facts["parts"] = parts
        write_json(self.path, self.facts)

    def spawn(self, name: str) -> Part:
        """Return a part; its process is started unless it has been."""
        if name not in self.parts:
            self.parts[name] = Part(name, self.options)
        return self.parts[name]

    def may_begin(self, name: str) -> bool:
        """Whether the part that this one needs has ended."""
        needed = self.parts.get(PARTS[name].needs)
        return not (PARTS[name].needs and (needed is None or needed.process.is_alive()))

    def follow(self, name: str, ends: float) -> None:
        """Keep the record while a part is at work, until `ends` at most."""
        while (left := ends - time.monotonic()) > 0 and self.parts[name].process.is_alive():
            self.parts[name].process.join(min(1.0, left))
            self.write()

    def end(self, why: str) -> None:
        """Kill what is still at work, and write the record a last time."""
        self.facts["ended"] = why
        for part in self.parts.values():
            part.kill(f"still at work at the end ({why})")
        self.write()


def measure(options: argparse.Namespace, record: Record) -> None:
    """Run the parts one after the other, each until its share of the time is over."""
    all_seconds = 60 * options.minutes - 10  # 10 s are left to end in
    chosen = [name for name in PARTS if name in options.parts]
    for name in filter(BESIDE.__contains__, chosen):
        record.spawn(name).begin(math.inf)
    chosen = [name for name in chosen if name not in BESIDE]
    shares = sum(PARTS[name].seconds for name in chosen) or 1.0
    share = 0.0
    while chosen:
        record.spawn(chosen[0])  # it imports while it waits
        if not share and not record.may_begin(chosen[0]):  # the reference is soon there
            record.follow(PARTS[chosen[0]].needs, time.monotonic() + min(20, all_seconds / 20))
        # What waits lets the parts after it go first.
        name = next(filter(record.may_begin, chosen), chosen[0])
        chosen.remove(name)
        share += PARTS[name].seconds / shares
        ends = options.began + all_seconds * share
        part = record.spawn(name)
        if chosen:
            record.spawn(chosen[0])  # it imports while this part is at work
        if not record.may_begin(name):
            record.follow(PARTS[name].needs, ends)
        if ends - time.monotonic() > 5:
            part.begin(ends)
            record.follow(name, ends)
        part.kill(f"stopped after {part.taken:.0f} s")
        outcome = part.outcome()
        print(f"{name}: {outcome['state']} {outcome['failure'] or ''}", flush=True)
    for name in filter(BESIDE.__contains__, record.parts):
        record.follow(name, options.began + all_seconds)


def verdict(outcome: dict[str, Any] | None) -> str:
    """Return in words what the part `correctness` came to. Only "passed" means that every check
    was made and passed."""
    if outcome is None:
        return "not asked for"
    checks = outcome.get("results", {}).get("checks", [])
    failed = sum(not check["passed"] for check in checks)
    if outcome["state"] == "done" and checks and not failed:
        return "passed"
    word = "FAILED" if failed else "NOT SHOWN"
    return f"{word}: {failed} of {len(checks)} checks failed, and the part was {outcome['state']}"


def run_apart(name: str, kind: Kind, request: argparse.Namespace, pipe: Connection) -> None:
    """Run one part as the leader of a process group, which ends with the process that began it."""
    os.setsid()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if name in BESIDE:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the reference is the CPU's
        os.nice(10)
    resolve_name(kind.made_by)
    request.ends = pipe.recv()
    if not run_part(name, kind, request):
        sys.exit(1)


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os.killpg(0, signal.SIGKILL)


def run_part(name: str, kind: Kind, request: argparse.Namespace) -> bool:
    """Run one part in this process. Every result is on disk before the next one is computed. Return
    whether the part came to its end."""
    from tst_study.atomic_files import write_json

    request.part = name
    results: dict[str, Any] = {}
    try:
        for key, value in resolve_name(kind.made_by)(request):
            results[key] = value
            write_json(request.work / f"{name}.json", results)
    except Exception:
        failure = traceback.format_exc()[-2000:]
        write_json(request.work / f"{name}.json", {**results, "failure": failure})
        return False
    return True


def table(record: dict[str, Any]) -> list[str]:
    """Return the lines of a Markdown table of the steps in a record. A ratio is a median, with the
    quartiles."""
    rows = [
        "| steps of | latent tokens/s | MFU, of a measured product | over baseline "
        "| over plain PyTorch | peak over plan |",
        "|---|---|---|---|---|---|",
    ]
    for name, part in record["parts"].items():
        for who, row in part.get("results", {}).items() if name.startswith("steps") else ():
            if "latent_tokens_per_second" in row:
                ratios = [row["over"].get(other) for other in ("baseline", "plain PyTorch")]
                mfus = (row["mfu"], row["mfu_of_product"])
                memory = row["peak_memory"]
                cells = (
                    f"{name[6:]}, {who}",
                    f"{row['latent_tokens_per_second']:,.0f}",
                    ", ".join("-" if mfu is None else f"{mfu:.0%}" for mfu in mfus),
                    *("{1:.3f} ({0:.3f}–{2:.3f})".format(*of) if of else "-" for of in ratios),
                    "-" if memory is None else f"{memory / row['planned_memory']:.2f}",
                )
                rows.append(f"| {' | '.join(cells)} |")
    return rows


if __name__ == "__main__":
    sys.exit(main())
