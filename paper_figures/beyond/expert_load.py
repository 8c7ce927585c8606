"""Load of a mixture's experts across the switch: does recovery unbalance what superposition built?

Drawn from the `moe` rows of `metrics.jsonl`: 1 is an even share of the assignments.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.run_row import rows_of
from analysis.summary import Summary
from analysis.wording import group_details, number, setting_label
from paper_figures.item import Finding, Item, Missing, command
from paper_figures.picture import Picture
from paper_figures.sources import Sources
from paper_figures.style import PAGE, bag_size_mark, new_grid, switch_line, thousands
from tst_study.run_record import Metrics, read

TITLE = "Load of experts across the switch"
PUBLISHED = "not shown"
NEEDS = command("mixture-10b-a1b", "one-gpu")
DATA = (
    "label",
    "bag_size",
    "switch",
    "step",
    "busiest",
    "idlest",
    "deviation",
    "router_entropy",
    "dropped",
    "balance_loss",
)
"""Loads are means over the layers of each layer's busiest, idlest and standard deviation."""


def items(sources: Sources, name: str) -> list[Item | Missing]:
    """The longest superposed run of a mixture of experts, and its baseline beside it."""
    chosen = _chosen(sources.summary)
    data = [_of_run(run) for run in chosen]
    table = pd.concat(data, ignore_index=True) if data else pd.DataFrame(columns=list(DATA))
    if table.empty:
        sentence = f"Needs a mixture of experts that logs its router: `{NEEDS}`."
        return [Missing("expert_load", TITLE, sentence, Finding(PUBLISHED, needs=NEEDS))]
    maps = _maps(chosen[-1])
    layers = {f"{when}": [list(row) for row in load] for when, load in maps}
    return [
        Picture(
            "expert_load",
            name,
            TITLE,
            _caption(sources.summary, chosen, maps),
            table,
            tuple(sorted(str(run["folder"]) for run in chosen)),
            lambda: _figure(table, maps),
            fits={"load by layer and expert": layers},
            finding=_finding(table),
        )
    ]


def _chosen(summary: Summary) -> list[dict[str, Any]]:
    """[baseline,] superposed run: of the lowest seed of the longest group; losses play no part."""
    runs = summary.tables.runs
    mixtures = runs[runs["experts"].notna() & runs["state"].isin(["done", "running"])]
    superposed = mixtures[mixtures["method"] == "superposition"]
    if superposed.empty:
        return []
    order = superposed.sort_values(["flops", "seed", "run_id"], ascending=[False, True, True])
    run = next(rows_of(order))
    same = mixtures[
        (mixtures["method"] == "baseline")
        & (mixtures["group"] == run["group"])
        & (mixtures["seed"] == run["seed"])
        & (mixtures["learning_rate"] == run["learning_rate"])
    ]
    return [*list(rows_of(same))[:1], run]


def _of_run(run: dict[str, Any]) -> pd.DataFrame:
    rows = [
        {
            "label": setting_label(run),
            "bag_size": run["bag_size"],
            "switch": run["superposed_steps"],
            "step": row["step"],
            "busiest": float(np.mean(row["moe"]["load"]["max"])),
            "idlest": float(np.mean(row["moe"]["load"]["min"])),
            "deviation": float(np.mean(row["moe"]["load"]["deviation"])),
            **{key: row["moe"].get(key) for key in ("router_entropy", "dropped", "balance_loss")},
        }
        for row in _metrics(run)
        if "load" in row.get("moe", {})
    ]
    return pd.DataFrame(rows, columns=list(DATA))


def _metrics(run: dict[str, Any]) -> list[Metrics]:
    return read(Path(run["folder"])).metrics


def _maps(run: dict[str, Any]) -> list[tuple[str, list[list[float]]]]:
    """(when, load by layer and expert): at the last row before the switch, the next, and the "
    "end."""
    rows = [row for row in _metrics(run) if "expert_load" in row.get("moe", {})]
    switch = run["superposed_steps"]
    before = [row for row in rows if row["step"] <= switch]
    after = [row for row in rows if row["step"] > switch]
    found = [*before[-1:], *after[:1], *after[1:][-1:]]
    return [(f"step {row['step']:,}", row["moe"]["expert_load"]) for row in found]


def _figure(data: pd.DataFrame, maps: Sequence[tuple[str, list[list[float]]]]) -> Figure:
    figure, rows = new_grid(PAGE, 4.3 if maps else 2.3, 2 if maps else 1, 3)
    load, entropy, dropped = rows[0]
    for _label, part in data.groupby("label", sort=False):
        _lines(load, part, ("busiest", "idlest"))
        _lines(entropy, part, ("router_entropy",))
        _lines(dropped, part, ("dropped",))
    load.set_ylabel("load (1 = even share)")
    load.set_title("busiest and idlest expert")
    entropy.set_ylabel("router entropy (nats)")
    entropy.set_title("router entropy")
    dropped.set_ylim(0, 1.2 * max(float(data["dropped"].max()), 0.01))
    dropped.set_ylabel("share of assignments")
    dropped.set_title("dropped")
    load.legend(loc="best")
    for axes in rows[0]:
        switch_line(axes, float(data["switch"].max()))
        axes.xaxis.set_major_formatter(thousands)
        axes.locator_params(axis="x", nbins=4)
        axes.set_xlabel("step")
    if maps:
        _draw_maps(figure, rows[1], maps)
    return figure


def _lines(axes: Axes, data: pd.DataFrame, columns: Sequence[str]) -> None:
    mark = bag_size_mark(int(data["bag_size"].iloc[0]))
    for place, column in enumerate(columns):
        label = str(data["label"].iloc[0]) if place == 0 else None
        axes.plot(
            data["step"], data[column], color=mark.colour, linestyle=mark.dash, lw=0.9, label=label
        )


def _draw_maps(
    figure: Figure, row: Sequence[Axes], maps: Sequence[tuple[str, list[list[float]]]]
) -> None:
    top = max(float(np.max(load)) for _, load in maps)
    image = None
    for axes, (when, load) in zip(row, maps, strict=False):
        image = axes.imshow(
            np.asarray(load), aspect="auto", cmap="cividis", vmin=0, vmax=top, rasterized=True
        )
        axes.set_title(f"load, {when}")
        axes.set_xlabel("expert")
        axes.locator_params(integer=True, nbins=5)
    row[0].set_ylabel("layer")
    for axes in row[len(maps) :]:
        axes.set_axis_off()
    if image is not None:
        figure.colorbar(image, ax=list(row), shrink=0.9, label="load (1 = even share)")


def _caption(
    summary: Summary, chosen: list[dict[str, Any]], maps: Sequence[tuple[str, Any]]
) -> str:
    runs = summary.tables.runs
    members = runs[runs["group"] == chosen[-1]["group"]]
    names = " and ".join(setting_label(run) for run in chosen)
    below = " Below: load of every expert in every layer, superposed run." if maps else ""
    return (
        f"{group_details(members)}; {names}, {number(len(chosen), 'run')} of seed "
        f"{chosen[-1]['seed']}. Load: assignments over an even share; means over layers, as logged."
        f"{below}"
    )


def _finding(data: pd.DataFrame) -> Finding:
    own = data[data["switch"] > 0]
    before, after = own[own["step"] <= own["switch"]], own[own["step"] > own["switch"]]
    if before.empty or after.empty:
        return Finding(PUBLISHED, needs=NEEDS)
    text = (
        f"busiest expert {before['busiest'].iloc[-1]:.2f} times an even share before the switch, "
        f"{after['busiest'].iloc[0]:.2f} behind it, {after['busiest'].iloc[-1]:.2f} at the end"
    )
    return Finding(PUBLISHED, text, "1 run", "not in the paper")
