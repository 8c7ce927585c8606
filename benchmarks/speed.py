"""Time and memory of whole training steps, and of head and bag loss, beside those of plain PyTorch.

    python -m benchmarks.speed --threads 2 --json speed.json     # all sizes, some minutes
    python -m benchmarks.speed laptop-64 --repeats 200 --compile
    python -m benchmarks.speed 2048x512x32768x16

A size of whole steps is a name: laptop-64, laptop-256 or 768-32k. A size of head and loss is
positions x hidden size x vocabulary x s. A step zeroes the gradients, runs forward, computes the
loss, runs backward, clips the gradients and updates the weights by AdamW. Head and loss are timed
forward and backward, down to the gradients of the hidden states and of the head. All candidates of
a size run in one process and alternate (A-B-A-B), each once per repeat. Times are medians over the
repeats, and so are ratios of times, which are taken within a repeat.
"""

import argparse
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.measuring import device_name, machine_facts, measured
from benchmarks.steps import Compiler, PackageSteps, Step, attention_of, plain_step, step_config
from tst_study.config.phase_plan import plan_phases
from tst_study.config.presets import dense
from tst_study.config.schema import Config
from tst_study.cost.compute import count_flops
from tst_study.cost.devices import peak_flops
from tst_study.cost.memory import estimate_memory
from tst_study.parallel.process_groups import process_groups
from tst_study.process.host import keep_freed_memory
from tst_study.superposition import linear_bag_loss

Rows = dict[str, dict[str, Any]]
"""A row of `measuring.measured` for each candidate, with further facts."""
SIZES: dict[str, tuple[dict[str, Any], int, int]] = {
    "laptop-64": ({"preset": "laptop-64"}, 16, 64),
    "laptop-256": ({"preset": "laptop-256"}, 8, 256),
    # The head has about as many weights as all layers together: `linear_bag_loss`, which computes
    # head and loss in one pass, was written for this case.
    "768-32k": (dense(4, 768, 12, 12, 2048, vocabulary_size=32_768), 4, 256),
}
"""Sizes of whole steps: the model, sequences per step, and positions per sequence. Superposed steps
have s = 8."""
LOSSES = ("1024x64x1024x4", "2048x512x32768x16", "2048x1024x32768x6")
"""Sizes of head and loss that are measured if none is named."""


@contextmanager
def candidates_of(
    config: Config, who: Sequence[str], compiler: Compiler | None
) -> Iterator[dict[str, tuple[Step, float]]]:
    """Yield steps to compare, with the bytes that stand on the GPU for each (0 on a CPU): the
    package's superposed step and baseline step, which share a model (if `who` has "package"), and a
    step of plain PyTorch (if it has "plain"). The baseline is next to both of the others."""
    candidates: dict[str, tuple[Step, float]] = {}
    with process_groups(config) as ranks, attention_of(config, ranks.device):

        def standing() -> float:
            return torch.cuda.memory_allocated() if ranks.device.type == "cuda" else 0.0

        if "package" in who:
            before, ours = standing(), PackageSteps(config, ranks.device, compiler)
            made = {
                "superposed": ours.step(plan_phases(config).objective(0)),
                "baseline": ours.step(),
            }
            for step in made.values():
                step()
            candidates = {name: (step, standing() - before) for name, step in made.items()}
        if "plain" in who:
            before, step = standing(), plain_step(config, ranks.device, compiler)
            step()
            candidates["plain PyTorch"] = step, standing() - before
        yield candidates


def steps(config: Config, candidates: dict[str, tuple[Step, float]], repeats: int) -> Rows:
    """Measure the steps of `candidates_of`.

    The rows of `measured` also get the sequences per step, latent tokens and FLOPs per second, MFU
    (only for bfloat16 on a GPU that `cost.devices` lists, else None) and the memory in bytes that
    `cost.memory.estimate_memory` predicts for the package. In place of `extra_mebibytes` they have
    `peak_memory` in bytes, None on a CPU.
    """
    device, dtype = config.execution.device, config.numerics.dtype
    rows = measured({name: step for name, (step, _) in candidates.items()}, repeats, device)
    peak = peak_flops(device_name(device), dtype)
    for name, row in rows.items():
        seconds, risen = row["milliseconds"] / 1e3, row.pop("extra_mebibytes")
        flops = count_flops(config).per_step / seconds
        row |= {
            "sequences": config.batch.sequences,
            "latent_tokens_per_second": config.batch.positions / seconds,
            "flops_per_second": flops,
            "mfu": flops / peak if peak else None,
            "peak_memory": candidates[name][1] + risen * 2**20 if device == "cuda" else None,
            "planned_memory": estimate_memory(config, on_gpu=device == "cuda").total,
        }
    return rows


def losses(size: str, repeats: int, device: str = "cpu", dtype: str = "float32") -> Rows:
    """Measure the head with each of these losses: a plain cross-entropy, our bag loss with s = 1,
    our bag loss with the s of `size`, and, from torch 2.13 on, the same with torch's fused
    cross-entropy, which works in chunks.

    The gradients of hidden states and head, which all of them need, do not count as memory.
    """
    positions, width, vocabulary, bag_size = map(int, size.split("x"))
    torch.manual_seed(0)
    hidden = torch.randn(1, positions, width, device=device, dtype=getattr(torch, dtype))
    head = torch.randn(vocabulary, width, device=device, dtype=hidden.dtype) / width**0.5
    hidden, head = hidden.requires_grad_(), head.requires_grad_()
    labels = torch.randint(vocabulary, (1, positions * bag_size), device=device)
    first = labels[:, :positions]

    def plain() -> Tensor:
        return F.cross_entropy((hidden @ head.T).flatten(0, 1).float(), first.flatten())

    def ours(chosen: Tensor, s: int, **more: Any) -> Callable[[], Tensor]:
        return lambda: linear_bag_loss(hidden, head, chosen, s, batch_first=True, **more)

    candidates = {
        "plain PyTorch": plain,
        "s=1": ours(first, 1, compiled=hidden.is_cuda),
        f"s={bag_size}": ours(labels, bag_size, compiled=hidden.is_cuda),
    }
    if hasattr(F, "linear_cross_entropy"):  # torch 2.13

        def fused(rows: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
            # Without options, torch would compute all logits at once.
            chunked = torch.nn.LinearCrossEntropyOptions()
            return F.linear_cross_entropy(rows, weight, targets, reduction="none", options=chunked)

        candidates[f"torch's, s={bag_size}"] = ours(labels, bag_size, cross_entropy=fused)

    def run(loss: Callable[[], Tensor]) -> None:
        # The new gradients take the place of the last call's, and so do not raise memory.
        hidden.grad = head.grad = None
        loss().backward()  # type: ignore[no-untyped-call]

    calls = {name: (lambda loss=loss: run(loss)) for name, loss in candidates.items()}
    return measured(calls, repeats, device)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sizes", nargs="*", default=[*SIZES, *LOSSES])
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compile", action="store_true", help="torch.compile our layers")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args(arguments)
    for size in options.sizes:
        if size not in SIZES and not re.fullmatch(r"\d+x\d+x\d+x\d+", size):
            usual = ", ".join(SIZES)
            parser.error(f"{size!r}: name {usual}, or positions x hidden size x vocabulary x s")

    torch.set_num_threads(options.threads)
    results: dict[str, Rows] = {}
    for size in sorted(options.sizes, key=lambda size: size in SIZES):  # losses first
        if size in SIZES:
            # `train` does this, too, and plain PyTorch gains as much from it. From here on the
            # process keeps freed memory, and the rise of memory during a call cannot be seen any
            # more. That is why the losses come first.
            keep_freed_memory()
            config = step_config(*SIZES[size], bag_size=8)
            compiler: Compiler | None = "inductor" if options.compile else None
            with candidates_of(config, ("package", "plain"), compiler) as candidates:
                results[size] = steps(config, candidates, options.repeats)
        else:
            results[size] = losses(size, options.repeats)
        for name, row in results[size].items():
            ratios = ", ".join(f"{over[1]:.3f} of {other}" for other, over in row["over"].items())
            risen = row.get("extra_mebibytes")
            shown = "-" if risen is None else f"{risen:.0f}"
            print(f"{size:<18} {name:<14} {row['milliseconds']:>9.2f} ms {shown:>5} MiB  {ratios}")
    if options.json is not None:
        record = {"machine": machine_facts(), "options": vars(options), "results": results}
        options.json.write_text(json.dumps(record, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
