"""Decides which log rows, evaluations, checkpoints and stops are due after a step, on all ranks
alike. The training loop asks after every step.

`Due` depends on the number of the step alone, except for log rows that `TimedEvents` asked for.
`TimedEvents` depends on the clock and on signals: the first rank's clock decides, a signal to any
rank stops all of them, and one message tells all ranks of both. Neither the clock nor a signal
changes the results of a run, because log rows and checkpoints change no weight.
"""

import time

from tst_study.config.phase_plan import PhasePlan
from tst_study.config.schema import Config, Execution
from tst_study.parallel.process_groups import Ranks
from tst_study.process.host import StopRequest

POLL_SECONDS = {"cpu": 0.0, "cuda": 1.0}
"""About how many seconds several ranks wait between two polls (`TimedEvents.poll`). 0 means
that they poll after every step, as a single rank always does. On GPUs the answer to a poll waits
for all kernels before it, and no others are queued meanwhile; at one poll a second this costs a
thousandth of the time."""


class Due:
    """The actions that are due after `done` steps.

    Attributes:
        is_last: whether this is the last step of the run.
        logs, evaluates, saves: whether a log row, an evaluation and a checkpoint are due.
    """

    def __init__(self, config: Config, plan: PhasePlan, done: int, *, logs: bool) -> None:
        """`logs`: whether `TimedEvents` asked for a row at this step."""

        def is_multiple_of(every: int | None) -> bool:
            return every is not None and done % every == 0

        execution = config.execution
        forks = done in execution.keep_steps  # other runs fork here, perhaps at their own switch
        last = done == config.schedule.last_step
        self.is_last, is_phase_end = last, forks or done in plan.stages
        self.logs = last or logs or is_phase_end or is_multiple_of(execution.log_every)
        self.evaluates = last or is_multiple_of(execution.evaluate_every)
        self.saves = last or forks or is_multiple_of(execution.checkpoint_every)


class TimedEvents:
    """The actions that the clock and signals ask for after a step, the same on all ranks.

    Attributes:
        stops: whether to stop now.
        saves: whether to write a checkpoint now.
        logs: whether to log the next step.
    """

    def __init__(self, execution: Execution, ranks: Ranks, stop: StopRequest) -> None:
        self.stops = self.saves = self.logs = False
        self._ranks, self._stop = ranks, stop
        self._seconds = (60.0 * execution.checkpoint_minutes, execution.log_seconds)
        self._saved = self._logged = self._polled = time.monotonic()
        self._steps = self._until_poll = 1

    def poll(self, *, logged: bool) -> None:
        """Set the attributes to what all ranks agree on. All of them call this after every step.

        Messages are exchanged only every few steps, about `POLL_SECONDS` apart. After the steps
        in between, all attributes are False. `logged`: whether the step has a row in the log.
        """
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
        """Begin to count `checkpoint_minutes` anew. Call this whenever a checkpoint was written,
        for whatever reason."""
        self._saved = time.monotonic()
