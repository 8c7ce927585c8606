"""Reads the logs of other trainers: what each run logged at each step, under the trainer's names.

`imports` turns the result into tables. A format consists of a function that reads a file, and an
entry in `FORMATS` that says how to recognise such a file. The formats follow these programs, as of
November 2026:

| format | written by |
| --- | --- |
| events | TensorBoard; tags of torchtitan's `components/metrics.py`, Megatron-LM's `training.py` |
| `.db` | `trackio`: SQLite, tables `metrics` and `configs` |
| `meta.yaml` | MLflow's file store: a folder for each run, with a file for each metric |
| `trainer_state.json` | `transformers.TrainerState` |
| JSON lines | lingua's `lingua/metrics.py` and `apps/main/eval.py`, anyone's |
| printed lines | Megatron-LM `training_log`; nanoGPT; modded-nanogpt; nanochat `base_train` |
| CSV, TSV, parquet | anyone: wide, long (`key`, `value`), W&B's exports, a run in each row |
"""

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from pydantic_core import from_json

from tst_study.analysis.tables.sheets import (
    TABLES,
    ending,
    filled_cells,
    lines,
    read_sheet,
    unpacked,
)
from tst_study.errors import UserError, first_line
from tst_study.text import short

STEP = ("step", "global_step", "_step", "trainer/global_step", "iteration", "iter", "Step")
"""Names of the column or key that holds the step. If a row or table has several of them, the one
that is listed first here is used."""
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
    "learning_rate": (
        "learning_rate",
        "learning-rate",
        "optim/lr",
        "lr",
        "lr/AdamW",
        "train/learning_rate",
    ),
    "gradient_norm": ("gradient_norm", "grad-norm", "optim/grad_norm", "grad_norm"),
    "training_seconds": ("training_seconds", "total_training_time", "_runtime"),
    "loss_name": ("loss_name",),
}
"""For each of our columns, the names under which known programs log it. If a log has several of
them, the one that is listed first here is used."""
FINAL: Mapping[str, tuple[str, ...]] = {
    "parameters": ("parameters", "params", "n_params", "num_params", "model_size", "N"),
    "tokens": ("tokens", "n_tokens", "num_tokens", "training_tokens", "train_tokens", "D"),
    "flops": ("flops", "training_flops", "compute", "C"),
    "nats_per_token": ("nats_per_token", "final_loss", "val_loss", "eval_loss", "loss"),
}
"""For each fact of a finished run, the names that tables use for it. If a table has several of
them, the one that is listed first here is used."""
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
_ELSEWHERE = {
    ".aim": "is a store of Aim; write its metrics to a CSV: `aim.Repo(…).query_metrics()`",
    ".comet": "is a store of Comet; write its metrics to a CSV: `comet_ml.api.API().get(…)"
    ".get_metrics()`",
    "mlflow.db": "is a store of MLflow; write its metrics to a CSV: `mlflow.MlflowClient()"
    ".get_metric_history(…)`",
    ".wandb": "is an offline run of W&B; `wandb sync` it, and export a CSV from its page",
    "dvclive": "is a folder of DVCLive; join its files `plots/metrics/**.tsv` in one CSV with "
    "columns run, step, key, value",
}
"""The stores of experiment trackers that cannot be read, by name or suffix. Each has the end of an
error message, which says how to export the store."""


class Point(NamedTuple):
    """A value that was logged."""

    step: int
    key: str
    value: Any
    line: int
    """The number of the line or row in the file; 0 in TensorBoard's events, which have neither."""


@dataclass
class Log:
    """The part of one file (with MLflow, of one run's folder) that is about one run."""

    run: str
    place: Path
    points: list[Point] = field(default_factory=list)
    """In the order of the file; with MLflow, metric by metric."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Values that belong to no step, such as the config, under the file's own names; the number of
    planned steps is `steps`."""
    named: bool = False
    """Whether a person named the run, by `NAME=PATH`."""
    above: str = ""
    """Name of the folder that groups runs; arms may be named after it. It is the first part of the
    run's name if that has several parts (`_parts`); otherwise it is the folder that was given, or
    the one that holds the file that was given."""
    final: bool = False
    """Whether this is a row of a table of finished runs. Its cells are then points of step 0, which
    stand for the end of the run."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """The file's names for our columns (`KEYS`) and facts (`FINAL`), as far as a person gave them.
    Only the reader of finished runs (`_finished`) uses them."""


def read_logs(sources: Iterable[str], columns: Mapping[str, str]) -> list[Log]:
    """Read the logs of files and folders. `NAME=PATH` gives all that lies at PATH to the run NAME.

    columns: the logs' names for our columns (`KEYS`) and facts (`FINAL`), if they are not among the
    usual ones.

    Raises `UserError` for a source that does not exist or holds no log, and for a log that is
    damaged or cannot be read.
    """
    read: list[Log] = []
    for source in sources:
        name, named, place = source.partition("=")
        if not named or Path(source).exists():
            name, place = "", source
        root = Path(place)
        if not place or not root.exists():
            raise UserError(f"{source}: no such file or folder; give a log, or NAME=PATH of one")
        paths = sorted(filter(Path.is_file, (root, *root.rglob("*"))), key=_numbered)
        # The archive that an earlier import wrote below a source is no log of it.
        paths = [path for path in paths if not _of_archive(path)]
        logs = [log for path in _last_states(paths) for log in _read(path, root, columns)]
        if not logs:
            raise UserError(f"{source}: {_why_not(root)}")
        for log in logs:
            log.run, log.named = name or log.run, bool(name)
            log.run = re.sub(r"[/\\\x00-\x1f]", "-", log.run)  # the name must do for a folder
        read += logs
    return read


def _of_archive(path: Path) -> bool:
    files = {path.with_name(f"{name}.parquet") for name in ("runs", "curves", "evaluations")}
    return path in files and all(map(Path.is_file, files))


def _numbered(path: Path) -> list[str | int]:
    """Return a key that sorts `log-9` before `log-10`."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", str(path))]


def _last_states(paths: Sequence[Path]) -> list[Path]:
    """Return the paths without the files `trainer_state.json` that a later one of the same run
    repeats. They lie in the folders of the run's checkpoints and, after the end, above these."""
    states: dict[Path, list[Path]] = {}
    for path in paths:
        if path.name == "trainer_state.json":
            inside = path.parent.name.startswith("checkpoint-")
            states.setdefault(path.parents[1] if inside else path.parent, []).append(path)
    earlier = {path for of_run in states.values() for path in sorted(of_run, key=_steps_done)[:-1]}
    return [path for path in paths if path not in earlier]


def _steps_done(state: Path) -> int:
    """Return the number of steps that a `trainer_state.json` tells of; -1 if it is damaged."""
    try:
        return int(from_json(state.read_bytes())["global_step"])
    except (ValueError, LookupError, TypeError):
        return -1


def _why_not(root: Path) -> str:
    """Return the end of the error message for a source in which no log was found."""
    for path in [root, *sorted(root.rglob("*"))]:
        if export := _ELSEWHERE.get(path.name) or _ELSEWHERE.get(path.suffix):
            return export
    return (
        "holds no log of a known format with steps; give a CSV with a column 'step', or one of "
        "finished runs with parameters, tokens and loss, or see docs/import.md"
    )


def _read(path: Path, root: Path, columns: Mapping[str, str]) -> list[Log]:
    """Return the logs in a file; none if the file is of no known format."""
    with unpacked(path) as file:
        start = file.read(_SEARCHED).decode(errors="replace")
    reader = next((reader for recognises, reader in FORMATS if recognises(path, start)), None)
    if reader is None:
        return []
    parts = _parts(path, root)
    folder = (root.resolve() if root.is_dir() else path.resolve().parent).name
    above = parts[0] if len(parts) > 1 else folder
    log = Log("-".join(parts) or folder, path, above=above, columns=columns)
    try:
        return [run_log for run_log in reader(log) if run_log.points]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, sqlite3.Error) as error:
        raise UserError(
            f"{path}: is a damaged log ({first_line(error)}); remove or mend it"
        ) from None


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
    for event in EventFileLoader(str(log.place)).Load():
        for value in event.summary.value:
            # The loader turns scalars of every version into tensors of one number.
            if value.metadata.plugin_data.plugin_name == "scalars":
                number = make_ndarray(value.tensor).item()
                log.points.append(Point(event.step, value.tag, number, 0))
    yield log


def _trackio(log: Log) -> Iterator[Log]:
    """Read a store of trackio, in its schema of November 2026."""
    with closing(sqlite3.connect(f"{log.place.resolve().as_uri()}?mode=ro", uri=True)) as store:
        runs: dict[str, Log] = {}
        rows = store.execute("SELECT run_id, run_name, step, metrics FROM metrics ORDER BY id")
        for number, (key, name, step, metrics) in enumerate(rows, 1):
            named = f"{name}-{key[:8]}"  # several runs may have the same name
            run = runs.setdefault(key, Log(named, log.place, above=log.above))
            _add(run, {"step": step, **from_json(metrics)}, number)
        for key, config in store.execute("SELECT run_id, config FROM configs"):
            if key in runs:
                runs[key].facts |= from_json(config)
    yield from runs.values()


def _mlflow(log: Log) -> Iterator[Log]:
    meta = dict(line.rstrip().partition(": ")[::2] for line in lines(log.place))
    log.run = meta.get("run_name", "").strip("'\"") or log.run
    folder = log.place.parent
    for path in sorted((folder / "params").glob("*")):
        log.facts[path.name] = "".join(lines(path))
    for path in sorted(filter(Path.is_file, (folder / "metrics").rglob("*"))):
        key = path.relative_to(folder / "metrics").as_posix()
        for number, line in enumerate(lines(path), 1):
            _, value, step = line.split()
            _add(log, {"step": step, key: float(value)}, number)
    yield log


def _trainer_state(log: Log) -> Iterator[Log]:
    state = from_json(log.place.read_bytes())
    log.facts["steps"] = state["max_steps"]
    for number, row in enumerate(state["log_history"], 1):
        if "train_runtime" in row:  # the summary: its `train_loss` is a mean over the run
            row = {"step": row["step"], "training_seconds": row["train_runtime"]}
        _add(log, row, number)
    yield log


def _json_lines(log: Log) -> Iterator[Log]:
    """Take the values of rows with a step as points, and other rows as facts. A last line that is
    not JSON, as a killed program leaves it, is ignored."""
    texts = list(lines(log.place))
    for number, line in enumerate(texts, 1):
        try:
            row = from_json(line) if line.strip() else {}
        except ValueError:
            if number == len(texts):
                break
            raise UserError(f"{log.place}, line {number}: is no JSON; mend it") from None
        if not isinstance(row, dict):
            raise UserError(f"{log.place}, line {number}: {short(row)} is no row with keys")
        if not _add(log, row, number):
            log.facts |= row
    yield log


def _add(log: Log, row: Mapping[str, Any], line: int) -> bool:
    """Append the values of a row to the log's points, and return whether the row has a step."""
    flat = dict(_flat(row))
    name = next((name for name in STEP if name in flat), None)
    if name is None:
        return False
    step = whole(flat[name])
    if step is None or not 0 <= step < 2**63:
        raise UserError(
            f"{log.place}, line {line}, {name}: {short(flat[name])} is not a whole number of at "
            "least 0"
        )
    log.points += [
        # What lingua logs as `nll_per_token` is a log-likelihood, which has the opposite sign.
        Point(step, key, abs(value) if key.endswith("/nll_per_token") else value, line)
        for key, value in flat.items()
        if value is not None and key != name
    ]
    return True


def whole(value: Any) -> int | None:
    """Return a value as a whole number, however it is written (`30`, `30.0`, `3e1`); None if it is
    not one."""
    with suppress(ValueError):  # a float would lose digits beyond 2⁵³
        return int(str(value))
    number = decimal(value)
    return int(number) if number is not None and number % 1 == 0 else None


def decimal(value: Any) -> float | None:
    """Return a value as a number, finite or not; None if it is not a number."""
    try:
        return float(str(value))
    except ValueError:
        return None


def _flat(row: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested mappings, each with the keys that lead to it, joined by `/`."""
    for key, value in row.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{key}/")
        else:
            yield f"{above}{key}", value


_LINES = (
    (  # Megatron-LM, after a step
        re.compile(
            r"iteration +(?P<step>\d+)/ *(?P<steps>\d+) \|(?:.*? learning rate: "
            r"(?P<learning_rate>\S+) \|)?"
            r"(?:.*? lm loss: (?P<loss>\S+) \|)?(?:.*? grad norm: (?P<gradient_norm>\S+) \|)?"
        ),
        0,
    ),
    (  # Megatron-LM, on held-out text; the line that it prints for its test set must not match
        re.compile(
            r"validation loss at iteration (?P<step>\d+)\b(?! on test)[^|]*\| "
            r"lm loss value: (?P<nats_per_token>\S+)"
        ),
        0,
    ),
    # nanoGPT prints `step N` before training step N, and `iter N` after it. After step N, N + 1
    # steps are done, hence the 1 of the second pattern.
    (re.compile(r"^step (?P<step>\d+): train loss \S+, val loss (?P<nats_per_token>\S+)", re.M), 0),
    (re.compile(r"^iter (?P<step>\d+): loss (?P<loss>[^\s,]+), time", re.M), 1),
    (  # modded-nanogpt
        re.compile(
            r"step:(?P<step>\d+)/(?P<steps>\d+) (?:val_loss:(?P<nats_per_token>\S+)"
            r"|train_loss:(?P<loss>\S+)) train_time:(?P<milliseconds>\d+)?"
        ),
        0,
    ),
    # nanochat prints at the same moments as nanoGPT.
    (re.compile(r"^Step (?P<step>\d+) \| Validation bpb: (?P<bits_per_byte>\S+)", re.M), 0),
    (re.compile(r"^step (?P<step>\d+)/(?P<steps>\d+) \([^)]*\) \| loss: (?P<loss>\S+)", re.M), 1),
)
"""Patterns of the lines that known programs print. The number beside each is added to the printed
step, to make it the number of steps done. The groups of the patterns are `step`, `steps` (planned),
`milliseconds` (of training) and columns (`KEYS`)."""


def _printed(log: Log) -> Iterator[Log]:
    for number, line in enumerate(lines(log.place), 1):
        for pattern, more in _LINES:
            if (match := pattern.search(line)) is None:
                continue
            groups = {key: text for key, text in match.groupdict().items() if text is not None}
            if "steps" in groups:
                log.facts["steps"] = int(groups.pop("steps"))
            if "milliseconds" in groups:
                groups["training_seconds"] = str(int(groups.pop("milliseconds")) / 1000)
            _add(log, {**groups, "step": int(groups["step"]) + more}, number)
    yield log


def _table(log: Log) -> Iterator[Log]:
    """Read a table that has a column of steps (`STEP`), in the wide or the long form.

    It holds several runs if a column (`_RUN`) names them, or if the headings name them as in W&B's
    exports (`run - key`). A table without a column of steps is read as one of finished runs
    (`_finished`).
    """
    table = read_sheet(log.place)
    columns = list(map(str, table))
    step, run, key = (
        next((name for name in names if name in columns), None) for names in (STEP, _RUN, _KEY)
    )
    if step is None:
        yield from _finished(table, log, run)
        return
    panels = {  # as W&B exports them: `run - key`
        name: name.rpartition(" - ")[::2]
        for name in columns
        if run is None and " - " in name and not name.endswith(("__MIN", "__MAX"))
    }
    logs: dict[str, Log] = {}
    for line, row in filled_cells(table, log.place, *filter(None, (step, run))):
        at, owner = {step: row.pop(step)}, log.run if run is None else str(row.pop(run))
        if panels:
            found = [(panels[name], row[name]) for name in panels if name in row]
            parts = [(owner, {metric: value}) for (owner, metric), value in found]
        elif key is not None and "value" in columns:
            parts = [(owner, {str(row.get(key)): row.get("value")})]
        else:
            parts = [(owner, row)]
        for owner, cells in parts:
            _add(logs.setdefault(owner, Log(owner, log.place, above=log.above)), at | cells, line)
    # A column with the same value in all rows of a run states a fact about the run.
    for owner, own in table.groupby(table[run].astype(str)) if run else [(log.run, table)]:
        if owner in logs:
            same = own.columns[own.astype(str).nunique() == 1]
            logs[owner].facts = {
                str(name): cell for name, cell in own[same].iloc[0].items() if cell is not None
            }
    yield from logs.values()


def _finished(table: pd.DataFrame, log: Log, run: str | None) -> Iterator[Log]:
    """Yield a run for each row of a table of finished runs.

    A table counts as one if it has a column of final losses, in nats per token or bits per byte,
    and a column of tokens, FLOPs or steps; otherwise nothing is yielded.
    """
    usual = {
        fact: next((name for name in (log.columns.get(fact), *names) if name in table), None)
        for fact, names in FINAL.items()
    }
    loss, length = usual["nats_per_token"], usual["tokens"] or usual["flops"] or "steps" in table
    if not ((loss or "bits_per_byte" in table) and length):
        return
    seen: dict[str, int] = {}
    for line, row in filled_cells(table, log.place, *filter(None, (loss, run))):
        number = f"{line:0{len(str(table.index[-1]))}d}"
        owner = f"{log.run}-{number}" if run is None else str(row.pop(run))
        if owner in seen:
            raise UserError(
                f"{log.place}, line {line}: run {short(owner)} is also in line {seen[owner]}; "
                "rename one"
            )
        seen[owner] = line
        row |= {fact: row[name] for fact, name in usual.items() if name in row}
        points = [Point(0, key, value, line) for key, value in row.items()]
        yield Log(owner, log.place, points, row, above=log.above, final=True)


FORMATS: tuple[tuple[Callable[[Path, str], bool], Callable[[Log], Iterator[Log]]], ...] = (
    (lambda path, start: ".tfevents." in path.name, _events),
    (lambda path, start: path.suffix == ".db" and path.name not in _ELSEWHERE, _trackio),
    (lambda path, start: path.name == "meta.yaml" and (path.parent / "metrics").is_dir(), _mlflow),
    (lambda path, start: ending(path) in TABLES, _table),
    (lambda path, start: path.name == "trainer_state.json", _trainer_state),
    (
        lambda path, start: ending(path) == ".jsonl" or bool(re.match(r"\{.*\}\n", start)),
        _json_lines,
    ),
    (lambda path, start: any(line.search(start) for line, _ in _LINES), _printed),
)
"""A pair of functions for each format. The first tells from a file's path and its start (the first
`_SEARCHED` bytes) whether the file is of that format. The second reads the file: it fills the empty
log that it is given, or makes a log for each run in the file. Formats are tried in this order, and
the first that recognises a file reads it."""
