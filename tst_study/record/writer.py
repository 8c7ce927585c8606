"""The writer of a run folder. `tst_study.record.reader` holds the schema, and the rules for rows
that were written twice."""

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from pydantic_core import to_json

from tst_study.atomic_files import disk_errors_named, write_json, written_atomically
from tst_study.config.identity import SCHEMA_VERSION, fingerprint, run_id
from tst_study.config.phase_plan import plan_phases
from tst_study.config.schema import Config, Execution, from_record, to_dict
from tst_study.cost.compute import count_flops, count_parameters
from tst_study.errors import UserError
from tst_study.record.reader import (
    RunHeader,
    RunRecord,
    State,
    check_same_run,
    read,
    read_segments,
    read_status,
)
from tst_study.text import short

COUNTED = ("parameters", "flops", "plan", "raw_tokens", "latent_tokens", "unique_raw_tokens")
"""Keys of `run.json` that follow from the config and the text."""


def header_of(config: Config, data: dict[str, Any]) -> RunHeader:
    """Return the content of `run.json`: what is known about a run before its first step.

    `data`: the result of `data.run_data.fingerprints`.
    """
    plan = plan_phases(config)
    end = config.schedule.last_step
    identity = fingerprint(config, data)
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": run_id(config, identity),
        "fingerprint": identity,
        "study": config.study,
        "name": config.name,
        "role": config.role,
        "config": to_dict(config),
        "parameters": asdict(count_parameters(config.model)),
        "flops": asdict(count_flops(config)),
        "plan": cast(Any, plan.record()),
        "raw_tokens": plan.raw_tokens(end),
        "latent_tokens": plan.latent_tokens(end),
        "data": data,
        "unique_raw_tokens": sum(corpus["tokens"] for corpus in data["corpora"]),
    }


class RunWriter:
    """Writes the record of one launch, which is a segment of its run's record. Only rank 0 has a
    writer."""

    def __init__(self, folder: str | Path, header: RunHeader) -> None:
        """Create the folder with its `run.json`, or check that an existing one holds the same run
        and that its record can be read.

        Raises `UserError` if the folder holds another run, if what `run.json` counts is not what
        `header` does, if a file of the record is damaged, or if `run.json` cannot be written.
        """
        self.folder = Path(folder)
        self.header = header
        stop_after = header["config"]["schedule"].get("stop_after")
        self.steps: int = stop_after or header["plan"]["steps"]
        self.folder.mkdir(parents=True, exist_ok=True)
        check_same_run(self.folder, header["fingerprint"])
        path = self.folder / "run.json"
        if not path.is_file():
            write_json(path, header)
        # Damage is an error before the first step, not when the finished run is analysed.
        there = read(self.folder).header
        recorded, ours = (cast(Mapping[str, Any], one) for one in (there, header))
        if fingerprint(from_record(there["config"]), there["data"]) != there["fingerprint"]:
            raise UserError(f"{path}: config or data has changed since it was written; restore it")
        for key in COUNTED:
            if recorded[key] != ours[key]:
                raise UserError(
                    f"{path}: {key} is {short(recorded[key])}, but the config gives "
                    f"{short(ours[key])}; restore it, or train in a new folder if another version "
                    "counted otherwise"
                )
        self.segment = 0
        self._segment_open = False

    def start_segment(self, resumed_from: int | None, facts: Mapping[str, Any]) -> int:
        """Begin a new segment and return its number.

        `resumed_from`: the number of steps done before the segment; None if it begins at the first
        step. `facts`: command, host, versions, …
        """
        earlier = read_segments(self.folder)
        self.segment = 1 + max((row["segment"] for row in earlier), default=-1)
        row = {"segment": self.segment, "resumed_from": resumed_from, "start": time.time(), **facts}
        _append(self.folder / "segments.jsonl", row)
        self._segment_open = True
        return self.segment

    def end_segment(self, why: str) -> None:
        """End the segment. Without an open one this does nothing, because a launch may fail before
        it begins its segment."""
        if not self._segment_open:
            return
        self._segment_open = False
        row = {"segment": self.segment, "end": time.time(), "ended": why}
        _append(self.folder / "segments.jsonl", row)

    def take_over(self, prefix: RunRecord, step: int, execution: Execution) -> None:
        """Copy the rows of a shared prefix run, up to the fork after `step`, into a segment that
        names the prefix run.

        Rows are copied of the steps at which this run would log or evaluate by its intervals and at
        the switch; rows by the clock, at kept steps and between stages are not. If an earlier
        launch has copied the rows, and none has begun at the first step since, nothing is done.
        """
        source = {
            "run_id": prefix.run_id,
            "fingerprint": prefix.header["fingerprint"],
            "step": step,
        }
        begun = [row for row in read_segments(self.folder) if row["resumed_from"] is None][-1:]
        if any(row.get("forked_from") == source and row["end"] for row in begun):
            return  # an earlier launch copied them, and then ended before its first checkpoint
        segment = self.start_segment(None, {"forked_from": source})
        switch = self.header["plan"]["superposed_steps"]
        for row in prefix.metrics:
            if row["step"] <= step and (
                row["step"] % execution.log_every == 0 or row["step"] == switch
            ):
                self.metrics({**row, "segment": segment})
        for done in prefix.evals:
            if done["step"] <= step and done["step"] % (execution.evaluate_every or step + 1) == 0:
                self.evaluation({**done, "segment": segment})
        self.end_segment("forked")

    def metrics(self, row: Mapping[str, Any]) -> None:
        """Append a row with the keys of `Metrics`. They are not checked here but by the reader."""
        _append(self.folder / "metrics.jsonl", row)

    def evaluation(self, row: Mapping[str, Any]) -> None:
        """Append a row with the keys of `Evaluation`. They are not checked here but by the
        reader."""
        _append(self.folder / "evals.jsonl", row)

    def status(self, state: State, step: int, message: str = "", **more: Any) -> None:
        """Replace the run's status, as `write_status` does."""
        write_status(self.folder, state, self.steps, message, step=step, **more)


def append_task_results(folder: str | Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append results of `tst-study evaluate` to `evals.jsonl`. The rows have the keys of
    `TaskResult` except for `segment`, which is set to the run's last segment.

    The caller must hold the run's lock. Raises `UserError` if the rows cannot be written.
    """
    segment = read_segments(Path(folder))[-1]["segment"]
    _append(Path(folder) / "evals.jsonl", *({"segment": segment, **row} for row in rows))


def _json(value: Any, indent: int | None = None) -> bytes:
    """Return a value as JSON that ends in a line break. Infinity and NaN, which JSON lacks, become
    null."""
    return to_json(value, indent=indent, inf_nan_mode="null") + b"\n"


def _append(path: Path, *rows: Mapping[str, Any]) -> None:
    """Append rows to a log. An incomplete last line, as a killed launch may leave it, is removed
    first."""
    with disk_errors_named(path), open(path, "ab+") as file:
        file.seek(max(0, file.tell() - 1))
        if file.read() not in (b"", b"\n"):
            file.truncate(path.read_bytes().rfind(b"\n") + 1)
        file.write(b"".join(map(_json, rows)))
        if path.name == "evals.jsonl":
            # Nothing evaluates again what the status and the last checkpoint say is done.
            file.flush()
            os.fsync(file.fileno())


def mark(folder: Path, config: Config, state: State, message: str) -> None:
    """Write a run's status from outside: a launcher calls this before the run begins, or after it
    has ended without writing its own."""
    write_status(folder, state, config.schedule.last_step, message)


def write_status(folder: Path, state: State, steps: int, message: str = "", **more: Any) -> None:
    """Replace `status.json`. `steps`: the number of steps that the run trains in all. `more`: other
    keys of `Status`; those that are not given keep their last value, but `seconds_left` is None
    unless the state is "running"."""
    kept = {"step": 0, "last_checkpoint": None, **(read_status(folder) or {})}
    if state != "running":
        kept["seconds_left"] = None
    now = {"state": state, "steps": steps, "message": message, **more}
    with written_atomically(folder / "status.json") as file:
        file.write(_json(kept | now, indent=1))
