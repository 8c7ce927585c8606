"""Check and measure a machine with one GPU, with one command, in a given number of minutes.

    python benchmarks/gpu.py --minutes 8               # make gpu MINUTES=8; also 25 or 240
    python benchmarks/gpu.py --parts steps-270m loss   # some parts only, in this order
    python benchmarks/gpu.py --device cpu --small      # the same code, tiny, without a GPU

The part `correctness` needs `reference` before it, and `runs` needs `corpus`.

It checks losses and gradients against the CPU's. It measures the speed and memory of the loss and
of whole steps in bfloat16, lists the kernels of a step, and times saving, loading and resuming.
With 20 minutes or more, the time that is left goes to runs that compare baseline and superposition,
which are kept beside the record.

It writes one JSON record, `<device>-<date>.json`, also when parts fail, and prints a table from it.
The exit status is 1 if a correctness check failed, or was asked for and not made.

Each part is a process of its own, so that a hanging kernel, a lost device or a full memory costs
that part and no other. A part that takes too long is stopped, and what it had found is kept.
"""

import argparse
import importlib.util
import json
import math
import os
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

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

import torch  # noqa: E402

PARTS: dict[str, tuple[str, float]] = {
    "corpus": ("benchmarks.gpu_speed:corpus", math.inf),
    "reference": ("benchmarks.gpu_correctness:reference", 60),
    "correctness": ("benchmarks.gpu_correctness:correctness", 150),
    "steps-600m": ("benchmarks.gpu_speed:steps", 100),
    "steps-moe-10b": ("benchmarks.gpu_speed:steps", 100),
    "saving": ("benchmarks.gpu_speed:saving", 90),
    "loss": ("benchmarks.gpu_speed:loss", 60),
    "steps-270m": ("benchmarks.gpu_speed:steps", 100),
    "runs": ("benchmarks.gpu_speed:runs", math.inf),
}
"""For each part, the generator that yields its results as pairs (name, value), and the most seconds
that the part may take. Up to `--minutes 8` these seconds are as given; with more minutes they grow
in proportion. A part is skipped if less than five seconds are left, or less than a fifth of the
part's seconds. A part that may take more than 20 minutes is skipped only if less than four minutes
are left.

`corpus` runs beside the other parts. `runs` waits for `corpus` to end, reads the text that `corpus`
prepared, and takes all the time that is left."""
MINUTES_FOR_RUNS = 20
"""With fewer minutes `corpus` and `runs` are left out (except with `--small`), because the other
parts together take about ten minutes."""


def main(arguments: list[str] | None = None) -> int:
    """Run the parts, write the record and print its table. Return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny sizes: to try the script")
    parser.add_argument(
        "--minutes", type=float, default=8.0, help="minutes that all parts may take together"
    )
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--to", type=Path, default=ROOT / "benchmarks" / "records")
    options = parser.parse_args(arguments)
    for part, other in (("correctness", "reference"), ("runs", "corpus")):
        if part in options.parts and other not in options.parts:
            parser.error(f"the part {part} needs the part {other}: name both")
    if options.device == "cuda" and not torch.cuda.is_available():
        print("error: --device cuda: no GPU here; --device cpu --small tries the script without")
        return 2
    by_default = options.parts == list(PARTS)
    if by_default and options.minutes < MINUTES_FOR_RUNS and not options.small:
        options.parts = [name for name in options.parts if name not in ("corpus", "runs")]
    options.ends = time.monotonic() + 60 * options.minutes - 10  # 10 s to write the record
    date = time.strftime("%Y-%m-%dT%H-%M-%S")
    options.runs = (options.to / f"runs-{date}").absolute()
    with tempfile.TemporaryDirectory() as folder:
        options.work = Path(folder)
        record = measure(options)
    options.to.mkdir(parents=True, exist_ok=True)
    device = "-".join(record["machine"]["device"].lower().split())
    small = "-small" if record["small"] else ""
    path = options.to / f"{device}{small}-{record['machine']['date'][:10]}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    print("\n".join(table(record)))
    print(f"{path}: {'passed' if record['passed'] else 'FAILED'}")
    return 0 if record["passed"] else 1


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run the parts in order and return the record of their results."""
    from benchmarks.measuring import machine_facts

    began = time.monotonic()
    outcomes: dict[str, Any] = {}
    with ThreadPoolExecutor(1) as pool:
        beside = None
        for name in options.parts:
            if name == "runs" and beside is not None:
                outcomes["corpus"] = beside.result()
            most = PARTS[name][1] * max(1.0, options.minutes / 8)
            seconds = min(most, options.ends - time.monotonic())
            if seconds < max(5.0, min(most, MINUTES_FOR_RUNS * 60) / 5):
                outcomes[name] = {"state": "skipped", "failure": "too little time", "results": {}}
            elif name == "corpus":
                beside = pool.submit(run_apart, name, options, seconds)
                continue
            else:
                outcomes[name] = run_apart(name, options, seconds)
            state, failure = outcomes[name]["state"], outcomes[name]["failure"]
            print(f"{name}: {state} {failure or ''}", flush=True)
        if beside is not None:  # also where no part waited for it
            outcomes["corpus"] = beside.result()
    return {
        "schema_version": 4,
        "machine": machine_facts(options.device),
        "small": options.small,
        "minutes": options.minutes,
        "seconds": time.monotonic() - began,
        "passed": "correctness" not in outcomes or _correct(outcomes["correctness"]),
        "parts": outcomes,
    }


def _correct(outcome: dict[str, Any]) -> bool:
    """Return whether every check was made and passed."""
    checks = outcome["results"].get("checks", [])
    return outcome["state"] == "done" and bool(checks) and all(check["passed"] for check in checks)


def run_apart(name: str, options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """Run a part in a process of its own, and stop it after `seconds`. Return how it ended and the
    results that it had written by then."""
    began = time.monotonic()
    process = get_context("spawn").Process(target=run_part, args=(name, PARTS[name][0], options))
    process.start()
    process.join(seconds)
    path = options.work / f"{name}.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    state, failure = "done", results.pop("failure", None)
    if process.is_alive():
        process.kill()
        state, failure = "out of time", f"stopped after {seconds:.0f} s"
    elif process.exitcode:
        state, failure = "failed", failure or f"exit status {process.exitcode}"
    taken = time.monotonic() - began
    return {"state": state, "seconds": taken, "failure": failure, "results": results}


def run_part(name: str, made_by: str, request: argparse.Namespace) -> None:
    """Run one part in this process. Every result is on disk before the next one is computed.

    made_by: the part's generator as `module:function`.
    """
    from tst_study.atomic_files import write_json

    if name == "reference":  # hide the GPU: the reference values are to come from the CPU
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    request.part = name
    module, _, function = made_by.partition(":")
    results: dict[str, Any] = {}
    try:
        for key, value in getattr(import_module(module), function)(request):
            results[key] = value
            write_json(request.work / f"{name}.json", results)
    except Exception:
        failure = traceback.format_exc()[-2000:]
        write_json(request.work / f"{name}.json", {**results, "failure": failure})
        sys.exit(1)


def table(record: dict[str, Any]) -> list[str]:
    """Return the lines of a Markdown table of the steps in a record: their speed, their MFU, and
    their peak memory over the planned memory."""
    rows = ["| model, steps of | latent tokens/s | MFU | peak over plan |", "|---|---|---|---|"]
    for name, part in record["parts"].items():
        for who, row in part["results"].items() if name.startswith("steps") else ():
            if "latent_tokens_per_second" in row:
                mfu, memory, planned = row["mfu"], row["peak_memory"], row["planned_memory"]
                rows.append(
                    f"| {name[6:]}, {who} | {row['latent_tokens_per_second']:,.0f} | "
                    f"{'-' if mfu is None else f'{mfu:.0%}'} | "
                    f"{'-' if memory is None else f'{memory / planned:.2f}'} |"
                )
    return rows


if __name__ == "__main__":
    sys.exit(main())
