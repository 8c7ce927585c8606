"""The paper's tables: every published cell, its best marked, and measured runs beside them."""

from pathlib import Path

import pandas as pd
import pytest

from tests.analysis.made_runs import config, write_run
from tst_study.config.presets import expand_preset
from tst_study.config.schema import Model
from tst_study.paper_figures.build import build
from tst_study.paper_figures.catalogue import catalogue
from tst_study.paper_figures.item import csv_bytes
from tst_study.paper_figures.sources import Sources
from tst_study.paper_figures.table import (
    Entry,
    Grid,
    Table,
    latex_grid,
    markdown_grid,
    number_entry,
)
from tst_study.record.writer import append_task_results

NO_RUNS = Sources(None)


def table(name: str, runs: Path | None = None) -> Table:
    return catalogue()[name].item(Sources(runs) if runs else NO_RUNS)


def cells(grid: Grid) -> dict[tuple[str, str], Entry]:
    """Return the entries by (first cell of the row, heading)."""
    return {
        (row[0].text, heading): entry
        for row in grid.rows
        for heading, entry in zip(grid.headings, row, strict=True)
    }


@pytest.mark.parametrize(
    ("number", "bag_size", "ratio", "text", "count"),
    [
        (4, "7", "0.2", "3.1393", 150),
        (5, "8", "0.5", "3.0534", 120),
        (6, "6", "0.3", "2.9439", 119),
        (7, "8", "0.3", "2.9445", 109),
        (8, "6", "0.4", "26.37", 134),
        (18, "2", "0.1", "41.07", 108),
        (28, "6", "0.4", "55.01", 108),
    ],
)
def test_published_cells_stand_where_the_paper_prints_them(number, bag_size, ratio, text, count):
    """Cells read off the paper's pages; `count` are in the whole table."""
    shown = cells(table(f"table{number}").grids[0])
    assert shown[bag_size, f"r = {ratio}"].text == text
    texts = [entry.text for (_, heading), entry in shown.items() if heading != "s"]
    assert len([text for text in texts if text]) == count


def test_the_lowest_of_each_step_ratio_is_marked_and_bag_losses_never():
    shown = cells(table("table4").grids[0])
    best = {heading: row for (row, heading), entry in shown.items() if entry.best}
    assert best["r = 0.2"] == best["r = 0.3"] == "7"
    assert best["r = 0.9"] == "3"
    assert "r = 1" not in best


def test_nothing_is_measured_without_runs():
    for number in range(1, 29):
        item = table(f"table{number}")
        assert item.folders == ()
        measured = [name for name in item.data.columns if "measured" in name or "differ" in name]
        assert item.data[measured].isna().all().all()
        assert "tst-study submit" in item.caption


def test_measured_gains_stand_beside_published_ones(tmp_path):
    """Neither losses nor gains of another model are set against the paper's; a cell without a run
    stays empty."""
    for seed in (0, 1, 2):
        write_run(tmp_path, config(seed), 3.5 + 0.01 * seed)
        for size, gain in ((2, 0.02), (6, 0.05)):
            write_run(tmp_path, config(seed, size, 0.3), 3.5 + 0.011 * seed - gain)
    data = table("table4", tmp_path).data.set_index(["step_ratio", "bag_size"])
    row = data.loc[(0.3, 6)]
    assert (row["measured_gain"], row["seeds"]) == (pytest.approx(0.049), 3)
    assert row["published_gain"] == pytest.approx(3.2124 - 3.1423)
    assert row["low"] < 0.049 < row["high"]
    assert data.loc[(0.3, 5), ["measured_loss", "measured_gain", "seeds"]].isna().all()


def at_scale(seed: int, size: int, ratio: float, **more: object) -> object:
    shape = Model.model_validate(expand_preset({"preset": "270m"}))
    return config(seed, size, ratio, steps=20_000, model=shape.model_dump(), **more)


def test_runs_at_the_papers_own_scale_go_before_others(tmp_path):
    for size, loss in ((1, 3.5), (2, 3.4), (6, 3.3)):
        write_run(tmp_path, config(0, size, 0.3 * (size > 1)), loss)
    write_run(tmp_path, at_scale(0, 1, 0.0), 3.20, log_every=5000)  # type: ignore[arg-type]
    write_run(tmp_path, at_scale(0, 6, 0.3), 3.15, log_every=5000)  # type: ignore[arg-type]
    row = table("table4", tmp_path).data.set_index(["step_ratio", "bag_size"]).loc[(0.3, 6)]
    assert row["measured_loss"] == 3.15


def test_accuracies_come_from_the_run_folder(tmp_path):
    folder = write_run(tmp_path, at_scale(0, 6, 0.3), 3.15, log_every=5000)  # type: ignore[arg-type]
    fast = at_scale(0, 6, 0.3, optimizer__learning_rate=4e-3)
    faster = write_run(tmp_path, fast, 3.15, log_every=5000)  # type: ignore[arg-type]
    whole = {"shots": 0, "limit": None}
    same = {"phase": "recovery", "raw_tokens": 1, "latent_tokens": 1, "flops": 1, "annealed": True}
    same |= {"task": "hellaswag", "samples": 100, "seconds": 1.0}
    rows = [
        same
        | {"step": step, "data": str(details), "details": details}
        | {"metrics": {"acc": 0.9, "acc_norm": found}}
        for step, found, details in (
            (20_000, 0.35, whole),
            (20_000, 0.38, whole),
            (10_000, 0.20, whole),
            (20_000, 0.60, {"shots": 5, "limit": None}),
        )
    ]
    append_task_results(folder, rows)
    append_task_results(faster, [rows[0] | {"metrics": {"acc_norm": 0.9}}])
    item = table("table11", tmp_path)
    assert item.measured.startswith("Measured: 1 run, ")
    assert item.folders == (str(folder),)
    row = item.data.set_index(["step_ratio", "bag_size"]).loc[(0.3, 6)]
    assert row["measured"] == 0.38
    assert item.data["measured"].count() == 1


def test_accuracies_are_means_over_seeds_of_runs_that_may_be_compared(tmp_path):
    """Another batch, a copy of a run and another version of the task are no further seeds."""
    runs = [
        ("a", 0, {}, 0.3, "v1"),
        ("copy", 0, {}, 0.3, "v1"),
        ("b", 1, {}, 0.4, "v1"),
        ("c", 2, {}, 0.9, "v2"),
        ("d", 0, {"batch__sequences": 1024}, 0.5, "v1"),
    ]
    for place, seed, more, found, version in runs:
        folder = write_run(tmp_path / place, at_scale(seed, 6, 0.3, **more), 3.1, log_every=5000)  # type: ignore[arg-type]
        row = {"step": 20_000, "phase": "recovery", "raw_tokens": 1, "latent_tokens": 1}
        row |= {"flops": 1, "annealed": True, "task": "hellaswag", "data": version, "samples": 9}
        row |= {"metrics": {"acc_norm": found}, "details": {"shots": 0, "limit": None}}
        append_task_results(folder, [row | {"seconds": 1.0}])
    cell = table("table11", tmp_path).data.set_index(["step_ratio", "bag_size"]).loc[(0.3, 6)]
    assert (cell["measured"], cell["seeds"]) == (0.35, 2)
    measured = table("table3", tmp_path).data.dropna(subset="seeds").set_index("model")
    seeds = {name: 2 - name.endswith("sequences=1024") for name in measured.index}
    assert dict(measured["seeds"]) == seeds
    assert sorted(measured["hellaswag"]) == [35, 50]


def test_a_reinitialised_run_stands_beside_the_one_that_was_not(tmp_path):
    def add(steps: int, plain: float, fresh: float, spread: float = 0.001, **more: object) -> None:
        for seed in (0, 1, 2):
            write_run(tmp_path, config(seed, steps=steps, **more), 3.5)
            for again, loss in ((False, plain), (True, fresh)):
                values = {"bag_size": 6, "step_ratio": 0.3, "reinitialize_at_switch": again}
                run = config(seed, 6, 0.3, steps, superposition=values, **more)
                write_run(tmp_path, run, loss + spread * (seed - 1))

    add(1000, 3.45, 3.6)
    found = table("table2", tmp_path)
    assert found.finding.verdict == "agrees"
    measured = found.data[found.data["runs"].str.startswith("measured")]
    assert list(measured["loss"].round(4)) == [3.5, 3.45, 3.6]
    add(3000, 3.5, 3.5, 0.01)  # a second comparison, which shows no difference
    assert table("table2", tmp_path).finding.verdict == "agrees"
    add(2000, 3.45, 3.4)  # a third one, in which re-initialising helps
    both = table("table2", tmp_path).finding
    assert both.verdict == "undecided"
    assert both.measured.count(" over TST") == 3
    add(2000, 3.35, 3.3, batch__sequences=32)  # of another batch, whose lowest is bold, too
    (grid,) = table("table2", tmp_path).grids
    assert {"3.300", "3.400"} <= {row[2].text for row in grid.rows if row[2].best}
    models = table("table1", tmp_path).data.dropna(subset="loss_measured")["model"]
    assert sorted({name.split(", ")[-1] for name in models}) == ["sequences=16", "sequences=32"]


def test_a_table_is_markdown_latex_and_csv_of_the_same_numbers(tmp_path):
    built = build(None, tmp_path, only=["table4"])
    assert {path.suffix for path in built.written} == {".md", ".tex", ".csv", ".json"}
    text = (tmp_path / "table4.tex").read_text("utf8")
    assert r"\textbf{3.1392}" in text
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1
    assert "**3.1392**" in (tmp_path / "table4.md").read_text("utf8")
    data = pd.read_csv(tmp_path / "table4.csv")
    assert data["published_loss"].min() == 3.1392


def test_cells_are_escaped_and_empty_ones_stay_empty():
    row = (Entry("a & b_1"), number_entry(None, 3), number_entry(-0.5, 2, sign=True))
    grid = Grid("", ("x", "y", "z"), (row,))
    assert r"a \& b\_1 &  & $-$0.50 \\" in latex_grid(grid)
    assert markdown_grid(grid).splitlines()[2] == "| a & b_1 |  | −0.50 |"
    hostile = Grid("", ("x",), ((Entry("<script>|\nx"),),))
    assert markdown_grid(hostile).splitlines()[2:] == ["| &lt;script>/ x |"]
    assert csv_bytes(pd.DataFrame({"x": ["=cmd()", "−1"], "y": [-1.5, 2]})) == (
        "x,y\n'=cmd(),-1.5\n−1,2\n".encode()
    )
    assert number_entry(-0.00001, 3, sign=True).text == "0.000"
