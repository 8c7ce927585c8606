"""Turns logs of other trainers, and tables of finished runs, into our tables: `tst-study import`.

What a log does not say comes from a `runs.csv` or from `--set`; `--set` overrules `runs.csv`, which
overrules the log. A needed fact that is missing is an error. The other facts have defaults
(`Facts`). Where all runs lack one of the facts in `_ASSUMED`, such as the corpus, the command says
what it assumes.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from tst_study.analysis.tables.columns import (
    CURVES,
    EVALUATIONS,
    Column,
    Tables,
    finished,
    rows_of,
    typed,
)
from tst_study.analysis.tables.foreign_logs import (
    FINAL,
    KEYS,
    Log,
    Point,
    decimal,
    read_logs,
    whole,
)
from tst_study.analysis.tables.sheets import TABLES, ending, filled_cells, read_sheet
from tst_study.atomic_files import written_atomically
from tst_study.config.identity import digest
from tst_study.config.keys import problem_of
from tst_study.config.phase_plan import PhasePlan
from tst_study.config.superposition_setting import ABLATIONS
from tst_study.errors import UserError, one_of
from tst_study.superposition.loss_kinds import BagLossKind, Mode
from tst_study.superposition.steps import superposed_steps
from tst_study.text import listed, short

UNITS = ("nats", "bits", "perplexity")
LOSSES = ("loss", "nats_per_token")
"""Columns whose unit a person may name: the training loss and the held-out loss."""
BASELINE = "baseline"
FEW = 3
"""The largest number of runs that a message names."""


def _whole(value: Any) -> Any:
    number = whole(value)
    return value if number is None else number


Whole = Annotated[int, BeforeValidator(_whole), Field(lt=2**63)]
"""A whole number, however a spreadsheet writes it: 30, 30.0 or 3e1."""


class Facts(BaseModel):
    """The facts that a comparison needs beside a run's curves (units: `docs/tables.md`)."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, str_max_length=200)

    arm: str | None = None
    """The name of the method that the run stands for, if this is not superposition; empty for
    superposed runs. The arm that `baseline` names is the baseline."""
    bag_size: Whole = Field(1, ge=1)
    """s; 1, the default, for runs that are not superposed."""
    step_ratio: float = Field(ge=0, le=1)
    """r; 0 by default if `bag_size` is 1, and needed otherwise."""
    parameters: Whole = Field(ge=1)
    tokens_per_step: Whole = Field(ge=1)
    """Latent positions per step; a superposed step reads s times as many tokens, unless `mode` is
    `output_only`."""
    steps: Whole = Field(ge=1)
    """Planned steps."""
    seed: Whole | None = Field(None, ge=0)
    """Pairs a run with its baseline; runs without a seed are compared unpaired."""
    learning_rate: float | None = Field(None, ge=0)
    """The peak rate; by default the highest in the log."""
    corpus: str = "text without a name"
    eval_set: str = "held-out text without a name"
    annealed: bool
    """Whether the learning rate had decayed at the last step."""

    baseline: str = BASELINE
    """The name of the arm that the others are compared with."""
    tokens: float | None = Field(None, ge=1, lt=2**63)
    """Latent positions of the whole training. Missing steps, tokens per step or parameters are
    derived from them."""
    active_parameters: Whole | None = Field(None, ge=1)
    flops: float | None = Field(None, gt=0, lt=1e300)
    """FLOPs of the whole training; by default 6 · active parameters · positions."""
    bytes_per_token: float | None = Field(None, gt=0)
    """Bytes per token of the held-out text; needed to convert bits per byte to nats per token."""
    batch: str = ""
    """A label of anything else that must be equal; only runs with the same label are compared."""
    study: str = "imported"
    mode: Mode | None = None
    loss_kind: BagLossKind | None = None
    weighting: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _follows(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Derive missing facts from those that are given.

        r is 0 for s = 1. Tokens follow from parameters and FLOPs, and parameters from tokens and
        FLOPs, both by FLOPs = 6 · parameters · tokens. Of steps and tokens per step, one follows
        from the other and the tokens; if both are missing, one step stands for one position.
        """
        values = dict(given)
        if whole(values.get("bag_size", 1)) == 1:
            values.setdefault("step_ratio", 0.0)
        names = ("parameters", "flops", "tokens", "steps", "tokens_per_step")
        size, flops, tokens, steps, each = (decimal(values.get(name)) for name in names)
        with suppress(ArithmeticError, ValueError):  # bad values are refused by their own fields
            if tokens is None and size and flops:
                tokens = flops / 6 / size
            if tokens and flops:
                values.setdefault("parameters", round(flops / 6 / tokens))
            if tokens and "steps" not in values:
                values["steps"] = max(1, round(tokens / (each or 1)))
                values.setdefault("tokens_per_step", 1)
            elif tokens and steps:
                values.setdefault("tokens_per_step", max(1, round(tokens / steps)))
        return values

    @property
    def plan(self) -> PhasePlan:
        """The phases as this package's trainer would plan them, with one sequence of
        `tokens_per_step` positions in each step."""
        superposed = superposed_steps(self.steps, self.bag_size, self.step_ratio)
        return PhasePlan(
            steps=self.steps,
            superposed_steps=superposed,
            bag_size=self.bag_size if superposed else 1,
            mode=self.mode or "full",
            sequences=1,
            sequence_length=self.tokens_per_step,
        )

    @property
    def used_flops(self) -> float:
        """FLOPs of the whole training: those given, or else the default that `flops` describes."""
        used = self.active_parameters or self.parameters
        return self.flops or 6.0 * used * self.tokens_per_step * self.steps


@dataclass(frozen=True)
class Run:
    """The content of the logs of one run."""

    log: Log
    facts: dict[str, Any]
    rows: pd.DataFrame
    """Rows by step, with the columns of `KEYS`; values that are not finite are NaN. A run from a
    table of finished runs has one row, at step 0."""
    rewritten_steps: int
    """Number of steps for which some value was logged again and had changed."""
    diverged: bool
    """Whether the last value of any loss is not finite."""

    @property
    def name(self) -> str:
        return self.log.run

    @property
    def where(self) -> str:
        """The run's name for error messages; if the run comes from a table of finished runs, its
        file and line stand before the name."""
        row = f"{self.log.place}, line {self.log.points[0].line}: " if self.log.final else ""
        return f"{row}run {short(self.name)}"


def import_logs(
    sources: Iterable[str],
    given: Mapping[str, str],
    facts: Path | None = None,
    columns: Mapping[str, str] | None = None,
    unit: Iterable[str] = (),
    *,
    arm_from: str | None = None,
    steps_from: int = 1,
) -> Tables:
    """Read the runs of `sources` (`read_logs`) into tables. Their `problems` say what a person
    should know of the runs, such as steps written twice, missing losses and facts that no run has.

    Args:
        given: facts that hold for all runs (`Facts`).
        facts: a CSV with the facts of each run, a row for each.
        columns: the logs' names for columns of `KEYS` and facts of `FINAL`, if they are unusual.
        unit: the unit of both `LOSSES`, or `COLUMN=UNIT` for one of them; nats by default.
        arm_from: `folder` names a run's arm after the folder that groups runs (`Log.above`).
        steps_from: the number that the logs give their first step, 1 or 0.

    Raises `UserError` for a log that cannot be read, for an unknown column, key, unit or run, and
    for a missing or wrong fact; the message names the run and the fact.
    """
    units, sheet = _units(unit), read_facts(facts) if facts else {}
    runs = _runs(sources, columns or {}, 1 - steps_from)
    if unknown := sorted(sheet.keys() - {run.name for run in runs}):
        raise UserError(f"{facts}: no log of run {unknown[0]!r}; correct it or remove the row")
    known = [
        {
            **({"annealed": True} if run.log.final else {}),
            **_own_facts(run, arm_from),
            **sheet.get(run.name, {}),
            **given,
        }
        for run in runs
    ]
    problems = _left_open(runs, known)
    rows, curves, evaluations = [], [], []
    for run, values in zip(runs, known, strict=True):
        of_run = _facts(run, values)
        placed = _placed(run, of_run, units)
        curves.append(placed.dropna(subset="loss"))
        evaluations.append(placed.dropna(subset="nats_per_token"))
        rows.append(_run_row(run, curves[-1], evaluations[-1], of_run))
    tables = Tables.of(rows, _frame(curves, CURVES), _frame(evaluations, EVALUATIONS))
    return replace(tables, problems=(*problems, *_noticed(runs, tables)))


_ASSUMED = {
    ("arm", "bag_size"): "no run says its arm or bag_size: all count as baselines, and nothing is "
    "compared; add bag_size and step_ratio in a runs.csv (--template)",
    ("corpus",): "no run says its corpus: all are taken to have the same",
    ("eval_set",): "no run says its eval_set: all are taken to have the same",
    ("learning_rate",): "no run says its learning_rate: all are taken to have the same",
    ("seed",): "no seed is known for {}: such runs are compared "
    "unpaired, or left out beside runs of the same setting that have seeds",
}
"""For each group of facts, a sentence that says what is assumed if no run has any of them. The seed
may also be missing in some of the runs; its sentence names them. Where arms are named, the learning
rate may be missing in some or in all, without a sentence."""


def _left_open(runs: Sequence[Run], known: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return sentences on what is assumed because no run has certain facts (`_ASSUMED`), or because
    finished runs have no steps. Raises `UserError` if only some runs lack such facts. The seed may
    be missing in some, and so may the learning rate where arms are named."""
    problems = []
    for keys, words in _ASSUMED.items():
        key, *_ = keys
        if key == "learning_rate" and any(own.get("arm") for own in known):
            continue  # named arms are compared whatever their learning rates
        lacking = [run for run, own in zip(runs, known, strict=True) if own.keys().isdisjoint(keys)]
        if lacking and len(lacking) < len(runs) and key != "seed":
            raise UserError(
                f"{lacking[0].where}: {key} not known; give --set {key}=VALUE, or a runs.csv "
                "(--template writes one)"
            )
        if lacking:
            problems.append(words.format(listed([run.name for run in lacking], FEW)))
    for run, own in zip(runs, known, strict=True):
        if run.log.final and own.keys().isdisjoint(("steps", "tokens_per_step")):
            return [*problems, "steps are not known: one step stands for one position"]
    return problems


def _noticed(runs: Sequence[Run], tables: Tables) -> list[str]:
    """Return sentences on steps written twice, on how runs ended, and on missing held-out losses or
    a missing baseline."""
    table = tables.runs
    ends = pd.Series(
        [f"{run['name']} ({run['step']:,} of {run['steps']:,})" for run in rows_of(table)]
    )
    problems = [
        f"{run.name}: {run.rewritten_steps} steps written twice; the later counts"
        for run in runs
        if run.rewritten_steps
    ]
    for words, those in {
        "no held-out loss in {}: nothing can be compared without one at the last step; name it "
        "with --column nats_per_token=…": ~table["folder"].isin(tables.evaluations["folder"]),
        "diverged (loss not finite at the end): {}": table["state"] == "diverged",
        "the log ends before the last step: {}; give --steps-from 0 where steps are counted from "
        "0, or correct `steps`": table["state"] == "failed",
        # nanoGPT trains one step more than it evaluates.
        "the log goes on after the last step: {}; correct `steps`": table["step"]
        > table["steps"] + 1,
    }.items():
        if those.any():
            problems.append(words.format(listed(list(ends[those]), FEW)))
    if "baseline" not in set(table["method"]):
        problems.append(
            "no run is of the arm 'baseline', with which the others are compared; name it so, or "
            "give --set baseline=ARM"
        )
    return problems


def write_template(
    path: Path, sources: Iterable[str], columns: Mapping[str, str], arm_from: str | None = None
) -> int:
    """Write a new `runs.csv` with a row for each run and what its logs say, and return the number
    of runs. Raises `UserError` if a file of that name exists, for a log that cannot be read, and
    for an unknown column or key."""
    if path.exists():
        raise UserError(
            f"{path}: already exists and may be filled in; name another file, or delete it"
        )
    runs = _runs(sources, columns)
    rows = [{"run": run.name, **_own_facts(run, arm_from)} for run in runs]
    table = pd.DataFrame(rows, columns=["run", *Facts.model_fields], dtype=object)
    with written_atomically(path) as file:
        file.write(table.to_csv(index=False, lineterminator="\n").encode())
    return len(runs)


def _own_facts(run: Run, arm_from: str | None) -> dict[str, Any]:
    """Return the facts in a run's logs. With `arm_from`, the arm is the name of the folder
    (`Log.above`), unless a log names one."""
    return {"arm": run.log.above, **run.facts} if arm_from else run.facts


def read_facts(path: Path) -> dict[str, dict[str, str]]:
    """Read a `runs.csv`: for each run the facts in its cells that are not empty.

    Raises `UserError` for a damaged file, one without a column `run`, and a run with two rows.
    """
    sheet = read_sheet(path)
    if "run" not in sheet:
        raise UserError(f"{path}: column 'run' is missing; write a table with --template")
    facts: dict[str, dict[str, str]] = {}
    for line, row in filled_cells(sheet, path, "run"):
        name = row.pop("run")
        if name in facts:
            raise UserError(f"{path}, line {line}: run {short(name)} appears twice; remove a row")
        facts[name] = row
    return facts


def pairs(given: Iterable[str] | None, option: str) -> dict[str, str]:
    """Split KEY=VALUE texts. Raises `UserError` for any other text, and for a key given twice."""
    values: dict[str, str] = {}
    for key, equals, value in (text.partition("=") for text in given or ()):
        if not (key and equals and value):
            raise UserError(f"{option} {key}{equals}{value}: give KEY=VALUE")
        if key in values:
            raise UserError(f"{option} {key}: is given twice; keep one")
        values[key] = value
    return values


def _units(given: Iterable[str]) -> dict[str, str]:
    """Return the unit of each of `LOSSES`."""
    units = dict.fromkeys(LOSSES, "nats")
    for text in given:
        column, named, unit = text.rpartition("=")
        one_of(unit, UNITS, "--unit")
        units |= {one_of(column, LOSSES, "--unit"): unit} if named else dict.fromkeys(LOSSES, unit)
    return units


def _runs(sources: Iterable[str], columns: Mapping[str, str], step_offset: int = 0) -> list[Run]:
    """Read logs, put those of each run together, with the columns of `KEYS`, and return the runs
    sorted by name. If a value was logged twice for one step, the later one counts.

    columns: the logs' names for columns. step_offset: a number to add to each step.

    Raises `UserError` as `read_logs` does, for an unknown column or key, if logs with one name seem
    to be of two runs, if a run has no loss, and if a value in one of these columns is not a number.
    """
    for name in columns:
        one_of(name, [*KEYS, *FINAL], "--column")
    logs = read_logs(sources, columns)
    keys = sorted({point.key for log in logs for point in log.points})
    for name, key in columns.items():
        one_of(key, keys, f"--column {name}")
    merged: dict[str, Log] = {}
    for log in logs:
        _read_numbers(log, columns)
        first = merged.setdefault(log.run, log)
        if first is log:
            continue
        apart = first.place.parent != log.place.parent and not log.named
        if apart or log.final or _contradict(first, log):
            raise UserError(
                f"run {short(log.run)}: is in {first.place} and {log.place}; name each: NAME=PATH"
            )
        first.facts |= log.facts
        first.points += log.points
    return [_run(merged[name], columns, step_offset) for name in sorted(merged)]


def _read_numbers(log: Log, columns: Mapping[str, str]) -> None:
    """Turn the values of all columns of `KEYS` but `loss_name` into floats, in place. Raises
    `UserError` for one that is not a number."""
    used = {key for name, keys in KEYS.items() for key in (columns.get(name), *keys)}
    for place, (step, key, value, line) in enumerate(log.points):
        if key in used and key != "loss_name":
            if (number := decimal(value)) is None:
                where = f", line {line}" if line else f", step {step}"
                raise UserError(f"{log.place}{where}, {key}: {short(value)} is not a number")
            log.points[place] = Point(step, key, number, line)


def _contradict(first: Log, other: Log) -> bool:
    """Return whether two logs cannot be of one run, because both are tables and have a value of the
    same key at the same step. In other formats a restart may have logged steps again. Logs that a
    person gave one name are always taken to be of one run."""
    if other.named or not {ending(first.place), ending(other.place)} <= {*TABLES}:
        return False
    known = {(point.step, point.key) for point in first.points}
    return any((point.step, point.key) in known for point in other.points)


def _run(log: Log, columns: Mapping[str, str], step_offset: int) -> Run:
    """Arrange the logged values of one run in a table, with a row for each step. Raises `UserError`
    if the run has no loss."""
    points = pd.DataFrame([point[:3] for point in log.points], columns=["step", "key", "value"])
    last = points.drop_duplicates(["step", "key"], keep="last")
    wide = last.pivot(index="step", columns="key", values="value")
    own = {name: (columns[name],) if name in columns else keys for name, keys in KEYS.items()}
    if log.final:
        own |= {"loss": (columns.get("loss", "train_loss"),), "nats_per_token": ("nats_per_token",)}
    named = {name: next((key for key in keys if key in wide), None) for name, keys in own.items()}
    if not any(named[column] for column in _OF_LOSS):
        there = sorted(map(str, wide))
        raise UserError(
            f"run {short(log.run)}: no loss among {', '.join(there[:12])}; name it with "
            "--column loss=… or nats_per_token=…"
        )
    rows = pd.DataFrame({name: wide.get(key) for name, key in named.items()}, wide.index)
    rows = rows.astype({name: float for name in KEYS if name != "loss_name"})
    rows = rows.replace([np.inf, -np.inf], np.nan)
    facts = {key: value for key, value in log.facts.items() if key in Facts.model_fields}
    if rows["learning_rate"].notna().any():
        facts.setdefault("learning_rate", float(rows["learning_rate"].max()))
    changed = points.astype({"value": str}).groupby(["step", "key"])["value"].nunique() > 1
    losses = last[last["key"].isin([named[column] for column in _OF_LOSS])].sort_values("step")
    ends = losses.groupby("key").tail(1).set_index("key")["value"].astype(float)
    if np.isfinite(ends.get(named["loss"], np.nan)):
        # Some logs have NaN for a held-out loss wherever nothing was evaluated.
        without = losses["key"][losses["value"].astype(float).isna()].value_counts()
        ends = ends[ends.notna() | (without.reindex(ends.index).fillna(0) < 2)]
    rows.index += 0 if log.final else step_offset
    rewritten = int(changed.groupby("step").any().sum())
    return Run(log, facts, rows, rewritten, diverged=not np.isfinite(ends).all())


_OF_LOSS = (*LOSSES, "bits_per_byte")


def _facts(run: Run, values: Mapping[str, Any]) -> Facts:
    try:
        return Facts.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{run.where}: {problem_of(Facts, error)}") from None


def _placed(run: Run, facts: Facts, units: Mapping[str, str]) -> pd.DataFrame:
    """Return the run's rows with the remaining columns of a curve and an evaluation, such as phase,
    tokens and FLOPs, and with losses in nats per token. Raises `UserError` if held-out losses are
    in bits per byte alone and the bytes per token are not known."""
    rows = run.rows.set_axis([facts.steps]) if run.log.final else run.rows
    rows = rows.rename_axis("step").reset_index()
    for name, unit in units.items():
        if unit == "perplexity":
            if (wrong := rows[rows[name] <= 0]).size:
                step, value = wrong[["step", name]].iloc[0]
                raise UserError(
                    f"run {run.name!r}, step {step:g}: {value:g} is no perplexity; mend "
                    "the log, or give the unit of one column: --unit nats_per_token=perplexity"
                )
            rows[name] = np.log(rows[name])
        elif unit == "bits":
            rows[name] *= np.log(2)
    only_bits = rows["bits_per_byte"].notna() & rows["nats_per_token"].isna()
    if facts.bytes_per_token:
        nats = np.log(2) * facts.bytes_per_token
        rows["nats_per_token"] = rows["nats_per_token"].fillna(rows["bits_per_byte"] * nats)
        rows["bits_per_byte"] = rows["nats_per_token"] / nats
    elif only_bits.any():
        raise UserError(
            f"run {run.name!r}: bytes_per_token is needed for its losses per byte; give "
            "--set bytes_per_token=VALUE"
        )
    plan = facts.plan
    counters = pd.DataFrame([plan.counters(step) for step in rows["step"].tolist()], rows.index)
    superposed = counters["phase"] == "superposition"
    names = pd.Series(np.where(superposed, "bag loss", "next_token"))
    return rows.assign(
        **counters,
        loss_name=rows["loss_name"].fillna(names),
        folder=run.name,
        bag_size=np.where(superposed, facts.bag_size, 1),
        flops=facts.used_flops / facts.steps * rows["step"],
        eval_set=facts.eval_set,
        # `facts.annealed` is about the last step; no row before it counts as annealed.
        annealed=facts.annealed & (rows["step"] >= facts.steps),
    )


def _run_row(
    run: Run, curve: pd.DataFrame, evaluations: pd.DataFrame, facts: Facts
) -> dict[str, Any]:
    """Return the run's row of the run table, with the keys `RUN_COLUMNS`."""
    plan, last = facts.plan, facts.steps if run.log.final else int(run.rows.index.max())
    ablations = {one.column: getattr(facts, one.column, None) for one in ABLATIONS}
    superposed = {
        "bag_size": facts.bag_size,
        "superposed_steps": plan.superposed_steps,
        "step_ratio": facts.step_ratio,
        **ablations,
        "named_arm": None if facts.arm in (BASELINE, facts.baseline) else facts.arm,
    }
    family = [facts.corpus, f"{facts.parameters:,} parameters"]
    family += [f"{facts.tokens_per_step:,} positions a step", facts.batch]
    label = ", ".join(filter(None, family))
    known = facts.model_dump(include={"study", "seed", "learning_rate", "corpus", "parameters"})
    trained, final = (next(rows_of(table.tail(1)), {}) for table in (curve, evaluations))
    measured = ("nats_per_token", "bits_per_byte", "annealed", "eval_set")
    state, message = "done", ""
    if run.diverged:
        state, message = "diverged", "the loss is not finite at the end"
    elif last < facts.steps:
        state, message = "failed", f"the log ends at step {last:,}"
    seconds = run.rows["training_seconds"].max()
    alone = [run.name] if run.log.final and facts.seed is None else []
    return finished(
        facts.steps,
        superposed,
        **known,
        **dict.fromkeys(("run_id", "name", "folder"), run.name),
        state=state,
        message=message,
        step=last,
        active_parameters=facts.active_parameters or facts.parameters,
        raw_tokens=plan.raw_tokens(facts.steps),
        latent_tokens=plan.latent_tokens(facts.steps),
        data_multiplier=plan.data_multiplier,
        flops=int(facts.used_flops),
        training_seconds=seconds if seconds > 0 else None,
        tokens_per_second=plan.raw_tokens(last) / seconds if seconds > 0 else None,
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
        # Finished runs without seeds may well have equal losses, which are rounded.
        fingerprint=digest([facts.model_dump(mode="json"), run.rows.to_csv(), *alone]),
    )


def _frame(parts: list[pd.DataFrame], columns: Sequence[Column]) -> pd.DataFrame:
    names = ["folder", *(column.name for column in columns)]
    table = pd.concat(parts, ignore_index=True).reindex(columns=names)
    return typed(table.astype({"folder": "category"}), columns)
