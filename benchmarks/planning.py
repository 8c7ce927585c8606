"""Seconds and memory of planning and of the status of a study of 10,000 runs.

    python -m benchmarks.planning [--runs 10000]

The runs' folders are made first (a record and a status each), which is not timed.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

from experiments.plan.planner import Planner
from experiments.plan_table import lines
from experiments.runs.status import rows_of, totals
from experiments.studies.grid import grid
from experiments.studies.scales import TENTHS, scale_of
from experiments.study import Study
from tst_study.config import Config
from tst_study.data import run_data
from tst_study.run.identity import header_of
from tst_study.run.writer import RunWriter

DATA = {
    "corpora": [{"fingerprint": "ab", "weight": 1.0, "tokens": 50_000_000}],
    "validation": {"fingerprint": "cd", "tokens": 100_000},
    "tokenizer": "ef",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    count = parser.parse_args().runs
    run_data.fingerprints = lambda config: DATA
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        result = {"runs": count, **_planning(count, root)}
        _make_folders(count, root)
        result |= _timed("planning_when_half_are_done", lambda: len(_plan(count, root)))
        result |= _timed("plan_table", lambda: len(lines(Planner(_study(count), root))))
        result |= _timed("status", lambda: totals(rows_of(_study(count), root)))
    result["peak_memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps(result, indent=1))


def _planning(count: int, root: Path) -> dict[str, object]:
    return _timed("planning_from_nothing", lambda: len(_plan(count, root)))


def _configs(count: int) -> list[Config]:
    """Every s from 2 to 11 with every r, seed by seed: ten runs to a trunk."""
    setting, arms = scale_of("desktop").setting, grid(range(2, 12), TENTHS)
    seeds = -(-count // len(arms))
    runs = [setting.config("large", arm, seed) for seed in range(seeds) for arm in arms]
    return runs[:count]


def _study(count: int) -> Study:
    configs = _configs(count)
    return Study("large", "benchmark", "Large", "Nothing.", {}, lambda results: configs)


def _plan(count: int, root: Path) -> list[object]:
    return list(Planner(_study(count), root).decided())


def _make_folders(count: int, root: Path) -> None:
    """Half of the runs done, the others preempted."""
    for number, run in enumerate(Planner(_study(count), root, share=False).decided()):
        writer = RunWriter(run.folder, header_of(run.config, DATA))
        segment = writer.start_segment(None, {})
        writer.metrics(_metrics(segment))
        writer.evaluation(_evaluation(segment, run.config.schedule.steps, 3.0 + number % 7 / 100))
        writer.status("done" if number % 20 > 9 else "preempted", 100, loss=3.0)
        writer.close()


def _metrics(segment: int) -> dict[str, object]:
    return {
        **_counters(segment, 100),
        "bag_size": 4,
        "loss_name": "mce",
        "loss": 3.0,
        "learning_rate": 1e-3,
        "gradient_norm": 1.0,
        "step_seconds": 0.1,
        "training_seconds": 1.0,
        "tokens_per_second": 10.0,
        "mfu": None,
        "peak_memory": 1,
    }


def _evaluation(segment: int, step: int, loss: float) -> dict[str, object]:
    return {
        **_counters(segment, step),
        "eval_set": "books-cd",
        "nats_per_token": loss,
        "bits_per_byte": None,
        "standard_error": 0.01,
        "tokens": 100,
        "annealed": True,
        "seconds": 0.1,
        "training_seconds": 1.0,
    }


def _counters(segment: int, step: int) -> dict[str, object]:
    keys = ("raw_tokens", "latent_tokens", "flops")
    return {
        "segment": segment,
        "step": step,
        "phase": "recovery",
        "epochs": 0.1,
        **dict.fromkeys(keys, step),
    }


def _timed(name: str, work: object) -> dict[str, object]:
    began = time.perf_counter()
    said = work()  # type: ignore[operator]
    return {name: {"seconds": round(time.perf_counter() - began, 2), "result": said}}


if __name__ == "__main__":
    main()
