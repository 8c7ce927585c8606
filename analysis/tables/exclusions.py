"""Runs that a person has taken out, and why: `exclusions.csv` beside the runs.

Two columns, `run` (a run id, or at least eight hex digits of a fingerprint) and `reason`. An
excluded run stays in the run table with its reason, is compared with nothing, and is listed in
every report. A line that matches no run is a problem that is reported.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

from tst_study.errors import UserError

FILE_NAME = "exclusions.csv"
_SHORTEST = 8


def read_exclusions(roots: Iterable[Path]) -> dict[str, str]:
    """Reasons by run id or fingerprint prefix, from every root that has the file.

    Raises `UserError` that names file and line for a missing column, an empty reason, or a
    fingerprint too short to be meant.
    """
    found: dict[str, str] = {}
    for path in (root / FILE_NAME for root in roots):
        if not path.is_file():
            continue
        with open(path, encoding="utf8", newline="") as file:
            reader = csv.DictReader(file)
            if not {"run", "reason"} <= set(reader.fieldnames or ()):
                raise UserError(f"{path}: needs the columns run and reason")
            for row in reader:
                run, reason = (row["run"] or "").strip(), (row["reason"] or "").strip()
                where = f"{path}:{reader.line_num}"
                if not reason:
                    raise UserError(f"{where}: {run or 'a line'} has no reason; give one")
                if len(run) < _SHORTEST:
                    raise UserError(f"{where}: {run!r} is too short; give eight characters or more")
                found[run] = reason
    return found


def reason_of(exclusions: dict[str, str], run_id: str, fingerprint: str) -> str:
    """The reason for which a run is excluded, or an empty text."""
    for key, reason in exclusions.items():
        if run_id == key or fingerprint.startswith(key):
            return reason
    return ""


def unmatched(exclusions: dict[str, str], runs: Iterable[tuple[str, str]]) -> list[str]:
    """A sentence for every line that matches none of the (run id, fingerprint) given."""
    known = list(runs)
    return [
        f"{FILE_NAME}: {key} matches no run here (excluded for: {reason})"
        for key, reason in exclusions.items()
        if not any(run_id == key or mark.startswith(key) for run_id, mark in known)
    ]
