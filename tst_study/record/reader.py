"""The schema and the tolerant reader of a run folder, which is the whole truth about a run.

| file | holds |
| --- | --- |
| `run.json` | written once: identity, resolved config, parameters, FLOPs, plan, data |
| `segments.jsonl` | per launch one row when it starts and one when it ends |
| `metrics.jsonl` | rows of training, each with all counters |
| `evals.jsonl` | held-out losses during training, and what `tst-study evaluate` measured later |
| `status.json` | state, heartbeat, last checkpoint |

A killed launch leaves at most a torn last line, and rows beyond its last checkpoint; the next
launch writes those steps again. Hence the reader's rules: for a step written twice the later
segment wins; rows beyond a resume point are dropped; a torn last line is ignored. Anything else
is an error that names the file and, in a log, the line.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypeVar, cast

from pydantic import (
    AfterValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
    with_config,
)
from typing_extensions import TypedDict

from tst_study.config.schema import from_dict, of_record
from tst_study.errors import UserError, first_problem

State = Literal["queued", "running", "preempted", "diverged", "done", "failed"]
FINAL_STATES: frozenset[str] = frozenset({"done", "diverged"})

_STRICT = ConfigDict(extra="forbid")
_OPEN = ConfigDict(extra="allow")
"""Keys that the reader does not know stay as they are."""
Whole = Annotated[int, Field(ge=0, lt=2**63, strict=True)]
"""A count that 64 bits hold."""
Large = Annotated[int, Field(ge=0, lt=10**300, strict=True)]
"""FLOPs, which outgrow 64 bits."""
Finite = Annotated[float, Field(allow_inf_nan=False)]
T = TypeVar("T")


class _Plan(TypedDict):
    """A `config.phase_plan.PhasePlan` as `run.json` holds it."""

    steps: Whole
    superposed_steps: Whole
    bag_size: Whole
    bags_as_input: bool
    sequences: Whole
    sequence_length: Whole
    step_ratio: Finite
    data_multiplier: Finite


@with_config(_OPEN)
class _CorpusFacts(TypedDict):
    fingerprint: str
    tokens: Whole


@with_config(_OPEN)
class _HeldOutFacts(TypedDict):
    fingerprint: NotRequired[str]
    optimal_nats_per_token: NotRequired[Finite | None]


@with_config(_OPEN)
class DataFacts(TypedDict):
    """The part of `data.run_data.fingerprints` that readers need."""

    corpora: list[_CorpusFacts]
    tokenizer: str | None
    validation: NotRequired[_HeldOutFacts | str | None]


def _has(*keys: str) -> AfterValidator:
    def check(values: dict[str, int]) -> dict[str, int]:
        missing = [key for key in keys if key not in values]
        if missing:
            raise ValueError(f"{missing[0]} is missing")
        return values

    return AfterValidator(check)


@with_config(_STRICT)
class RunHeader(TypedDict):
    """`run.json`: the facts of a run that are known before its first step."""

    schema_version: Literal[1]
    run_id: str
    fingerprint: str
    study: str
    name: str
    role: str
    config: dict[str, Any]
    """Resolved config, every key (`schema.to_dict`)."""
    parameters: Annotated[dict[str, Whole], _has("total", "active")]
    flops: Annotated[dict[str, Large], _has("per_step", "total")]
    """`cost.compute.Flops`: per step, per phase, total."""
    plan: _Plan
    """The plan for all `schedule.steps`, also where `schedule.stop_after` ends the run before."""
    raw_tokens: Whole
    """Tokens that the trained steps read; `flops` and `latent_tokens` are of these steps, too."""
    latent_tokens: Annotated[Whole, Field(gt=0)]
    data: Annotated[dict[str, Any], AfterValidator(TypeAdapter(DataFacts).validate_python)]
    """Fingerprints of corpora, tokenizer, evaluation set and initial weights (if read from
    files)."""
    unique_raw_tokens: Whole
    """Tokens in the training corpora; where `raw_tokens` is larger, text is read repeatedly."""


class _Counters(TypedDict):
    """The counters that begin a row of any log: what has been done after `step` steps."""

    segment: Whole
    step: Whole
    phase: Literal["superposition", "recovery"]
    raw_tokens: Whole
    latent_tokens: Whole
    flops: Large


@with_config(_STRICT)
class Metrics(_Counters):
    """A row of `metrics.jsonl`."""

    bag_size: Whole
    loss_name: str
    """`next_token`, `smoothed_token`, `bag_first_token` or `bag_` with the name of the loss. Values
    under different names are different quantities."""
    loss: Finite | None
    """Nats, mean over all micro-batches and ranks of this step; None where it is not finite."""
    epochs: Finite
    learning_rate: Finite
    gradient_norm: Finite | None
    """Norm before clipping; None where it is not finite."""
    step_seconds: Finite
    """Mean seconds of the steps since the row before."""
    training_seconds: Finite
    """Seconds of training steps so far, over all launches of the run and its shared prefix run;
    compiling counts, evaluation and checkpoints do not."""
    tokens_per_second: Finite
    """Raw tokens per second."""
    mfu: Finite | None
    peak_memory: Whole
    """Peak memory of rank 0 in bytes: allocated on its GPU, or resident on a CPU."""
    moe: NotRequired[dict[str, Any]]
    """Routing statistics of a mixture of experts in this step (`RoutingLog.summary`)."""


@with_config(_STRICT)
class Evaluation(_Counters):
    """A row of `evals.jsonl`: next-token loss on held-out text."""

    epochs: Finite
    eval_set: str
    """Name and fingerprint of the held-out tokens; only equal ones may be compared."""
    nats_per_token: Finite
    bits_per_byte: Finite | None
    """None where the corpus has no bytes (generated words)."""
    standard_error: Finite
    """Standard error of nats per token, over held-out sequences."""
    tokens: Whole
    document_losses: NotRequired[list[Finite] | None]
    """Nats per token of each held-out document, in their order, or of groups of neighbours where
    there are more than 256; None where pieces straddle documents."""
    document_tokens: NotRequired[list[Whole] | None]
    annealed: bool
    """Whether the learning rate's decay was over; methods are compared by such rows alone."""
    seconds: Finite
    """Seconds that the evaluation took."""
    training_seconds: Finite


@with_config(_STRICT)
class TaskResult(_Counters):
    """A row of `evals.jsonl` that names a task: a measurement of a checkpoint by `tst-study
    evaluate`.

    The loss by which methods are compared is `Evaluation`. For the same step, task and data the
    last row wins.
    """

    annealed: bool
    task: str
    """`held_out`, `loss_by_position`, …, or a downstream task by its lm-eval name."""
    data: str
    """Name and fingerprint of the data; only equal ones may be compared."""
    metrics: dict[str, Finite | None]
    """Values by name, with `…_stderr` beside those that have a standard error. Accuracies are
    fractions."""
    samples: Whole
    """Independent units behind the standard errors: documents, sequences or questions."""
    details: dict[str, Any]
    """Versions, settings, and values by position or by sequence."""
    seconds: Finite


@with_config(_OPEN)
class Status(TypedDict):
    """`status.json`, replaced whole at every change."""

    state: State
    step: Whole
    steps: Whole
    heartbeat: Finite
    """Seconds since the epoch."""
    last_checkpoint: Whole | None
    message: str
    phase: NotRequired[str]
    loss: NotRequired[Finite | None]
    """None where it is not finite."""
    tokens_per_second: NotRequired[Finite | None]
    seconds_left: NotRequired[Finite | None]


@with_config(_OPEN)
class _Code(TypedDict):
    commit: str | None
    dirty: bool | None


@with_config(_OPEN)
class _Devices(TypedDict):
    name: str
    count: Whole


@with_config(_OPEN)
class _SegmentRow(TypedDict):
    """The part of a row of `segments.jsonl` that readers need; its other facts are for people."""

    segment: Whole
    resumed_from: NotRequired[Whole | None]
    start: NotRequired[Finite]
    end: NotRequired[Finite]
    ended: NotRequired[str]
    code: NotRequired[_Code]
    devices: NotRequired[_Devices]


_HEADER = TypeAdapter(RunHeader)
_STATUS = TypeAdapter(Status)
_SEGMENT_ROW = TypeAdapter(_SegmentRow)
_METRICS = TypeAdapter(Metrics)
_EVALUATION_ROW: TypeAdapter[Any] = TypeAdapter(
    Annotated[
        Annotated[Evaluation, Tag("held-out loss")] | Annotated[TaskResult, Tag("task")],
        Discriminator(
            lambda row: "task" if isinstance(row, dict) and "task" in row else "held-out loss"
        ),
    ]
)


@dataclass
class RunRecord:
    """The content of a run folder, with the rows that count, in the order of steps: one of each
    step in `metrics`, one of each step and evaluation set in `evals`."""

    folder: Path
    header: RunHeader
    segments: list[dict[str, Any]]
    metrics: list[Metrics]
    evals: list[Evaluation]
    status: Status | None
    dropped_rows: int = 0
    """Rows that a later segment wrote again or that lay beyond a resume point."""
    tasks: list[TaskResult] = field(default_factory=list)
    """Measurements of the run's checkpoints by `tst-study evaluate`."""

    @property
    def run_id(self) -> str:
        return self.header["run_id"]

    @property
    def state(self) -> str:
        return self.status["state"] if self.status else "queued"


def read(folder: str | Path) -> RunRecord:
    """Read a run folder. Raises `UserError` that names file and line for anything out of order."""
    folder = Path(folder)
    header = read_header(folder)
    segments = read_segments(folder)
    starts = {row["segment"]: row["resumed_from"] or 0 for row in segments}
    metrics, dropped_metrics = _rows(folder / "metrics.jsonl", _METRICS, starts)
    evals, dropped_evals = _rows(folder / "evals.jsonl", _EVALUATION_ROW, starts)
    return RunRecord(
        folder=folder,
        header=header,
        segments=segments,
        metrics=metrics,
        evals=[row for row in evals if "task" not in row],
        status=read_status(folder),
        dropped_rows=dropped_metrics + dropped_evals,
        tasks=[row for row in evals if "task" in row],
    )


def last_evaluation(folder: str | Path) -> Evaluation | None:
    """Return the last row of a held-out loss, or None.

    It is quicker than `read`: rows are not validated, and it does not matter whether the row lies
    beyond a resume point.
    """
    for line in reversed((_content(Path(folder) / "evals.jsonl") or b"").splitlines()):
        with suppress(ValueError):  # a torn one
            row = json.loads(line)
            if "nats_per_token" in row:
                return cast(Evaluation, row)
    return None


def measures(metrics: Mapping[str, float | None]) -> Iterator[tuple[str, float, float | None]]:
    """Yield name, value and standard error (or None) of each metric of a task."""
    for name, value in metrics.items():
        if value is not None and not name.endswith("_stderr"):
            yield name, value, metrics.get(f"{name}_stderr")


def read_header(folder: str | Path) -> RunHeader:
    """Read `run.json`. Raises `UserError` where it is missing or damaged, or its config is no valid
    one."""
    path = Path(folder) / "run.json"
    header = _whole(path, _HEADER)
    if header is None:
        raise UserError(f"{path}: missing; {folder} is not a run folder")
    from_dict(of_record(header["config"]), f"{path}: config")
    return header


def read_status(folder: str | Path) -> Status | None:
    """Read `status.json`, which the run or its launcher wrote; None where there is none yet.

    Raises `UserError` where it is damaged.
    """
    return _whole(Path(folder) / "status.json", _STATUS)


def _whole(path: Path, schema: TypeAdapter[T]) -> T | None:
    """Read a file of one JSON value; None where there is no such file."""
    content = _content(path)
    try:
        return None if content is None else schema.validate_json(content)
    except ValidationError as error:
        raise UserError(f"{path}: {first_problem(error)}; the file is damaged") from None


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); name a run's folder") from None


def is_over(folder: str | Path) -> bool:
    """Return whether the run's status says that it is done or has diverged."""
    status = read_status(folder)
    return status is not None and status["state"] in FINAL_STATES


def find_run_folders(root: str | Path) -> list[Path]:
    """Find all run folders at or below `root`, sorted; run folders themselves are not searched."""
    run_folders: list[Path] = []
    for path, folders, files in os.walk(root):
        if "run.json" in files:
            run_folders.append(Path(path))
            folders.clear()
    return sorted(run_folders)


def check_same_run(folder: Path, fingerprint: str) -> None:
    """Raise `UserError` where a folder holds another run."""
    if (folder / "run.json").is_file():
        there = read_header(folder)["fingerprint"]
        if there != fingerprint:
            raise UserError(
                f"{folder}: holds run {there[:8]}, not {fingerprint[:8]} of this config; name "
                "another folder or restore the config"
            )


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the whole lines of a log with their numbers; a torn last one is left out."""
    whole, _, _torn = (_content(path) or b"").rpartition(b"\n")
    if whole:
        yield from enumerate(whole.split(b"\n"), start=1)


def read_segments(folder: Path) -> list[dict[str, Any]]:
    """Read `segments.jsonl`, with the start and the end of each segment joined into one row.

    Rows come in the order of segments: one for each launch, and one for rows taken over from a
    prefix run. A segment without an end has `ended` "lost". Raises `UserError` for a damaged line.
    """
    path = folder / "segments.jsonl"
    segments: dict[int, dict[str, Any]] = {}
    for number, line in _lines(path):
        try:
            row = cast(dict[str, Any], _SEGMENT_ROW.validate_json(line))
            if "resumed_from" in row:
                segments[row["segment"]] = {**row, "end": None, "ended": "lost"}
            else:
                segments[row["segment"]].update(row)
        except ValidationError as error:
            raise UserError(f"{path}:{number}: {first_problem(error)}; not a segment row") from None
        except KeyError as error:
            raise UserError(f"{path}:{number}: segment {error} ends, but never began") from None
    return [segments[number] for number in sorted(segments)]


def _rows(path: Path, schema: TypeAdapter[Any], starts: Mapping[int, int]) -> tuple[list[Any], int]:
    """Return the rows that count, in order of steps, and the number of rows that do not.

    A launch begins where its checkpoint was. Rows that earlier launches wrote beyond that step are
    void, even if the later launch was killed before it wrote a row of its own.
    """
    limits: dict[int, float] = {}
    limit = float("inf")
    for segment in sorted(starts, reverse=True):
        limits[segment] = limit
        limit = min(limit, starts[segment])
    kept: dict[Any, Any] = {}
    segment, dropped = -1, 0
    for number, line in _lines(path):
        try:
            row = schema.validate_json(line)
        except ValidationError as error:
            raise UserError(f"{path}:{number}: {first_problem(error)}") from None
        if row["segment"] < segment or row["segment"] not in limits:
            raise UserError(f"{path}:{number}: segment {row['segment']} is out of order")
        segment = row["segment"]
        key = (row["step"], row.get("eval_set"), row.get("task"), row.get("data"))
        # A task measured again replaces its row, which does not count as dropped.
        if row["step"] > limits[segment] or (key in kept and "task" not in row):
            dropped += 1
        if row["step"] <= limits[segment]:
            kept[key] = row
    return [kept[key] for key in sorted(kept, key=lambda key: key[0])], dropped
