"""The commit in a record is that of our own checkout, or none."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tst_study.record.launch_facts import code_version


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    command = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_of_another_project_around_us_is_not_ours(tmp_path: Path) -> None:
    installed = tmp_path / ".venv" / "lib" / "site-packages"
    installed.mkdir(parents=True)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", "theirs")
    head = git(tmp_path, "rev-parse", "HEAD")
    assert code_version(tmp_path) == {"commit": head, "dirty": False}
    assert code_version(installed) == {"commit": None, "dirty": None}
    assert code_version(tmp_path / "nowhere") == {"commit": None, "dirty": None}
