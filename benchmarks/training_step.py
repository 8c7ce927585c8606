"""The package's whole training step beside plain PyTorch's, and a superposed step beside it.

    python -m benchmarks.training_step                         # all sizes, some minutes
    python -m benchmarks.training_step --sizes laptop-64 --repeats 200 --json step.json
    python -m benchmarks.training_step --compile               # our layers through torch.compile

A step is: zero the gradients, forward, loss, backward, clip, AdamW. Candidates run in one process,
each once per repeat and in a new order each time; times are medians, ratios are medians of the
ratios within a repeat.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.measuring import interleaved_seconds, machine_facts, median_ratio, medians
from benchmarks.steps import Compiler, PackageSteps, plain_step, step_config
from tst_study.model.model import superposition_objective
from tst_study.parallel.process_groups import process_groups
from tst_study.process.host import keep_freed_memory

OURS, SUPERPOSED, PLAIN = "tst_study", "tst_study, superposed", "plain PyTorch"
MOST_OF_SUPERPOSED = 1.10
"""Largest superposed step over a baseline step, at any size."""


@dataclass(frozen=True)
class Size:
    """What is compared, and the most that our step may cost of plain PyTorch's."""

    model: dict[str, Any]
    sequences: int
    length: int
    threads: int
    most_of_plain: float


SIZES = {
    # The laptop study's own size, one thread per run as its launcher gives.
    "laptop-64": Size({"preset": "laptop-64"}, 16, 64, threads=1, most_of_plain=1.25),
    "laptop-256": Size({"preset": "laptop-256"}, 8, 256, threads=2, most_of_plain=1.0),
    # Where the head is as large as all layers: what the loss in one pass is for.
    "768-32k": Size(
        {
            "layers": 4,
            "hidden_size": 768,
            "attention_heads": 12,
            "key_value_heads": 12,
            "head_size": 64,
            "feed_forward_size": 2048,
            "vocabulary_size": 32_768,
        },
        *(4, 256),
        threads=2,
        most_of_plain=0.8,
    ),
    "tiny": Size({"preset": "laptop-64"}, 2, 16, threads=1, most_of_plain=1.25),  # for the tests
}


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of each candidate at one size, and how the targets are met."""
    size, bag_size = SIZES[name], options.bag_size
    threads = options.threads or size.threads
    torch.set_num_threads(threads)
    config = step_config(
        size.model,
        size.sequences,
        size.length,
        bag_size=bag_size,
        step_ratio=0.5,
    )
    compiler: Compiler | None = "inductor" if options.compile else None
    with process_groups(config) as ranks:
        ours = PackageSteps(config, ranks.device, compiler)
        candidates = {
            OURS: ours.step(),
            SUPERPOSED: ours.step(superposition_objective(config.superposition)),
            PLAIN: plain_step(config, ranks.device),
        }
        times = interleaved_seconds(candidates, options.repeats, seconds=options.seconds)
    tokens = size.sequences * size.length
    comparisons = [
        {"what": what, "ratio": median_ratio(times, one, other), "target": target}
        for what, one, other, target in (
            (f"{OURS} / {PLAIN}", OURS, PLAIN, size.most_of_plain),
            (f"superposed s={bag_size} / baseline", SUPERPOSED, OURS, MOST_OF_SUPERPOSED),
        )
    ]
    middle = medians(times)
    return {
        "size": name,
        "bag_size": bag_size,
        "threads": threads,
        "compiled": options.compile,
        "repeats": len(times[OURS]),
        "milliseconds": {key: 1e3 * value for key, value in middle.items()},
        "latent_tokens_per_second": {key: tokens / value for key, value in middle.items()},
        "comparisons": comparisons,
    }


def print_tables(results: list[dict[str, Any]]) -> None:
    for result in results:
        for name, milliseconds in result["milliseconds"].items():
            speed = result["latent_tokens_per_second"][name]
            print(
                f"{result['size']:<12} {name:<30} {milliseconds:>9.2f} ms {speed:>12,.0f} tokens/s"
            )
        for row in result["comparisons"]:
            mark = "" if row["ratio"] <= row["target"] else "  missed"
            print(
                f"{result['size']:<12} {row['what']:<30} {row['ratio']:>9.3f} of at most "
                f"{row['target']:.2f}{mark}"
            )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sizes",
        nargs="+",
        choices=list(SIZES),
        default=[name for name in SIZES if name != "tiny"],
    )
    parser.add_argument("--bag-size", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=60.0, help="most per size, then it stops")
    parser.add_argument("--threads", type=int, help="in place of each size's own number")
    parser.add_argument("--compile", action="store_true", help="torch.compile our layers")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args(arguments)

    keep_freed_memory()  # as train does; plain PyTorch, in this process, gains as much from it
    results = [measure(name, options) for name in options.sizes]
    print_tables(results)
    if options.json is not None:
        record = {"machine": machine_facts(), "results": results}
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
