"""FLOPs that shared trunks save: all r at one s go through the same superposition phase, and all
lengths of one baseline through the same stable phase, until their learning rates decay.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure

from analysis import published
from analysis.tables.columns import rows_of
from analysis.wording import number
from paper_figures.drawing import key, rows_below
from paper_figures.item import Finding
from paper_figures.picture import Picture, say
from paper_figures.registration import figure, submit
from paper_figures.sources import Sources
from paper_figures.style import COLUMN, FAINT, INK, MUTED, new_figure
from tst_study.config import Schedule
from tst_study.configuration.superposition_setting import COLUMNS as SETTING
from tst_study.configuration.superposition_setting import DEPARTURES
from tst_study.units import big

DECAY = 0.1
"""Of the paper's steps, at the end, the learning rate decays: no trunk reaches into them."""
DATA = ["source", "grid", "runs", "flops", "flops_shared"]
Row = tuple[str, str, int, float, float]


@dataclass(frozen=True)
class Path:
    """A run as a path from the root: superposed steps, steps at the stable rate, all steps."""

    superposed: int
    stable: int
    steps: int


def shared_steps(paths: Iterable[Path]) -> int:
    """Steps to train when runs that differ in r or length alone are forked from one another.

    All have one bag size, one seed, one peak rate. The superposition trunk goes as far as the
    longest superposition; after each switch there is a stable trunk, as far as its longest run;
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


@figure(
    "shared_trunks",
    title="FLOPs saved by shared trunks",
    published=["final_loss_grid"],
    needs=submit("bag-grid", "one-gpu"),
)
def shared_trunks(sources: Sources) -> Picture:
    data = pd.DataFrame([*_published(), *_measured(sources.runs)], columns=DATA)
    data["saved"] = 1 - data["flops_shared"].astype(float) / data["flops"].astype(float)
    own = data["source"] == "measured"
    return Picture(
        caption="Training FLOPs of whole grids: every run from its first step (outline), and with "
        "trunks shared (filled): all r at one s fork from one superposition phase, all lengths "
        "from one stable phase; decays are never shared, nor seeds. The paper's grids by their "
        "cells, the learning rate decaying over the last tenth.",
        measured="Measured: the runs here, by their plans, whether or not they were forked.",
        data=data,
        folders=tuple(sorted(sources.runs["folder"])) if own.any() else (),
        draw=lambda: _figure(data),
        finding=Finding(
            "could be saved, by the plan: " + _said(data[~own]),
            _said(data[own]),
            verdict="not in the paper",
        ),
    )


def _said(data: pd.DataFrame) -> str:
    return "; ".join(
        f"{row['grid']}: {row['saved']:.0%} of {number(row['runs'], 'run')}"
        for row in rows_of(data)
    )


def _published() -> list[Row]:
    rows: list[Row] = []
    for table in (4, 5, 6, 7):
        grid = published.loss_grid(table, unrecovered=True)
        size, steps = str(grid["size"].iloc[0]), int(grid["steps"].iloc[0])
        stable = round((1 - DECAY) * steps)
        shared = sum(
            shared_steps(Path(round(ratio * steps), stable, steps) for ratio in cells["step_ratio"])
            for _, cells in grid.groupby("bag_size")
        )
        name, flops = f"Table {table}: {size}, {steps // 1000}k steps", published.step_flops(size)
        rows.append(("published", name, len(grid), flops * steps * len(grid), flops * shared))
    return rows


def _measured(runs: pd.DataFrame) -> list[Row]:
    """One row per family of runs (one model, text and batch, whatever the length)."""
    rows = []
    counted = runs[runs["state"].isin(["done", "diverged"]) & (runs["role"] != "trunk")]
    schedules = [Schedule(**json.loads(text)["schedule"]) for text in counted["config"]]
    counted = counted.assign(
        warmup=[schedule.warmup_steps for schedule in schedules],
        stable=[schedule.steps - schedule.decay_steps for schedule in schedules],
    )
    later = {"step_ratio", "superposed_steps"} | {one.column for one in DEPARTURES if one.at_switch}
    keys = ["seed", "learning_rate", "warmup", *(key for key in SETTING if key not in later)]
    for _, family in counted.groupby("family", sort=True):
        first = family.iloc[0]
        per_step = float(first["flops"]) / float(first["steps"])
        shared = 0
        for _, same in family.groupby(keys, dropna=False):
            columns = zip(same["superposed_steps"], same["stable"], same["steps"], strict=True)
            shared += shared_steps(Path(*path) for path in columns)
        steps = int(family["steps"].sum())
        name = f"{big(first['parameters'])}, {first['corpus']}, {number(len(family), 'run')}"
        rows.append(("measured", name, len(family), per_step * steps, per_step * shared))
    return rows


def _figure(data: pd.DataFrame) -> Figure:
    drawn, ((axes,),) = new_figure(COLUMN, 0.8 + 0.26 * len(data))
    for place, row in enumerate(rows_of(data)):
        axes.barh(place, 1, height=0.62, color="none", edgecolor=MUTED, linewidth=0.7)
        (bar,) = axes.barh(place, 1 - row["saved"], height=0.62, color=FAINT, edgecolor=INK, lw=0.7)
        say(bar, f"{row['grid']}: {row['flops_shared']:.3g} of {row['flops']:.3g} FLOPs")
        text = f"{row['saved']:.0%} saved" if row["saved"] >= 0.005 else "none saved"
        axes.annotate(text, (1.03, place), va="center", fontsize=7, annotation_clip=False)
    rows_below(axes, list(data["grid"]))
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.5, 1], ["0", "half", "all"])
    axes.set_xlabel("training FLOPs of the grid")
    box = {"marker": "s", "markersize": 6, "markeredgewidth": 0.7}
    entries = {
        "spent with shared trunks": {**box, "markerfacecolor": FAINT, "markeredgecolor": INK},
        "saved": {**box, "markerfacecolor": "none"},
    }
    key(drawn, entries, loc="outside upper left", ncols=2)
    return drawn
