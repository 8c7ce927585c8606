"""Only what came out of a collective is told as one: other errors keep their own words."""

from __future__ import annotations

import pytest

from tst_study.errors import OtherRankError, UserError
from tst_study.parallel.collective_errors import collectives_named


def test_a_file_whose_name_says_gloo_is_no_collective() -> None:
    missing = FileNotFoundError(2, "No such file or directory", "prepared/gloo")
    with pytest.raises(UserError) as raised, collectives_named(0):
        raise UserError("prepared/gloo: cannot be read; name a TOML file") from missing
    assert not isinstance(raised.value, OtherRankError)
    assert str(raised.value) == "prepared/gloo: cannot be read; name a TOML file"


def test_what_a_library_of_collectives_says_is_told_of_the_other_rank() -> None:
    def wait() -> None:
        raise RuntimeError("[pair.cc:534] gloo: Connection closed by peer [127.0.0.1]:1234")

    with pytest.raises(OtherRankError, match="rank 1: wait did not come"), collectives_named(1):
        wait()
