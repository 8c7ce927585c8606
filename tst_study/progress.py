"""The live line of one run: phase, step, loss, tokens per second, time left."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tst_study.run_record import RunWriter


class Progress:
    """A rich progress line where a terminal is; the run's heartbeat in `status.json` anywhere."""

    def __init__(self, name: str, steps: int, *, enabled: bool) -> None:
        self.name, self.steps, self.enabled = name, steps, enabled
        self._bar: Any = None
        self._task: Any = None
        self._began = time.perf_counter()
        self._first_step: int | None = None
        self._last_heartbeat = 0.0
        self._now: dict[str, Any] = {}

    def __enter__(self) -> Progress:
        if self.enabled:
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[facts]}"),
                TimeRemainingColumn(),
            )
            self._bar.start()
            self._task = self._bar.add_task(self.name, total=self.steps, facts="")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, step: int, phase: str, loss_name: str, loss: float, speed: float) -> None:
        if self._first_step is None:
            self._first_step, self._began = step, time.perf_counter()
        done = step - self._first_step
        seconds = time.perf_counter() - self._began
        self._now = {
            "step": step,
            "phase": phase,
            "loss": loss,
            "tokens_per_second": speed,
            "seconds_left": seconds / done * (self.steps - step) if done else None,
        }
        if self._bar is not None:
            facts = f"{phase}  {loss_name} {loss:.4f}  {speed:,.0f} tokens/s"
            self._bar.update(self._task, completed=step, facts=facts)

    def heartbeat(self, writer: RunWriter, every: float, *, force: bool = False) -> None:
        """Tell `status.json`, at most once in `every` seconds."""
        now = time.monotonic()
        if force or now - self._last_heartbeat >= every:
            self._last_heartbeat = now
            writer.status("running", **self._now)
