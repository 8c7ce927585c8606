"""What `--only` takes, and what it refuses."""

from __future__ import annotations

import pytest

from paper_figures.catalogue import find
from tst_study.errors import UserError


def test_a_group_names_all_its_entries() -> None:
    assert len(find(["tables"])[0]) == 28
    assert {entry.group for entry in find(["extensions"])[0]} == {"extensions"}
    assert [entry.name for entry in find(["figure4"])[0]] == ["figure4"]
    assert find(["report"]) == ([], {"report"})


def test_an_unknown_name_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"'figure40' is not known; did you mean 'figure4"):
        find(["figure40"])
    with pytest.raises(UserError, match="there are: table1, table2"):
        find(["zzz"])
