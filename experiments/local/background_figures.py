"""Figures while the study runs: drawn again, in the background, when runs have ended."""

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from experiments.local.queue import Queue
from experiments.plan.planned_run import PlannedRun

PAUSE = 60.0
"""Seconds before the first drawing and between two at least: in the shortest studies drawing would
only slow the runs down, and the end draws everything anyway."""
SHARE = 0.1
"""Of the time, at most, that drawing may take from the runs."""


class BackgroundFigures:
    """A `Watcher`. One drawing at a time, of low priority; what is missed comes with the next."""

    def __init__(self, runs: Path, to: Path) -> None:
        self._command = [sys.executable, "-m", "tst_study", "figures"]
        self._command += ["--runs", str(runs), "--to", str(to)]
        self._command += ["--only", "study", "--only", "report"]
        self._log = to / "figures.log"
        self._drawing: subprocess.Popen[bytes] | None = None
        self._asked = False
        self._began = 0.0
        self._next = time.monotonic() + PAUSE

    def look(self, queue: Queue) -> None:
        now = time.monotonic()
        if self._drawing is not None and self._drawing.poll() is not None:
            self._drawing = None
            self._next = now + max(PAUSE, (now - self._began) * (1 - SHARE) / SHARE)
        if self._asked and self._drawing is None and now >= self._next:
            self._asked, self._began = False, now
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with open(self._log, "wb") as log:
                self._drawing = subprocess.Popen(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            with suppress(OSError):  # it may be over already
                os.setpriority(os.PRIO_PROCESS, self._drawing.pid, 10)

    def finished(self, run: PlannedRun) -> None:
        self._asked = True

    def end(self) -> None:
        """Stop a drawing under way: another, whole one follows, or none is wanted."""
        if self._drawing is not None:
            self._drawing.terminate()
            self._drawing.wait()
            self._drawing = None
