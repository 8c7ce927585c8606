"""The output of a launch while it trains: rows, status, progress line, trackers; rank 0 writes
it."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from rich import progress as rich

from tst_study.config.phase_plan import plan_phases
from tst_study.config.schema import Config
from tst_study.errors import UserError, one_line
from tst_study.record.launch_facts import launch_facts
from tst_study.record.reader import State, read
from tst_study.record.trackers import Trackers
from tst_study.record.writer import RunWriter, header_of, write_status

HEARTBEAT_SECONDS = 2.0
LINE_SECONDS = 10.0
"""Seconds between progress lines where there is no terminal."""


class Progress(rich.Progress):
    """The progress line of one run; without a terminal, it prints a line every ten seconds."""

    def __init__(self, name: str, steps: int, *, phases: bool = True, enabled: bool) -> None:
        """`phases`: whether the run has two phases, so that the line names the current one."""
        super().__init__(
            rich.TextColumn("{task.description}"),
            rich.BarColumn(),
            rich.MofNCompleteColumn(),
            rich.TextColumn("{task.fields[facts]}"),
            rich.TimeRemainingColumn(),
            speed_estimate_period=float("inf"),  # the whole launch, since steps may take long
            disable=not enabled,
        )
        self._steps, self._phases = steps, phases
        self._line = self.add_task(name, total=steps, facts="")
        self._name, self._plain = name, enabled and not self.console.is_terminal
        self._printed = time.monotonic()

    def resumed(self, step: int) -> None:
        self.update(self._line, completed=step)
        if not self.disable:
            self.console.print(f"{self._name}: goes on from step {step:,}")

    def evaluating(self, tokens: int, of: int) -> str:
        """Show the progress of an evaluation, and return it in words."""
        facts = f"evaluating {tokens:,} of {of:,} held-out tokens"
        self.update(self._line, facts=facts)
        return facts

    def evaluated(self, row: Mapping[str, Any]) -> None:
        """Show the result of an evaluation. `row`: keys of `Evaluation`."""
        facts = f"held-out loss {row['nats_per_token']:.4f} over {row['tokens']:,} tokens"
        self.update(self._line, facts=facts)

    def show(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Show a row of `Metrics`, and return what `status.json` keeps of it."""
        step = row["step"]
        phase = row["phase"] if self._phases else ""
        facts = [phase] if phase else []
        facts.append(f"{row['loss_name']} {row['loss']:.4f}")
        facts.append(f"{row['tokens_per_second']:,.0f} tokens/s")
        self.update(self._line, completed=step, facts="  ".join(facts))
        if self._plain and time.monotonic() - self._printed >= LINE_SECONDS:
            self._printed = time.monotonic()
            print(f"{self._name} {step:,}/{self._steps:,}", *facts, sep="  ", flush=True)
        return {
            **{key: row[key] for key in ("step", "loss", "tokens_per_second")},
            "phase": phase,
            "seconds_left": self.tasks[0].time_remaining,
        }


class RunLog:
    """The log of one launch on rank 0."""

    def __init__(self, writer: RunWriter, line: Progress) -> None:
        self._writer = writer
        self._line = line
        self._trackers = Trackers((), writer.folder, writer.header, None)
        self._last_heartbeat = float("-inf")

    def start(self, config: Config, resumed_from: int | None, **facts: Any) -> None:
        """Begin a new segment of the run."""
        self._writer.start_segment(
            resumed_from, {**launch_facts(), **facts, "execution": config.execution.model_dump()}
        )
        self._writer.status("running", resumed_from or 0)
        if resumed_from:
            self._line.resumed(resumed_from)
        track = config.execution.track
        self._trackers = Trackers(track, self._writer.folder, self._writer.header, resumed_from)

    def forked(self, config: Config, prefix: Path, step: int) -> None:
        """Copy the shared prefix run's rows into a segment of their own, so that the run's record
        is whole."""
        self._writer.take_over(read(prefix), step, config.execution)

    def metrics(self, row: dict[str, Any], *, last: bool) -> None:
        self._writer.metrics({"segment": self._writer.segment, **row})
        self._trackers.row("training", row)
        now = self._line.show(row)
        if last or self._beats():
            self._writer.status("running", **now)

    def evaluating(self, step: int, tokens: int, of: int) -> None:
        facts = self._line.evaluating(tokens, of)
        if self._beats():
            self._writer.status("running", step, facts)

    def _beats(self) -> bool:
        now = time.monotonic()
        due = now - self._last_heartbeat >= HEARTBEAT_SECONDS
        self._last_heartbeat = now if due else self._last_heartbeat
        return due

    def evaluation(self, row: dict[str, Any]) -> None:
        self._writer.evaluation({"segment": self._writer.segment, **row})
        self._line.evaluated(row)
        self._trackers.row("held_out", row)

    def checkpoint(self, step: int, saved: int) -> None:
        """Record that the checkpoint after step `saved` is complete. `step`: the last step that was
        trained."""
        self._writer.status("running", step, last_checkpoint=saved)

    def end(self, state: State, step: int, message: str = "") -> None:
        self._writer.status(state, step, message, seconds_left=None)
        self._writer.end_segment(message or state)

    def failed(self, error: BaseException) -> None:
        with suppress(UserError):  # on a full disk the first error is the one to read
            write_status(self._writer.folder, "failed", self._writer.steps, one_line(error))
            self._writer.end_segment(one_line(error))

    def close(self) -> None:
        self._writer.close()
        self._trackers.close()


class _NoLog:
    """The log of a rank that writes none: every call does nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


@contextmanager
def run_log(
    config: Config, data: dict[str, Any], folder: Path, *, writes: bool, progress: bool
) -> Iterator[RunLog]:
    """Open the log of one launch. An exception inside the block is recorded and raised again.

    Raises `UserError` if `folder` holds another run.
    """
    writer = RunWriter(folder, header_of(config, data)) if writes else None
    phases = plan_phases(config).superposed_steps > 0
    shown = progress and writes
    with Progress(config.name, config.schedule.last_step, phases=phases, enabled=shown) as line:
        log = RunLog(writer, line) if writer else cast(RunLog, _NoLog())
        try:
            yield log
        except BaseException as error:
            log.failed(error)
            raise
        finally:
            log.close()
