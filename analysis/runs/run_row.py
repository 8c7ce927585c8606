"""One run as one row: the columns of the run table, with their units."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict, cast

import pandas as pd

from analysis.runs.comparable import training_group, training_group_of_any_length
from tst_study.configuration.superposition_setting import SuperpositionSetting
from tst_study.run_record import RunRecord


class RunRow(TypedDict):
    """Losses in nats per token, times in seconds, sizes in tokens; None where not known (yet)."""

    run_id: str
    study: str
    name: str
    role: str
    """For people. What a run is follows from its settings alone."""
    state: str
    message: str
    step: int
    """Steps done."""
    seed: int
    data_seed: int
    """Of the order of the text."""
    method: Literal["baseline", "superposition"]
    """Baseline: no step is superposed, whatever the unused settings say."""

    layers: int
    hidden_size: int
    attention_heads: int
    key_value_heads: int
    feed_forward_size: int
    vocabulary_size: int
    experts: int | None
    parameters: int
    active_parameters: int

    steps: int
    superposed_steps: int
    bag_size: int
    """s; 1 for a baseline."""
    step_ratio: float
    """r, as the whole number of steps makes it."""
    mode: str | None
    """This and the next seven: None or False for a run that does not use them."""
    loss_kind: str | None
    weighting: str | None
    aligned_bags: bool
    shuffled_targets: bool
    reinitialized: bool
    optimizer_at_switch: str | None
    label_smoothing: str | None

    corpus: str
    """A label for people: the training folders' own names. What tells data apart is `group`."""
    learning_rate: float
    """Peak."""
    schedule: str
    sequences: int
    """Per step."""
    sequence_length: int
    """Latent positions."""
    raw_tokens: int
    """Planned, as the next four."""
    latent_tokens: int
    unique_raw_tokens: int
    """In the training text."""
    data_multiplier: float
    """raw over latent tokens: 1 + r(s − 1) for full superposition."""
    flops: int

    training_seconds: float | None
    """Without evaluation and checkpoints, over all launches."""
    tokens_per_second: float | None
    """Raw tokens over training seconds, over the whole run so far."""
    epochs: float | None
    last_train_loss: float | None
    last_train_loss_name: str | None
    """A bag loss is another quantity than `next_token`."""

    eval_set: str | None
    """This and the next seven: the run's last held-out evaluation, at whatever step."""
    nats_per_token: float | None
    standard_error: float | None
    """Over held-out sequences, not over seeds."""
    bits_per_byte: float | None
    eval_tokens: int | None
    evaluated_step: int | None
    evaluated_phase: str | None
    annealed: bool
    optimal_nats_per_token: float | None
    """Entropy of the held-out text, where it was generated and is known."""

    exclusion: str
    """Why a person took the run out (`exclusions.csv`); empty for all others."""
    dropped_rows: int
    segments: int
    """Launches."""
    code: str
    """Git commits of the launches, `+` after one with uncommitted changes."""
    devices: str
    device_count: int | None
    """Of the last launch that named any."""
    group: str
    """Runs that may be compared (`analysis.runs.comparable`)."""
    family: str
    """The same, whatever the number of steps."""
    fingerprint: str
    folder: str


COLUMNS: tuple[str, ...] = tuple(RunRow.__annotations__)
SHAPE: tuple[str, ...] = ("layers", "hidden_size", "attention_heads", "key_value_heads")
SHAPE += ("feed_forward_size", "vocabulary_size")
"""Columns that a model's configuration has by the same names."""


def run_row(record: RunRecord) -> RunRow:
    """Raises KeyError or TypeError where the record lacks something."""
    header, status = record.header, record.status
    config, plan = header["config"], header["plan"]
    model, order_seed = config["model"], config.get("data_seed")
    setting = SuperpositionSetting.from_config(config)
    last = record.metrics[-1] if record.metrics else None
    seconds = last["training_seconds"] if last else None
    final = record.evals[-1] if record.evals else None
    used = [row["devices"] for row in record.segments if row.get("devices")]
    validation = header["data"].get("validation")
    optimum = validation.get("optimal_nats_per_token") if isinstance(validation, dict) else None
    row: dict[str, Any] = {
        **setting.columns(),
        **{name: header[name] for name in ("run_id", "study", "name", "role", "fingerprint")},
        **{name: model[name] for name in SHAPE},
        "state": record.state,
        "message": status["message"] if status else "",
        "step": status["step"] if status else 0,
        "seed": config["seed"],
        "data_seed": config["seed"] if order_seed is None else order_seed,
        "method": "baseline" if setting.is_baseline else "superposition",
        "experts": (model["experts"] or {}).get("count"),
        "parameters": header["parameters"]["total"],
        "active_parameters": header["parameters"]["active"],
        "steps": plan["steps"],
        "corpus": _corpus(config, generated=optimum is not None),
        "learning_rate": config["optimizer"]["learning_rate"],
        "schedule": config["schedule"]["kind"],
        "sequences": config["batch"]["sequences"],
        "sequence_length": config["batch"]["sequence_length"],
        "raw_tokens": header["raw_tokens"],
        "latent_tokens": header["latent_tokens"],
        "unique_raw_tokens": header["unique_raw_tokens"],
        "data_multiplier": header["raw_tokens"] / header["latent_tokens"],
        "flops": header["flops"]["total"],
        "training_seconds": seconds,
        "tokens_per_second": last["raw_tokens"] / seconds if last and seconds else None,
        "epochs": last["epochs"] if last else None,
        "last_train_loss": last["loss"] if last else None,
        "last_train_loss_name": last["loss_name"] if last else None,
        "eval_set": final["eval_set"] if final else None,
        "nats_per_token": final["nats_per_token"] if final else None,
        "standard_error": final["standard_error"] if final else None,
        "bits_per_byte": final["bits_per_byte"] if final else None,
        "eval_tokens": final["tokens"] if final else None,
        "evaluated_step": final["step"] if final else None,
        "evaluated_phase": final["phase"] if final else None,
        "annealed": bool(final and final["annealed"]),
        "optimal_nats_per_token": optimum,
        "exclusion": "",
        "dropped_rows": record.dropped_rows,
        "segments": len(record.segments),
        "code": ", ".join(_distinct(map(_code, record.segments))),
        "devices": ", ".join(_distinct(f"{some['count']} × {some['name']}" for some in used)),
        "device_count": used[-1]["count"] if used else None,
        "group": training_group(header),
        "family": training_group_of_any_length(header),
        "folder": str(record.folder),
    }
    return cast(RunRow, row)


def finished(steps: int, superposed: Mapping[str, Any], **known: Any) -> dict[str, Any]:
    """The row of a run that was trained elsewhere, to its last step; what is not known is None.

    `superposed`: the columns of its setting (`SuperpositionSetting.of_row`).
    """
    setting = SuperpositionSetting.of_row(superposed)
    return {
        **dict.fromkeys(COLUMNS),
        **setting.columns(),
        **dict.fromkeys(("step", "steps", "evaluated_step"), steps),
        "state": "done",
        "message": "",
        "exclusion": "",
        "role": setting.role,
        "method": "baseline" if setting.is_baseline else "superposition",
        "evaluated_phase": "superposition" if setting.superposed_steps == steps else "recovery",
        **known,
    }


def rows_of(table: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """The rows of a table as dictionaries by column name."""
    # By columns: pandas' own iterators build a Series for every row of a wide table.
    names = [str(name) for name in table.columns]
    columns = [table.iloc[:, place].tolist() for place in range(len(names))]
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))


def _code(segment: dict[str, Any]) -> str:
    code = segment.get("code") or {}
    changed = "+" if code.get("dirty") else ""
    return f"{code['commit'][:12]}{changed}" if code.get("commit") else ""


def _corpus(config: dict[str, Any], generated: bool) -> str:
    if generated:
        return "generated language"
    return " + ".join(_distinct(Path(corpus["path"]).name for corpus in config["data"]["corpora"]))


def _distinct(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(value for value in values if value))
