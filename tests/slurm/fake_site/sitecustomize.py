"""Puts a trainer without torch into the jobs of the Slurm tests, in the place of the real one.

Python imports this file at its start where a job's profile has put its folder on the path. What
surrounds the trainer is the real thing: lock, status, signals, requeue, records.
"""

import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

DATA = {
    "corpora": [{"fingerprint": "ab", "weight": 1.0, "tokens": 1000}],
    "validation": {"fingerprint": "cd", "tokens": 100},
    "tokenizer": "ef",
}


class FakeTrainer(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name == "tst_study.train" else None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.train = train  # type: ignore[attr-defined]


def train(config: Any, folder: Path, *, progress: bool) -> str:
    """What its name says: `seconds_N`, in steps of a tenth, each with its checkpoint; `hops_N`, N
    launches, each stopped after three steps more; `deaf_N` and `slow_N` as `seconds_N`, but that
    the first launch is stopped (SIGSTOP) after three steps, or never gets the checkpoint written
    that it was told to write, and the second has little left; `slow-start`, whose first launch does
    not come to its first step, and `deaf-start`, which does not even listen; `stuck`, stopped
    before its first; `crash_N`, killed N times before its first; `bad-node`, killed
    wherever it was killed first."""
    import os
    import shutil
    import signal
    import time

    from tst_study.errors import UserError
    from tst_study.process.stop_request import listening
    from tst_study.record.launch_facts import launch_facts
    from tst_study.record.writer import RunWriter, header_of

    if int(os.environ.get("RANK", "0")):
        return _other_rank(folder)
    behaviour, _, argument = config.name.partition("_")
    healed = (folder.parent / "healed").exists()
    writer = RunWriter(folder, header_of(config, DATA))
    checkpoint = folder / "checkpoints" / "fake"
    start = int(checkpoint.read_text()) if checkpoint.exists() else 0
    seen = {"path": os.environ["PYTHONPATH"], "scontrol": shutil.which("scontrol")}
    writer.start_segment(start or None, {**launch_facts(), **seen})
    with open(folder / "launches", "a") as file:
        file.write("x")
    launch = (folder / "launches").stat().st_size
    if behaviour == "fail" and not healed:
        raise UserError("corpus: too short; give more text")
    if behaviour == "bug" and not healed:
        raise ZeroDivisionError("division by zero")
    if (behaviour == "killed" and not healed) or (behaviour == "crash" and launch <= int(argument)):
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "bad-node":
        _die_on_the_bad_node(folder)
    if config.role == "trunk" and (folder.parent / "no_trunks").exists():
        raise UserError("this trunk fails")
    if behaviour in ("slow-start", "deaf-start") and launch == 1:
        if behaviour == "deaf-start":
            signal.signal(signal.SIGUSR2, signal.SIG_DFL)
        time.sleep(600.0)
    checkpoint.parent.mkdir(exist_ok=True)
    with listening() as stop:
        writer.status("running", start, phase="recovery")
        if behaviour == "stuck":
            writer.status("preempted", start, "stopped at once")
            return "preempted"
        steps = 3 * int(argument) if behaviour == "hops" else int(float(argument or 0.0) * 10)
        steps = start if behaviour == "slow" and launch > 1 else steps
        for step in range(start, steps):
            if behaviour == "hops" and step == start + 2:
                os.kill(os.getpid(), signal.SIGUSR2)
            time.sleep(0.1)
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
    writer.evaluation(_evaluation(writer.segment, end))
    writer.status("done", end, loss=3.0)
    writer.end_segment("done")
    return "done"


def _die_on_the_bad_node(folder: Path) -> None:
    """After three seconds, and again when the other nodes are back, for as long as the test keeps
    them away."""
    import os
    import signal
    import time

    here, bad = os.environ["SLURMD_NODENAME"], folder.parent / "bad_node"
    if not bad.exists():
        bad.write_text(here)
    if bad.read_text() == here:
        time.sleep(3.0)
        while (folder / "launches").stat().st_size > 1 and (folder.parent / "drained").exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)


def _other_rank(folder: Path) -> str:
    """Ends with the first rank, or at a signal; dies once where the study wants that."""
    import os
    import signal
    import time

    from tst_study.process.stop_request import listening
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


def _evaluation(segment: int, step: int) -> dict[str, Any]:
    return {
        "segment": segment,
        "step": step,
        "phase": "recovery",
        "raw_tokens": step,
        "latent_tokens": step,
        "epochs": 0.1,
        "flops": step,
        "eval_set": "books-cd",
        "nats_per_token": 3.0,
        "bits_per_byte": None,
        "standard_error": 0.01,
        "tokens": 100,
        "annealed": True,
        "seconds": 0.1,
        "training_seconds": 1.0,
    }


sys.meta_path.insert(0, FakeTrainer())


def with_the_fake_sweep() -> None:
    """Where a job is to find that study by its name."""
    from fake_sweep import STUDY

    from experiments.studies.catalogue import STUDIES
    from tst_study.data import run_data

    run_data.fingerprints = lambda config: DATA
    STUDIES["fake-sweep"] = STUDY


if "TST_STUDY_FIRST_RATE" in os.environ:
    with_the_fake_sweep()
