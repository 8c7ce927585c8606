"""Time and extra memory of head and bag loss beside the head and one plain cross-entropy.

    python -m benchmarks.bag_loss --threads 2 --json loss.json
    python -m benchmarks.bag_loss --device cuda --dtype bfloat16 --sizes 8192x4096x128256x8

All candidates of a size run in one process, once per repeat and in a new order each time, so that
a busy machine slows all of them. Times are forward plus backward, to the gradients of hidden states
and head; memory is the peak above what stood before, less the two gradients, which all must have.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.measuring import interleaved_seconds, machine_facts, median_ratio
from tst_study.superposition import linear_bag_loss

PLAIN = "plain cross-entropy"
SIZES = ((1024, 64, 1024, 4), (2048, 512, 32_768, 16), (2048, 1024, 32_768, 6))
"""Positions, hidden size, vocabulary, s."""


def candidates(
    hidden: Tensor, head: Tensor, bag_size: int, compiled: bool
) -> dict[str, Callable[[], Tensor]]:
    """Losses without arguments, by the name under which they are reported."""
    positions, vocabulary = hidden.shape[1], head.shape[0]
    labels = torch.randint(vocabulary, (1, positions * bag_size), device=hidden.device)
    first = labels[:, :positions]

    def ours(chosen: Tensor, s: int, **more: Any) -> Callable[[], Tensor]:
        return lambda: linear_bag_loss(hidden, head, chosen, s, batch_first=True, **more)

    found = {
        PLAIN: lambda: F.cross_entropy((hidden @ head.T).flatten(0, 1).float(), first.flatten()),
        "ours, s=1": ours(first, 1, compiled=compiled),
        f"ours, s={bag_size}": ours(labels, bag_size, compiled=compiled),
    }
    if hasattr(F, "linear_cross_entropy"):  # torch 2.13

        def fused(rows: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
            return F.linear_cross_entropy(rows, weight, targets, reduction="none")

        found[f"torch's, s={bag_size}"] = ours(labels, bag_size, cross_entropy=fused)
    return found


@contextmanager
def peak_memory(device: torch.device) -> Iterator[Callable[[], float | None]]:
    """Yields a function that tells, after the block, the peak in MiB above its start; None where
    the system cannot tell."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        yield lambda: (torch.cuda.max_memory_allocated() - before) / 2**20
        return
    try:
        Path("/proc/self/clear_refs").write_text("5")  # Linux: peak resident size := current
    except OSError:
        yield lambda: None
        return
    start = _resident_kibibytes("VmRSS")
    yield lambda: (_resident_kibibytes("VmHWM") - start) / 2**10


def _resident_kibibytes(field: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith(field)))


def measure(
    size: tuple[int, int, int, int], repeats: int, device: str = "cpu", dtype: str = "float32"
) -> dict[str, Any]:
    """By candidate: medians of milliseconds, of the ratio to plain, and the extra MiB."""
    positions, width, vocabulary, bag_size = size
    torch.manual_seed(0)
    hidden = torch.randn(1, positions, width, device=device, dtype=getattr(torch, dtype))
    head = torch.randn(vocabulary, width, device=device, dtype=hidden.dtype) / width**0.5
    hidden, head = hidden.requires_grad_(), head.requires_grad_()
    gradients = sum(x.numel() * x.element_size() for x in (hidden, head)) / 2**20

    def run(loss: Callable[[], Tensor]) -> None:
        hidden.grad = head.grad = None
        loss().backward()  # type: ignore[no-untyped-call]
        if hidden.is_cuda:
            torch.cuda.synchronize()

    calls = {
        name: (lambda loss=loss: run(loss))
        for name, loss in candidates(hidden, head, bag_size, hidden.is_cuda).items()
    }
    extra: dict[str, float | None] = {}
    for name, call in calls.items():
        call()  # buffers that a library makes once are none of its loss's
        hidden.grad = head.grad = None
        with peak_memory(hidden.device) as peak:
            call()
        found = peak()
        extra[name] = None if found is None else max(0.0, found - gradients)
    times = interleaved_seconds(calls, repeats, warm_up=0)
    return {
        "size": "x".join(map(str, size[:3])),
        "bag_size": bag_size,
        "threads": torch.get_num_threads(),
        "repeats": repeats,
        "losses": {
            name: {
                "milliseconds": 1e3 * statistics.median(times[name]),
                "over_plain": median_ratio(times, name, PLAIN),
                "extra_mebibytes": extra[name],
            }
            for name in calls
        },
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--sizes", nargs="+", help="positions x hidden x vocabulary x s")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    asked = [tuple(map(int, size.split("x"))) for size in options.sizes or []]
    results = []
    for size in asked or SIZES:
        found = measure(size, options.repeats, options.device, options.dtype)
        results.append(found)
        for name, row in found["losses"].items():
            memory = row["extra_mebibytes"]
            print(
                f"{found['size']:<16} {name:<20} {row['milliseconds']:>9.2f} ms "
                f"{row['over_plain']:>6.3f} {'-' if memory is None else f'{memory:.0f}':>6} MiB"
            )
    if options.json is not None:
        record = {"machine": machine_facts(options.device), "results": results}
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
