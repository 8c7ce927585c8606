"""Events that depend on the clock and not on the step: checkpoints, log rows, and stops that a
signal asks for; and the moment when all ranks have written their files of a checkpoint.

The first rank's clock decides, and the others hear of it in the message by which all of them agree
on a stop. Results do not depend on it: a checkpoint or a row changes no weight.
"""

import time

from tst_study.config.schema import Execution
from tst_study.parallel.process_groups import Ranks
from tst_study.process.stop_request import StopRequest

POLL_SECONDS = {"cpu": 0.0, "cuda": 1.0}
"""About how often ranks ask each other. On GPUs the answer waits for all kernels before it, so
that nothing is queued meanwhile: once a second costs a thousandth."""


class TimedEvents:
    """After each `poll`: whether to stop, to save, to log the next step, and whether no rank writes
    to a checkpoint; alike on all ranks."""

    def __init__(self, execution: Execution, ranks: Ranks, stop: StopRequest) -> None:
        self.stops = self.saves = self.logs = self.written = False
        self._ranks, self._stop = ranks, stop
        self._seconds = (60.0 * execution.checkpoint_minutes, execution.log_seconds)
        self._saved = self._logged = self._polled = time.monotonic()
        self._steps = self._until_poll = 1

    def poll(self, *, logged: bool, writing: bool) -> None:
        """Ask the other ranks; all of them call this after every step. `logged`: the step has a row
        in the log; `writing`: this rank still writes to a checkpoint."""
        self.stops = self.saves = self.logs = self.written = False
        self._logged = time.monotonic() if logged else self._logged
        self._until_poll -= 1
        if self._until_poll:
            return
        now = time.monotonic()
        between = POLL_SECONDS[self._ranks.device.type] if self._ranks.world_size > 1 else 0.0
        steps = round(between * self._steps / max(now - self._polled, 1e-9))
        numbers = [int(self._stop.signal is not None), int(writing), 0, 0, 0]
        if self._ranks.is_first:
            since = (now - self._saved, now - self._logged)
            due = (0.0 < every <= past for every, past in zip(self._seconds, since, strict=True))
            numbers[2:] = [*map(int, due), min(max(steps, 1), 1000)]
        stops, writing_ranks, saves, logs, self._steps = self._ranks.largest(numbers)
        self.stops, self.saves, self.logs = bool(stops), bool(saves), bool(logs)
        self.written = not writing_ranks
        self._until_poll, self._polled = self._steps, now

    def saved(self) -> None:
        """A save has begun, for whatever reason."""
        self._saved = time.monotonic()
