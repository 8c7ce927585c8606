"""Logs of other trainers, read as they are: what a run logged at each step, under its own names.

The format follows from the file. Sources of the formats, as read in November 2026:

| format | written by |
| --- | --- |
| events | TensorBoard; tags of torchtitan's `components/metrics.py`, Megatron-LM's `training.py` |
| `.wandb` | `wandb` offline: LevelDB's log format around W&B's protobuf records |
| `trainer_state.json` | `transformers.TrainerState` |
| JSON lines | lingua's `lingua/metrics.py` and `apps/main/eval.py`, nanochat, anyone's |
| printed lines | Megatron-LM `training_log`; nanoGPT; modded-nanogpt; nanochat `base_train` |
| CSV, parquet | anyone: wide, long (`key`, `value`), or exported from a page of W&B |
"""

from __future__ import annotations

import csv
import json
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from tst_study.analysis.checks import is_number
from tst_study.analysis.tables.columns import rows_of
from tst_study.errors import UserError

STEP = ("step", "global_step", "_step", "trainer/global_step", "iteration", "iter", "Step")
_RUN = ("run", "run_id", "Run", "name", "Name")
_KEY = ("key", "metric", "tag", "variable")
_UNNAMED: tuple[str, ...] = ("metrics", "metrics.eval", "metrics.validation", "trainer_state")
_UNNAMED += ("log", "train")
_UNNAMED += ("output", "stdout", "history", "events")
"""Names of files that say nothing of the run: their folder does."""
_LOOK = 1 << 20
"""Bytes in which a text must show a line of a known program; code is printed above some logs."""


@dataclass
class Log:
    """What one file says of one run."""

    run: str
    place: Path
    points: list[tuple[int, str, Any]] = field(default_factory=list)
    """Step, the log's own key, value; in the order in which they were written."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What else the file says, under its own names: of a config, planned steps."""
    named: bool = False
    """Whether a person, or the tracker's own id, says whose log it is."""


def read_logs(sources: Iterable[str]) -> list[Log]:
    """Logs of files and folders. `NAME=PATH` gives all that lies at PATH to the run NAME.

    Raises `UserError` for a source that does not exist, holds no log, or is damaged.
    """
    found: list[Log] = []
    for source in sources:
        name, named, place = source.partition("=")
        if not named or Path(source).exists():
            name, place = "", source
        root = Path(place)
        if not root.exists():
            raise UserError(f"{source}: no such file or folder; give a log, or NAME=PATH of one")
        logs = [log for path in _files(root) for log in _read(path, root) if log.points]
        if not logs:
            raise UserError(
                f"{source}: holds no log of a known format with steps; give a CSV with a column "
                "'step', or see docs/import.md"
            )
        for log in logs:
            log.run, log.named = name or log.run, log.named or bool(name)
        found += logs
    return found


def _files(root: Path) -> list[Path]:
    if root.is_file():
        return [root]
    paths = sorted(path for path in root.rglob("*") if path.is_file())
    # Beside an offline run of W&B lie what the program printed and its settings: twice the same.
    runs = {path.parent for path in paths if path.suffix == ".wandb"}
    return [p for p in paths if p.suffix == ".wandb" or not runs.intersection(p.parents)]


def _read(path: Path, root: Path) -> list[Log]:
    """Nothing for a file that is no log."""
    reader = _reader(path)
    if reader is None:
        return []
    log = Log(_name(path, root), path)
    try:
        return list(reader(log))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: cannot be read as a log ({error!r}); remove or mend it") from None


def _reader(path: Path) -> Callable[[Log], Iterable[Log]] | None:
    if "tfevents" in path.name:
        return _events
    if path.suffix in (".wandb", ".parquet", ".csv"):
        return {".wandb": _wandb, ".parquet": _table, ".csv": _table}[path.suffix]
    if path.name == "trainer_state.json":
        return _trainer_state
    with path.open("rb") as file:
        start = file.read(_LOOK).decode(errors="replace")
    if path.suffix == ".jsonl" or re.match(r"\{.*\}\n", start):
        return _json_lines
    return _printed if any(pattern.search(start) for pattern, _ in _LINES) else None


def _name(path: Path, root: Path) -> str:
    parts = [*(path.relative_to(root).parent.parts if root.is_dir() else ())]
    parts = [part for part in parts if not part.startswith("checkpoint-")]
    stem = "events" if "tfevents" in path.name else path.name.removesuffix(path.suffix)
    if stem not in _UNNAMED:
        parts.append(stem)
    above = root.resolve() if root.is_dir() else path.resolve().parent
    return "-".join(parts) or above.name


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
                log.points.append((event.step, value.tag, make_ndarray(value.tensor).item()))
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
            log.facts |= {one.key: json.loads(one.value_json) for one in config.update}
        items = record.history.item
        row = {one.key or "/".join(one.nested_key): json.loads(one.value_json) for one in items}
        if row:
            log.points += _of_row({"_step": record.history.step.num, **row})
    yield log


def _leveldb_records(data: bytes, start: int) -> Iterator[bytes]:
    """Records of LevelDB's log format (`doc/log_format.md` there): blocks of 32 KiB, each piece
    behind a checksum, its length, and whether it is a record's whole, first, middle or last."""
    place, record = 0, b""
    while place + 7 <= len(data):
        left = 32768 - (place + start) % 32768
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if place > len(data):  # torn: the program was killed
            return
        if kind in (1, 4):
            yield record
            record = b""


def _trainer_state(log: Log) -> Iterator[Log]:
    own = log.place.parent
    if own.name.startswith("checkpoint-"):  # a later checkpoint repeats what an earlier one says
        later = [p.parent.name for p in own.parent.glob("checkpoint-*/trainer_state.json")]
        if own.name != max(later, key=lambda name: int(name.rpartition("-")[2])):
            return
    state = json.loads(log.place.read_text())
    log.facts["steps"] = state["max_steps"]
    for row in state["log_history"]:
        if "train_runtime" not in row:  # of the summary at the end, `train_loss` is a mean
            log.points += _of_row(row)
    yield log


def _json_lines(log: Log) -> Iterator[Log]:
    """Rows with a step are points, others facts. A torn last line is left out."""
    lines = log.place.read_text(errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line) if line.strip() else {}
        except ValueError:
            if number < len(lines):
                raise UserError(f"{log.place}, line {number}: is no JSON; mend it") from None
            continue
        found = _of_row(row)
        log.points += found
        if not found:
            log.facts |= row
    yield log


def _of_row(row: dict[str, Any]) -> list[tuple[int, str, Any]]:
    flat = dict(_flat(row))
    step = next((flat[name] for name in STEP if name in flat), None)
    if step is None:
        return []
    return [
        # lingua's `nll` is a mean log-likelihood: it has the other sign.
        (int(step), key, abs(value) if key.endswith("/nll_per_token") else value)
        for key, value in flat.items()
        if key == "loss_name" or is_number(value) or value != value
    ]


def _flat(row: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in row.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{key}/")
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
    (  # also printed of the test set, which is another text
        re.compile(
            r"validation loss at iteration (?P<step>\d+)\b(?! on test)[^|]*\| "
            r"lm loss value: (?P<nats_per_token>\S+)"
        ),
        0,
    ),
    # nanoGPT: losses of `step` before that step is done, of `iter` behind it
    (re.compile(r"^step (?P<step>\d+): train loss \S+, val loss (?P<nats_per_token>\S+)", re.M), 0),
    (re.compile(r"^iter (?P<step>\d+): loss (?P<loss>[^\s,]+), time", re.M), 1),
    (  # modded-nanogpt
        re.compile(
            r"step:(?P<step>\d+)/(?P<steps>\d+) (?:val_loss:(?P<nats_per_token>\S+)"
            r"|train_loss:(?P<loss>\S+)) train_time:"
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
"""Lines of known programs, and how many more steps are done than they say. Groups are `STEP`,
facts, and columns."""
_FACTS = ("steps", "sequences")


def _printed(log: Log) -> Iterator[Log]:
    for line in log.place.read_text(errors="replace").splitlines():
        for pattern, more in _LINES:
            if (match := pattern.search(line)) is None:
                continue
            said = {key: text for key, text in match.groupdict().items() if text is not None}
            step = int(said.pop("step")) + more
            log.facts |= {key: int(said.pop(key)) for key in _FACTS if key in said}
            log.points += [(step, key, float(text)) for key, text in said.items()]
    yield log


def _table(log: Log) -> Iterator[Log]:
    """A CSV or parquet file with a column of steps; of several runs where a column names them, and
    of nothing but their ends where it has final losses and each run's number of steps."""
    table = pd.read_parquet(log.place) if log.place.suffix == ".parquet" else pd.read_csv(log.place)
    step = next((name for name in STEP if name in table), None)
    if step is None and "steps" in table and "nats_per_token" in table:
        table["step"] = table[step := "steps"]
    if step is None:  # a table of something else
        return
    run, key = (next((n for n in names if n in table), None) for names in (_RUN, _KEY))
    if step != "steps":
        table = table.rename(columns={step: "step"})
    table = table.dropna(subset=["step"])
    if run is None and any(" - " in str(name) for name in table):
        parts = [
            (name, table[["step", column]].dropna().rename(columns={column: key_of}))
            for column in map(str, table.columns)
            for name, dash, key_of in [column.rpartition(" - ")]
            if dash and not column.endswith(("__MIN", "__MAX"))
        ]
    elif run is not None:
        parts = [(str(name), own.drop(columns=run)) for name, own in table.groupby(run)]
    else:
        parts = [(log.run, table)]
    for name, own in parts:
        if key is not None and "value" in own:
            rows = [{"step": s, k: v} for s, k, v in own[["step", key, "value"]].to_numpy()]
        else:
            rows = [row.dropna().to_dict() for _, row in own.iterrows()]
        facts = next(rows_of(own.loc[:, own.nunique() == 1].dropna()), {})
        yield Log(name, log.place, [point for row in rows for point in _of_row(row)], facts)


def read_facts(path: Path) -> dict[str, dict[str, str]]:
    """A `runs.csv`: facts by run, without empty cells."""
    try:
        with path.open(newline="", encoding="utf8") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror}); write one with --template"
        ) from None
    if any("run" not in row for row in rows):
        raise UserError(f"{path}: column 'run' is missing; write one with --template")
    return {row["run"]: {k: v for k, v in row.items() if k != "run" and v} for row in rows}
