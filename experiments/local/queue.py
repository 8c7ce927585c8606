"""A queue that trains the runs of a study in child processes, a few at a time.

Whenever a run is over, the study is asked which runs it needs, given the results so far. What is
known about a run is in its folder, where a second launcher, or the next call of this one, finds it:
runs that are over are skipped, interrupted ones resume from their checkpoint, failed ones are tried
again, and runs that another process is training are waited for.

Within one call, a run that was stopped or has crashed is started again when a slot is free, until
`given_up` says otherwise; after an error that would recur, a run is not started again. `given_up`
decides by a count of launches. This count is not in the folder, and begins anew with each call.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from types import FrameType

from tst_study import file_lock
from tst_study.config.schema import Config
from tst_study.errors import UserError
from tst_study.experiments.launcher import Options
from tst_study.experiments.launches import RETRIES, given_up
from tst_study.experiments.plan.planned_run import PlannedRun, state, state_and_damage
from tst_study.experiments.plan.planner import Planner
from tst_study.experiments.run_process import (
    Exit,
    Rank,
    cancel_mark,
    last_checkpoint,
    run,
    write_config,
)
from tst_study.experiments.study import Study
from tst_study.process.host import cores, signal_in_words, signals_handled
from tst_study.process.local_ranks import PATIENCE, free_port
from tst_study.record import reader as run_record
from tst_study.record.reader import FINAL_STATES
from tst_study.record.writer import mark

GONE_SECONDS = 10.0
"""The runs of a study are stopped when its folder is gone for this long."""


@dataclass
class Queue:
    """The state of a study while its runs are trained. The keys of dictionaries are fingerprints of
    runs."""

    decided: list[PlannedRun] = field(default_factory=list)
    """The wanted runs whose configs follow from the results so far, shared prefix runs included."""
    whole: list[PlannedRun] = field(default_factory=list)
    """All wanted runs that the study is expected to need."""
    running: dict[str, PlannedRun] = field(default_factory=dict)
    """Runs that child processes of this launcher are training."""
    held: set[str] = field(default_factory=set)
    """Runs that processes of another launcher hold."""
    over: dict[str, PlannedRun] = field(default_factory=dict)
    """Runs that are done or have diverged."""
    failed: dict[str, tuple[PlannedRun, str]] = field(default_factory=dict)
    """Runs that are not over, but that this call will not train any more, with the reason. They
    have failed, were given up or cancelled, have a damaged record, or lack the shared prefix run
    that they need."""
    begun_at: dict[str, int] = field(default_factory=dict)
    """The step of the last checkpoint that each run had when this call last started it."""
    idle: dict[str, int] = field(default_factory=dict)
    """The current number of consecutive launches of each run that ended without a new
    checkpoint."""
    slots: int = 1
    """How many runs may train at a time."""
    processes: int = 1
    """Ranks of each run."""
    seats: list[str] = field(default_factory=list)
    """The GPUs that are shared out and free now: for one run each, separated by commas."""
    seat_of: dict[str, str] = field(default_factory=dict)
    """The GPUs of each run that is training."""

    @property
    def waiting(self) -> list[PlannedRun]:
        """Runs that wait for a free slot, for their shared prefix run, or for another process."""
        known = self.running.keys() | self.over.keys() | self.failed.keys()
        return [run for run in self.decided if run.fingerprint not in known]


class StoppedError(Exception):
    """A signal has stopped the launcher. Its runs were told to write a checkpoint, and have ended.
    `status` is the exit status that tells a shell so."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)
        self.status = 128 + signal_number


def launch(
    study: Study,
    options: Options,
    show: Callable[[Queue], None] = lambda queue: None,
    wanted: Callable[[PlannedRun], bool] = lambda run: True,
    target: Callable[..., None] = run,
    seats: Sequence[str] = (),
) -> Queue:
    """Train every wanted run of the study that is not over, and return the queue when none is left
    to train.

    `show` is called with the queue several times a second and at the end. A run that fails is noted
    in `Queue.failed`, and all runs that do not need it go on. `target` is the function that each
    process calls. `seats`: GPUs for one run each, separated by commas. Raises `StoppedError` on
    Ctrl-C or SIGTERM, and `UserError` if the runs cannot be planned, for example because a corpus
    is not prepared.
    """
    # Every run inherits these; a run whose config asks for more threads sets them itself.
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    planning = Planner(study)
    queue = Queue(processes=options.processes, seats=list(seats))
    planned_with = 0  # how many runs were over at the last planning, which knew their results
    _plan(planning, queue, wanted)
    queue.slots = options.parallel or len(seats) or fitting(queue.decided, options.processes)
    queue.slots = min(queue.slots, len(seats) or queue.slots)
    for planned in queue.decided:
        cancel_mark(planned.folder).unlink(missing_ok=True)
    _settle_all(queue)
    children: dict[str, list[BaseProcess]] = {}
    seen = time.monotonic()
    show(queue)  # before the start of the first child, which takes until torch is loaded
    with signals_handled(_raise_stopped, (signal.SIGINT, signal.SIGTERM)):
        try:
            while queue.waiting or children or len(queue.over) > planned_with:
                if len(queue.over) > planned_with:
                    planned_with = len(queue.over)
                    _plan(planning, queue, wanted)
                    _settle_all(queue)
                _start(queue, children, target)
                show(queue)
                time.sleep(0.1)
                _reap(queue, children)
                if study.folder.is_dir() or not children:
                    seen = time.monotonic()
                elif time.monotonic() - seen > GONE_SECONDS:
                    for rank in chain.from_iterable(children.values()):
                        rank.kill()  # its checkpoint would make the folder anew
                    raise UserError(
                        f"{study.folder}: was deleted or is out of reach since {GONE_SECONDS:.0f} "
                        "s; its runs are stopped: submit again"
                    )
        except BaseException:
            _stop(queue, children)
            raise
    show(queue)
    return queue


def fitting(runs: Iterable[PlannedRun], processes: int) -> int:
    """Return how many runs with `processes` ranks each may train at a time: as many as this machine
    has cores for, but at least one, and only one if any of the runs may use a GPU."""
    if any(run.config.execution.device != "cpu" for run in runs):
        return 1
    return max(1, cores() // processes)


def _plan(planning: Planner, queue: Queue, wanted: Callable[[PlannedRun], bool]) -> None:
    """Plan the wanted runs and their shared prefix runs. A run may get its prefix run only now, if
    results have added a run that shares it."""

    def chosen(runs: list[PlannedRun]) -> list[PlannedRun]:
        prefixes = {run.prefix.fingerprint for run in runs if run.prefix and wanted(run)}
        return [run for run in runs if wanted(run) or run.fingerprint in prefixes]

    queue.decided, queue.whole = chosen(planning.decided()), chosen(planning.whole())


def _settle_all(queue: Queue) -> None:
    """Note in the queue which runs need no process, and write the configs of the others."""
    for planned in queue.decided:
        _settle(queue, planned)
    # The config file lets `cancel`, and other commands that know only the study's folder, see that
    # a run is waiting.
    for planned in queue.waiting:
        write_config(planned.config, planned.folder)


def _settle(queue: Queue, planned: PlannedRun) -> bool:
    """Return whether a run needs no process because it is over, damaged or cancelled. If so, note
    it in the queue."""
    state_there, why = state_and_damage(planned)
    if state_there in FINAL_STATES:
        queue.over[planned.fingerprint] = planned
        return True
    if not why and cancel_mark(planned.folder).exists():
        why = "cancelled"
    if why:
        queue.failed[planned.fingerprint] = (planned, why)
    return bool(why)


def _start(
    queue: Queue, children: dict[str, list[BaseProcess]], target: Callable[..., None]
) -> None:
    if len(children) >= queue.slots:
        return  # Called ten times a second: no run folder is read until a slot is free.
    waiting = queue.waiting
    # Held runs take slots too: if the launcher that started them was killed, they are about to end,
    # but still use the machine.
    queue.held = {planned.fingerprint for planned in waiting if file_lock.is_held(planned.folder)}
    open_ = queue.running.keys() | {planned.fingerprint for planned in waiting}
    for planned in waiting:
        if len(children) + len(queue.held) >= queue.slots:
            return
        prefix = planned.prefix
        if planned.fingerprint in queue.held or (prefix and prefix.fingerprint in open_):
            continue
        if _settle(queue, planned):  # another process may just have ended it
            continue
        if prefix and state(prefix) != "done":
            if prefix.fingerprint in queue.failed:
                why = f"its shared prefix run {prefix.run_id} is not trained"
                queue.failed[planned.fingerprint] = (planned, why)
        else:
            config, seat = planned.config, queue.seats.pop(0) if queue.seats else ""
            queue.seat_of[planned.fingerprint] = seat
            if seat and config.execution.device == "auto":  # which would do without a GPU
                config = config.executed(device="cuda")
            queue.begun_at[planned.fingerprint] = last_checkpoint(planned.folder)
            queue.running[planned.fingerprint] = planned
            port = free_port() if queue.processes > 1 else 0
            for number in range(queue.processes):
                rank = Rank(number, queue.processes, port, seat)
                arguments = (config, planned.folder, rank)
                child = _started(_context(config), target, arguments, planned.run_id)
                children.setdefault(planned.fingerprint, []).append(child)


def _started(
    context: ForkServerContext | SpawnContext,
    target: Callable[..., None],
    arguments: tuple[object, ...],
    name: str,
) -> BaseProcess:
    child = context.Process(target=target, args=arguments, name=name)
    try:
        child.start()
    except (OSError, EOFError):
        # The socket of the fork server lies below `TMPDIR`. It cannot be used if somebody has
        # cleaned that folder, or if the folder's path is too long for a socket. The server itself
        # may have been killed, such as for memory.
        if context.get_start_method() == "spawn":
            raise
        return _started(multiprocessing.get_context("spawn"), target, arguments, name)
    return child


def _reap(queue: Queue, children: dict[str, list[BaseProcess]]) -> None:
    """Note in the queue what became of the runs whose processes have all ended."""
    for key, ranks in list(children.items()):
        code = _ended(ranks)
        if code is None:
            continue
        del children[key]
        queue.seats += filter(None, [queue.seat_of.pop(key)])
        planned = queue.running.pop(key)
        if _settle(queue, planned) or code == Exit.HELD:
            continue  # after `HELD`, the run waits for the process that holds it
        if code == Exit.FAILED:
            queue.failed[key] = (planned, _record_end(planned, code))
        else:
            is_new = last_checkpoint(planned.folder) > queue.begun_at[key]
            queue.idle[key] = 0 if is_new else queue.idle.get(key, 0) + 1
            if why := given_up(queue.idle[key], RETRIES, _record_end(planned, code)):
                mark(planned.folder, planned.config, "failed", why)
                queue.failed[key] = (planned, why)
            # Otherwise the run waits again for a slot.


def _ended(ranks: list[BaseProcess]) -> int | None:
    """Return the exit status of a run; None while one of its ranks is alive.

    It is that of rank 0 if another process held the run. Otherwise it is `Exit.FAILED` if any rank
    ended so, or else the status of the lowest-numbered rank that crashed, or else that of a rank
    that was killed. If all ranks ended well, it is again that of rank 0. Ranks cannot go on without
    each other, so all are killed as soon as one has ended badly.
    """
    codes = [rank.exitcode for rank in ranks]
    ended_badly = [code for code in codes if code not in (None, Exit.OVER, Exit.PREEMPTED)]
    # The ranks that are killed below have -SIGKILL, which is not why the run ended.
    bad = min(ended_badly, key=lambda c: (c != Exit.FAILED, c == -signal.SIGKILL), default=None)
    if None in codes:
        if bad is not None:
            for rank in ranks:
                rank.kill()
        return None
    for rank in ranks:
        rank.close()
    return codes[0] if bad is None or codes[0] == Exit.HELD else bad


def _record_end(planned: PlannedRun, code: int) -> str:
    """Return why the processes of a run ended, as its folder records it. If the run ended before it
    could record a reason, derive one from its exit status `code`, and record the run as failed."""
    state_there = state(planned)
    if state_there in ("failed", "preempted"):
        status = run_record.read_status(planned.folder)
        return (status["message"] if status else "") or state_there
    how = f"was killed by {signal_in_words(-code)}" if code < 0 else f"ended with status {code}"
    message = f"its process {how}"
    mark(planned.folder, planned.config, "failed", message)
    return message


def _stop(queue: Queue, children: dict[str, list[BaseProcess]]) -> None:
    """Tell every child to write a checkpoint and end. Kill those that are alive after `PATIENCE`
    seconds, or all of them at a second signal."""
    every = [rank for ranks in children.values() for rank in ranks]
    for rank in every:
        rank.terminate()
    deadline = time.monotonic() + PATIENCE
    try:
        for rank in every:
            rank.join(max(0.0, deadline - time.monotonic()))
    finally:
        for rank in every:
            if rank.exitcode is None:
                rank.kill()
                rank.join()
        for key in children:
            planned = queue.running[key]
            if state(planned) == "running":
                mark(planned.folder, planned.config, "preempted", "stopped with the launcher")


def _raise_stopped(number: int, frame: FrameType | None) -> None:
    raise StoppedError(number)


def _context(config: Config) -> ForkServerContext | SpawnContext:
    """Return the way to start a run's processes. Those of runs on CPUs are forked from a server
    that has imported torch and Megatron once. A run that may use a GPU gets new processes, because
    CUDA does not survive a fork."""
    if config.execution.device != "cpu":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tst_study.experiments.local.warm_server"])
    return context
