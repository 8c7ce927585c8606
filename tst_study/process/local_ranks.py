"""Starts the ranks of one run as processes of this machine (`tst-study train --processes N`), and
has processes end with their launcher."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from threading import Thread
from types import FrameType

from tst_study.process.host import cores, signal_in_words, signals_handled
from tst_study.process.rank_environment import rank_variables

GRACE_SECONDS = 30.0
"""Seconds in which the other ranks can end by themselves after one has failed; then they are
killed. Rank 0 may need some of them to send its last rows to W&B."""
PATIENCE = 30.0
"""Seconds that a run on this machine gets to write its checkpoint after its launcher stops it or
ends."""
LAUNCHER = "TST_STUDY_LAUNCHER"
"""The variable with the descriptor that a rank gives to `end_with`."""


def train_on_processes(count: int, arguments: Sequence[str]) -> tuple[int, str]:
    """Run `tst-study ARGUMENTS` as `count` ranks, and wait for them to end.

    Returns an exit status and a message. The status is 0 if all ranks ended with 0. Otherwise it is
    that of the first rank that did not, or 1 if a signal ended that rank; of ranks that end within
    the same tenth of a second, one that a signal ended counts as the first. The message names this
    rank and, if there was one, the signal, which the rank could not report itself. The message is
    empty if all went well, or if this process had received a signal before.

    Signals that ask this process to stop (`host.SIGNALS`) are passed on to all ranks. When a rank
    fails, the others have `GRACE_SECONDS` to end and are then killed: they cannot go on without it,
    and a kill does not damage the checkpoints on disk.
    """
    port = free_port()
    ranks: list[subprocess.Popen[bytes]] = []
    received: list[int] = []
    watched, held = os.pipe()  # the ranks see by it when this process ends (`end_with`)

    def pass_on(number: int, frame: FrameType | None) -> None:
        received.append(number)
        for rank in ranks:
            if rank.poll() is None:
                rank.send_signal(number)

    try:
        with signals_handled(pass_on):
            for number in range(count):
                ranks.append(_start(number, count, port, watched, arguments))
                if received:  # maybe too early to have reached this rank; none has anything to save
                    return 1, ""
            return _wait(ranks, received)
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
            rank.wait()
        os.close(watched)
        os.close(held)


def _wait(ranks: list[subprocess.Popen[bytes]], received: list[int]) -> tuple[int, str]:
    """Wait for the ranks as `train_on_processes` describes, and return its exit status and message;
    the rank and the signal are printed, too. `received`: the signals that this process has received
    so far."""
    status, words, deadline = 0, "", float("inf")
    trains = True
    while trains and time.monotonic() < deadline:
        trains = any(rank.poll() is None for rank in ranks)
        # One that a signal ended comes first: the failures of others in the same moment are of the
        # connection to it.
        for number, rank in sorted(enumerate(ranks), key=lambda one: one[1].poll() or 0):
            if rank.poll() and not status:
                status = 1 if rank.returncode < 0 else rank.returncode
                deadline = time.monotonic() + GRACE_SECONDS
                words = "" if received else f"rank {number} failed; its own message says why"
                if rank.returncode < 0 and not received:
                    words = f"rank {number} was ended by {signal_in_words(-rank.returncode)}"
                    print(f"error: {words}", file=sys.stderr)
        time.sleep(0.1)
    return status, words


def _start(
    rank: int, count: int, port: int, launcher: int, arguments: Sequence[str]
) -> subprocess.Popen[bytes]:
    threads = max(1, cores() // count)
    ours = {**rank_variables(rank, count, port), LAUNCHER: str(launcher)}
    environment = {"OMP_NUM_THREADS": str(threads), **os.environ, **ours}
    command = [sys.executable, "-m", "tst_study", *arguments]
    # Each rank has a session of its own, so that Ctrl-C in the terminal reaches only the launcher,
    # which passes it on.
    return subprocess.Popen(command, env=environment, start_new_session=True, pass_fds=(launcher,))


def end_with(launcher: int) -> None:
    """Have this process end when its launcher does, which could not stop it any more: by SIGTERM,
    and after `PATIENCE` seconds by SIGKILL. `launcher`: the descriptor of a pipe whose other end
    the launcher alone holds."""
    from multiprocessing.connection import wait  # which takes long to import

    def watch() -> None:
        wait([launcher])
        print("the launcher has ended", flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(PATIENCE)
        os.kill(os.getpid(), signal.SIGKILL)

    Thread(target=watch, daemon=True).start()


def free_port() -> int:
    """A port of the loopback interface that is free now; another process may take it before it is
    used."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
