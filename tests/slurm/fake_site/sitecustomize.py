"""Puts a trainer without torch into the jobs of the Slurm tests, in the place of the real one.

Python imports this file at its start where a job's profile has put its folder on the path. What
surrounds the trainer is the real thing: lock, status, signals, requeue, records.
"""

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
    """`seconds_N`: N steps of a second each, every one of them behind a checkpoint."""
    import os
    import signal
    import time

    from tst_study.errors import UserError
    from tst_study.launch_facts import launch_facts
    from tst_study.run_header import header_of
    from tst_study.run_record import RunWriter
    from tst_study.stop_request import listening

    if int(os.environ.get("RANK", "0")):
        return _other_rank(folder)
    behaviour, _, argument = config.name.partition("_")
    healed = (folder.parent / "healed").exists()
    writer = RunWriter(folder, header_of(config, DATA))
    checkpoint = folder / "checkpoints" / "fake"
    start = int(checkpoint.read_text()) if checkpoint.exists() else 0
    writer.start_segment(start or None, {**launch_facts(), "path": os.environ["PYTHONPATH"]})
    with open(folder / "launches", "a") as file:
        file.write("x")
    if behaviour == "fail" and not healed:
        raise UserError("corpus: too short; give more text")
    if behaviour == "bug" and not healed:
        raise ZeroDivisionError("division by zero")
    if behaviour == "killed" and not healed:
        os.kill(os.getpid(), signal.SIGKILL)
    if config.role == "trunk" and (folder.parent / "no_trunks").exists():
        raise UserError("this trunk fails")
    checkpoint.parent.mkdir(exist_ok=True)
    with listening() as stop:
        writer.status("running", start, phase="recovery")
        steps = float(argument or 0.0) * 10
        for step in range(start, int(steps)):
            time.sleep(0.1)
            checkpoint.write_text(str(step + 1))
            writer.status("running", step + 1, loss=5.0, last_checkpoint=step + 1)
            if stop.signal is not None:
                writer.status("preempted", step + 1, f"{stop.signal} at step {step + 1}")
                writer.end_segment(stop.signal)
                return "preempted"
    end = config.schedule.stop_after or config.schedule.steps
    writer.evaluation(_evaluation(writer.segment, end))
    writer.status("done", end, loss=3.0)
    writer.end_segment("done")
    return "done"


def _other_rank(folder: Path) -> str:
    """Ends with the first rank, or at a signal."""
    import time

    from tst_study.run_record import read_status
    from tst_study.stop_request import listening

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
