"""Logs of other trainers as the three tables of an archive.

What a log does not say comes from `--set` or from a `runs.csv`; nothing is guessed. A log's own
word is overruled by `--set`, and that by the run's row of `runs.csv`.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from analysis.tables.columns import CURVES, EVALUATIONS, Tables, finished, typed
from analysis.tables.foreign_logs import Log, read_facts, read_logs
from tst_study.atomic_files import written_atomically
from tst_study.config.identity import digest
from tst_study.config.phase_plan import superposed_steps
from tst_study.config.superposition_setting import DEPARTURES
from tst_study.errors import UserError, first_problem, one_of
from tst_study.text import listed

Unit = Literal["nats", "bits", "bits-per-byte", "perplexity"]
KEYS: Mapping[str, tuple[str, ...]] = {
    "loss": (
        "loss",
        "loss_metrics/global_avg_loss",
        "lm loss",
        "loss/out",
        "train/loss",
        "train_loss",
        "Train/Loss",
    ),
    "nats_per_token": (
        "nats_per_token",
        "held_out_loss",
        "validation_metrics/loss",
        "lm loss validation",
        "val/loss",
        "val_loss",
        "eval_loss",
        "eval/loss",
    ),
    "bits_per_byte": ("bits_per_byte", "val/bpb", "val_bpb"),
    "learning_rate": ("learning_rate", "learning-rate", "optim/lr", "lr", "train/learning_rate"),
    "gradient_norm": ("gradient_norm", "grad-norm", "optim/grad_norm", "grad_norm"),
    "loss_name": ("loss_name",),
}
"""By column, the names that known programs give it; the first that a log has counts."""
_LOSSES = ("nats_per_token", "bits_per_byte")
BASELINE = "baseline"
FEW = 3
"""Runs that a message names."""


class Facts(BaseModel):
    """What must be known of a run to compare it, beside its curves (units: `docs/tables.md`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    arm: str | None = None
    """What is compared, where it is not superposition; the others are held against `baseline`."""
    bag_size: int = Field(ge=1)
    """s; 1 where `arm` is given."""
    step_ratio: float = Field(ge=0, le=1)
    """r; 0 where `bag_size` is 1."""
    parameters: int = Field(ge=1)
    tokens_per_step: int = Field(ge=1)
    """Positions: with bags of s tokens, s times as many tokens are read."""
    steps: int = Field(ge=1)
    """Planned."""
    seed: int = Field(ge=0)
    learning_rate: float = Field(ge=0)
    """The peak; from the log where it has one."""
    corpus: str
    eval_set: str
    annealed: bool
    """Whether the learning rate had decayed at the last step."""

    active_parameters: int | None = Field(None, ge=1)
    flops: float | None = Field(None, gt=0)
    """Of the whole training; else 6 · parameters · positions."""
    sequences: int | None = Field(None, ge=1)
    sequence_length: int | None = Field(None, ge=1)
    unique_raw_tokens: int | None = Field(None, ge=1)
    bytes_per_token: float | None = Field(None, gt=0)
    """Of the held-out text; for losses per byte."""
    batch: str = ""
    """What else must be equal for two runs to be compared."""
    study: str = "imported"
    mode: str | None = None
    loss_kind: str | None = None
    weighting: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _follows(cls, values: dict[str, Any]) -> dict[str, Any]:
        values = dict(values)
        if values.get("arm") is not None:
            values.setdefault("bag_size", 1)
        if str(values.get("bag_size")) == "1":
            values.setdefault("step_ratio", 0.0)
        return values

    @property
    def superposed_steps(self) -> int:
        return superposed_steps(self.steps, self.bag_size, self.step_ratio, None)

    def raw_tokens(self, step: int) -> int:
        return self.tokens_per_step * (
            step + min(step, self.superposed_steps) * (self.bag_size - 1)
        )


@dataclass
class Run:
    """All that the logs of one run say."""

    name: str
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By step, the log's own keys."""
    facts: dict[str, Any] = field(default_factory=dict)
    twice: set[int] = field(default_factory=set)
    """Steps that were written again with another value."""


@dataclass(frozen=True)
class Imported:
    tables: Tables
    messages: tuple[str, ...]
    """What a person should know: steps written twice, losses not found."""


def import_logs(
    sources: Iterable[str],
    given: Mapping[str, str],
    facts: Path | None = None,
    columns: Mapping[str, str] | None = None,
    unit: str = "nats",
) -> Imported:
    """Runs of `sources` (`read_logs`) as tables.

    Args:
        given: facts of all runs; `facts`: a CSV with a row for each run.
        columns: of the log, by column of `KEYS`, where it goes by another name.
        unit: of training and held-out losses.

    Raises `UserError` for a missing or wrong fact, which names run and key.
    """
    one_of(unit, get_args(Unit), "--unit")
    for name in columns or {}:
        one_of(name, KEYS, "--column")
    own = read_facts(facts) if facts else {}
    runs = runs_of_logs(read_logs(sources), columns or {})
    if unknown := sorted(own.keys() - {run.name for run in runs}):
        raise UserError(f"{facts}: no log of run {unknown[0]!r}; correct it or remove the row")
    rows, curves, evaluations, messages = [], [], [], []
    without, early = [], []
    for run in runs:
        known = _facts(run, {**run.facts, **given, **own.get(run.name, {})})
        points = [_converted(run.name, row, known, unit) for row in run.rows.values()]
        ordered = sorted(points, key=lambda row: row["step"])
        rows.append(_run_row(run.name, ordered, known))
        curves += [_placed(run.name, row, known) for row in ordered if "loss" in row]
        held_out = [row for row in ordered if "nats_per_token" in row]
        evaluations += [_evaluated(run.name, row, known) for row in held_out]
        if run.twice:
            messages.append(f"{run.name}: {len(run.twice)} steps written twice; the later counts")
        if not held_out:
            without.append(run.name)
        if rows[-1]["step"] == rows[-1]["steps"] - 1:
            early.append(run.name)
    if without:
        messages.append(
            f"no held-out loss in {listed(without, FEW)}: nothing can be compared without one at "
            "the last step; name it with --column nats_per_token=…"
        )
    if early:
        messages.append(
            f"one step is missing at the end of {listed(early, FEW)}: where steps are counted from "
            "0, log step + 1"
        )
    if BASELINE not in {row["arm"] for row in rows}:
        messages.append("no run is of the arm 'baseline', which the others are held against")
    return Imported(
        Tables.of(rows, _frame(curves, CURVES), _frame(evaluations, EVALUATIONS)), tuple(messages)
    )


def write_template(path: Path, sources: Iterable[str], columns: Mapping[str, str]) -> int:
    """A `runs.csv` with a row for each run and what its logs say; returns the number of runs."""
    runs = runs_of_logs(read_logs(sources), columns)
    text = io.StringIO()
    table = csv.DictWriter(text, ["run", *Facts.model_fields], lineterminator="\n")
    table.writeheader()
    table.writerows({"run": run.name, **run.facts} for run in runs)
    with written_atomically(path) as file:
        file.write(text.getvalue().encode())
    return len(runs)


def pairs(given: Iterable[str] | None, option: str) -> dict[str, str]:
    """KEY=VALUE texts. Raises `UserError` for one that is none."""
    split = [text.partition("=") for text in given or ()]
    for key, equals, value in split:
        if not (key and equals and value):
            raise UserError(f"{option} {key}{equals}{value}: give KEY=VALUE")
    return {key: value for key, _, value in split}


def runs_of_logs(logs: Sequence[Log], columns: Mapping[str, str]) -> list[Run]:
    """Logs of one run put together, in `KEYS`' columns; for a step written twice the later wins.

    Raises `UserError` where logs of one name lie in two folders, or no loss is found.
    """
    runs: dict[str, Run] = {}
    places: dict[str, Path] = {}
    for log in logs:
        run = runs.setdefault(log.run, Run(log.run))
        place = places.setdefault(log.run, log.place.parent)
        exported = log.place.suffix == ".csv"
        if place != log.place.parent and not (exported or log.named):
            raise UserError(
                f"run {log.run!r}: logs in {place} and {log.place.parent}; name each: NAME=PATH"
            )
        run.facts |= {k: v for k, v in log.facts.items() if k in Facts.model_fields}
        for step, key, value in log.points:
            row = run.rows.setdefault(step, {})
            if key in row and row[key] != value and value == value:
                run.twice.add(step)
            row[key] = value
    for run in runs.values():
        keys = {key for row in run.rows.values() for key in row}
        names = {
            column: next((key for key in _names(column, columns) if key in keys), None)
            for column in KEYS
        }
        if not any(names[column] for column in ("loss", *_LOSSES)):
            raise UserError(
                f"run {run.name!r}: no loss among {', '.join(sorted(keys)[:12])}; name it with "
                "--column loss=… or nats_per_token=…"
            )
        run.rows = {
            step: {"step": step} | {column: row[key] for column, key in names.items() if key in row}
            for step, row in run.rows.items()
        }
        rates = [row["learning_rate"] for row in run.rows.values() if "learning_rate" in row]
        if rates:
            run.facts.setdefault("learning_rate", max(rates))
    return sorted(runs.values(), key=lambda run: run.name)


def _names(column: str, columns: Mapping[str, str]) -> tuple[str, ...]:
    return (columns[column],) if column in columns else KEYS[column]


def _facts(run: Run, values: Mapping[str, Any]) -> Facts:
    for key in values:
        one_of(key, Facts.model_fields, "fact", f" of run {run.name!r}")
    try:
        return Facts.model_validate(values)
    except ValidationError as error:
        missing = [str(e["loc"][0]) for e in error.errors() if e["type"] == "missing"]
        if missing:
            raise UserError(
                f"run {run.name!r}: {', '.join(missing)} not known; give "
                f"--set {missing[0]}=VALUE, or a runs.csv (--template writes one)"
            ) from None
        raise UserError(f"run {run.name!r}: {first_problem(error)}; correct it") from None


def _converted(run: str, row: Mapping[str, Any], facts: Facts, unit: str) -> dict[str, Any]:
    """Losses in nats per token; what is per byte by the text's bytes per token."""
    row = dict(row)
    for name in ("loss", "nats_per_token"):
        if name not in row:
            continue
        if unit == "perplexity":
            row[name] = math.log(row[name])
        elif unit != "nats":
            row[name] *= math.log(2)
            if unit == "bits-per-byte":
                row[name] *= _bytes_per_token(run, facts)
    if "nats_per_token" in row and facts.bytes_per_token:
        row["bits_per_byte"] = row["nats_per_token"] / math.log(2) / facts.bytes_per_token
    elif "bits_per_byte" in row and "nats_per_token" not in row:
        of_token = math.log(2) * _bytes_per_token(run, facts)
        row["nats_per_token"] = row["bits_per_byte"] * of_token
    return row


def _bytes_per_token(run: str, facts: Facts) -> float:
    if facts.bytes_per_token is None:
        raise UserError(
            f"run {run!r}: bytes_per_token not known, for its losses per byte; give "
            "--set bytes_per_token=VALUE"
        )
    return facts.bytes_per_token


def _placed(run: str, row: Mapping[str, Any], facts: Facts) -> dict[str, Any]:
    """A row with its counters."""
    step = int(row["step"])
    superposed = 0 < step <= facts.superposed_steps
    return {
        "loss_name": "bag loss" if superposed else "next_token",
        **row,
        "folder": run,
        "phase": "superposition" if superposed else "recovery",
        "bag_size": facts.bag_size if superposed else 1,
        "raw_tokens": facts.raw_tokens(step),
        "latent_tokens": facts.tokens_per_step * step,
        "flops": _flops(facts) * step / facts.steps,
    }


def _evaluated(run: str, row: Mapping[str, Any], facts: Facts) -> dict[str, Any]:
    # Before its last step no training has decayed its rate to the end.
    annealed = facts.annealed and row["step"] >= facts.steps
    return {**_placed(run, row, facts), "eval_set": facts.eval_set, "annealed": annealed}


def _flops(facts: Facts) -> float:
    used = facts.active_parameters or facts.parameters
    return facts.flops or 6.0 * used * facts.tokens_per_step * facts.steps


def _run_row(name: str, rows: Sequence[Mapping[str, Any]], facts: Facts) -> dict[str, Any]:
    """In `RUN_COLUMNS`."""
    last = int(rows[-1]["step"]) if rows else 0
    evaluated = [row for row in rows if "nats_per_token" in row]
    trained = [row for row in rows if "loss" in row]
    arm = None if facts.arm == BASELINE else facts.arm
    departures = {one.column: getattr(facts, one.column, None) for one in DEPARTURES}
    superposed = {
        "bag_size": facts.bag_size,
        "superposed_steps": facts.superposed_steps,
        "step_ratio": facts.step_ratio,
        **departures,
        "named_arm": arm,
    }
    family = [facts.corpus, f"{facts.parameters:,} parameters"]
    family += [f"{facts.tokens_per_step:,} positions a step", facts.batch]
    label = ", ".join(filter(None, family))
    known = facts.model_dump(
        include={"study", "seed", "learning_rate", "corpus", "sequences", "sequence_length"}
        | {"parameters", "unique_raw_tokens"}
    )
    final = _evaluated(name, evaluated[-1], facts) if evaluated else {}
    measured = ("nats_per_token", "bits_per_byte", "annealed", "eval_set")
    return finished(
        facts.steps,
        superposed,
        **known,
        run_id=name,
        name=name,
        folder=name,
        state="done" if last >= facts.steps else "failed",
        message="" if last >= facts.steps else f"the log ends at step {last:,}",
        step=last,
        active_parameters=facts.active_parameters or facts.parameters,
        raw_tokens=facts.raw_tokens(facts.steps),
        latent_tokens=facts.tokens_per_step * facts.steps,
        data_multiplier=facts.raw_tokens(facts.steps) / (facts.tokens_per_step * facts.steps),
        flops=int(_flops(facts)),
        last_train_loss=trained[-1]["loss"] if trained else None,
        last_train_loss_name=_placed(name, trained[-1], facts)["loss_name"] if trained else None,
        evaluated_step=final.get("step"),
        evaluated_phase=final.get("phase"),
        **{key: final.get(key) for key in measured},
        **dict.fromkeys(("code", "devices"), ""),
        dropped_rows=0,
        segments=1,
        family=label,
        group=f"{label}, {facts.steps:,} steps",
        fingerprint=digest([facts.model_dump(mode="json"), [dict(row) for row in rows]]),
    )


def _frame(rows: list[dict[str, Any]], columns: Sequence[Any]) -> pd.DataFrame:
    table = pd.DataFrame(rows, columns=["folder", *(column.name for column in columns)])
    return typed(table.astype({"folder": "category"}), columns)
