"""Facts about a launch for its row in `segments.jsonl`: host, job, command, versions, code."""

import functools
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from tst_study.atomic_files import read_json

_FACTS = TypeAdapter(dict[str, Any])
PACKAGES = ("tst-study", "torch", "megatron-core", "numpy")
"""Packages whose installed versions are recorded."""
JOB_VARIABLES = ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT")

COPY_FACTS = "code.json"
"""The name of a file that lies beside a copy of the code and holds the `code_version` of the
original."""


def launch_facts() -> dict[str, Any]:
    """Return the facts about this process that its row records."""
    return {
        "code": code_version(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "host": socket.gethostname(),
        "process": os.getpid(),
        "job": {name: os.environ[name] for name in JOB_VARIABLES if name in os.environ},
        "python": platform.python_version(),
        "versions": {name: package_version(name) for name in PACKAGES},
    }


def code_version(root: Path = Path(__file__).parents[2]) -> dict[str, Any]:
    """Return "commit", the commit of the git checkout that holds this package, and "dirty", whether
    tracked files have uncommitted changes.

    Both are None if there is no checkout or no git, or if the checkout is another project's. For a
    copy of the code with a `COPY_FACTS` file, return the content of that file.
    """
    # This comes first, because a copy may lie inside another checkout.
    if copied := read_json(root / COPY_FACTS, _FACTS, "submit the study again"):
        return copied
    with suppress(OSError, subprocess.SubprocessError):
        top, commit = _git(root, "rev-parse", "--show-toplevel", "HEAD").splitlines()
        if root.samefile(top):
            changes = _git(root, "status", "--porcelain", "--untracked-files=no").strip()
            return {"commit": commit, "dirty": bool(changes)}
    return {"commit": None, "dirty": None}


def commit_of(files: Sequence[Path]) -> str | None:
    """Return the commit of the git repository that holds these files, if it tracks all of them and
    none of them was changed since; otherwise, or without git, None."""
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        (top,) = {_git(file.parent, "rev-parse", "--show-toplevel").strip() for file in files}
        names = [str(file.resolve()) for file in files]
        _git(Path(top), "ls-files", "--error-unmatch", "--", *names)
        if not _git(Path(top), "status", "--porcelain", "--", *names).strip():
            return _git(Path(top), "rev-parse", "HEAD").strip()
    return None


@functools.cache
def descends(folder: Path, commit: str, ancestor: str) -> bool | None:
    """Return whether a commit is, or descends from, another one, by the git repository that holds a
    folder; None if there is none, or if it lacks one of them."""
    if commit == ancestor:
        return True
    try:
        _git(folder, "merge-base", "--is-ancestor", ancestor, commit)
    except subprocess.CalledProcessError as error:
        return False if error.returncode == 1 else None
    except (OSError, subprocess.SubprocessError):
        return None
    return True


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True, timeout=20
    ).stdout


def package_version(name: str) -> str | None:
    """Return the installed version of a package, or None if it is not installed."""
    with suppress(PackageNotFoundError):
        return version(name)
    return None
