"""Time and extra memory of the bag loss beside one plain cross-entropy and the naive loop.

    python -m benchmarks.bag_loss                                  # laptop: 1024 x 1024
    python -m benchmarks.bag_loss --positions 2048 --vocabulary 32768 --json bag_loss.json
    python -m benchmarks.bag_loss --device cuda --dtype bfloat16 --positions 8192 \
        --vocabulary 128256

All candidates run in one process, once per repeat and in a new order each time, so that a busy
machine slows all of them; medians and ratios to the plain cross-entropy are reported. Times are
forward plus backward; memory is the peak above what stood before the call (the logits), and so
holds the gradient of the logits, which every candidate must have.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.interleaved import interleaved_seconds, medians
from tst_study.superposition import BagLossKind, bag_loss, bag_targets


@dataclass(frozen=True)
class Result:
    """Medians over the repeats. `extra_mebibytes` is None where the system cannot tell."""

    name: str
    milliseconds: float
    ratio_to_cross_entropy: float
    extra_mebibytes: float | None


def naive_loop(logits: Tensor, labels: Tensor, bag_size: int) -> Tensor:
    """One cross-entropy per offset, as one writes it first."""
    targets = bag_targets(labels, bag_size)
    losses = [
        F.cross_entropy(logits.flatten(0, 1).float(), targets[..., i].flatten())
        for i in range(bag_size)
    ]
    return torch.stack(losses).mean()


def candidates(logits: Tensor, bag_sizes: list[int]) -> dict[str, Callable[[], Tensor]]:
    """Loss functions without arguments, by the name under which they are reported."""
    _, positions, vocabulary = logits.shape
    labels = {
        s: torch.randint(vocabulary, (1, positions * s), device=logits.device)
        for s in {1, *bag_sizes}
    }

    def plain() -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1).float(), labels[1].flatten())

    def bag(s: int, kind: BagLossKind) -> Callable[[], Tensor]:
        return lambda: bag_loss(logits, labels[s], s, kind=kind)

    largest = max(bag_sizes)
    return {
        "cross_entropy": plain,
        **{f"mce s={s}": bag(s, "mce") for s in bag_sizes},
        f"sum_to_one s={largest}": bag(largest, "sum_to_one"),
        f"naive loop s={largest}": lambda: naive_loop(logits, labels[largest], largest),
    }


def forward_and_backward(loss: Callable[[], Tensor], logits: Tensor) -> None:
    logits.grad = None
    loss().backward()  # type: ignore[no-untyped-call]
    if logits.is_cuda:
        torch.cuda.synchronize()


@contextmanager
def peak_memory(device: torch.device) -> Iterator[Callable[[], float | None]]:
    """Yields a function that tells, after the block, the peak in MiB above its start."""
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


def measure(logits: Tensor, bag_sizes: list[int], repeats: int) -> list[Result]:
    """Interleaved repeats of all candidates; one result each, the plain cross-entropy first."""
    runs = {
        name: partial(forward_and_backward, loss, logits)
        for name, loss in candidates(logits, bag_sizes).items()
    }
    memory: dict[str, float | None] = {}
    for name, run in runs.items():  # warm-up
        logits.grad = None
        with peak_memory(logits.device) as peak:
            run()
        memory[name] = peak()
    middle = medians(interleaved_seconds(runs, repeats, warm_up=0))
    plain = middle["cross_entropy"]
    return [
        Result(name, 1e3 * median, median / plain, memory[name]) for name, median in middle.items()
    ]


def print_table(results: list[Result]) -> None:
    print(f"{'forward + backward':<20} {'ms':>10} {'ratio':>8} {'extra MiB':>10}")
    for r in results:
        extra = "-" if r.extra_mebibytes is None else f"{r.extra_mebibytes:.0f}"
        print(f"{r.name:<20} {r.milliseconds:>10.2f} {r.ratio_to_cross_entropy:>8.2f} {extra:>10}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--positions", type=int, default=1024, help="latent positions (rows)")
    parser.add_argument("--vocabulary", type=int, default=1024)
    parser.add_argument("--bag-sizes", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--threads", type=int, help="CPU threads (default: torch's own)")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    dtype = getattr(torch, options.dtype)
    logits = torch.randn(1, options.positions, options.vocabulary, device=options.device)
    logits = logits.to(dtype).requires_grad_()
    results = measure(logits, options.bag_sizes, options.repeats)

    where = (
        torch.cuda.get_device_name()
        if logits.is_cuda
        else f"CPU, {torch.get_num_threads()} threads"
    )
    print(f"{options.positions} x {options.vocabulary} {options.dtype} on {where}")
    print_table(results)
    if options.json is not None:
        record = {
            "device": where,
            "torch": torch.__version__,
            "positions": options.positions,
            "vocabulary": options.vocabulary,
            "dtype": options.dtype,
            "repeats": options.repeats,
            "results": [asdict(result) for result in results],
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
