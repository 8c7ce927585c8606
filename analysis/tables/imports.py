"""Turns logs of other trainers, and tables of finished runs, into our tables: `tst-study import`.

What a log does not say comes from a `runs.csv` or from `--set`; `--set` overrules `runs.csv`, which
overrules the log. A needed fact that is missing is an error. The other facts have defaults
(`Facts`). Where all runs lack one of the facts in `_ASSUMED`, such as the corpus, the command says
what it assumes.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import ValidationError

from tst_study.analysis.tables.columns import (
    CURVES,
    EVALUATIONS,
    Column,
    Tables,
    finished,
    rows_of,
    typed,
)
from tst_study.analysis.tables.facts import (
    BASELINE,
    LOSSES,
    Facts,
    question,
    read_facts,
    scaled,
    units_of,
)
from tst_study.analysis.tables.foreign_logs import CALLS, FINAL, KEYS, Log, plain, read_logs
from tst_study.analysis.tables.printed_lines import EPOCH, patterns
from tst_study.analysis.tables.sheets import TABLES, ending
from tst_study.atomic_files import written_atomically
from tst_study.config.identity import digest
from tst_study.config.keys import problem_of
from tst_study.config.superposition_setting import ABLATIONS
from tst_study.errors import UserError
from tst_study.text import decimal, listed, short

FEW = 3
"""The largest number of runs that a message names."""


@dataclass(frozen=True)
class Run:
    """The content of the logs of one run."""

    log: Log
    facts: dict[str, Any]
    rows: pd.DataFrame
    """Rows by place on the log's x axis, with the columns of `KEYS`; values that are not finite are
    NaN. A run from a table of finished runs has one row, at 0."""
    rewritten: str
    """The number of steps for which some value was logged again and had changed, and what counts,
    as a sentence; empty if there is none."""
    diverged: bool
    """Whether the last value of any loss is not finite."""

    @property
    def name(self) -> str:
        return self.log.run

    @property
    def where(self) -> str:
        """The run's name for error messages; if the run comes from a table of finished runs, its
        file and line stand before the name."""
        row = f"{self.log.place}, line {self.log.line}: " if self.log.final else ""
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
    lines: Sequence[str] = (),
    said: Callable[[str], None] = lambda text: None,
) -> Tables:
    """Read the runs of `sources` (`read_logs`) into tables. Their `problems` say what a person
    should know of the runs, such as steps written twice, missing losses and facts that no run has.

    Args:
        given: facts that hold for all runs (`Facts`).
        facts: a CSV with the facts of each run, a row for each.
        columns: the logs' names for `foreign_logs.COLUMNS`, if they are unusual.
        unit: the unit of both `LOSSES`, or `COLUMN=UNIT` for one of them or for one of `AMOUNTS`;
            nats and units by default.
        arm_from: `folder` names a run's arm after the folder that groups runs (`Log.above`).
        steps_from: the number that the logs give their first step, 1 or 0.
        lines: regular expressions of printed lines, with groups as in `printed_lines`.
        said: told what is being read.

    Raises `UserError` for a log that cannot be read, for an unknown column, key, unit or run, and
    for a missing or wrong fact; the message names the run and the fact.
    """
    units, factors = units_of(unit)
    sheet = read_facts(facts) if facts else {}
    runs = _runs(sources, columns or {}, lines, said)
    if unknown := sorted(sheet.keys() - {run.name for run in runs}):
        raise UserError(f"{facts}: no log of run {unknown[0]!r}; correct it or remove the row")
    known = [
        {**scaled(_own_facts(run, arm_from), factors), **sheet.get(run.name, {}), **given}
        for run in runs
    ]
    for run in (run for run in runs if run.log.tokens_axis):
        run.rows.index *= factors.get("tokens", 1.0)
    problems = _of_table(runs, known, {*factors, *given})
    problems += _left_open(runs, known)
    rows, curves, evaluations = [], [], []
    for run, values in zip(runs, known, strict=True):
        of_run = _facts(run, values)
        placed = _placed(run, of_run, units, 1 - steps_from)
        curves.append(placed.dropna(subset="loss"))
        measured = placed.dropna(subset="nats_per_token")
        evaluations.append(measured.assign(eval_set=of_run.eval_set))
        last = int(placed["step"].max())
        rows.append(_run_row(run, curves[-1], evaluations[-1], of_run, last))
    tables = Tables.of(rows, _frame(curves, CURVES), _frame(evaluations, EVALUATIONS))
    return replace(tables, problems=(*problems, *_noticed(runs, tables)))


UNKNOWN_DECAY = (
    "it is not known whether the learning rate of {} had decayed (annealed): a run cut off before "
    "the decay ends a few hundredths of a nat too high, longer runs more, which bends a fit; say "
    "--set annealed=true, or false"
)


def _of_table(
    runs: Sequence[Run], known: Sequence[dict[str, Any]], confirmed: set[str]
) -> list[str]:
    """Judge the tables of finished runs as a whole, and return what a person should know: doubtful
    amounts, rows that are there twice, settings that vary and learning rates that may not have
    decayed. What varies beside the known facts goes into the label `batch`, in place."""
    problems = []
    tables = defaultdict[Path, list[tuple[Run, dict[str, Any]]]](list)
    for run, values in zip(runs, known, strict=True):
        if run.log.final:
            tables[run.log.place].append((run, values))
    for place, members in tables.items():
        of_table = [(run.where, values) for run, values in members]
        problems += [f"{place}: {said}" for said in question(of_table, confirmed)]
        same = Counter(_cells(run) for run, _ in members)
        if again := sum(same.values()) - len(same):
            line = next(run.log.line for run, _ in members if same[_cells(run)] > 1)
            problems.append(
                f"{place}: {again:,} rows repeat another one, such as that of line {line}, and "
                "count as runs of their own; remove copies"
            )
        if not any(_is_superposed(values) for _, values in members):
            if varied := _settings(members):
                problems.append(
                    f"{place}: a sweep of {', '.join(varied)}: fits take the best setting of each "
                    "size and length"
                )
            if lacking := [run.name for run, values in members if "annealed" not in values]:
                problems.append(f"{place}: {UNKNOWN_DECAY.format(listed(lacking, FEW))}")
                for _, values in members:
                    values.setdefault("annealed", None)
    return problems


def _cells(run: Run) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, str(cell)) for name, cell in run.log.facts.items()))


def _is_superposed(values: Mapping[str, Any]) -> bool:
    return bool(values.get("arm")) or decimal(values.get("bag_size", 1)) != 1


def _settings(members: Sequence[tuple[Run, dict[str, Any]]]) -> list[str]:
    """Return the columns of a table that vary among rows of equal size and tokens, as settings in a
    sweep do: each of their values is in several rows. Add them to the label `batch`."""
    table = pd.DataFrame([run.log.facts for run, _ in members]).astype("str")
    known = {*Facts.model_fields, *LOSSES, "flops", *(run.log.run for run, _ in members)}
    known |= {name for run, _ in members for name in run.log.given.values()}
    same = ("parameters", "tokens", "flops", "steps")
    cells = pd.Series([str([values.get(name) for name in same]) for _, values in members])
    mapped = {name for names in FINAL.values() for name in names}
    varied = [
        name
        for name in map(str, table)
        if name not in known
        and plain(name) not in mapped
        and 2 * table[name].nunique() <= len(table)
        and (table[name].groupby(cells).nunique() > 1).any()
    ]
    if varied:  # without columns some versions of pandas yield no rows
        for (_, values), row in zip(members, rows_of(table[varied]), strict=True):
            labels = [values.get("batch"), *(f"{name} {value}" for name, value in row.items())]
            values["batch"] = short(", ".join(map(str, filter(None, labels)))).strip("'")
    return varied


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
    counts_calls = pd.Series([run.log.axis in CALLS for run in runs], table.index)
    problems = [*dict.fromkeys(note for run in runs for note in run.log.notes)]
    problems += [f"{run.name}: {run.rewritten}" for run in runs if run.rewritten]
    if len(high := table[table["nats_per_token"] > np.log(3e5)]):
        losses = [f"{run['name']} ({run['nats_per_token']:.3g})" for run in rows_of(high)]
        problems.append(
            f"held-out losses above that of a guess among 300,000 words: {listed(losses, FEW)}; "
            "if they are not in nats, give their unit, such as --unit nats_per_token=perplexity"
        )
    for words, those in {
        "no held-out loss in {}: nothing can be compared without one at the last step; name it "
        "with --column nats_per_token=…": ~table["folder"].isin(tables.evaluations["folder"]),
        "diverged (loss not finite at the end): {}": table["state"] == "diverged",
        "the log ends before the last step: {}; give --steps-from 0 where steps are counted from "
        "0, or correct `steps`": (table["state"] == "failed") & ~counts_calls,
        "the log ends before the last step: {}; its x axis counts calls of W&B's `log`, not steps: "
        "export with the trainer's step as x axis, or name it: --column step=KEY": (
            table["state"] == "failed"
        )
        & counts_calls,
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
    path: Path,
    sources: Iterable[str],
    columns: Mapping[str, str],
    arm_from: str | None = None,
    lines: Sequence[str] = (),
) -> int:
    """Write a new `runs.csv` with a row for each run and what its logs say, and return the number
    of runs. Raises `UserError` if a file of that name exists, for a log that cannot be read, and
    for an unknown column or key."""
    if path.exists():
        raise UserError(f"{path}: exists and may be filled in; name another file, or delete it")
    runs = _runs(sources, columns, lines)
    rows = [{"run": run.name, **_own_facts(run, arm_from)} for run in runs]
    table = pd.DataFrame(rows, columns=["run", *Facts.model_fields], dtype=object)
    with written_atomically(path) as file:
        file.write(table.to_csv(index=False, lineterminator="\n").encode())
    return len(runs)


def _own_facts(run: Run, arm_from: str | None) -> dict[str, Any]:
    """Return the facts in a run's logs. With `arm_from`, the arm is the name of the folder
    (`Log.above`), unless a log names one."""
    return {"arm": run.log.above, **run.facts} if arm_from else run.facts


def _runs(
    sources: Iterable[str],
    columns: Mapping[str, str],
    lines: Sequence[str] = (),
    said: Callable[[str], None] = lambda text: None,
) -> list[Run]:
    """Read logs, put those of each run together, and return the runs sorted by name. If a value was
    logged twice for one step, the later one counts.

    Raises `UserError` as `read_logs` does, if logs with one name seem to be of two runs, and if a
    run has no loss."""
    merged: dict[str, Log] = {}
    for log in read_logs(sources, columns, patterns(lines), said):
        first = merged.setdefault(log.run, log)
        if first is log:
            continue
        # Checkpoints of Hugging Face's Trainer repeat the log, and so does the folder above them.
        places = (first.place, log.place)
        homes = {path.parents[path.parent.name.startswith("checkpoint-")] for path in places}
        apart = len(homes) > 1 and not log.named
        if apart or log.final or _contradict(first, log):
            raise UserError(
                f"run {short(log.run)}: is in {first.place} and {log.place}; name each: NAME=PATH"
            )
        first.facts |= log.facts
        first.notes += log.notes
        first.keys |= log.keys
        for column, logged in log.logged.items():
            known = first.logged.get(column)
            first.logged[column] = logged if known is None else known + logged
    return [_run(merged.pop(name)) for name in sorted(merged)]


def _contradict(first: Log, other: Log) -> bool:
    """Return whether two logs cannot be of one run: their x axes differ, or both are tables and
    have a value of the same key at the same step. In other formats a restart may have logged steps
    again. Logs that a person gave one name are always taken to be of one run."""
    if (first.tokens_axis, first.axis == EPOCH) != (other.tokens_axis, other.axis == EPOCH):
        return True
    if other.named or not {ending(first.place), ending(other.place)} <= {*TABLES}:
        return False
    shared = first.logged.keys() & other.logged.keys()
    return any(np.isin(first.logged[key].at, other.logged[key].at).any() for key in shared)


def _run(log: Log) -> Run:
    """Arrange the logged values of one run in a table, with a row for each step. Raises `UserError`
    if the run has no loss."""
    if not log.logged.keys() & {*_OF_LOSS}:
        there = sorted(log.keys)
        raise UserError(
            f"run {short(log.run)}: no loss among {', '.join(there[:12])}; name it with "
            "--column loss=… or nats_per_token=…"
        )
    columns, changed, beyond = {}, set[float](), ""
    for name, logged in log.logged.items():
        values = pd.Series(logged.values, logged.at, copy=False)
        if not values.index.is_monotonic_increasing or not values.index.is_unique:
            last = values[~values.index.duplicated(keep="last")]
            before = values[values.index.duplicated(keep="last")]
            after = last.reindex(before.index)
            same = (before == after) | (before.isna() & after.isna())
            if name != "training_seconds":  # W&B writes a row of its own for each call of `log`
                changed |= {*before.index[~same.to_numpy()]}
                end = values.index[-1]
                if end < last.index.max() and not same.all():
                    beyond = f", and ends before the earlier one, at step {end:g}: keep one of them"
            values = last.sort_index()
        columns[name] = values
    log.logged = {}  # of a long log, no column is kept twice
    ends = {name: columns[name].iloc[-1] for name in _OF_LOSS if name in columns}
    if np.isfinite(ends.get("loss", np.nan)):
        # Some logs have NaN for a held-out loss wherever nothing was evaluated.
        sparse = {name for name in ends if np.isnan(columns[name].to_numpy()).sum() > 1}
        ends = {k: v for k, v in ends.items() if not (k in sparse and np.isnan(v))}
    numbers = dict.fromkeys((name for name in KEYS if name != "loss_name"), float)
    for name in columns.keys() & numbers.keys():
        columns[name] = columns[name].where(np.isfinite(columns[name]))
    index = reduce(pd.Index.union, (values.index for values in columns.values()))
    rows = pd.DataFrame(columns, index, [*KEYS]).astype(numbers)
    facts = {key: value for key, value in log.facts.items() if key in Facts.model_fields}
    if rows["learning_rate"].notna().any():
        facts.setdefault("learning_rate", float(rows["learning_rate"].max()))
    if log.tokens_axis and "steps" not in facts:
        facts["tokens"] = float(rows.index.max())
    diverged = not all(np.isfinite(end) for end in ends.values())
    said = f"{len(changed)} steps written twice; the later counts{beyond}" if changed else ""
    return Run(log, facts, rows, said, diverged)


_OF_LOSS = (*LOSSES, "bits_per_byte")


def _facts(run: Run, values: Mapping[str, Any]) -> Facts:
    try:
        return Facts.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{run.where}: {problem_of(Facts, error)}") from None


def _steps(run: Run, facts: Facts, offset: int) -> Any:
    """Return the number of steps done at each of the run's rows, shape (n,), whatever the log's x
    axis. `offset` is added to steps."""
    at = run.rows.index.to_numpy(float)
    if run.log.final:
        return np.array([facts.steps])
    if run.log.tokens_axis:
        at = at / facts.tokens_per_step
    elif run.log.axis == EPOCH:
        if not at.max() > 0:
            raise UserError(f"{run.where}: epochs are rounded to 0; import its trainer_state.json")
        at = at / at.max() * facts.steps
    else:
        at = at + offset
    return np.rint(at).astype(np.int64)


def _placed(run: Run, facts: Facts, units: Mapping[str, str], offset: int) -> pd.DataFrame:
    """Return the run's rows with the remaining columns of a curve and an evaluation, such as phase,
    tokens and FLOPs, and with losses in nats per token. Raises `UserError` if held-out losses are
    in bits per byte alone and the bytes per token are not known."""
    rows = run.rows.set_axis(_steps(run, facts, offset)).rename_axis("step").reset_index()
    rows = rows.drop_duplicates("step", keep="last") if run.log.axis == EPOCH else rows
    for name, unit in units.items():
        least = 1.0 if unit == "perplexity" else 0.0 if name == "nats_per_token" else -np.inf
        if (wrong := rows[rows[name] < least]).size:
            step, value = wrong[["step", name]].iloc[0]
            raise UserError(
                f"run {run.name!r}, step {step:g}: {name} {value:g} cannot be in {unit}; mend the "
                "log, or give the unit of one column: --unit nats_per_token=perplexity"
            )
        if unit == "perplexity":
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
    plan, steps = facts.plan, rows["step"].to_numpy()
    before = np.minimum(steps, plan.superposed_steps)  # steps of the superposition phase
    superposed = np.maximum(steps, 1) <= plan.superposed_steps
    code, one = superposed.astype(int), np.zeros(len(rows), int)
    names = _LOSS_NAMES.take(code)
    given = rows["loss_name"]
    return rows.assign(
        phase=_PHASES.take(code),
        raw_tokens=plan.tokens_per_sequence("superposition") * before
        + plan.tokens_per_sequence("recovery") * (steps - before),
        latent_tokens=facts.tokens_per_step * steps,
        loss_name=given.fillna(pd.Series(names, rows.index)) if given.notna().any() else names,
        folder=pd.Categorical.from_codes(one, pd.Index([run.name])),
        bag_size=np.where(superposed, facts.bag_size, 1),
        flops=facts.used_flops / facts.steps * rows["step"],
        # `facts.annealed` is about the last step; no row before it counts as annealed.
        annealed=None if facts.annealed is None else facts.annealed & (steps >= facts.steps),
    )


_PHASES = pd.array(["recovery", "superposition"], dtype="str")
_LOSS_NAMES = pd.array(["next_token", "bag loss"], dtype="str")


def _run_row(
    run: Run, curve: pd.DataFrame, evaluations: pd.DataFrame, facts: Facts, last: int
) -> dict[str, Any]:
    """Return the run's row of the run table, with the keys `RUN_COLUMNS`. `last`: its last step."""
    plan = facts.plan
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
    names = {"study", "seed", "learning_rate", "corpus", "parameters"}
    known = facts.model_dump(include=names | {"embeddings", "non_embedding_parameters"})
    measured = ("nats_per_token", "bits_per_byte", "annealed", "eval_set")
    trained = _last(curve, ("loss", "loss_name"))
    final = _last(evaluations, (*measured, "step", "phase"))
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
        fingerprint=digest([facts.model_dump(mode="json"), _content(run.rows), *alone]),
    )


def _last(table: pd.DataFrame, names: Iterable[str]) -> dict[str, Any]:
    """Return these cells of a table's last row; nothing for an empty table."""
    cells = {name: table[name].iloc[-1] for name in names} if len(table) else {}
    return {k: cell.item() if isinstance(cell, np.generic) else cell for k, cell in cells.items()}


_STRETCH = 1 << 16
"""Number of rows that are copied at once."""


def _content(rows: pd.DataFrame) -> str:
    """Return a hash of a run's rows."""
    numbers, content = rows.drop(columns="loss_name"), hashlib.sha256()
    for first in range(0, len(rows), _STRETCH):
        part = numbers.iloc[first : first + _STRETCH].reset_index()
        content.update(part.to_numpy(float).tobytes())
    content.update("\n".join(rows["loss_name"].dropna().astype(str)).encode())
    return content.hexdigest()


def _frame(parts: list[pd.DataFrame], columns: Sequence[Column]) -> pd.DataFrame:
    names = ["folder", *(column.name for column in columns)]
    table = pd.concat(parts, ignore_index=True)
    empty = pd.Series(np.nan, table.index)  # one for all columns of which nothing is known
    table = table.assign(**dict.fromkeys(set(names) - {*table}, empty))[names]
    return typed(table.astype({"folder": "category"}), columns)
