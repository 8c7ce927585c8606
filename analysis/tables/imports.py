"""Logs of other trainers as the three tables of an archive.

What a log does not say comes from `--set` or from a `runs.csv`; nothing is guessed. A log's own
word is overruled by `--set`, and that by the run's row of `runs.csv`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tst_study.analysis.tables.columns import (
    CURVES,
    EVALUATIONS,
    Column,
    Tables,
    finished,
    rows_of,
    typed,
)
from tst_study.analysis.tables.foreign_logs import Log, read_facts, read_logs
from tst_study.atomic_files import written_atomically
from tst_study.config.identity import digest
from tst_study.config.keys import problem_of
from tst_study.config.superposition_setting import ABLATIONS
from tst_study.errors import UserError, one_of
from tst_study.superposition.loss_kinds import BagLossKind, Mode
from tst_study.superposition.steps import Phases, superposed_steps
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
    mode: Mode | None = None
    loss_kind: BagLossKind | None = None
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
    def phases(self) -> Phases:
        superposed = superposed_steps(self.steps, self.bag_size, self.step_ratio)
        return Phases(self.steps, superposed, self.bag_size, self.mode or "full")

    def raw_tokens(self, steps: Iterable[int]) -> list[int]:
        """Tokens read after each of these numbers of steps."""
        return [self.phases.tokens_read(int(step), self.tokens_per_step) for step in steps]

    @property
    def used_flops(self) -> float:
        used = self.active_parameters or self.parameters
        return self.flops or 6.0 * used * self.tokens_per_step * self.steps


@dataclass(frozen=True)
class Run:
    """All that the logs of one run say."""

    name: str
    facts: dict[str, Any]
    rows: pd.DataFrame
    """By step, in the columns of `KEYS`."""
    twice: int
    """Steps that were written again with another value."""


def import_logs(
    sources: Iterable[str],
    given: Mapping[str, str],
    facts: Path | None = None,
    columns: Mapping[str, str] | None = None,
    unit: str = "nats",
) -> Tables:
    """Runs of `sources` (`read_logs`) as tables; their `problems` are what a person should know:
    steps written twice, losses not found.

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
    logs = read_logs(sources)
    runs = runs_of_logs(logs, columns or {})
    there = {key for log in logs for _, key, _ in log.points}
    for name, key in (columns or {}).items():
        one_of(key, sorted(there), f"--column {name}")
    if unknown := sorted(own.keys() - {run.name for run in runs}):
        raise UserError(f"{facts}: no log of run {unknown[0]!r}; correct it or remove the row")
    rows, curves, evaluations, problems = [], [], [], []
    without, early = [], []
    for run in runs:
        known = _facts(run, {**run.facts, **given, **own.get(run.name, {})})
        placed = _placed(run, known, unit)
        curves.append(placed.dropna(subset="loss"))
        evaluations.append(placed.dropna(subset="nats_per_token"))
        rows.append(_run_row(run, curves[-1], evaluations[-1], known))
        if run.twice:
            problems.append(f"{run.name}: {run.twice} steps written twice; the later counts")
        if evaluations[-1].empty:
            without.append(run.name)
        if rows[-1]["step"] < rows[-1]["steps"]:
            early.append(f"{run.name} ({rows[-1]['step']:,} of {rows[-1]['steps']:,})")
    if without:
        problems.append(
            f"no held-out loss in {listed(without, FEW)}: nothing can be compared without one at "
            "the last step; name it with --column nats_per_token=…"
        )
    if early:
        problems.append(
            f"the log ends before the last step: {listed(early, FEW)}; correct `steps`, or where "
            "steps are counted from 0, log step + 1"
        )
    if BASELINE not in {row["arm"] for row in rows}:
        problems.append("no run is of the arm 'baseline', which the others are held against")
    return Tables.of(rows, _frame(curves, CURVES), _frame(evaluations, EVALUATIONS), problems)


def write_template(path: Path, sources: Iterable[str], columns: Mapping[str, str]) -> int:
    """A `runs.csv` with a row for each run and what its logs say; returns the number of runs."""
    runs = runs_of_logs(read_logs(sources), columns)
    rows = [{"run": run.name, **run.facts} for run in runs]
    table = pd.DataFrame(rows, columns=["run", *Facts.model_fields], dtype=object)
    with written_atomically(path) as file:
        file.write(table.to_csv(index=False, lineterminator="\n").encode())
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
    merged: dict[str, Log] = {}
    for log in logs:
        first = merged.setdefault(log.run, log)
        if first is log:
            continue
        one, other = first.place.parent, log.place.parent
        if one != other and not (log.place.suffix == ".csv" or log.named):
            raise UserError(f"run {log.run!r}: logs in {one} and {other}; name each: NAME=PATH")
        first.facts |= log.facts
        first.points += log.points
    return [_run(merged[name], columns) for name in sorted(merged)]


def _run(log: Log, columns: Mapping[str, str]) -> Run:
    points = pd.DataFrame(log.points, columns=["step", "key", "value"])
    values = points.groupby(["step", "key"])["value"]
    last = points.drop_duplicates(["step", "key"], keep="last")
    wide = last.pivot(index="step", columns="key", values="value")
    own = {name: (columns[name],) if name in columns else keys for name, keys in KEYS.items()}
    named = {name: next((key for key in keys if key in wide), None) for name, keys in own.items()}
    if not any(named[column] for column in ("loss", "nats_per_token", "bits_per_byte")):
        there = sorted(map(str, wide))
        raise UserError(
            f"run {log.run!r}: no loss among {', '.join(there[:12])}; name it with "
            "--column loss=… or nats_per_token=…"
        )
    rows = pd.DataFrame({name: wide.get(key) for name, key in named.items()}, wide.index)
    rows = rows.astype({name: float for name in KEYS if name != "loss_name"})
    facts = {key: value for key, value in log.facts.items() if key in Facts.model_fields}
    if rows["learning_rate"].notna().any():
        facts.setdefault("learning_rate", float(rows["learning_rate"].max()))
    twice = int((values.nunique() > 1).groupby("step").any().sum())
    return Run(log.run, facts, rows, twice)


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
        raise UserError(f"run {run.name!r}: {problem_of(Facts, error)}") from None


def _bytes_per_token(run: str, facts: Facts) -> float:
    if facts.bytes_per_token is None:
        raise UserError(
            f"run {run!r}: bytes_per_token not known, for its losses per byte; give "
            "--set bytes_per_token=VALUE"
        )
    return facts.bytes_per_token


def _placed(run: Run, facts: Facts, unit: str) -> pd.DataFrame:
    """Its rows with counters and losses in nats per token; what is per byte by the text's bytes per
    token."""
    rows, step = run.rows.reset_index(), run.rows.index.to_numpy()
    for name in ("loss", "nats_per_token"):
        if unit == "perplexity":
            rows[name] = np.log(rows[name])
        elif unit != "nats":
            rows[name] *= np.log(2)
        if unit == "bits-per-byte" and rows[name].notna().any():
            rows[name] *= _bytes_per_token(run.name, facts)
    if rows["bits_per_byte"][rows["nats_per_token"].isna()].notna().any():
        of_token = np.log(2) * _bytes_per_token(run.name, facts)
        rows["nats_per_token"] = rows["nats_per_token"].fillna(rows["bits_per_byte"] * of_token)
    if facts.bytes_per_token:
        rows["bits_per_byte"] = rows["nats_per_token"] / np.log(2) / facts.bytes_per_token
    superposed = (step > 0) & (step <= facts.phases.superposed_steps)
    names = pd.Series(np.where(superposed, "bag loss", "next_token"))
    return rows.assign(
        loss_name=rows["loss_name"].fillna(names),
        folder=run.name,
        phase=np.where(superposed, "superposition", "recovery"),
        bag_size=np.where(superposed, facts.bag_size, 1),
        raw_tokens=facts.raw_tokens(step),
        latent_tokens=facts.tokens_per_step * step,
        flops=facts.used_flops * step / facts.steps,
        eval_set=facts.eval_set,
        # Before its last step no training has decayed its rate to the end.
        annealed=facts.annealed & (step >= facts.steps),
    )


def _run_row(
    run: Run, curve: pd.DataFrame, evaluations: pd.DataFrame, facts: Facts
) -> dict[str, Any]:
    """In `RUN_COLUMNS`."""
    last = int(run.rows.index.max())
    ablations = {one.column: getattr(facts, one.column, None) for one in ABLATIONS}
    superposed = {
        "bag_size": facts.bag_size,
        "superposed_steps": facts.phases.superposed_steps,
        "step_ratio": facts.step_ratio,
        **ablations,
        "named_arm": None if facts.arm == BASELINE else facts.arm,
    }
    family = [facts.corpus, f"{facts.parameters:,} parameters"]
    family += [f"{facts.tokens_per_step:,} positions a step", facts.batch]
    label = ", ".join(filter(None, family))
    known = facts.model_dump(
        include={"study", "seed", "learning_rate", "corpus", "sequences", "sequence_length"}
        | {"parameters", "unique_raw_tokens"}
    )
    trained, final = (next(rows_of(table.tail(1)), {}) for table in (curve, evaluations))
    measured = ("nats_per_token", "bits_per_byte", "annealed", "eval_set")
    (raw,), latent = facts.raw_tokens([facts.steps]), facts.tokens_per_step * facts.steps
    return finished(
        facts.steps,
        superposed,
        **known,
        **dict.fromkeys(("run_id", "name", "folder"), run.name),
        state="done" if last >= facts.steps else "failed",
        message="" if last >= facts.steps else f"the log ends at step {last:,}",
        step=last,
        active_parameters=facts.active_parameters or facts.parameters,
        raw_tokens=raw,
        latent_tokens=latent,
        data_multiplier=raw / latent,
        flops=int(facts.used_flops),
        last_train_loss=trained.get("loss"),
        last_train_loss_name=trained.get("loss_name"),
        evaluated_step=final.get("step"),
        evaluated_phase=final.get("phase"),
        **{key: final.get(key) for key in measured},
        **dict.fromkeys(("code", "devices"), ""),
        dropped_rows=0,
        segments=1,
        family=label,
        group=f"{label}, {facts.steps:,} steps",
        fingerprint=digest([facts.model_dump(mode="json"), run.rows.to_csv()]),
    )


def _frame(parts: list[pd.DataFrame], columns: Sequence[Column]) -> pd.DataFrame:
    names = ["folder", *(column.name for column in columns)]
    table = pd.concat(parts, ignore_index=True).reindex(columns=names)
    return typed(table.astype({"folder": "category"}), columns)
