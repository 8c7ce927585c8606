"""For how long training stands still for a checkpoint, written beside it and written first.

    python -m benchmarks.saving                                # 34M weights, about two minutes
    python -m benchmarks.saving --json saving.json --folder /scratch

Per repeat, in turn: some steps alone; a checkpoint that the loop waits for; a checkpoint that a
thread writes while steps go on until it is whole. On a processor the thread takes cores from the
steps, on a GPU it does not.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.machine import machine_facts
from benchmarks.steps import PackageSteps, Step, step_config
from tst_study.cost.compute import count_parameters
from tst_study.megatron.checkpoint import Checkpoints
from tst_study.megatron.process_groups import process_groups
from tst_study.process.memory_reuse import keep_freed_memory

SIZES: dict[str, dict[str, Any]] = {
    "34m": {
        "layers": 8,
        "hidden_size": 512,
        "attention_heads": 8,
        "key_value_heads": 8,
        "head_size": 64,
        "feed_forward_size": 1408,
        "vocabulary_size": 8192,
    },
    "tiny": {"preset": "laptop-64"},  # for the tests
}
STEPS = 3


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--size", choices=SIZES, default="34m")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="on the disk in question; emptied afterwards")
    parser.add_argument("--json", type=Path, help="write the result there")
    given = parser.parse_args(arguments)
    keep_freed_memory()
    config = step_config(SIZES[given.size], sequences=2, length=128)
    with process_groups(config) as ranks, tempfile.TemporaryDirectory(dir=given.folder) as folder:
        ours = PackageSteps(config, ranks.device)
        checkpoints = Checkpoints(Path(folder), keep=1)
        rows = [
            _repeat(ours, ours.step(), checkpoints, number) for number in range(given.repeats + 1)
        ][1:]
    found = {name: median(row[name] for row in rows) for name in rows[0]}
    weights = count_parameters(config.model).total
    print(f"{weights:,} weights, float32, medians of {given.repeats} repeats, seconds")
    for name, seconds in found.items():
        print(f"  {name:<42}{seconds:8.3f}")
    still = median(row["still, written beside"] / row["still, written first"] for row in rows)
    print(f"standing still, beside over first: {still:.2f}")
    if given.json:
        record = {"machine": machine_facts(), "weights": weights, "seconds": rows, "ratio": still}
        given.json.write_text(json.dumps(record, indent=1) + "\n")


def _repeat(
    ours: PackageSteps, step: Step, checkpoints: Checkpoints, number: int
) -> dict[str, float]:
    seconds: dict[str, float] = {}
    began = time.perf_counter()
    for _ in range(STEPS):
        step()
    seconds["a step alone"] = (time.perf_counter() - began) / STEPS

    began = time.perf_counter()
    checkpoints.save(2 * number + 1, ours.model, ours.optimizer, {})
    seconds["still, written first"] = time.perf_counter() - began

    began = time.perf_counter()
    checkpoints.begin(2 * number + 2, ours.model, ours.optimizer, {}, while_training=True)
    planned, steps = time.perf_counter(), 0
    while checkpoints.writing or not steps:
        step()
        steps += 1
    written = time.perf_counter()
    checkpoints.finish()
    seconds["still, written beside"] = planned - began + time.perf_counter() - written
    seconds["a step while it is written"] = (written - planned) / steps
    return seconds


if __name__ == "__main__":
    main()
