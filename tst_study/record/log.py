"""The log of one launch: the rows and status in the run folder, the progress line on the terminal,
and the trackers. The training loop calls it on every rank, but only rank 0 writes anything."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from rich import progress as rich

from tst_study.config.schema import Config
from tst_study.errors import UserError, one_line
from tst_study.record.launch_facts import launch_facts
from tst_study.record.reader import State, read
from tst_study.record.trackers import Trackers
from tst_study.record.writer import RunWriter, header_of, write_status

STATUS_SECONDS = 2.0
"""Rows of `Metrics` and the progress of an evaluation update `status.json` at most once in this
number of seconds. The last row, checkpoints, and the start and the end of a launch always update
it."""
LINE_SECONDS = 10.0
"""The least number of seconds between two printed lines if the output is not a terminal."""


class Progress(rich.Progress):
    """The progress line of one run. If the output is not a terminal, this prints an ordinary line
    instead when a row is logged, at most once in `LINE_SECONDS`."""

    def __init__(self, name: str, steps: int, *, enabled: bool) -> None:
        super().__init__(
            rich.TextColumn("{task.description}"),
            rich.BarColumn(),
            rich.MofNCompleteColumn(),
            rich.TextColumn("{task.fields[facts]}"),
            rich.TimeRemainingColumn(),
            speed_estimate_period=float("inf"),  # the whole launch, since steps may take long
            disable=not enabled,
        )
        self._line = self.add_task(name, total=steps, facts="")
        self._plain = enabled and not self.console.is_terminal
        self._printed = time.monotonic()

    def tell(self, facts: str, step: int | None = None) -> None:
        """Show the text `facts` in the line, and the number of steps done if `step` is given."""
        self.update(self._line, facts=facts, completed=step)

    def show(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Show a row of `Metrics`. Return those of its values that go into `status.json`, and an
        estimate of the seconds left."""
        step = row["step"]
        loss, speed = f"{row['loss_name']} {row['loss']:.4f}", f"{row['tokens_per_second']:,.0f}"
        facts = f"{loss}  {speed} tokens/s"
        self.tell(facts, step)
        if self._plain and time.monotonic() - self._printed >= LINE_SECONDS:
            self._printed = time.monotonic()
            line = self.tasks[0]
            print(f"{line.description} {step:,}/{line.total:,.0f}  {facts}", flush=True)
        return {
            **{key: row[key] for key in ("step", "phase", "loss", "tokens_per_second")},
            "seconds_left": self.tasks[0].time_remaining,
        }


class RunLog:
    """The log of one launch, on rank 0."""

    def __init__(self, writer: RunWriter, line: Progress, trackers: Trackers) -> None:
        self._writer, self._line, self._trackers = writer, line, trackers
        self._last_status = float("-inf")

    def start(self, config: Config, resumed_from: int | None, **facts: Any) -> None:
        """Begin this launch's segment of the record.

        `resumed_from`: the step of the checkpoint at which the launch goes on, or None if it begins
        at the first step. `facts` are recorded with those of `launch_facts`.
        """
        self._writer.start_segment(
            resumed_from, {**launch_facts(), **facts, "execution": config.execution.model_dump()}
        )
        self._writer.status("running", resumed_from or 0)
        self._line.tell("", resumed_from)

    def forked(self, config: Config, prefix: Path, step: int) -> None:
        """Copy the rows of the shared prefix run in the folder `prefix`, up to `step`, into a
        segment of their own, so that this run's record begins at the first step."""
        self._writer.take_over(read(prefix), step, config.execution)

    def metrics(self, row: dict[str, Any], *, last: bool) -> None:
        """Log a row of `Metrics`, to which `segment` is added here. `last`: whether it is the run's
        last row."""
        self._writer.metrics({"segment": self._writer.segment, **row})
        self._trackers.row("training", row)
        now = self._line.show(row)
        if last or self._is_due():
            self._writer.status("running", **now)

    def evaluating(self, step: int, tokens: int, of: int) -> None:
        """Show that `tokens` of `of` held-out tokens have been evaluated."""
        facts = f"evaluating {tokens:,} of {of:,} held-out tokens"
        self._line.tell(facts)
        if self._is_due():
            self._writer.status("running", step, facts)

    def _is_due(self) -> bool:
        """Return whether `STATUS_SECONDS` have passed since this last returned True."""
        now = time.monotonic()
        due = now - self._last_status >= STATUS_SECONDS
        self._last_status = now if due else self._last_status
        return due

    def evaluation(self, row: dict[str, Any]) -> None:
        """Log a row of `Evaluation`, to which `segment` is added here."""
        self._writer.evaluation({"segment": self._writer.segment, **row})
        self._line.tell(f"held-out loss {row['nats_per_token']:.4f}")
        self._trackers.row("held_out", row)

    def checkpoint(self, step: int) -> None:
        """Record that the checkpoint after this step is complete."""
        self._writer.status("running", step, last_checkpoint=step)

    def end(self, state: State, step: int, message: str = "") -> None:
        """Record that the launch has ended in `state`, and why, if there is a message."""
        self._writer.status(state, step, message)
        self._writer.end_segment(message or state)

    def failed(self, error: BaseException) -> None:
        """Record that the launch has ended with `error`."""
        with suppress(UserError):  # on a full disk this fails, too, and `error` tells more
            write_status(self._writer.folder, "failed", self._writer.steps, one_line(error))
            self._writer.end_segment(one_line(error))

    def close(self) -> None:
        """Close the trackers; the run folder needs no closing."""
        self._trackers.close()


class _NoLog:
    """The log of a rank that does not write: every method does nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


@contextmanager
def run_log(
    config: Config, data: dict[str, Any], folder: Path, *, writes: bool, progress: bool
) -> Iterator[RunLog]:
    """Open the log of one launch, and close it after the block.

    An exception inside the block is recorded and raised again.

    Args:
        data: the run's fingerprints (`data.run_data.fingerprints`).
        writes: whether this rank writes the log; if not, the log that is yielded does nothing.
        progress: whether to show how far the run is.

    Raises:
        UserError: `folder` holds another run, its `run.json` or `status.json` is damaged, or
            `run.json` cannot be written.
    """
    writer = RunWriter(folder, header_of(config, data)) if writes else None
    steps = config.schedule.last_step
    with Progress(config.name, steps, enabled=progress and writes) as line:
        log = cast(RunLog, _NoLog())
        if writer:
            trackers = Trackers(config.execution.track, folder, writer.header)
            log = RunLog(writer, line, trackers)
        try:
            yield log
        except BaseException as error:
            log.failed(error)
            raise
        finally:
            log.close()
