"""Run folders with known numbers, in the exact schema, written by the trainer's own writer."""

import hashlib
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from tst_study.analysis.tables.archive import add_to_archive
from tst_study.analysis.tables.imports import import_logs
from tst_study.config.identity import SCHEMA_VERSION, fingerprint, run_id
from tst_study.config.phase_plan import plan_phases
from tst_study.config.presets import dense
from tst_study.config.schema import Config, from_dict, to_dict
from tst_study.cost.compute import count_flops, count_parameters
from tst_study.record.reader import RunHeader
from tst_study.record.writer import RunWriter

BOOKS: dict[str, Any] = {
    "corpora": [{"fingerprint": "b" * 64, "weight": 1.0, "tokens": 50_000_000}],
    "tokenizer": "c" * 64,
    "validation": {"fingerprint": "d" * 64, "tokens": 300_000},
}
GENERATED: dict[str, Any] = {
    "corpora": [{"fingerprint": "e" * 64, "weight": 1.0, "tokens": 20_000_000}],
    "tokenizer": "f" * 64,
    "validation": {"fingerprint": "a" * 64, "tokens": 65_536, "optimal_nats_per_token": 4.02},
}


def config(
    seed: int = 0, bag_size: int = 1, step_ratio: float = 0.0, steps: int = 1000, **more: Any
) -> Config:
    """A laptop-sized config; `more`: `section__key=value`, or a top-level key."""
    values: dict[str, Any] = {
        "study": "laptop",
        "name": f"s{bag_size}-seed{seed}",
        "role": "baseline" if bag_size == 1 else "superposition",
        "seed": seed,
        "model": dense(2, 64, 4, 4, 176, vocabulary_size=1024),
        "superposition": {"bag_size": bag_size, "step_ratio": step_ratio},
        "data": {"corpora": [{"path": "prepared/books-bpe1024"}]},
        "batch": {"sequences": 16, "sequence_length": 64},
        "optimizer": {"learning_rate": 2e-3},
        "schedule": {"steps": steps, "warmup_steps": 20},
    }
    for key, value in more.items():
        section, _, inner = key.partition("__")
        if inner:
            values[section][inner] = value
        else:
            values[section] = value
    return from_dict(values)


def write_run(
    root: Path,
    run: Config,
    loss: float | None,
    *,
    data: dict[str, Any] = BOOKS,
    eval_set: str = "validation-dddddddddddddddd",
    annealed: bool = True,
    state: str = "done",
    evaluated_step: int | None = None,
    bits_per_byte: bool = True,
    log_every: int = 50,
    folder: str | None = None,
    superposed_seconds: float = 0.01,
) -> Path:
    """A whole run whose final held-out loss is `loss` (None: it was never evaluated), with so many
    seconds for a superposed step and 0.01 for any other."""
    plan, mark = plan_phases(run), fingerprint(run, data)
    header: RunHeader = {
        "schema_version": SCHEMA_VERSION,
        "run_id": run_id(run, mark),
        "fingerprint": mark,
        "study": run.study,
        "name": run.name,
        "role": run.role,
        "config": to_dict(run),
        "parameters": asdict(count_parameters(run.model)),
        "flops": asdict(count_flops(run)),
        "plan": plan.record(),  # type: ignore[typeddict-item]
        "raw_tokens": plan.raw_tokens(plan.steps),
        "latent_tokens": plan.latent_tokens(plan.steps),
        "data": data,
        "unique_raw_tokens": data["corpora"][0]["tokens"],
    }
    writer = RunWriter(root / (folder or header["run_id"]), header)
    facts = {
        "code": {"commit": "0123456789abcdef", "dirty": False},
        "devices": {"name": "cpu", "count": 1, "threads": 1},
    }
    segment = writer.start_segment(None, facts)
    flops, last = header["flops"]["per_step"], plan.steps if state == "done" else plan.steps // 2
    for step in range(log_every, last + 1, log_every):
        phase = plan.phase(step - 1)
        slower = min(step, plan.superposed_steps) * (superposed_seconds - 0.01)
        writer.metrics(
            {
                **_counters(plan, segment, step, flops, header["unique_raw_tokens"]),  # type: ignore[typeddict-item]
                "training_seconds": step * 0.01 + slower,
                "bag_size": plan.bag_size if phase == "superposition" else 1,
                "loss_name": "next_token" if phase == "recovery" else "mce_uniform",
                "loss": _curve(step, plan, loss or 4.0, mark),
                "learning_rate": run.optimizer.learning_rate,
                "gradient_norm": 0.5,
                "step_seconds": 0.01,
                "tokens_per_second": 1e5,
                "mfu": None,
                "peak_memory": 2**28,
            }
        )
    if loss is not None:
        at = evaluated_step if evaluated_step is not None else last
        writer.evaluation(
            {
                **_counters(plan, segment, at, flops, header["unique_raw_tokens"]),  # type: ignore[typeddict-item]
                "eval_set": eval_set,
                "nats_per_token": loss,
                "bits_per_byte": loss / math.log(2) / 2.5 if bits_per_byte else None,
                "standard_error": 0.004,
                "tokens": 200_000,
                "annealed": annealed,
                "seconds": 0.5,
            }
        )
    writer.end_segment(state)
    writer.status(state, last, "loss above 100 nats" if state == "diverged" else "")  # type: ignore[arg-type]
    return writer.folder


def write_pairs(root: Path, *losses: tuple[float, float], **more: Any) -> None:
    """Seed by seed a baseline and s = 4, r = 0.2 with these losses. `more`: of `config`."""
    for seed, (baseline, superposed) in enumerate(losses):
        write_run(root, config(seed, **more), baseline)
        write_run(root, config(seed, 4, 0.2, **more), superposed)


def _counters(plan: Any, segment: int, step: int, flops: int, unique: int) -> dict[str, Any]:
    return {
        "segment": segment,
        "step": step,
        "phase": plan.phase(step - 1),
        "raw_tokens": plan.raw_tokens(step),
        "latent_tokens": plan.latent_tokens(step),
        "epochs": plan.raw_tokens(step) / unique,
        "flops": flops * step,
        "training_seconds": step * 0.01,
    }


def _curve(step: int, plan: Any, final: float, mark: str) -> float:
    """A plausible training loss: falls to `final`, spikes at the switch, higher for bags."""
    noise = int(hashlib.sha256(f"{mark}{step}".encode()).hexdigest()[:8], 16) / 2**32 - 0.5
    progress = step / plan.steps
    loss = final + (6.9 - final) * math.exp(-14 * progress) + 0.25 * (1 - progress) + 0.08 * noise
    if step <= plan.superposed_steps:
        return loss + 0.35 * math.log(plan.bag_size)
    since = (step - plan.superposed_steps) / plan.steps
    return loss + (0.5 * math.exp(-40 * since) if plan.superposed_steps else 0.0)


def write_study(root: Path) -> Path:
    """Both parts of the laptop study in small: prose (a tie) and generated language (gains)."""
    study = root / "laptop"
    noise = {0: 0.02, 1: -0.015, 2: 0.004}
    for rate, worse in ((1e-3, 0.03), (4e-3, 0.02)):
        pilot = config(role="pilot", optimizer__learning_rate=rate)
        write_run(study, pilot, 3.55 + noise[0] + worse)
    for seed, luck in noise.items():
        write_run(study, config(seed), 3.55 + luck)
        tie = config(seed, 4, 0.2)
        write_run(study, tie, 3.55 + luck + (0.006, -0.008, 0.001)[seed])
        for bag_size, gain in ((1, 0.0), (2, 0.06), (4, 0.155), (8, 0.256), (16, 0.12)):
            run = config(
                seed,
                bag_size,
                0.0 if bag_size == 1 else 0.3,
                model__vocabulary_size=2048,
                batch={"sequences": 4, "sequence_length": 64},
                optimizer__learning_rate=1.5e-3,
                data={"corpora": [{"path": "prepared/topical-2048-5000k"}]},
            )
            jitter = gain * (0.9, 1.05, 1.02)[seed]
            write_run(
                study,
                run,
                4.6 + 3 * luck - jitter,
                data=GENERATED,
                eval_set="validation-aaaaaaaaaaaaaaaa",
                bits_per_byte=False,
            )
    return study


def imported(folder: Path, runs: pd.DataFrame) -> Path:
    """An archive of runs that were trained elsewhere and stand in one table: params, tokens, loss,
    steps, bag_size, step_ratio and, where it is there, seed."""
    rows = runs.assign(seed=runs.get("seed", 0), run=[f"run {i}" for i in range(len(runs))])
    rows["tokens_per_step"] = (rows.pop("tokens") / rows["steps"]).round().astype(int)
    rows["parameters"] = rows.pop("params").round().astype(int)
    rows = rows.rename(columns={"loss": "nats_per_token"}).assign(annealed=True, learning_rate=1e-3)
    folder.mkdir(parents=True, exist_ok=True)
    rows.assign(corpus="text", eval_set="held out").to_csv(folder / "table.csv", index=False)
    add_to_archive(folder / "archive", import_logs([str(folder / "table.csv")], {}))
    return folder / "archive"
