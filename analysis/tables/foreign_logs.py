"""Logs of other trainers, read as they are: what a run logged at each step, under its own names.

A format is a function that reads a file, and an entry in `FORMATS` that says how such a file is
recognised. Sources of the formats, as read in November 2026:

| format | written by |
| --- | --- |
| events | TensorBoard; tags of torchtitan's `components/metrics.py`, Megatron-LM's `training.py` |
| `.wandb` | `wandb` offline: LevelDB's log format around W&B's protobuf records |
| `.db` | `trackio`: SQLite, tables `metrics` and `configs` |
| `meta.yaml` | MLflow's file store: a folder for each run, with a file for each metric |
| `trainer_state.json` | `transformers.TrainerState` |
| JSON lines | lingua's `lingua/metrics.py` and `apps/main/eval.py`, nanochat, anyone's |
| printed lines | Megatron-LM `training_log`; nanoGPT; modded-nanogpt; nanochat `base_train` |
| CSV, TSV, parquet | anyone: wide, long (`key`, `value`), W&B's exports, a run in each row |
"""

from __future__ import annotations

import math
import re
import sqlite3
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from pydantic_core import from_json

from tst_study.analysis.tables.sheets import TABLES, Sheet, ending, lines, read_sheet, unpacked
from tst_study.errors import UserError, first_line
from tst_study.text import short

STEP = ("step", "global_step", "_step", "trainer/global_step", "iteration", "iter", "Step")
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
    "training_seconds": ("training_seconds", "total_training_time", "_runtime"),
    "loss_name": ("loss_name",),
}
"""The names that known programs use, by column; the first one in a log counts."""
FINAL: Mapping[str, tuple[str, ...]] = {
    "parameters": ("parameters", "params", "n_params", "num_params", "model_size", "N"),
    "tokens": ("tokens", "n_tokens", "num_tokens", "training_tokens", "train_tokens", "D"),
    "flops": ("flops", "training_flops", "compute", "C"),
    "nats_per_token": ("nats_per_token", "final_loss", "val_loss", "eval_loss", "loss"),
}
"""The names that tables of finished runs use, by fact; the first one in a table counts."""
_RUN = ("run", "run_id", "Run", "name", "Name")
_KEY = ("key", "metric", "tag", "variable")
_UNNAMED: tuple[str, ...] = ("metrics", "metrics.eval", "metrics.validation", "trainer_state")
_UNNAMED += ("log", "train", "meta", "output", "stdout", "history", "events")
"""Names of files that do not name the run; its folder does."""
_SEARCHED = 1 << 20
"""Bytes that are searched for a line of a known program; some print their source code first."""
_TEXTS = (".csv", ".json", ".jsonl", ".log", ".out", ".tsv", ".txt")
_ELSEWHERE = {
    ".aim": "is a store of Aim; write its metrics to a CSV: `aim.Repo(…).query_metrics()`",
    ".comet": "is a store of Comet; write its metrics to a CSV: `comet_ml.api.API().get(…)"
    ".get_metrics()`",
    "mlflow.db": "is a store of MLflow; write its metrics to a CSV: `mlflow.MlflowClient()"
    ".get_metric_history(…)`",
    "dvclive": "is a folder of DVCLive; join its files `plots/metrics/**.tsv` in one CSV with "
    "columns run, step, key, value",
}
"""Stores of trackers that cannot be read, by their names, and how to export them."""


class Point(NamedTuple):
    """A value that was logged."""

    step: int
    key: str
    value: Any
    line: int
    """The line of the file; 0 where it has no lines."""


@dataclass
class Log:
    """The part of one file that is about one run."""

    run: str
    place: Path
    points: list[Point] = field(default_factory=list)
    """In the order in which they were written."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Everything else, under the file's own names: the config, planned steps."""
    named: bool = False
    """Whether a person, or the tracker's own id, says which run this is."""
    above: str = ""
    """Name of the folder that groups runs: the outermost one below the given path, or the given
    one."""
    final: bool = False
    """Whether this is a row of a table of finished runs; its one point is the run's end."""
    row: str = ""
    """The row's place in that table, for errors."""
    times: list[float] = field(default_factory=list)
    """When something was logged, in seconds since 1970."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """The file's names for our columns, where a person gave them."""


@dataclass(frozen=True)
class Format:
    """A kind of log."""

    recognises: Callable[[Path], bool]
    """Whether a file is of this format."""
    read: Callable[[Log], Iterable[Log]]
    """Fill the log of a file, or make one log for each run in it."""
    repeated_below: bool = False
    """Whether other files in and below its folder repeat what it says, and are passed over."""


def read_logs(
    sources: Iterable[str],
    columns: Mapping[str, str] | None = None,
    passed_over: list[Path] | None = None,
) -> list[Log]:
    """Read the logs of files and folders. `NAME=PATH` gives all that lies at PATH to the run NAME.

    Args:
        columns: the logs' names for our columns, where they are not usual ones.
        passed_over: gets the text files of no known format.

    Raises `UserError` for a source that does not exist, holds no log, or is damaged.
    """
    read: list[Log] = []
    for source in sources:
        name, named, place = source.partition("=")
        if not named or Path(source).exists():
            name, place = "", source
        root = Path(place)
        if not root.exists():
            raise UserError(f"{source}: no such file or folder; give a log, or NAME=PATH of one")
        by_file = {path: _read(path, root, columns or {}) for path in _files(root)}
        logs = [log for of_file in by_file.values() for log in of_file]
        if passed_over is not None:
            passed_over += [p for p, found in by_file.items() if not found and p.suffix in _TEXTS]
        if not logs:
            raise UserError(f"{source}: {_why_not(root)}")
        for log in logs:
            log.run, log.named = name or log.run, log.named or bool(name)
            log.run = re.sub(r"[/\\\x00-\x1f]", "-", log.run)  # it names a folder
        read += logs
    return read


def _why_not(root: Path) -> str:
    for path in [root, *sorted(root.rglob("*"))]:
        if export := _ELSEWHERE.get(path.name) or _ELSEWHERE.get(path.suffix):
            return export
    return (
        "holds no log of a known format with steps; give a CSV with a column 'step', or one of "
        "finished runs with parameters, tokens and loss, or see docs/import.md"
    )


def _files(root: Path) -> list[Path]:
    """All files at or below a place, but for those that only repeat another one."""
    if root.is_file():
        return [root]
    paths = sorted(path for path in root.rglob("*") if path.is_file())
    kinds = [kind for kind in FORMATS if kind.repeated_below]
    whole = [path for path in paths if any(kind.recognises(path) for kind in kinds)]
    folders = {path.parent for path in whole}
    return [path for path in paths if path in whole or not folders.intersection(path.parents)]


def _read(path: Path, root: Path, columns: Mapping[str, str]) -> list[Log]:
    """The logs in a file; none where no format recognises it."""
    kind = next((kind for kind in FORMATS if kind.recognises(path)), None)
    if kind is None:
        return []
    parts = _parts(path, root)
    folder = (root.resolve() if root.is_dir() else path.resolve().parent).name
    above = parts[0] if len(parts) > 1 else folder
    log = Log("-".join(parts) or folder, path, above=above, columns=columns)
    try:
        return [run_log for run_log in kind.read(log) if run_log.points]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, sqlite3.Error) as error:
        raise UserError(
            f"{path}: is a damaged log ({first_line(error)}); remove or mend it"
        ) from None


def _parts(path: Path, root: Path) -> list[str]:
    """The parts of a run's name: the folders that it lies in, and the file."""
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
    for event in EventFileLoader(str(log.place)).Load():
        for value in event.summary.value:
            # The loader turns scalars of every version into tensors of one number.
            if value.metadata.plugin_data.plugin_name == "scalars":
                log.points.append(
                    Point(event.step, value.tag, make_ndarray(value.tensor).item(), 0)
                )
                log.times.append(event.wall_time)
    yield log


def _wandb(log: Log) -> Iterator[Log]:
    try:
        from wandb.proto.wandb_internal_pb2 import Record
    except ImportError:
        raise UserError(f"{log.place}: needs wandb; pip install 'tst-study[wandb]'") from None
    for data in _leveldb_records(log.place.read_bytes()[7:], start=7):
        record = Record()
        record.ParseFromString(data)
        if record.HasField("run"):
            log.run, log.named = f"{record.run.display_name or 'run'}-{record.run.run_id}", True
        for config in (record.run.config, record.config):
            log.facts |= {one.key: from_json(one.value_json) for one in config.update}
        items = record.history.item
        row = {one.key or "/".join(one.nested_key): from_json(one.value_json) for one in items}
        if row:
            _add(log, {"_step": record.history.step.num, **row})
    yield log


def _leveldb_records(data: bytes, start: int) -> Iterator[bytes]:
    """Records of LevelDB's log format (`doc/log_format.md` there): blocks of 32 KiB, each piece
    behind a checksum, its length, and whether it is a record's whole, first, middle or last."""
    place, record = 0, b""
    while place + 7 <= len(data):
        rest = 32768 - (place + start) % 32768
        if rest < 7:
            place += rest
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if place > len(data):  # torn: the program was killed
            return
        if kind in (1, 4):
            yield record
            record = b""


def _trackio(log: Log) -> Iterator[Log]:
    """Read a store of November 2026, whose runs have ids, or one from before that."""
    with closing(sqlite3.connect(f"{log.place.resolve().as_uri()}?mode=ro", uri=True)) as store:
        if not list(store.execute("SELECT 1 FROM sqlite_master WHERE name = 'metrics'")):
            return
        columns = {row[1] for row in store.execute("PRAGMA table_info(metrics)")}
        mark = "run_id" if "run_id" in columns else "run_name"
        runs: dict[Any, Log] = {}
        query = f"SELECT {mark}, run_name, step, timestamp, metrics FROM metrics ORDER BY id"
        for number, (key, name, step, time, metrics) in enumerate(store.execute(query), 1):
            run = runs.setdefault(key, Log(str(name), log.place, above=log.above))
            run.times.append(datetime.fromisoformat(time).timestamp())
            _add(run, {"step": step, **from_json(metrics)}, number)
        for key, config in store.execute(f"SELECT {mark}, config FROM configs"):
            if key in runs:
                runs[key].facts |= from_json(config)
    names = [run.run for run in runs.values()]
    for key, run in runs.items():
        if names.count(run.run) > 1:
            run.run += f"-{key[:8]}"
        yield run


def _mlflow(log: Log) -> Iterator[Log]:
    meta = dict(line.rstrip().partition(": ")[::2] for line in lines(log.place))
    log.run = meta.get("run_name", "").strip("'\"") or log.run
    log.times = [int(meta[key]) / 1000 for key in ("start_time", "end_time") if meta[key] != "null"]
    folder = log.place.parent
    for path in sorted((folder / "params").glob("*")):
        log.facts[path.name] = "".join(lines(path))
    for path in sorted(path for path in (folder / "metrics").rglob("*") if path.is_file()):
        key = path.relative_to(folder / "metrics").as_posix()
        for number, line in enumerate(lines(path), 1):
            _, value, step = line.split()
            _add(log, {"step": step, key: float(value)}, number)
    yield log


def _trainer_state(log: Log) -> Iterator[Log]:
    own = log.place.parent
    if own.name.startswith("checkpoint-"):  # a later checkpoint repeats what an earlier one says
        later = [p.parent.name for p in own.parent.glob("checkpoint-*/trainer_state.json")]
        if own.name != max(later, key=lambda name: int(name.rpartition("-")[2])):
            return
    state = from_json(log.place.read_bytes())
    log.facts["steps"] = state["max_steps"]
    for number, row in enumerate(state["log_history"], 1):
        if "train_runtime" in row:  # the summary: its `train_loss` is a mean over the run
            row = {"step": row["step"], "training_seconds": row["train_runtime"]}
        _add(log, row, number)
    yield log


def _json_lines(log: Log) -> Iterator[Log]:
    """Take rows with a step as points, others as facts; leave out a torn last line."""
    torn = 0
    for number, line in enumerate(lines(log.place), 1):
        if torn:
            raise UserError(f"{log.place}, line {torn}: is no JSON; mend it")
        try:
            row = from_json(line) if line.strip() else {}
        except ValueError:
            torn = number
            continue
        if not isinstance(row, dict):
            raise UserError(f"{log.place}, line {number}: {short(row)} is no row with keys")
        if not _add(log, row, number):
            log.facts |= row
    yield log


def _add(log: Log, row: Mapping[str, Any], line: int = 0, where: str = "") -> bool:
    """Append the values of a row, and return whether it has a step."""
    flat = dict(_flat(row))
    name = next((name for name in STEP if name in flat), None)
    if name is None:
        return False
    step = whole(flat[name])
    if step is None or not 0 <= step < 2**63:
        where = where or f"{log.place}, line {line}"
        raise UserError(f"{where}, {name}: {short(flat[name])} is not a whole number of at least 0")
    log.points += [
        # lingua's `nll` is a mean log-likelihood, which has the other sign.
        Point(step, key, abs(value) if key.endswith("/nll_per_token") else value, line)
        for key, value in flat.items()
        if value is not None and key != name
    ]
    return True


def whole(value: Any) -> int | None:
    """A whole number however it is written (`30`, `30.0`, `3e1`); None for anything else."""
    try:
        return int(str(value))
    except ValueError:
        number = decimal(value)
        return int(number) if number is not None and number % 1 == 0 else None


def decimal(value: Any) -> float | None:
    """A number, finite or not; None for anything else."""
    try:
        return None if isinstance(value, bool) else float(value)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        return None


def _flat(row: Mapping[str, Any], above: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    for key, value in row.items():
        if isinstance(value, dict) and depth < 20:
            yield from _flat(value, f"{above}{key}/", depth + 1)
        else:
            yield f"{above}{key}", value


_LINES = (
    (  # Megatron-LM: a step that was done
        re.compile(
            r"iteration +(?P<step>\d+)/ *(?P<steps>\d+) \|(?:.*? learning rate: "
            r"(?P<learning_rate>\S+) \|)?(?:.*? global batch size: +(?P<sequences>\d+) \|)?"
            r"(?:.*? lm loss: (?P<loss>\S+) \|)?(?:.*? grad norm: (?P<gradient_norm>\S+) \|)?"
        ),
        0,
    ),
    (  # Megatron-LM prints such a line for its test set, too, which must not match.
        re.compile(
            r"validation loss at iteration (?P<step>\d+)\b(?! on test)[^|]*\| "
            r"lm loss value: (?P<nats_per_token>\S+)"
        ),
        0,
    ),
    # nanoGPT prints `step N` before training step N and `iter N` after it, hence + 1.
    (re.compile(r"^step (?P<step>\d+): train loss \S+, val loss (?P<nats_per_token>\S+)", re.M), 0),
    (re.compile(r"^iter (?P<step>\d+): loss (?P<loss>[^\s,]+), time", re.M), 1),
    (  # modded-nanogpt
        re.compile(
            r"step:(?P<step>\d+)/(?P<steps>\d+) (?:val_loss:(?P<nats_per_token>\S+)"
            r"|train_loss:(?P<loss>\S+)) train_time:(?P<milliseconds>\d+)?"
        ),
        0,
    ),
    # nanochat: as nanoGPT
    (re.compile(r"^Step (?P<step>\d+) \| Validation bpb: (?P<bits_per_byte>\S+)", re.M), 0),
    (
        re.compile(r"^step (?P<step>\d+)/(?P<steps>\d+) \([^)]*\) \| loss: (?P<loss>\S+)", re.M),
        1,
    ),
)
"""Lines of known programs, and the steps to add to the number that they print. Groups are `step`,
facts and columns."""
_FACTS = ("steps", "sequences")


def _printed(log: Log) -> Iterator[Log]:
    for number, line in enumerate(lines(log.place), 1):
        for pattern, more in _LINES:
            if (match := pattern.search(line)) is None:
                continue
            groups = {key: text for key, text in match.groupdict().items() if text is not None}
            log.facts |= {key: int(groups.pop(key)) for key in _FACTS if key in groups}
            if "milliseconds" in groups:
                groups["training_seconds"] = str(int(groups.pop("milliseconds")) / 1000)
            _add(log, {**groups, "step": int(groups["step"]) + more}, number)
    yield log


def _table(log: Log) -> Iterator[Log]:
    """Read a table with a column of steps, of several runs if a column names them.

    A table without steps is one of finished runs if it has a final loss and the length of each run.
    """
    sheet = read_sheet(log.place)
    names = sheet.columns
    step = next((name for name in STEP if name in names), None)
    run, key = (next((n for n in some if n in names), None) for some in (_RUN, _KEY))
    if step is None:
        yield from _finished(sheet, log, run)
        return
    panels = {}  # as W&B exports them: `run - key`
    if run is None and any(" - " in name for name in names):
        panels = {name: name.rpartition(" - ")[::2] for name in names if " - " in name}
    logs: dict[str, Log] = {}
    changing: set[tuple[str, str]] = set()
    for place, (where, row) in enumerate(sheet.rows()):
        for name in (step, run):
            if name is not None and name not in row:
                raise UserError(f"{where}, {name}: is empty; fill it in or remove the row")
        owner = str(row.pop(run)) if run is not None else log.run
        parts: dict[str, dict[str, Any]] = {}
        if panels:
            for name, (run_name, metric) in panels.items():
                if name in row and not name.endswith(("__MIN", "__MAX")):
                    parts.setdefault(run_name, {step: row[step]})[metric] = row[name]
        elif key is not None and "value" in row:
            parts[owner] = {step: row[step], str(row.pop(key, "")): row.pop("value")}
        else:
            parts[owner] = row
        for owner, cells in parts.items():
            run_log = logs.setdefault(owner, Log(owner, log.place, above=log.above))
            _add(run_log, cells, sheet.lines[place], where)
            for name, cell in row.items():
                if run_log.facts.setdefault(name, cell) != cell:
                    changing.add((owner, name))
    for owner, name in changing:  # only what never changes within a run is a fact of it
        del logs[owner].facts[name]
    yield from logs.values()


def _finished(sheet: Sheet, log: Log, run: str | None) -> Iterator[Log]:
    """Yield a run for each row; none if the table has no losses or no lengths."""
    usual = {
        fact: next((name for name in names if name in sheet.columns), None)
        for fact, names in FINAL.items()
    }
    usual |= {fact: name for fact, name in log.columns.items() if name in sheet.columns}
    loss = usual["nats_per_token"]
    if not (
        (loss or "bits_per_byte" in sheet.columns) and (usual["tokens"] or "steps" in sheet.columns)
    ):
        return
    seen: dict[str, str] = {}
    for place, (where, row) in enumerate(sheet.rows()):
        for name in (loss, run):
            if name is not None and name not in row:
                raise UserError(f"{where}, {name}: is empty; fill it in or remove the row")
        number = f"{place + 1:0{len(str(len(sheet.lines)))}d}"
        owner = f"{log.run}-{number}" if run is None else str(row.pop(run))
        if owner in seen:
            raise UserError(f"{where}: run {short(owner)} is also in {seen[owner]}; rename one")
        seen[owner] = where
        end = {"nats_per_token": row[loss]} if loss is not None else {}
        row |= {fact: row[name] for fact, name in usual.items() if name in row}
        points = [Point(0, key, value, sheet.lines[place]) for key, value in (row | end).items()]
        yield Log(owner, log.place, points, row, above=log.above, final=True, row=where)


def _start(path: Path) -> str:
    with unpacked(path) as file:
        return file.read(_SEARCHED).decode(errors="replace")


FORMATS: tuple[Format, ...] = (
    Format(lambda path: ".tfevents." in path.name, _events),
    Format(lambda path: path.suffix == ".wandb", _wandb, repeated_below=True),
    Format(lambda path: path.suffix == ".db", _trackio),
    Format(
        lambda path: path.name == "meta.yaml" and (path.parent / "metrics").is_dir(),
        _mlflow,
        repeated_below=True,
    ),
    Format(lambda path: ending(path) in TABLES, _table),
    Format(lambda path: path.name == "trainer_state.json", _trainer_state),
    Format(
        lambda path: ending(path) == ".jsonl" or bool(re.match(r"\{.*\}\n", _start(path))),
        _json_lines,
    ),
    Format(lambda path: any(line.search(_start(path)) for line, _ in _LINES), _printed),
)
"""Every format; the first that recognises a file reads it."""
