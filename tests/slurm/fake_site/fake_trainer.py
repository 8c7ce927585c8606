"""A trainer without torch, in the place of the real one: what a run does is told by its name.

What surrounds it is the real thing: lock, status, signals, requeue, records. Of the tests it
imports nothing, for it stands in jobs of its own.
"""

import os
import shutil
import signal
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

DATA = {
    "corpora": [{"fingerprint": "ab", "weight": 1.0, "tokens": 1000}],
    "validation": {"fingerprint": "cd", "tokens": 100},
    "tokenizer": "ef",
}


def install() -> None:
    """For this process, which has not imported the real one."""
    fake = ModuleType("tst_study.train")
    fake.train = train  # type: ignore[attr-defined]
    sys.modules[fake.__name__] = fake


def train(config: Any, folder: Path, *, progress: bool) -> str:
    """Do what the run's name says: `run_N` has this loss, `diverge` none; `seconds_N`, in steps of
    a tenth, each with its checkpoint; `hops_N`, N launches, each stopped after three steps more;
    `deaf_N` and `slow_N` as `seconds_N`, but that the first launch is stopped (SIGSTOP) after three
    steps, or never gets the checkpoint written that it was told to write, and the second has little
    left; `slow-start`, whose first launch does not come to its first step; `stuck`, stopped before
    its first; `crash_N`, killed N times before its first; `hungry_N`, which takes N MB before."""
    import tst_study
    from tst_study.atomic_files import disk_errors_named
    from tst_study.errors import UserError
    from tst_study.process.host import listening
    from tst_study.record.launch_facts import launch_facts
    from tst_study.record.writer import RunWriter, header_of

    if int(os.environ.get("RANK", "0")):
        return _other_rank(folder)
    behaviour, _, argument = config.name.partition("_")
    healed = (folder.parent / "healed").exists()
    writer = RunWriter(folder, header_of(config, DATA))
    checkpoint = folder / "checkpoints" / "fake"
    start = int(checkpoint.read_text()) if checkpoint.exists() else 0
    seen = {
        "package": tst_study.__file__,
        "scontrol": shutil.which("scontrol"),
        "devices_seen": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "port_seen": os.environ.get("MASTER_PORT"),
    }
    writer.start_segment(start or None, {**launch_facts(), **seen})
    with open(folder / "launches", "a") as file:
        file.write("x")
    launch = (folder / "launches").stat().st_size
    if behaviour == "fail" and not healed:
        raise UserError("corpus: too short; give more text")
    if behaviour == "bug" and not healed:
        raise ZeroDivisionError("division\nby zero")
    if (behaviour == "killed" and not healed) or (behaviour == "crash" and launch <= int(argument)):
        os.kill(os.getpid(), signal.SIGKILL)
    if config.role == "trunk" and (folder.parent / "no_trunks").exists():
        raise UserError("this trunk fails")
    if behaviour == "hungry":
        taken = b"1" * 1_000_000 * int(argument)
        time.sleep(30.0 * bool(taken))  # until whoever watches the memory has seen it
    if behaviour == "slow-start" and launch == 1:
        time.sleep(600.0)
    checkpoint.parent.mkdir(exist_ok=True)
    with listening() as stop:
        writer.status("running", start, phase="recovery")
        if behaviour == "stuck":
            writer.status("preempted", start, "stopped at once")
            return "preempted"
        if behaviour == "diverge":
            writer.status("diverged", 2, "loss nan")
            return "diverged"
        loss = float(argument) if behaviour == "run" and argument else 3.0
        argument = "" if behaviour == "run" else argument
        steps = 3 * int(argument) if behaviour == "hops" else int(float(argument or 0.0) * 10)
        steps = start if behaviour == "slow" and launch > 1 else steps
        for step in range(start, steps):
            if behaviour == "hops" and step == start + 2:
                os.kill(os.getpid(), signal.SIGUSR2)
            time.sleep(0.1)
            with disk_errors_named(checkpoint):
                checkpoint.write_text(str(step + 1))
            writer.status("running", step + 1, loss=5.0, last_checkpoint=step + 1)
            while behaviour == "deaf" and step == 2 and launch == 1:
                os.kill(os.getpid(), signal.SIGSTOP)  # and again: Slurm warns with a SIGCONT
            if behaviour == "slow" and stop.signal is not None and launch == 1:
                time.sleep(600.0)  # it never gets its checkpoint written
            if stop.signal is not None:
                writer.status("preempted", step + 1, f"{stop.signal} at step {step + 1}")
                writer.end_segment(stop.signal)
                return "preempted"
    end = config.schedule.stop_after or config.schedule.steps
    counted = dict.fromkeys(("raw_tokens", "latent_tokens", "flops"), end)
    writer.evaluation(
        {
            **{"segment": writer.segment, "step": end, "phase": "recovery", **counted},
            **{"epochs": 0.1, "eval_set": "books-cd", "nats_per_token": loss},
            **{"bits_per_byte": None, "standard_error": 0.01, "tokens": 100, "annealed": True},
            **{"seconds": 0.1, "training_seconds": 1.0},
        }
    )
    writer.status("done", end, loss=loss)
    writer.end_segment("done")
    return "done"


def _other_rank(folder: Path) -> str:
    """Ends with the first rank, or at a signal; dies once where the study wants that."""
    from tst_study.process.host import listening
    from tst_study.record.reader import read_status

    killer = folder.parent / "kill_a_rank"
    if killer.exists():
        while not (folder / "launches").exists():  # which the first rank writes as it begins
            time.sleep(0.05)
        killer.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    with listening() as stop:
        while stop.signal is None:
            time.sleep(0.05)
            status = read_status(folder)
            if status and status["state"] == "done":
                return "done"
    return "preempted"
