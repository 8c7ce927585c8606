"""A short pair at matched FLOPs on the bundled prose, through the package's own training loop."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.gpu_parts import Request, Results
from tst_study import run_record
from tst_study.config import Config, from_dict
from tst_study.data.manifest import read_manifest
from tst_study.data.preparation.prepare import prepare
from tst_study.data.preparation.request import bundled_books
from tst_study.train import train

ARMS: dict[str, dict[str, Any]] = {
    "baseline": {},
    "superposition": {"bag_size": 4, "step_ratio": 0.2},
}


@dataclass(frozen=True)
class Scale:
    preset: str
    sequences: int
    length: int
    steps: int
    text_bytes: int
    """Enough for the superposed arm to read no token twice: 1 + r(s - 1) = 1.6 times the latent
    tokens, at about 2.8 bytes a token."""
    tokenizer: str
    dtype: str
    validation_tokens: int


SCALE = Scale("laptop-256", 16, 256, 2000, 40_000_000, "bpe:1024", "bfloat16", 200_000)
SMALL = Scale("laptop-64", 4, 32, 12, 60_000, "bytes", "float32", 2_000)


def pair(request: Request) -> Results:
    """Held-out next-token loss of both arms. One seed: it shows that the whole runs, no more."""
    scale = SMALL if request.small else SCALE
    began = time.monotonic()
    corpus = books(request, scale)
    yield (
        "data",
        {
            "seconds": time.monotonic() - began,
            "tokens": {name: s.tokens for name, s in read_manifest(corpus).splits.items()},
        },
    )
    for arm in ARMS:
        folder = request.work / "runs" / arm
        config = config_of_arm(arm, str(corpus), scale, request.device)
        state = train(config, folder, progress=False)
        record = run_record.read(folder)
        yield arm, {"state": state, **_summary(record, config)}


def books(request: Request, scale: Scale) -> Path:
    """The folder of books prepared for this part; made once for all parts of a scale."""
    wanted = replace(
        bundled_books(1 if scale is SMALL else None),
        tokenizer=scale.tokenizer,
        limit_bytes=scale.text_bytes,
    )
    folder = request.work / f"books-{scale.tokenizer.replace(':', '-')}"
    prepare(wanted, folder, progress=False)
    return folder


def config_of_arm(arm: str, corpus: str, scale: Scale, device: str) -> Config:
    return from_dict(
        {
            "study": "gpu",
            "name": arm,
            "role": arm,
            "model": {"preset": scale.preset},
            "superposition": ARMS[arm],
            "data": {"corpora": [{"path": corpus}], "validation_tokens": scale.validation_tokens},
            "batch": {"sequences": scale.sequences, "sequence_length": scale.length},
            "optimizer": {"learning_rate": 1e-3},
            "schedule": {"steps": scale.steps, "warmup_steps": scale.steps // 20},
            "numerics": {"dtype": scale.dtype},
            "execution": {"device": device, "log_every": max(1, scale.steps // 100)},
        }
    )


def _summary(record: run_record.RunRecord, config: Config) -> dict[str, Any]:
    held_out, last = record.evals[-1], record.metrics[-1]
    return {
        "steps": config.schedule.steps,
        "flops": last["flops"],
        "raw_tokens": last["raw_tokens"],
        "latent_tokens": last["latent_tokens"],
        "epochs": last["epochs"],
        "nats_per_token": held_out["nats_per_token"],
        "standard_error": held_out["standard_error"],
        "annealed": held_out["annealed"],
        "training_seconds": last["training_seconds"],
        "mfu": last["mfu"],
        "losses": [[row["step"], row["loss_name"], row["loss"]] for row in record.metrics],
    }
