"""Speed and memory on a GPU: the bag loss, whole steps beside plain PyTorch's, a pair of runs."""

from __future__ import annotations

import argparse
import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import speed
from benchmarks.steps import Compiler, step_config
from tst_study.config.schema import Config, from_dict, to_dict
from tst_study.data.preparation.prepare import prepare
from tst_study.data.preparation.request import bundled_books
from tst_study.record import reader as run_record
from tst_study.train import train

Results = Iterator[tuple[str, Any]]
LENGTH = 2048  # of the paper's dense family
BAG_SIZES = {"270m": 6, "600m": 8, "moe-1b": 8}
MODEL_34M = {
    "layers": 8,
    "hidden_size": 512,
    "attention_heads": 8,
    "key_value_heads": 8,
    "head_size": 64,
    "feed_forward_size": 1408,
    "vocabulary_size": 8192,
}


def loss(request: argparse.Namespace) -> Results:
    """Head and loss, forward and backward, at a small and a large vocabulary."""
    sizes = ("8192x1024x32768x8", "8192x4096x128256x8")
    dtype = "float32" if request.device == "cpu" else "bfloat16"
    for size in ("64x16x256x4",) if request.small else sizes:
        yield size, speed.losses(size, 3 if request.small else 20, request.device, dtype)


def steps(request: argparse.Namespace) -> Results:
    """Both phases on one model and plain PyTorch, eager, then with compiled layers.

    One model after the other, each alone in memory, so that peaks are its own.
    """
    preset = request.part.removeprefix("steps-")
    compilers: tuple[Compiler | None, ...] = (None, "eager" if request.small else "inductor")
    for compiler in compilers:
        for who in ("package",) if preset == "moe-1b" else ("package", "plain"):
            for candidate, row in _fitting(who, preset, compiler, request).items():
                yield f"{candidate}, compiled" if compiler else candidate, row


def _fitting(
    who: str, preset: str, compiler: Compiler | None, request: argparse.Namespace
) -> speed.Rows:
    """The steps with the largest power of two of sequences that fits; a failure as text."""
    tiny = "laptop-moe" if preset == "moe-1b" else "laptop-64"
    for sequences in (2,) if request.small else (8, 4, 2, 1):
        config = step_config(
            {"preset": tiny if request.small else preset},
            sequences,
            16 if request.small else LENGTH,
            dtype="bfloat16",
            device=request.device,
            bag_size=BAG_SIZES[preset],
            step_ratio=0.5,
        )
        try:
            return speed.steps(config, (who,), compiler, 2 if request.small else 10)
        except Exception as error:  # of the compiler, too: the others must still be measured
            failure = f"{type(error).__name__}: {error}"[:2000]
            if not isinstance(error, torch.OutOfMemoryError):
                break
        finally:
            torch.compiler.reset()
            gc.collect()
            if request.device == "cuda":
                torch.cuda.empty_cache()
    return {who: {"failure": failure}}


def pair(request: argparse.Namespace) -> Results:
    """Baseline and s = 4, r = 0.2 at equal FLOPs on the bundled books, through the package's own
    loop. The text is long enough for the superposed arm to read no token twice."""
    corpus = books(request)
    held_out_losses = []
    for arm, setting in (("baseline", {}), ("superposition", {"bag_size": 4, "step_ratio": 0.2})):
        folder = request.work / "runs" / arm
        state = train(_config(arm, setting, str(corpus), request), folder, progress=False)
        record = run_record.read(folder)
        last, held_out = record.metrics[-1], record.evals[-1]
        counters = ("flops", "raw_tokens", "latent_tokens", "epochs", "training_seconds", "mfu")
        quality = ("nats_per_token", "standard_error", "annealed")
        held_out_losses.append(held_out["nats_per_token"])
        yield (
            arm,
            {
                "state": state,
                **{key: last[key] for key in counters},
                **{key: held_out[key] for key in quality},
                "losses": [[row["step"], row["loss"]] for row in record.metrics],
            },
        )
    baseline, superposed = held_out_losses
    # One seed each: the difference has no interval, so that neither arm is said to have won.
    yield "verdict", {"gain": baseline - superposed, "interval": None}


def books(request: argparse.Namespace) -> Path:
    """The folder of the books prepared for the pair."""
    tokenizer, size = ("bytes", 60_000) if request.small else ("bpe:8192", 40_000_000)
    wanted = bundled_books(1 if request.small else None)
    folder: Path = request.work / "books"
    prepare(replace(wanted, tokenizer=tokenizer, limit_bytes=size), folder, progress=False)
    return folder


def _config(arm: str, setting: Any, corpus: str, request: argparse.Namespace) -> Config:
    sequences, length, steps = (4, 32, 12) if request.small else (16, 256, 2000)
    config = step_config(
        {"preset": "laptop-64"} if request.small else MODEL_34M,
        sequences,
        length,
        dtype="float32" if request.small else "bfloat16",
        device=request.device,
        **setting,
    )
    held_out = 2_000 if request.small else 200_000
    return from_dict(
        {
            **to_dict(config),
            "name": arm,
            "role": arm,
            "data": {"corpora": [{"path": corpus}], "validation_tokens": held_out},
            "schedule": {"steps": steps, "warmup_steps": steps // 20},
        }
    )
