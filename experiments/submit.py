"""`tst-study submit --launcher local`, from text to report."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.text import Text

from experiments.background_figures import BackgroundFigures
from experiments.launcher_local import Queue, StoppedError, launch, report_failures
from experiments.planner import PlannedRun
from experiments.progress import Progress
from experiments.status import duration
from experiments.study import Study


def submit_locally(
    study: Study,
    root: Path,
    parallel: int | None,
    *,
    processes: int = 1,
    share: bool = True,
    only: Callable[[PlannedRun], bool] = lambda run: True,
) -> int:
    """Prepare, train, draw, say. Returns the exit status: 1 where a run failed."""
    console = Console(highlight=False)
    began = time.monotonic()
    _say(console, study.title, study.claims)
    for corpus in study.corpora:
        corpus.prepare()
    report = root / "report"
    figures = BackgroundFigures(root, report)
    try:
        with Progress(console, str(root)) as progress:
            watchers = (progress, figures)
            queue = launch(
                study,
                root,
                parallel=parallel,
                watchers=watchers,
                processes=processes,
                share=share,
                only=only,
            )
    except StoppedError as stopped:
        again = f"tst-study submit {study.name} --scale {study.scale} --runs '{root}'"
        _say(console, f"Stopped ({stopped}); nothing is lost. To go on: {again}")
        return stopped.status
    finally:
        figures.end()
    _conclude(console, study, root, report)
    _say(console, "", f"Total time {duration(time.monotonic() - began)}.")
    return _failures(study, queue)


def _conclude(console: Console, study: Study, root: Path, report: Path) -> None:
    from experiments.collect import collect

    collected = collect(root)
    _say(console, "", f"What {study.name} at scale {study.scale} says", study.claims, "")
    _say(console, *collected.summary, "")
    _say(console, f"Runs    {root}/", f"Figures {report}/", f"Report  {report / 'report.html'}")


def _failures(study: Study, queue: Queue) -> int:
    lines = report_failures(queue)
    if lines:
        print(
            f"error: {len(lines)} runs did not finish; submit again to retry them:",
            *(f"  {line}" for line in lines),
            sep="\n",
            file=sys.stderr,
        )
        if len(queue.decided) < len(queue.whole):
            print("  More runs depend on them and were not started.", file=sys.stderr)
    return 1 if lines else 0


def _say(console: Console, *lines: str) -> None:
    for line in lines:
        console.print(Text(line), soft_wrap=True)
