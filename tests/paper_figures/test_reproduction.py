"""The page that says, item by item, whether what was measured agrees."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from analysis.tables.source import load
from paper_figures.build import build
from tests.analysis.made_runs import config, write_run

COMMITTED = Path(__file__).parents[2] / "docs/reproduction.md"


@pytest.mark.parametrize(
    ("gain", "spread", "verdict"),
    [(0.05, 0.002, "agrees"), (-0.05, 0.002, "disagrees"), (0.01, 0.05, "undecided")],
)
def test_the_verdict_follows_the_interval(
    tmp_path: Path, gain: float, spread: float, verdict: str
) -> None:
    for seed, noise in enumerate((-1.0, 0.0, 1.0)):
        write_run(tmp_path / "runs", config(seed), 3.5)
        write_run(tmp_path / "runs", config(seed, 4, 0.2), 3.5 - gain + spread * noise)
    build(tmp_path / "runs", tmp_path / "to", only=["reproduction"])
    text = (tmp_path / "to/reproduction.md").read_text("utf8")
    (line,) = (line for line in text.splitlines() if line.startswith("| Table 1. "))
    assert line.endswith(f"**{verdict}** |")
    assert "3 seeds" in line


def test_the_committed_page_has_the_whole_campaign() -> None:
    """Made by `tst-study figures --runs docs/records/campaign --to docs --only reproduction`."""
    text = COMMITTED.read_text("utf8")
    record = COMMITTED.parent / "records/campaign"
    trunks = load(record)["role"] == "trunk"
    assert f"\n{(~trunks).sum()} runs and {trunks.sum()} trunks that they share" in text
    (line,) = (line for line in text.splitlines() if line.startswith("| Table 1. "))
    assert len(line) < 400  # its comparisons stand below the table
    assert re.search(r"^- 232k parameters, books-bpe1024, 5,000 steps", text, re.MULTILINE)
    measured = text[text.index("## Measured") : text.index("## Not measured")]
    every = re.findall(r"^\| (?:Table|Figure) (\d+)\. ", text, re.MULTILINE)
    assert sorted(map(int, every)) == sorted([*range(1, 29), *range(1, 12)])
    own = re.findall(r"^\| (Table|Figure) (\d+)\. ", measured, re.MULTILINE)
    assert own == [
        *(("Table", number) for number in ("1", "2", "4", "7")),
        *(("Figure", number) for number in ("3", "4", "6", "7", "9", "10", "11")),
    ]
