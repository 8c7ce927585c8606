"""Log rows, evaluations, checkpoints and stops after a step, at the same step on all ranks.

`Due` follows from the number of the step. `TimedEvents` depend on the clock and on signals: the
first rank's clock decides, and the others hear of it in the message by which all of them agree on a
stop. Results depend on neither: a checkpoint or a row changes no weight.
"""

import time

from tst_study.config.phase_plan import PhasePlan
from tst_study.config.schema import Config, Execution
from tst_study.parallel.process_groups import Ranks
from tst_study.process.host import StopRequest

POLL_SECONDS = {"cpu": 0.0, "cuda": 1.0}
"""About how often ranks ask each other. On GPUs the answer waits for all kernels before it, so
that nothing is queued meanwhile: once a second costs a thousandth."""


class Due:
    """The log row, evaluation and checkpoint that are due after `done` steps."""

    def __init__(self, config: Config, plan: PhasePlan, done: int, *, logs: bool) -> None:
        """`logs`: a row is due by the clock."""

        def is_multiple_of(every: int | None) -> bool:
            return every is not None and done % every == 0

        execution = config.execution
        forks = done in execution.keep_steps  # other runs fork here, maybe at their switch
        last = done == config.schedule.last_step
        self.is_last, self.is_phase_boundary = last, forks or done == plan.superposed_steps
        self.logs = last or logs or self.is_phase_boundary or is_multiple_of(execution.log_every)
        self.evaluates = last or is_multiple_of(execution.evaluate_every)
        self.saves = last or forks or is_multiple_of(execution.checkpoint_every)


class TimedEvents:
    """After each `poll`: whether to stop, to save and to log the next step; alike on all ranks."""

    def __init__(self, execution: Execution, ranks: Ranks, stop: StopRequest) -> None:
        self.stops = self.saves = self.logs = False
        self._ranks, self._stop = ranks, stop
        self._seconds = (60.0 * execution.checkpoint_minutes, execution.log_seconds)
        self._saved = self._logged = self._polled = time.monotonic()
        self._steps = self._until_poll = 1

    def poll(self, *, logged: bool) -> None:
        """Ask the other ranks; all of them call this after every step. `logged`: the step has a row
        in the log."""
        self.stops = self.saves = self.logs = False
        self._logged = time.monotonic() if logged else self._logged
        self._until_poll -= 1
        if self._until_poll:
            return
        now = time.monotonic()
        between = POLL_SECONDS[self._ranks.device.type] if self._ranks.world_size > 1 else 0.0
        steps = round(between * self._steps / max(now - self._polled, 1e-9))
        numbers = [int(self._stop.signal is not None), 0, 0, 0]
        if self._ranks.is_first:
            since = (now - self._saved, now - self._logged)
            due = (0.0 < every <= past for every, past in zip(self._seconds, since, strict=True))
            numbers[1:] = [*map(int, due), min(max(steps, 1), 1000)]
        stops, saves, logs, self._steps = self._ranks.largest(numbers)
        self.stops, self.saves, self.logs = bool(stops), bool(saves), bool(logs)
        self._until_poll, self._polled = self._steps, now

    def saved(self) -> None:
        """A checkpoint was written, for whatever reason."""
        self._saved = time.monotonic()
