"""What `--only` takes, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from paper_figures.build import build
from paper_figures.catalogue import CATALOGUE, find
from tests.analysis.made_runs import config, write_run
from tst_study.errors import UserError


def test_all_tables_and_figures_of_the_paper_are_there() -> None:
    names = [entry.name for entry in CATALOGUE if entry.group == "paper"]
    assert [name for name in names if name.startswith("table")] == [
        f"table{number}" for number in range(1, 29)
    ]
    figures = [int(name.removeprefix("figure")) for name in names if name.startswith("figure")]
    assert figures == list(range(1, 12))


def test_a_group_names_all_its_entries() -> None:
    assert len(find(["tables"]).entries) == 28
    assert {entry.group for entry in find(["extensions"]).entries} == {"extensions"}
    assert find(["figure4"]).entries[0].name == "figure4"


def test_an_unknown_name_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"'figure40' is not known; did you mean 'figure4"):
        find(["figure40"])
    with pytest.raises(UserError, match="there are: table1, table2"):
        find(["zzz"])


def test_one_picture_of_a_study_is_drawn_alone(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for seed in (0, 1):
        write_run(runs, config(seed), 3.5)
        write_run(runs, config(seed, 4, 0.2), 3.45)
    built = build(runs, tmp_path / "to", only=["loss_curves_end-books-bpe1024-1000"])
    assert {path.stem for path in built.written} == {"loss_curves_end-books-bpe1024-1000"}
    with pytest.raises(UserError, match=r"gains-x: no such picture; there are gains-books"):
        build(runs, tmp_path / "to", only=["gains-x"])
