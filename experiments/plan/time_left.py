"""How long a study will still take, from the step times measured so far."""

import time
from dataclasses import dataclass, field

from experiments.local.queue import Queue
from experiments.plan.planned_run import PlannedRun, Shape
from experiments.runs.status import StatusRow, row


@dataclass
class TimeLeft:
    """Watches the runs of this call; knows nothing before the first of them has trained a while."""

    _began: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Time and step at which a run was first seen to train."""
    _step_seconds: dict[Shape, float] = field(default_factory=dict)

    def estimate(self, queue: Queue) -> float | None:
        """Seconds until the last run is over, or None while nothing is measured."""
        running = [(one, row(one.folder)) for one in queue.running.values()]
        for one, status in running:
            self._measure(one, status)
        if not self._step_seconds:
            return None
        left = [self._seconds(one, status.steps - status.step) for one, status in running]
        known = queue.over.keys() | queue.failed.keys() | queue.running.keys()
        # Before a sweep has chosen, the whole study has runs of another rate, but as many.
        unknown = [one for one in queue.whole if one.fingerprint not in known]
        left += [self._seconds(one, one.steps - one.first_step) for one in unknown]
        return max(sum(left) / queue.slots, max(left, default=0.0))

    def _measure(self, one: PlannedRun, status: StatusRow) -> None:
        if status.state != "running" or not status.step:
            return
        now = time.monotonic()
        began, first = self._began.setdefault(one.fingerprint, (now, status.step))
        if now - began > 1.0 and status.step > first:
            self._step_seconds[one.shape] = (now - began) / (status.step - first)

    def _seconds(self, one: PlannedRun, steps: int) -> float:
        known = self._step_seconds
        return steps * known.get(one.shape, sum(known.values()) / len(known))
