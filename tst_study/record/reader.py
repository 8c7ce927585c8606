"""The schema of a run folder, and its reader, which serves analysis, launchers, the writer and
`tst-study evaluate`.

| file | holds |
| --- | --- |
| `run.json` | written once: identity, resolved config, parameters, FLOPs, plan, data |
| `segments.jsonl` | for each segment, one row when it starts and one when it ends |
| `metrics.jsonl` | rows of training, each with all counters |
| `evals.jsonl` | held-out losses during training, and what `tst-study evaluate` measured later |
| `status.json` | state, last step, last checkpoint |

A segment is the part of the record that one launch has written; the rows copied from a shared
prefix run are a segment, too. A launch that is killed may leave an incomplete last line, and rows
beyond its last checkpoint, whose steps the next launch runs and writes again. So the reader ignores
an incomplete last line, drops rows beyond the step at which a later launch resumed, and prefers the
later of two rows for the same step. Anything else that does not fit the schema is an error that
names the file and, in a log, the line.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, cast

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

from tst_study.atomic_files import content_of, folders_below, read_json
from tst_study.config.schema import from_record
from tst_study.errors import UserError, first_problem

State = Literal["queued", "running", "preempted", "diverged", "done", "failed"]
"""The state of a run. "queued": there is no status yet. "preempted": a signal stopped it after a
checkpoint. "diverged": a loss was too large or not finite. "failed": an error ended it."""
FINAL_STATES: frozenset[str] = frozenset({"done", "diverged"})
"""The states in which a run is over, so that launchers do not start it again."""

_STRICT = ConfigDict(extra="forbid")
_OPEN = ConfigDict(extra="allow")
"""Keys that the schema does not name are kept, and not checked."""
Whole = Annotated[int, Field(ge=0, lt=2**63, strict=True)]
"""A count that fits into a signed 64-bit integer."""
Large = Annotated[int, Field(ge=0, lt=10**300, strict=True)]
"""A count of FLOPs, which may not fit into 64 bits."""
Finite = Annotated[float, Field(allow_inf_nan=False)]


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
    """The facts in `data.run_data.fingerprints` that readers need."""

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


def _total_of_parts(flops: dict[str, int]) -> dict[str, int]:
    parts = flops["superposition"] + flops["recovery"]
    if flops["total"] != parts:
        raise ValueError(f"total {flops['total']} is not the sum of its parts, {parts}")
    return flops


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
    """The resolved config with every key, defaults included (`schema.to_dict`)."""
    parameters: Annotated[dict[str, Whole], _has("total", "active")]
    flops: Annotated[
        dict[str, Large],
        _has("per_step", "total", "superposition", "recovery"),
        AfterValidator(_total_of_parts),
    ]
    """The fields of `cost.compute.Flops`, for the steps that the run trains (see `raw_tokens`)."""
    plan: _Plan
    """The plan for all `schedule.steps`, even if `schedule.stop_after` ends the run earlier."""
    raw_tokens: Whole
    """Tokens of text that the run reads until its last step, which may be
    `schedule.stop_after`."""
    latent_tokens: Annotated[Whole, Field(gt=0)]
    """Latent positions that the run trains in the same steps."""
    data: Annotated[dict[str, Any], AfterValidator(TypeAdapter(DataFacts).validate_python)]
    """Fingerprints of the corpora, the tokenizer and the held-out tokens, and of the initial
    weights if the run reads these from files (`data.run_data.fingerprints`)."""
    unique_raw_tokens: Whole
    """Tokens in all training corpora together. If `raw_tokens` is larger, some text is read more
    than once."""


class _Counters(TypedDict):
    """The counters that every row of `metrics.jsonl` and `evals.jsonl` has: totals over the first
    `step` steps of the run, and the phase of the last of them."""

    segment: Whole
    step: Whole
    phase: Literal["superposition", "recovery"]
    raw_tokens: Whole
    latent_tokens: Whole
    flops: Large


@with_config(_STRICT)
class Metrics(_Counters):
    """A row of `metrics.jsonl`: one training step, and the speed of the steps since the row
    before."""

    bag_size: Whole
    loss_name: str
    """`next_token`, `smoothed_token`, `bag_first_token`, or `bag_` and the name of the bag loss,
    such as `bag_mce`. Losses with different names must not be compared."""
    loss: Finite | None
    """Mean over all micro-batches and ranks of this step, in nats (a hinge loss has no unit); None
    if it is not finite."""
    epochs: Finite
    """How often the corpus that is repeated most has been read."""
    learning_rate: Finite
    gradient_norm: Finite | None
    """2-norm of the whole model's gradient before clipping; None if it is not finite."""
    step_seconds: Finite
    """Mean seconds of a step, over the steps since the row before."""
    training_seconds: Finite
    """Seconds that the steps so far took, over all launches of the run and its shared prefix run.
    The time for compiling is included; the time for evaluation and checkpoints is not. A step that
    was run again after a kill counts once."""
    tokens_per_second: Finite
    """Raw tokens per second on all ranks together, over the steps since the row before."""
    mfu: Finite | None
    """Model FLOPs utilisation in these steps, a fraction; None on CPUs, on unknown GPUs, and in
    number formats other than bfloat16."""
    peak_memory: Whole
    """Peak memory of rank 0 in bytes: allocated on its GPU, or resident on a CPU."""
    moe: NotRequired[dict[str, Any]]
    """Routing statistics of a mixture of experts in this step (`RoutingLog.summary`)."""


@with_config(_STRICT)
class Evaluation(_Counters):
    """A row of `evals.jsonl` that the run wrote itself: its next-token loss on held-out text."""

    epochs: Finite
    """As in `Metrics`."""
    eval_set: str
    """Name and fingerprint of the held-out tokens. Only losses on the same `eval_set` may be
    compared."""
    nats_per_token: Finite
    bits_per_byte: Finite | None
    """None if the size of the text is not known, as for corpora of generated words."""
    standard_error: Finite
    """Standard error of nats per token, over held-out sequences."""
    tokens: Whole
    """Number of held-out tokens predicted."""
    document_losses: NotRequired[list[Finite] | None]
    """Nats per token of each held-out document, in their order; if there are more than 256, of each
    group of neighbouring documents. None if sequences straddle documents."""
    document_tokens: NotRequired[list[Whole] | None]
    """Predicted tokens of each of these documents or groups."""
    annealed: bool
    """Whether the decay of the learning rate was over; always False for a schedule without decay.
    Methods are compared by annealed rows alone."""
    seconds: Finite
    """Seconds that the evaluation took."""
    training_seconds: Finite
    """As in `Metrics`."""


@with_config(_STRICT)
class TaskResult(_Counters):
    """A row of `evals.jsonl` with a `task`: a measurement of a checkpoint by `tst-study evaluate`.

    Methods are not compared by these rows but by those of `Evaluation`. Of several rows with the
    same step, task and data, the last one counts.
    """

    annealed: bool
    """As in `Evaluation`."""
    task: str
    """`held_out` for the loss on a held-out text, or the name of a downstream task in lm-eval."""
    data: str
    """Name and fingerprint of the data. Only results on the same `data` may be compared."""
    metrics: dict[str, Finite | None]
    """Values by name, with `…_stderr` beside those that have a standard error. Accuracies are
    fractions."""
    samples: Whole
    """Number of independent units behind the standard errors: questions, documents, or groups of
    neighbouring documents."""
    details: dict[str, Any]
    """Versions of code and packages, settings, and results for the parts of a task."""
    seconds: Finite
    """Seconds that the measurement took."""


@with_config(_OPEN)
class Status(TypedDict):
    """`status.json`, a new file at every change."""

    state: State
    step: Whole
    """Steps done when the file was written."""
    steps: Whole
    """Number of steps that the run trains in all."""
    last_checkpoint: Whole | None
    """The number of steps after which the last checkpoint was written."""
    message: str
    phase: NotRequired[str]
    loss: NotRequired[Finite | None]
    """Training loss of the last log row that updated the file; None if it is not finite."""
    tokens_per_second: NotRequired[Finite | None]
    seconds_left: NotRequired[Finite | None]
    """Estimated seconds to the end; None if there is no estimate, or the launch has ended."""


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
    """The keys of a row of `segments.jsonl` that readers need; the other facts are for people."""

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
_EVALUATION = TypeAdapter(Evaluation)
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
    """The content of a run folder, in the order of steps and without the rows that do not count
    (see the module's docstring). `metrics` has at most one row for each step, `evals` at most one
    for each step and evaluation set."""

    folder: Path
    header: RunHeader
    segments: list[dict[str, Any]]
    metrics: list[Metrics]
    evals: list[Evaluation]
    status: Status | None
    dropped_rows: int = 0
    """Number of rows left out because they were written again, or because they lay beyond the step
    at which a later launch resumed."""
    tasks: list[TaskResult] = field(default_factory=list)
    """Measurements of the run's checkpoints by `tst-study evaluate`: at most one for each step,
    task and data."""

    @property
    def run_id(self) -> str:
        return self.header["run_id"]

    @property
    def state(self) -> str:
        """The state that `status.json` names, or "queued" if there is no such file."""
        return self.status["state"] if self.status else "queued"


def read(folder: str | Path) -> RunRecord:
    """Read a run folder and check it against the schema.

    Raises `UserError`, which names the file and, in a log, the line, if something is damaged or
    out of order, or if `run.json` is missing.
    """
    folder = Path(folder)
    header = read_header(folder)
    # A launch that begins meanwhile writes its segment first, then rows: they are read backwards.
    logs = [(path := folder / f"{name}.jsonl", [*_lines(path)]) for name in ("evals", "metrics")]
    segments = read_segments(folder)
    starts = {row["segment"]: row["resumed_from"] or 0 for row in segments}
    metrics, dropped_metrics = _rows(*logs[1], _METRICS, starts)
    evals, dropped_evals = _rows(*logs[0], _EVALUATION_ROW, starts)
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
    """Return the last valid row with a held-out loss (`Evaluation`), or None if there is none.

    This is quicker than `read`, because it does not find out whether the row lies beyond the step
    at which a later launch resumed.
    """
    for line in reversed((content_of(Path(folder) / "evals.jsonl") or b"").splitlines()):
        with suppress(ValidationError):  # an incomplete line, or a task's
            return _EVALUATION.validate_json(line)
    return None


def measures(metrics: Mapping[str, float | None]) -> Iterator[tuple[str, float, float | None]]:
    """Yield name, value and standard error (or None) of a task's metrics; those without a value are
    left out."""
    for name, value in metrics.items():
        if value is not None and not name.endswith("_stderr"):
            yield name, value, metrics.get(f"{name}_stderr")


def read_header(folder: str | Path) -> RunHeader:
    """Read `run.json`. Raises `UserError` if it is missing or damaged, or if its config is not
    valid."""
    path = Path(folder) / "run.json"
    header = read_json(path, _HEADER) if Path(folder).is_dir() else None
    if header is None:
        raise UserError(f"{path}: missing; {folder} is not a run folder")
    from_record(header["config"], f"{path}: config")
    return header


def read_status(folder: str | Path) -> Status | None:
    """Read `status.json`, which the run or its launcher wrote; None if there is none yet.

    Raises `UserError` if it is damaged.
    """
    path = Path(folder) / "status.json"
    return read_json(path, _STATUS, "restore it, or delete it: the run's next launch writes it")


def is_over(folder: str | Path) -> bool:
    """Return whether the run's status says that it is done or has diverged."""
    status = read_status(folder)
    return status is not None and status["state"] in FINAL_STATES


def find_run_folders(root: str | Path) -> list[Path]:
    """Find all run folders at or below `root` (`folders_below`), sorted. Run folders within a run
    folder are not found."""
    run_folders: list[Path] = []
    for path, folders, files in folders_below(root):
        if "run.json" in files:
            run_folders.append(path)
            folders.clear()
    return sorted(run_folders)


def check_same_run(folder: Path, fingerprint: str) -> None:
    """Raise `UserError` if a folder holds another run than the one with this fingerprint, or if its
    `run.json` is damaged."""
    if (folder / "run.json").is_file():
        there = read_header(folder)["fingerprint"]
        if there != fingerprint:
            raise UserError(
                f"{folder}: holds run {there[:8]}, not {fingerprint[:8]} of this config; name "
                "another folder or restore the config"
            )


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a log with their numbers, from 1 on. A last line without a line break is
    incomplete and left out."""
    whole, _, _torn = (content_of(path) or b"").rpartition(b"\n")
    if whole:
        yield from enumerate(whole.split(b"\n"), start=1)


def read_segments(folder: Path) -> list[dict[str, Any]]:
    """Read `segments.jsonl`, with the start and the end of each segment joined into one row.

    The rows returned are in the order of the segments: one for each launch, and one for rows copied
    from a shared prefix run. A segment whose end is not recorded, as while its launch is running,
    has `end` None and `ended` "lost". Raises `UserError` for a damaged line.
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


def _rows(
    path: Path,
    lines: Iterable[tuple[int, bytes]],
    schema: TypeAdapter[Any],
    starts: Mapping[int, int],
) -> tuple[list[Any], int]:
    """Return the rows of a log that count, in the order of steps, and the number of rows dropped.

    `starts`: the step after which each segment began. Rows that earlier segments have beyond that
    step are dropped, even if the later launch was killed before it wrote a row of its own.
    """
    limits: dict[int, float] = {}
    limit = float("inf")
    for segment in sorted(starts, reverse=True):
        limits[segment] = limit
        limit = min(limit, starts[segment])
    kept: dict[Any, Any] = {}
    segment, dropped = -1, 0
    for number, line in lines:
        try:
            row = schema.validate_json(line)
        except ValidationError as error:
            problem = f"{first_problem(error)}; restore or delete the line"
            raise UserError(f"{path}:{number}: {problem}") from None
        if row["segment"] < segment or row["segment"] not in limits:
            raise UserError(f"{path}:{number}: segment {row['segment']} is out of order")
        segment = row["segment"]
        key = (row["step"], row.get("eval_set"), row.get("task"), row.get("data"))
        # The row of a task that is measured again replaces the earlier one, which does not count as
        # dropped.
        if row["step"] > limits[segment] or (key in kept and "task" not in row):
            dropped += 1
        if row["step"] <= limits[segment]:
            kept[key] = row
    return [kept[key] for key in sorted(kept, key=lambda key: key[0])], dropped
