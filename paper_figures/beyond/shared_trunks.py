"""FLOPs that shared trunks save: all r at one s go through the same superposition phase, and all
lengths of one baseline through the same stable phase, until their learning rates decay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.comparison import SETTING
from analysis.run_row import rows_of
from analysis.wording import big, number
from paper_figures.item import Finding, Item, Missing
from paper_figures.paper.headline_runs import step_flops
from paper_figures.picture import Picture
from paper_figures.published_numbers import LOSSES, loss_grid
from paper_figures.sources import Sources
from paper_figures.style import COLUMN, FAINT, INK, MUTED, new_figure
from tst_study.run_record import read_header

TITLE = "FLOPs saved by shared trunks"
DECAY = 0.1
"""Of the paper's steps, at the end, the learning rate decays: no trunk reaches into them."""
DATA = ("source", "grid", "runs", "flops", "flops_shared", "saved")


@dataclass(frozen=True)
class Path:
    """A run as a path from the root: superposed steps, steps at the stable rate, all steps."""

    superposed: int
    stable: int
    steps: int


def shared_steps(paths: Iterable[Path]) -> int:
    """Steps to train when runs that differ in r or length alone are forked from one another.

    All have one bag size, one seed, one peak rate. The superposition trunk goes as far as the
    longest superposition; behind each switch there is a stable trunk, as far as its longest run;
    decays are trained one by one.
    """
    by_switch: dict[int, list[Path]] = {}
    for path in set(paths):
        by_switch.setdefault(path.superposed, []).append(path)
    trunk = max(
        (min(p.superposed, p.stable) for ways in by_switch.values() for p in ways), default=0
    )
    rest = 0
    for switch, ways in by_switch.items():
        start = min(switch, trunk)
        stable = max(max(path.stable, start) for path in ways) - start
        rest += stable + sum(path.steps - max(path.stable, start) for path in ways)
    return trunk + rest


def items(sources: Sources, name: str) -> list[Item | Missing]:
    data = pd.DataFrame([*_published(), *_measured(sources.runs)], columns=list(DATA))
    own = data[data["source"] == "measured"]
    folders = tuple(sorted(sources.runs["folder"])) if len(own) else ()
    return [
        Picture(
            "shared_trunks",
            name,
            TITLE,
            "Training FLOPs of whole grids: every run from its first step (outline), and with "
            "trunks "
            "shared (filled): all r at one s fork from one superposition phase, all lengths "
            "from one "
            "stable phase; decays are never shared, nor seeds. The paper's grids by their "
            "cells, the "
            "learning rate decaying over the last tenth"
            + (
                "; measured: the runs here, by their plans, whether or not they were forked."
                if len(own)
                else "."
            ),
            data,
            folders,
            lambda: _figure(data),
            published=(LOSSES,),
            finding=_finding(data),
        )
    ]


def _published() -> list[dict[str, Any]]:
    rows = []
    for table in (4, 5, 6, 7):
        grid = loss_grid(table)
        first = grid.iloc[0]
        steps, flops = int(first["total_steps"]), step_flops(str(first["params"]))
        stable = round((1 - DECAY) * steps)
        shared = 0
        for _, cells in grid.groupby("bag_size"):
            ratios = cells["step_ratio"]
            shared += shared_steps(Path(round(ratio * steps), stable, steps) for ratio in ratios)
        name = f"Table {table}: {first['params']}, {steps // 1000}k steps"
        rows.append(_row("published", name, len(grid), flops * steps * len(grid), flops * shared))
    return rows


def _measured(runs: pd.DataFrame) -> list[dict[str, Any]]:
    """One row per family of runs (one model, text and batch, whatever the length)."""
    rows = []
    counted = runs[runs["state"].isin(["done", "diverged"])]
    counted = counted.assign(**_schedules(counted))
    keys = ["seed", "learning_rate", "warmup", *(key for key in SETTING if "step" not in key)]
    for _, family in counted.groupby("family", sort=True):
        first = family.iloc[0]
        per_step = float(first["flops"]) / float(first["steps"])
        shared = 0
        for _, same in family.groupby(keys, dropna=False):
            columns = zip(same["superposed_steps"], same["stable"], same["steps"], strict=True)
            shared += shared_steps(Path(*path) for path in columns)
        steps = int(family["steps"].sum())
        name = f"{big(first['parameters'])}, {first['corpus']}"
        rows.append(_row("measured", name, len(family), per_step * steps, per_step * shared))
    return rows


def _schedules(runs: pd.DataFrame) -> dict[str, list[int]]:
    """Warm-up steps, and steps before the decay: a cosine decays all along and shares nothing."""
    found: dict[str, list[int]] = {"warmup": [], "stable": []}
    for folder, steps in zip(runs["folder"], runs["steps"], strict=True):
        schedule = read_header(folder)["config"]["schedule"]
        shares = {"wsd": 1 - schedule["decay_ratio"], "constant": 1.0}
        found["warmup"].append(schedule["warmup_steps"])
        found["stable"].append(round(shares.get(schedule["kind"], 0.0) * steps))
    return found


def _row(source: str, grid: str, runs: int, flops: float, shared: float) -> dict[str, Any]:
    return dict(zip(DATA, (source, grid, runs, flops, shared, 1 - shared / flops), strict=True))


def _figure(data: pd.DataFrame) -> Figure:
    figure, (axes,) = new_figure(COLUMN, 0.6 + 0.26 * len(data))
    _draw(axes, data)
    return figure


def _draw(axes: Axes, data: pd.DataFrame) -> None:
    for place, row in enumerate(rows_of(data)):
        share = row["flops_shared"] / row["flops"]
        axes.barh(place, 1, height=0.62, color="none", edgecolor=MUTED, linewidth=0.7)
        axes.barh(place, share, height=0.62, color=FAINT, edgecolor=INK, linewidth=0.7)
        axes.annotate(
            f"{row['saved']:.0%} saved",
            (0.02, place),
            va="center",
            fontsize=7,
        )
    axes.set_yticks(range(len(data)), list(data["grid"]))
    axes.set_ylim(len(data) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.5, 1], ["0", "half", "all"])
    axes.set_xlabel("FLOPs with shared trunks, of all")


def _finding(data: pd.DataFrame) -> Finding:
    def said(source: str) -> Sequence[str]:
        rows = rows_of(data[data["source"] == source])
        return [
            f"{row['grid']}: {row['saved']:.0%} of {number(row['runs'], 'run')}" for row in rows
        ]

    return Finding(
        "could be saved, by the plan: " + "; ".join(said("published")),
        "; ".join(said("measured")),
        "",
        "not in the paper",
    )
