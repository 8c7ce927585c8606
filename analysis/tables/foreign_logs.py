"""Reads the logs of other trainers: what each run logged at each step, in our columns.

`imports` turns the result into tables. A format consists of a function that reads a file, and an
entry in `FORMATS` that says how to recognise such a file; what programs print is in
`printed_lines`. The formats follow these programs, as of November 2026:

| format | written by |
| --- | --- |
| events | TensorBoard |
| `.db` | `trackio`: SQLite, tables `metrics` and `configs` |
| `meta.yaml` | MLflow's file store: a folder for each run, with a file for each metric |
| `trainer_state.json` | `transformers.TrainerState` |
| JSON lines | lingua's `lingua/metrics.py` and `apps/main/eval.py`, W&B's histories, anyone's |
| CSV, TSV, parquet | anyone: wide, long (`key`, `value`), W&B's exports, a run in each row |

A log of a million rows must fit into memory, so values are kept by column, as arrays (`Rows`).
"""

import itertools
import re
import sqlite3
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from pydantic_core import from_json

from tst_study.analysis.checks import Floats
from tst_study.analysis.tables.printed_lines import (
    EPOCH,
    Line,
    matches,
    of_trainer,
    program_of,
    suggestion,
)
from tst_study.analysis.tables.sheets import (
    TABLES,
    blocks,
    ending,
    filled_cells,
    lines,
    read_sheet,
    unpacked,
)
from tst_study.atomic_files import files_below
from tst_study.errors import UserError, first_line, one_of
from tst_study.text import decimal, short

STEP = ("step", "global_step", "/global_step", "iteration", "iter", "_step", "Step")
"""Names of the column or key that holds the step; `/global_step` stands for all that end so. If a
log has several of them, the one that is listed first here is used: `_step` and `Step` of W&B count
calls of its `log`, and not steps."""
CALLS = STEP[-2:]
KEYS: Mapping[str, tuple[str, ...]] = {
    "loss": (
        *("loss", "loss_metrics_global_avg_loss", "lm_loss", "loss_out", "train_loss"),
        *("train_loss_step", "train_lm_loss", "train_ce_loss", "train_crossentropyloss"),
        *("reduced_train_loss", "learning_loss", "training_loss", "train_loss_epoch"),
    ),
    "nats_per_token": (
        *("nats_per_token", "held_out_loss", "validation_metrics_loss", "lm_loss_validation"),
        *("val_loss", "eval_loss", "valid_loss", "validation_loss", "eval_avg_loss"),
    ),
    "bits_per_byte": ("bits_per_byte", "val_bpb"),
    "learning_rate": (
        *("learning_rate", "optim_lr", "lr", "lr_adamw", "train_learning_rate", "train_lr"),
        "optim_learning_rate_group0",
    ),
    "gradient_norm": (
        *("gradient_norm", "grad_norm", "optim_grad_norm", "train_grad_norm"),
        "optim_total_grad_norm",
    ),
    "training_seconds": ("training_seconds", "total_training_time", "_runtime", "train_runtime"),
    "loss_name": ("loss_name",),
}
"""For each of our columns, the names (`plain`) under which known programs log it. If a log has
several of them, the one that is listed first here is used."""
_OF_RUNS = ("annealed", "arm", "bag_size", "step_ratio", "seed", "steps")
"""Columns that a curve does not have."""
FINAL: Mapping[str, tuple[str, ...]] = {
    "parameters": ("parameters", "params", "n_params", "num_params", "model_size", "N"),
    "non_embedding_parameters": (
        *("non_embedding_parameters", "params_no_embed", "non_embedding_params"),
        "params_without_embeddings",
    ),
    "tokens": ("tokens", "n_tokens", "num_tokens", "training_tokens", "train_tokens", "D"),
    "flops": ("flops", "training_flops", "training_flop", "compute", "compute_budget", "C"),
    "learning_rate": ("learning_rate", "lr", "max_lr", "peak_lr"),
    "corpus": ("corpus", "dataset"),
    "tokens_per_step": ("tokens_per_step", "batch_size_in_tokens", "batch_tokens"),
    "nats_per_token": ("nats_per_token", "final_loss", "val_loss", "eval_loss", "loss"),
    **{name: (name,) for name in _OF_RUNS},
}
"""For each fact of a finished run, the names (`plain`) that tables use for it. If a table has
several of them, the one that is listed first here is used."""
COLUMNS = ("step", *dict.fromkeys((*KEYS, *FINAL)))
"""Our columns and facts for which a person may name the log's own column (`--column`)."""
_RUN = ("run", "run_id", "Run", "name", "Name")
"""Names of a column that says which run a row belongs to."""
_KEY = ("key", "metric", "tag", "variable")
"""Names of a column that says what the column `value` holds, in tables of the long form."""
_UNNAMED: tuple[str, ...] = ("metrics", "metrics.eval", "metrics.validation", "trainer_state")
_UNNAMED += ("log", "train", "meta", "output", "stdout", "history", "events")
"""Names of log files, without their endings, that say nothing about the run. A run whose file has
such a name is named after its folder."""
_SEARCHED = 1 << 20
"""Number of bytes at the start of a file by which its format is recognised. It is large because
some programs print their source code before the first line of the log."""
_TOLD = 20_000
"""Number of rows after which it is told how many have been read."""
_CURVE = 3
"""Fewest rows of one size and rising tokens that count as a curve of one run."""
_ELSEWHERE = {
    ".aim": "is a store of Aim; write its metrics to a CSV: `aim.Repo('.').query_metrics(\"True\")"
    ".dataframe().to_csv('aim.csv')`",
    ".comet": "is a store of Comet; write its metrics to a CSV: `comet_ml.api.API().get(…)"
    ".get_metrics()`",
    ".clearml": "is a store of ClearML; write its metrics to a CSV: `clearml.Task.get_task(ID)"
    ".get_reported_scalars()`, a row for each series, x and y",
    ".neptune": "is a store of Neptune; write its metrics to a CSV: `neptune.init_run(with_id=ID)"
    "[KEY].fetch_values().to_csv('neptune.csv')`",
    "mlflow.db": "is a store of MLflow; write its metrics to a CSV: `mlflow.MlflowClient()"
    ".get_metric_history(…)`",
    ".wandb": "is an offline run of W&B; `wandb sync` it, and export a CSV from its page",
    "dvclive": "is a folder of DVCLive; join its files `plots/metrics/**.tsv` in one CSV with "
    "columns run, step, key, value",
}
"""The stores of experiment trackers that cannot be read, by name or suffix. Each has the end of an
error message, which says how to export the store."""


def plain(name: str) -> str:
    """Return a name as `KEYS` and `FINAL` write it: `train/loss`, `Train Loss` and `train-loss` are
    all `train_loss`. A single letter stays as it is: N is not n."""
    return name if len(name) == 1 else re.sub(r"[^a-z0-9]+", "_", name.lower()).rstrip("_")


@dataclass(frozen=True)
class Logged:
    """The values that one run logged for one of our columns, in the order of the log."""

    at: Floats
    """Where on the log's x axis, shape (n,)."""
    values: Any
    """Numbers, or texts for `loss_name`, shape (n,)."""
    rank: int = 0
    """The place of the log's own name for the column in `KEYS`."""

    def __add__(self, other: "Logged") -> "Logged":
        """Join two parts of one log. If they use different names, the one that `KEYS` lists first
        counts alone."""
        if self.rank != other.rank:
            return min(self, other, key=lambda one: one.rank)
        at = np.concatenate([self.at, other.at])
        return Logged(at, np.concatenate([self.values, other.values]), self.rank)


@dataclass
class Log:
    """The part of one file (with MLflow, of one run's folder) that is about one run."""

    run: str
    place: Path
    logged: dict[str, Logged] = field(default_factory=dict)
    """What was logged, by our column (`KEYS`)."""
    keys: set[str] = field(default_factory=set)
    """All keys of the log, under its own names."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Values that belong to no step, such as the config, under the file's own names; the number of
    planned steps is `steps`."""
    axis: str = ""
    """The log's own name for its x axis; empty for finished runs."""
    tokens_axis: bool = False
    """Whether the x axis holds tokens, not steps."""
    notes: tuple[str, ...] = ()
    """What a person should know of how the log was read."""
    named: bool = False
    """Whether a person named the run, by `NAME=PATH`."""
    above: str = ""
    """Name of the folder that groups runs; arms may be named after it. It is the first part of the
    run's name if that has several parts (`_parts`); otherwise it is the folder that was given, or
    the one that holds the file that was given."""
    final: bool = False
    """Whether this is a row of a table of finished runs. Its losses then stand at 0."""
    line: int = 0
    """Of a finished run, the number of its row."""
    given: Mapping[str, str] = field(default_factory=dict)
    """The file's names for our columns (`COLUMNS`), as far as a person gave them."""
    given_lines: Sequence[Line] = ()
    """Patterns of printed lines that a person gave."""
    start: str = ""
    """The first `_SEARCHED` bytes of the file."""
    told: Callable[[int], None] = lambda rows: None
    """Told now and then how many rows have been read."""

    def part(self, owner: str) -> "Log":
        """Return an empty log of another run of the same file."""
        return replace(self, run=owner, logged={}, keys=set(), facts={})


class Rows:
    """What a log says, a column for each key, without an object for each number."""

    def __init__(self) -> None:
        self.lines = array("q")
        """The number in the file of each row; 0 in TensorBoard's events, which have none."""
        self.columns: dict[str, tuple[Any, Any]] = {}
        """For each key, the rows that have it (counted from 0), and their values."""

    def add(self, row: Mapping[str, Any], line: int) -> None:
        """Append a row; nested mappings become keys such as `train/loss`."""
        place = len(self.lines)
        self.lines.append(line)
        self._fill(row, place, "")

    def put(self, name: str, places: NDArray[np.int64], values: NDArray[Any]) -> None:
        """Put values into rows that are there; without a name, mappings as `add` takes them."""
        if values.dtype == object:
            for place, value in zip(places.tolist(), values, strict=True):
                self._fill({name: value} if name else value, place, "")
        elif len(values):
            column = self.columns.setdefault(name, (array("q"), array("d")))
            column[0].extend(array("q", places.tobytes()))
            column[1].extend(array("d", values.tobytes()))

    def _fill(self, row: Mapping[str, Any], place: int, above: str) -> None:
        for key, value in row.items():
            if value is None:
                continue
            name = f"{above}{key}" if above else key
            if isinstance(value, dict):
                self._fill(value, place, f"{name}/")
                continue
            if (column := self.columns.get(name)) is None:
                column = self.columns[name] = (array("q"), array("d"))
            column[0].append(place)
            try:
                column[1].append(value)
            except (TypeError, OverflowError):  # a text, or an integer beyond every float
                texts = self.columns[name] = (column[0], list(column[1]))
                texts[1].append(value)

    def into(self, log: Log) -> Log:
        """Put what is known of our columns into a log, and return it.

        Raises `UserError` for a step that is not a number of at least 0 and below 2⁶³, and for a
        value of one of our columns that is not a number."""
        columns = {}
        for key, (places, values) in self.columns.items():
            rows = np.asarray(places)
            if (np.diff(rows) < 0).any():  # rows with other keys are kept apart
                order = np.argsort(rows, kind="stable")
                chosen = map(values.__getitem__, order)
                values = array("d", chosen) if isinstance(values, array) else [*chosen]
                rows = rows[order]
            columns[key] = (rows, values)
        return _filled(log, np.asarray(self.lines), columns)


def _filled(
    log: Log, lines: NDArray[np.int64], columns: Mapping[str, tuple[NDArray[np.int64], Any]]
) -> Log:
    log.keys |= {*columns}
    axis = log.given.get("step") or step_name(columns) or (EPOCH if EPOCH in columns else None)
    if axis is None or axis not in columns:
        return log
    log.axis = axis
    log.tokens_axis |= plain(axis) in FINAL["tokens"]
    whole = axis != EPOCH and not log.tokens_axis
    wanted = "a whole number of at least 0" if whole else "a number of at least 0"
    places, values = columns[axis]
    steps = _numbers(values, log, lines[places], axis, wanted)
    with np.errstate(invalid="ignore"):
        bad = ~((steps >= 0) & (steps < 2.0**63)) | (whole & (steps % 1 != 0))
    if bad.any():
        first = int(np.argmax(bad))
        raise UserError(_wrong(log, lines[places[first]], axis, values[first], wanted))
    at = np.full(len(lines), np.nan)
    at[places] = steps
    without = 0
    for column, names in KEYS.items():
        key = log.given.get(column)
        rank = -1
        if key is None:
            known = {plain(own): own for own in reversed([*columns]) if own != axis}
            rank, key = next(
                ((rank, known[name]) for rank, name in enumerate(names) if name in known), (0, None)
            )
        if key is None or key not in columns:
            continue
        own, cells = columns[key]
        # Of a long log, no column is kept twice.
        all_rows = len(own) == len(at) and bool((np.diff(own) == 1).all())
        where = at if all_rows else at[own]
        kept = ~np.isnan(where)
        without = max(without, int((~kept).sum()) if axis != EPOCH else 0)
        if column == "loss_name":
            found: Any = np.asarray([str(cell) for cell in cells], dtype=object)
        else:
            found = _numbers(cells, log, lines[own], key)
        # What lingua logs as `nll_per_token` is a log-likelihood, which has the opposite sign.
        found = np.abs(found) if key.endswith("/nll_per_token") else found
        if not kept.all():
            where, found = where[kept], found[kept]
        log.logged[column] = Logged(where, found, rank)
    if without:
        log.notes += (f"{log.place}: {without:,} rows without {axis} are left out",)
    return log


def step_name(keys: Iterable[str]) -> str | None:
    """Return the log's own name for the step, if it has one (`STEP`)."""
    names = list(keys)
    for known in STEP:
        for name in names:
            if name == known or (known.startswith("/") and name.endswith(known)):
                return name
    return None


def _numbers(cells: Any, log: Log, lines: NDArray[np.int64], key: str, wanted: str = "") -> Floats:
    """Return cells as numbers. `wanted`: what steps must be. Raises `UserError` for a cell that is
    no number."""
    if isinstance(cells, array):
        return np.frombuffer(cells, float)
    values = cells if isinstance(cells, pd.Series) else pd.Series(cells, dtype=object)
    if pd.api.types.is_numeric_dtype(values.dtype):
        return values.to_numpy(float)
    if values.dtype == "str":
        with suppress(pa.ArrowInvalid):  # ten times as fast as pandas
            return np.asarray(pa.array(values).cast(pa.float64()).to_numpy(zero_copy_only=False))
    try:
        read = pd.to_numeric(values, errors="coerce")
        numbers = read.to_numpy(float, na_value=np.nan, copy=True)
    except (OverflowError, TypeError):
        numbers = np.full(len(values), np.nan)
    for place in np.flatnonzero(np.isnan(numbers)):
        cell = values.iloc[place]
        # As a step, "3,456" is 3456; as a loss it is 3.456 with a decimal comma.
        unclear = not wanted and re.fullmatch(r"\d+,\d{3}", str(cell).strip())
        if unclear or (number := decimal(cell)) is None:
            what = wanted or "a number (with a decimal point)"
            raise UserError(_wrong(log, lines[place], key, cell, what))
        numbers[place] = number
    return numbers


def _wrong(log: Log, line: int, key: str, value: Any, wanted: str) -> str:
    where = f", line {line}" if line else ""
    return f"{log.place}{where}, {key}: {short(value)} is not {wanted}"


def read_logs(
    sources: Iterable[str],
    columns: Mapping[str, str],
    given_lines: Sequence[Line] = (),
    said: Callable[[str], None] = lambda text: None,
) -> list[Log]:
    """Read the logs of files and folders. `NAME=PATH` gives all that lies at PATH to the run NAME.

    columns: the logs' names for our `COLUMNS`, if they are not among the usual ones. given_lines:
    patterns of printed lines, in place of `PROGRAMS`. said: told which file is being read.

    Raises `UserError` for a source that does not exist or holds no log, for a log that is damaged
    or cannot be read, and for a column or key that no log has.
    """

    def told(rows: int) -> None:
        place = f"file {paths.index(path) + 1:,} of {len(paths):,}"
        said(f"reading {path.name}: {rows:,} rows ({place})")

    for name in columns:
        one_of(name, COLUMNS, "--column")
    read: list[Log] = []
    keys: set[str] = set()
    for source in sources:
        name, named, place = source.partition("=")
        if not named or Path(source).exists():
            name, place = "", source
        root = Path(place)
        if not place or not root.exists():
            raise UserError(f"{source}: no such file or folder; give a log, or NAME=PATH of one")
        found = files_below(root) if root.is_dir() else [root]
        # A link to another of the files, such as `latest.log`, is no run of its own.
        links_first = sorted(found, key=lambda path: (not path.is_symlink(), path))
        paths = sorted({path.resolve(): path for path in links_first}.values(), key=_numbered)
        # The archive that an earlier import wrote below a source is no log of it.
        paths = [path for path in paths if not _of_archive(path)]
        logs = []
        for path in paths:
            told(0)
            log = Log("", path, given=columns, given_lines=given_lines, told=told)
            logs += _read(log, root)
        keys |= {key for log in logs for key in log.keys}
        logs = [log for log in logs if log.axis or log.final]
        if not logs:
            raise UserError(f"{source}: {_why_not(root)}")
        for log in logs:
            log.run, log.named = name or log.run, bool(name)
            log.run = re.sub(r"[/\\\x00-\x1f]", "-", log.run)  # the name must do for a folder
        read += logs
    for name, key in columns.items():
        one_of(key, sorted(keys), f"--column {name}")
    pa.default_memory_pool().release_unused()  # else the text of a long table stays in memory
    return read


def _of_archive(path: Path) -> bool:
    files = {path.with_name(f"{name}.parquet") for name in ("runs", "curves", "evaluations")}
    return path in files and all(map(Path.is_file, files))


def _numbered(path: Path) -> list[str | int]:
    """Return a key that sorts `log-9` before `log-10`."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", str(path))]


def _why_not(root: Path) -> str:
    """Return the end of the error message for a source in which no log was found."""
    paths = [root, *sorted(root.rglob("*"))]
    for path in paths:
        if export := _ELSEWHERE.get(path.name) or _ELSEWHERE.get(path.suffix):
            return export
    for path in filter(Path.is_file, paths):
        if ending(path) not in TABLES and (found := suggestion(lines(path))):
            return found
    return (
        "holds no log of a known format; give a CSV with a column 'step' (--column step=…), or one "
        "of finished runs with parameters, tokens and loss (--column tokens=…); see docs/import.md"
    )


def _read(log: Log, root: Path) -> list[Log]:
    """Return the logs in a file, which `log` names; none if the file is of no known format."""
    path = log.place
    with unpacked(path) as file:
        log.start = start = file.read(_SEARCHED).decode(errors="replace")
    if log.given_lines and program_of(start, log.given_lines):
        reader: Callable[[Log], Iterator[Log]] | None = _printed
    else:
        reader = next((reader for recognises, reader in FORMATS if recognises(path, start)), None)
    if reader is None:
        return []
    parts = _parts(path, root)
    folder = (root.resolve() if root.is_dir() else path.resolve().parent).name
    log.above = parts[0] if len(parts) > 1 else folder
    log.run = "-".join(parts) or folder
    try:
        return [*reader(log)]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, sqlite3.Error) as error:
        raise UserError(f"{path}: is damaged ({first_line(error)}); remove or mend it") from None


def _parts(path: Path, root: Path) -> list[str]:
    """Return the parts of a run's name: the folders between `root` and the file, without those of
    checkpoints, and the file's own name unless that says nothing (`_UNNAMED`)."""
    folders = path.relative_to(root).parent.parts if root.is_dir() else ()
    parts = [part for part in folders if not part.startswith("checkpoint-")]
    name = path.name if ending(path) == path.suffix else path.stem
    stem = name.partition(".out.tfevents.")[0].removesuffix(ending(path))
    return parts if stem in _UNNAMED else [*parts, stem]


def _events(log: Log) -> Iterator[Log]:
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError:
        raise UserError(f"{log.place}: needs tensorboard; pip install tensorboard") from None
    rows = Rows()
    for event in EventFileLoader(str(log.place)).Load():
        for value in event.summary.value:
            # The loader turns scalars of every version into tensors of one number.
            if value.metadata.plugin_data.plugin_name == "scalars":
                number = make_ndarray(value.tensor).item()
                rows.add({"step": event.step, value.tag: number}, 0)
    yield rows.into(log)


def _trackio(log: Log) -> Iterator[Log]:
    """Read a store of trackio, in its schema of November 2026."""
    with closing(sqlite3.connect(f"{log.place.resolve().as_uri()}?mode=ro", uri=True)) as store:
        runs: dict[str, tuple[Log, Rows]] = {}
        rows = store.execute("SELECT run_id, run_name, step, metrics FROM metrics ORDER BY id")
        for number, (key, name, step, metrics) in enumerate(rows, 1):
            named = f"{name}-{key[:8]}"  # several runs may have the same name
            run = runs.setdefault(key, (log.part(named), Rows()))
            run[1].add({"step": step, **from_json(metrics)}, number)
        for key, config in store.execute("SELECT run_id, config FROM configs"):
            if key in runs:
                runs[key][0].facts |= from_json(config)
    yield from (found.into(run) for run, found in runs.values())


def _mlflow(log: Log) -> Iterator[Log]:
    meta = dict(line.rstrip().partition(": ")[::2] for line in lines(log.place))
    if meta.get("lifecycle_stage") == "deleted":
        return
    log.run = meta.get("run_name", "").strip("'\"") or log.run
    folder, rows = log.place.parent, Rows()
    for path in sorted((folder / "params").glob("*")):
        log.facts[path.name] = "".join(lines(path))
    for path in sorted(filter(Path.is_file, (folder / "metrics").rglob("*"))):
        key = path.relative_to(folder / "metrics").as_posix()
        for number, line in enumerate(lines(path), 1):
            _, value, step = line.split()
            rows.add({"step": float(step), key: float(value)}, number)
    yield rows.into(log)


def _trainer_state(log: Log) -> Iterator[Log]:
    state, rows = from_json(log.place.read_bytes()), Rows()
    log.facts["steps"] = state["max_steps"]
    for number, row in enumerate(state["log_history"], 1):
        rows.add(of_trainer(row), number)
    yield rows.into(log)


def _json_lines(log: Log) -> Iterator[Log]:
    """Take the values of rows with a step as points, and other rows as facts, or, if no row has a
    step, as finished runs. A last line that is not JSON, as a killed program leaves it, is
    ignored."""
    rows, keys, steps = Rows(), set[str](), {*filter(None, [log.given.get("step")])}
    others, torn = dict[int, dict[str, Any]](), 0
    for number, line in enumerate(_json_rows(log.place), 1):
        if number % _TOLD == 0:
            log.told(number)
        if torn:
            raise UserError(f"{log.place}, line {torn}: is no JSON; mend it")
        try:
            row = from_json(line) if isinstance(line, str) else line
        except ValueError:
            torn = number
            continue
        if not isinstance(row, dict):
            raise UserError(f"{log.place}, line {number}: {short(row)} is no row with keys")
        if not keys.issuperset(row):
            new = row.keys() - keys
            keys |= new
            if not log.given.get("step"):
                steps |= {name for name in new if step_name([name])}
        if steps.isdisjoint(row):
            log.facts |= row
            others[number] = row
        else:
            rows.add(row, number)
    if rows.columns or not others:
        yield rows.into(log)
    else:
        table = pd.DataFrame([*others.values()], [*others], dtype=object)
        yield from _finished(table.where(table.notna(), None), log)


def _json_rows(path: Path) -> Iterator[Any]:
    """Yield the lines of a file, or, of one that holds a JSON array, its values."""
    found = lines(path)
    first = next(found, "")
    if first.lstrip().startswith("["):
        yield from from_json(first + "".join(found))
        return
    yield from (line if line.strip() else {} for line in itertools.chain([first], found))


def _printed(log: Log) -> Iterator[Log]:
    kinds, rows = program_of(log.start, log.given_lines) or (), Rows()
    last, known = np.zeros(1), False
    for before, block in blocks(log.place):
        breaks, cells = matches(block, kinds)
        # The steps of the matches; before them, the step that was printed before the block.
        at, latest = np.append(last, np.zeros(len(breaks))), np.zeros(len(breaks) + 1, np.int64)
        told, dated = np.zeros((2, len(breaks)), bool)
        for name, places, values in cells:
            if name == "steps":
                log.facts["steps"] = values[-1]
            elif name == "step":
                at = at.astype(np.result_type(at, values))
                at[places + 1], latest[places + 1] = values, places + 1
            else:
                told[places] = True
                dated[places] |= name == "" and [EPOCH in row for row in values]
        latest = np.maximum.accumulate(latest)
        at, last = at[latest[1:]], at[latest[-1:]]
        stepped = (latest[1:] > 0) | known
        known |= bool(latest[-1])
        kept = told & stepped | dated
        row = len(rows.lines) - 1 + np.cumsum(kept)
        rows.lines.extend(array("q", (before + breaks[kept]).tobytes()))
        rows.put("step", row[kept & stepped], at[kept & stepped])
        for name, places, values in cells:
            if name not in ("step", "steps"):
                own = kept[places]
                rows.put(name, row[places][own], values[own])
        log.told(len(rows.lines))
    yield rows.into(log)


def _table(log: Log) -> Iterator[Log]:
    """Read a table that has a column of steps (`STEP`), in the wide or the long form.

    It holds several runs if a column (`_RUN`) names them, or if the headings name them as in W&B's
    exports (`run - key`). A table without a column of steps is read as one of finished runs
    (`_finished`).
    """
    table = read_sheet(log.place)
    log.told(len(table))
    run, key = (next((name for name in names if name in table), None) for names in (_RUN, _KEY))
    step = log.given.get("step") or step_name(map(str, table))
    if step is None or step not in table:
        yield from _finished(table, log)
        return
    for needed in filter(None, (step, run)):
        if (empty := table[needed].isna()).any():
            line = table.index[empty.to_numpy()][0]
            raise UserError(f"{log.place}, line {line}, {needed}: is empty; fill it in")
    for owner, own in table.groupby(run, sort=False) if run else [(log.run, table)]:
        yield from _wide(log, str(owner), own.drop(columns=run or []), step, key)


def _wide(log: Log, owner: str, table: pd.DataFrame, step: str, key: str | None) -> Iterator[Log]:
    """Yield the runs of a table that holds one run, or, with W&B's headings, several."""
    lines = table.index.to_numpy(np.int64)
    panels: dict[str, dict[str, str]] = {}
    for name in table:
        run, dash, metric = str(name).rpartition(" - ")
        if dash and not metric.endswith(("__MIN", "__MAX")):
            panels.setdefault(run, {})[metric] = str(name)
    if key is not None and "value" in table:
        steps = table[step].to_numpy()
        parts = {str(name): np.flatnonzero(table[key] == name) for name in table[key].unique()}
        columns = {name: (at, table["value"].iloc[at]) for name, at in parts.items()}
        columns[step] = (np.arange(len(table)), pd.Series(steps))
        yield _filled(log.part(owner), lines, columns)
        return
    for of_run, names in panels.items() or [(owner, {str(name): name for name in table})]:
        columns = {}
        for own, name in {step: step, **names}.items():
            cells = table[name].reset_index(drop=True)
            there = np.flatnonzero(cells.notna())
            if len(there):
                columns[own] = (there, cells if len(there) == len(cells) else cells.iloc[there])
        # A column with the same value in all rows of a run states a fact about the run.
        facts = {
            own: cells.iloc[0]
            for own, (places, cells) in columns.items()
            if len(places) == len(table)
            and cells.iloc[0] == cells.iloc[-1]
            and cells.nunique() == 1
        }
        part = log.part(of_run)
        part.facts |= _as_facts(facts, log.given)
        yield _filled(part, lines, columns)


def _usual(names: Iterable[str], given: Mapping[str, str]) -> dict[str, str]:
    """Return a table's own name for each fact of `FINAL` that it has."""
    own = {plain(str(name)): str(name) for name in reversed([*names])}
    found = {
        fact: given.get(fact) or next((own[name] for name in known if name in own), None)
        for fact, known in FINAL.items()
    }
    return {fact: name for fact, name in found.items() if name is not None}


def _as_facts(row: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
    usual = _usual(row, given)
    return {**row, **{fact: row[name] for fact, name in usual.items() if name in row}}


def _finished(table: pd.DataFrame, log: Log) -> Iterator[Log]:
    """Yield a run for each row of a table of finished runs, or one for rows that are a curve.

    A table counts as one if it has a column of final losses, in nats per token or bits per byte,
    and a column of tokens, FLOPs or steps; otherwise nothing is yielded.
    """
    names = list(map(str, table))
    log.keys |= {*names}
    usual, run = _usual(names, log.given), next((name for name in _RUN if name in names), None)
    plainly = {plain(name): name for name in names}
    loss, trained = usual.get("nats_per_token"), log.given.get("loss")
    bits = log.given.get("bits_per_byte") or plainly.get("bits_per_byte")
    if not (loss or bits):  # `--column loss=` then names the final one, as a heading `loss` does
        loss, trained = trained, None
    own = {
        "loss": trained or plainly.get("train_loss"),
        "nats_per_token": loss,
        "bits_per_byte": bits,
        "training_seconds": log.given.get("training_seconds") or plainly.get("training_seconds"),
    }
    length = usual.get("tokens") or usual.get("flops") or usual.get("steps")
    if not ((loss or bits) and length):
        yield log
        return
    cells = list(filled_cells(table, log.place, *filter(None, (run,))))
    parts = {str(name): part for name, part in table.groupby(run)} if run else {log.run: table}
    curves = {name: part for name, part in parts.items() if _is_curve(part, usual, named=bool(run))}
    if curves and len(curves) == len(parts):
        for name, part in curves.items():
            note = (
                f"{log.place}: rows of one size and rising tokens are the curve of one run, "
                f"{name}; where each is a finished run, give it a name in a column `run`"
            )
            given = {**log.given, "step": usual["tokens"]}
            one = replace(log.part(name), given=given, tokens_axis=True, notes=(note,))
            yield from _wide(one, name, part.drop(columns=run or []), given["step"], None)
        return
    seen: dict[str, int] = {}
    for line, row in cells:
        number = f"{line:0{len(str(table.index[-1]))}d}"
        owner = f"{log.run}-{number}" if run is None else str(row.pop(run))
        if owner in seen:
            raise UserError(
                f"{log.place}, line {line}: run {short(owner)} is also in line {seen[owner]}; "
                "rename one"
            )
        if loss and loss not in row:
            raise UserError(f"{log.place}, line {line}, {loss}: is empty; fill it in")
        seen[owner] = line
        one = log.part(owner)
        one.final, one.line, one.facts = True, line, _as_facts(row, log.given)
        for column, key in own.items():
            if key is not None and key in row:
                value = _numbers([row[key]], log, np.array([line]), key)
                one.logged[column] = Logged(np.zeros(1), value)
        one.keys = {*names}
        yield one


def _is_curve(table: pd.DataFrame, usual: Mapping[str, str], named: bool) -> bool:
    """Return whether rows without a step are a curve of one run: one size, and tokens that rise
    from row to row. If the rows name their run (`named`), two of one name are enough."""
    tokens, size = usual.get("tokens"), usual.get("parameters")
    if tokens is None or len(table) < (2 if named else _CURVE) or {*_OF_RUNS} & {*usual}:
        return False
    read = [decimal(cell) for cell in table[tokens]]
    rising = None not in read and all(np.diff(np.array(read, float)) > 0)
    return rising and (size is None or table[size].nunique() == 1)


def _is_json(start: str) -> bool:
    first, _, _ = start.lstrip().partition("\n")
    if re.match(r"\[\s*\{\s*\"", start):
        return True
    with suppress(ValueError):
        return isinstance(from_json(first), dict)
    return False


def _is_table(start: str) -> bool:
    """Return whether a text begins with the header of a table that has a step."""
    names = re.split(r"[,;\t]", start.partition("\n")[0].strip())
    return len(names) > 1 and step_name(names) is not None


FORMATS: tuple[tuple[Callable[[Path, str], bool], Callable[[Log], Iterator[Log]]], ...] = (
    (lambda path, start: ".tfevents." in path.name, _events),
    (lambda path, start: path.suffix == ".db" and path.name not in _ELSEWHERE, _trackio),
    (lambda path, start: path.name == "meta.yaml" and (path.parent / "metrics").is_dir(), _mlflow),
    (lambda path, start: ending(path) in TABLES, _table),
    (lambda path, start: path.name == "trainer_state.json", _trainer_state),
    (lambda path, start: ending(path) == ".jsonl" or _is_json(start), _json_lines),
    (lambda path, start: _is_table(start), _table),
    (lambda path, start: program_of(start) is not None, _printed),
)
"""A pair of functions for each format. The first tells from a file's path and its start (the first
`_SEARCHED` bytes) whether the file is of that format. The second reads the file: it fills the empty
log that it is given, or makes a log for each run in the file. Formats are tried in this order, and
the first that recognises a file reads it."""
