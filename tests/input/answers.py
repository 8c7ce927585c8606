"""A command's answer in this process: a new interpreter for each of hundreds would take minutes."""

import contextlib
import io
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tst_study.command_line import main

UNKNOWN = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


@dataclass(frozen=True)
class Answer:
    status: int
    out: str
    err: str


def answer(
    arguments: Sequence[str | Path], cwd: Path, environment: Mapping[str, str] | None = None
) -> Answer:
    """Run `tst-study ARGUMENTS` in a folder; return its output and status."""
    out, err, before = io.StringIO(), io.StringIO(), Path.cwd()
    variables = dict(os.environ)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["tst-study", *map(str, arguments)])
        patch.setenv("COLUMNS", "200")
        for name, value in (environment or {}).items():
            patch.setenv(name, value)
        os.chdir(cwd)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                main()
        except SystemExit as end:
            status = end.code
        finally:
            os.chdir(before)
            os.environ.clear()
            os.environ.update(variables)
    assert isinstance(status, int), status
    return Answer(status, out.getvalue(), err.getvalue())


def refusal(
    arguments: Sequence[str | Path], cwd: Path, environment: Mapping[str, str] | None = None
) -> str:
    """The one line with which a command refuses its input, after its progress: no traceback, no
    line more, and nothing that calls it a bug."""
    given = answer(arguments, cwd, environment)
    lines = [line for line in given.err.splitlines() if "━" not in line and "-:--" not in line]
    lines = [line for line in lines if not line.endswith(" …")]
    assert (given.status, len(lines)) == (2, 1), given
    assert lines[0].startswith("error: "), given
    assert "--debug shows where" not in lines[0], given
    assert lines[0].isprintable(), given
    return lines[0].removeprefix("error: ")
