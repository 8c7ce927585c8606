"""A file is written whole or not at all, and nothing but an ordinary file is replaced by one."""

import errno
import os
from pathlib import Path

import pytest

from tst_study.atomic_files import disk_errors_named, write_json
from tst_study.errors import UserError


def test_through_a_link_the_file_behind_it_is_written(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there" / "file.json")
    for value in (1, 2):
        write_json(tmp_path / "link", value)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "there" / "file.json").read_text() == f"{value}\n"


def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(tmp_path, monkeypatch):
    (tmp_path / "theirs").write_text("before")
    monkeypatch.setattr("secrets.token_hex", lambda size: "guessed")
    (tmp_path / ".file.guessed.tmp").symlink_to(tmp_path / "theirs")
    with pytest.raises(UserError, match="file: cannot be written"):
        write_json(tmp_path / "file", 1)
    assert (tmp_path / "theirs").read_text() == "before"


@pytest.mark.parametrize(
    ("number", "remedy"), [(errno.ENOSPC, "free some space"), (errno.EROFS, "choose another place")]
)
def test_what_the_disk_refuses_is_one_line_with_a_remedy(number, remedy):
    with pytest.raises(UserError, match=rf"^file: cannot be written \(.+\); {remedy}"):  # noqa: SIM117
        with disk_errors_named(Path("file")):
            raise OSError(number, os.strerror(number))
