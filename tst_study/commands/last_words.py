"""What `tst-study train` says of a run that has ended."""

import os
from pathlib import Path
from shlex import quote

from tst_study import run_record
from tst_study.config import Config
from tst_study.data.run_data import fingerprints
from tst_study.run.identity import fingerprint


def of_done(folder: Path) -> list[str]:
    """Where it lies, what it reached, and what to type next."""
    row = run_record.last_evaluation(folder)
    reached = [] if row is None else [_reached(row)]
    study = quote(str(folder.parent))
    return [f"done: {folder}", *reached, f"next: tst-study analyse --runs {study}"]


def of_stopped(folder: Path, state: run_record.State) -> list[str]:
    """Why it ended before it was done, and what may be done about it."""
    if state != "diverged":
        return [f"{state}: {folder}"]
    status = run_record.read_status(folder)
    why = "" if status is None else f" ({status['message']})"
    return [
        f"diverged: {folder}{why}; try a lower optimizer.learning_rate or a longer "
        "schedule.warmup_steps"
    ]


def of_done_before(config: Config, folder: Path) -> str | None:
    """One line where the run was done before it was asked for; None where there is work left.

    Raises `UserError` where the folder holds another run.
    """
    if not os.path.isfile(folder / "status.json"):  # also where nothing could lie: said later
        return None
    status = run_record.read_status(folder)
    if status is None or status["state"] != "done":
        return None
    run_record.check_same_run(folder, fingerprint(config, fingerprints(config)))
    row = run_record.last_evaluation(folder)
    reached = "" if row is None else f", {_reached(row)}"
    again = "delete the folder to train it anew, or --set seed=… for another seed"
    return f"done before: {folder}{reached}; {again}"


def _reached(row: run_record.Evaluation) -> str:
    return (
        f"held-out loss {row['nats_per_token']:.4f} nats per token after step {row['step']:,}, "
        f"over {row['tokens']:,} tokens"
    )
