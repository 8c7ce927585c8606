"""Whether a question was registered before the runs that answer it began.

A question is planned if all measured runs of one side at least, of the arm or of what it is
compared with, first started after the question was registered, and none but diverged ones was
excluded by hand. Shared prefix runs do not count. Of runs whose starts were not recorded, the code
that was launched must descend from the commit that holds the question. Everything else was asked
afterwards, or its time is unknown. This proves the order of things, as the files state it, and no
one's honesty.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from tst_study.analysis.verdict.question import Question
from tst_study.analysis.wording import AFTERWARDS, PLANNED, TIME_UNKNOWN
from tst_study.record.launch_facts import descends

HEADINGS = (PLANNED, TIME_UNKNOWN, AFTERWARDS)
"""The headings under which questions stand, in this order."""


def asked_when(question: Question, arm: pd.DataFrame, against: pd.DataFrame) -> tuple[str, str]:
    """Return the heading of a question, and a note: that one side's runs are older than a planned
    question. `arm`, `against`: all measured runs of both sides, diverged ones included."""
    if question.registered is None and question.registration is None:
        return AFTERWARDS, ""
    sides = [[_is_later(question, text) for text in side["launches"]] for side in (arm, against)]
    if not any(map(all, sides)):
        unknown = any(False not in side for side in sides)
        return (TIME_UNKNOWN if unknown else AFTERWARDS), ""
    for words, side, later in zip(("of", "against"), (arm, against), sides, strict=True):
        if not all(later):
            known = [start for text in side["launches"] if (start := _started(_launches(text)))]
            runs = "earlier runs"
            if known:
                runs = f"runs from {datetime.fromtimestamp(min(known), UTC):%Y-%m-%d}"
            return PLANNED, f"{words} {runs}"
    return PLANNED, ""


def _is_later(question: Question, launches: Any) -> bool | None:
    """Return whether a run first started after the question was registered, or None if neither the
    times nor the commits say so."""
    rows, registration = _launches(launches), question.registration
    # A launch that recorded its start says by that, and not by its code, when it was.
    if (start := _started(rows)) is not None:
        return start >= registration.time.timestamp() if registration else None
    commits = [row["code"]["commit"] for row in rows if (row.get("code") or {}).get("commit")]
    if not question.registered or not commits:
        return None
    return descends(Path(question.within), commits[0], question.registered)


def _launches(text: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(text) if isinstance(text, str) else []
    return rows


def _started(launches: Sequence[dict[str, Any]]) -> float | None:
    """Return when the first launch began, in seconds since 1970; None if it was not recorded."""
    return min((row["start"] for row in launches if row.get("start")), default=None)
