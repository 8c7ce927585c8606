"""Load of a mixture's experts across the switch: does recovery unbalance what superposition built?

Drawn from the `moe` rows of `metrics.jsonl`: 1 is an even share of the assignments.
"""

import json
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis.tables.columns import rows_of
from analysis.verdict.comparison import alike
from analysis.wording import group_details, number
from paper_figures.drawing import heat_map, key_above, lines, step_axis, switch_line
from paper_figures.item import Finding, Item
from paper_figures.picture import Picture
from paper_figures.registration import figure, submit
from paper_figures.sources import Sources
from paper_figures.style import PAGE, new_rows, setting_marks
from tst_study.config.superposition_setting import SuperpositionSetting

SHOWS = "not shown"
PANELS = {
    "busiest and idlest expert": ("load (1 = even share)", ("busiest", "idlest")),
    "router entropy": ("router entropy (nats)", ("router_entropy",)),
    "dropped": ("share of assignments", ("dropped",)),
}
DATA = ["label", "bag_size", "switch", "step", "busiest", "idlest", "deviation"]
DATA += ["router_entropy", "dropped", "balance_loss"]
"""Loads are means over the layers of each layer's busiest, idlest and standard deviation."""
Maps = dict[str, list[list[float]]]
"""Load by layer and expert, by when."""
Rows = list[tuple[int, dict[str, Any]]]
"""Step, and routing in it."""


@figure(
    "expert_load",
    title="Load of experts across the switch",
    lacks=f"a mixture of experts that logs its router: {submit('mixture-10b-a1b', 'one-gpu')}",
    shows=SHOWS,
)
def expert_load(sources: Sources) -> list[Item]:
    """The longest superposed run of a mixture of experts, and its baseline beside it."""
    chosen = _chosen(sources.runs)
    curves = sources.summary.tables.curves.dropna(subset="moe")
    logged = [
        (run, [(row["step"], json.loads(row["moe"])) for row in rows_of(own)])
        for run in chosen
        for own in [curves[curves["folder"] == run["folder"]]]
    ]
    data = pd.DataFrame([row for run, rows in logged for row in _of_run(run, rows)], columns=DATA)
    if data.empty:
        return []
    last, rows = logged[-1]
    maps = _maps(last["superposed_steps"], rows)
    members = sources.runs[sources.runs["group"] == last["group"]]
    names = " and ".join(SuperpositionSetting.of_row(run).label for run in chosen)
    below = " Below: load of every expert in every layer, superposed run." if maps else ""
    return [
        Picture(
            caption=f"{group_details(members)}; {names}, {number(len(chosen), 'run')} of seed "
            f"{last['seed']}. Load: assignments over an even share; means over layers, as logged."
            f"{below}",
            data=data,
            folders=tuple(sorted(run["folder"] for run in chosen)),
            draw=partial(_figure, data, maps),
            fits={"load by layer and expert": maps},
            finding=_finding(data),
        )
    ]


def _chosen(runs: pd.DataFrame) -> list[dict[str, Any]]:
    """[baseline,] superposed run: of the lowest seed of the longest group."""
    mixtures = runs[runs["experts"].notna() & runs["state"].isin(["done", "running"])]
    superposed = mixtures[mixtures["method"] == "superposition"]
    if superposed.empty:
        return []
    order = superposed.sort_values(["flops", "seed", "run_id"], ascending=[False, True, True])
    run = next(rows_of(order))
    baselines = mixtures[mixtures["method"] == "baseline"]
    same = alike(baselines, run, ("group", "seed", "learning_rate"))
    return [*list(rows_of(same))[:1], run]


def _of_run(run: dict[str, Any], rows: Rows) -> list[dict[str, Any]]:
    named = {"label": SuperpositionSetting.of_row(run).label, "bag_size": run["bag_size"]}
    columns = {"busiest": "max", "idlest": "min", "deviation": "deviation"}
    return [
        {
            **named,
            "switch": run["superposed_steps"],
            "step": step,
            **{name: float(np.mean(moe["load"][key])) for name, key in columns.items()},
            **{key: moe.get(key) for key in DATA[-3:]},
        }
        for step, moe in rows
        if "load" in moe
    ]


def _maps(switch: int, rows: Rows) -> Maps:
    """At the last row before the switch, at the next, and at the end."""
    loads = [(step, moe["expert_load"]) for step, moe in rows if "expert_load" in moe]
    before = [row for row in loads if row[0] <= switch]
    after = [row for row in loads if row[0] > switch]
    found = [*before[-1:], *after[:1], *after[1:][-1:]]
    return {f"step {step:,}": load for step, load in found}


def _figure(data: pd.DataFrame, maps: Maps) -> Figure:
    counts = [3, len(maps)] if maps else [3]
    drawn, rows = new_rows(PAGE, 2.2 * len(counts), counts)
    looks = setting_marks(data, "label")
    for axes, (title, (words, columns)) in zip(rows[0], PANELS.items(), strict=True):
        for column in columns:
            lines(axes, data, looks, y=column)
        switch_line(axes, float(data["switch"].max()))
        step_axis(axes)
        axes.set_ylabel(words)
        axes.set_title(title)
    rows[0][2].set_ylim(0, 1.2 * max(float(data["dropped"].max()), 0.01))
    key_above(rows[0][0], "busiest and idlest expert", looks, 2)
    rows[0][0].set_title("")
    top = max((float(np.max(load)) for load in maps.values()), default=1.0)
    for axes, (when, load) in zip(rows[-1], maps.items(), strict=False):
        image = heat_map(axes, pd.DataFrame(load), 0, top)
        axes.set_title(f"load, {when}")
        axes.set_xlabel("expert")
        axes.set_ylabel("layer")
    if maps:
        drawn.colorbar(image, ax=rows[1], shrink=0.9, label="load (1 = even share)")
    return drawn


def _finding(data: pd.DataFrame) -> Finding:
    own = data[data["switch"] > 0]
    before = own[own["step"] <= own["switch"]]["busiest"]
    after = own[own["step"] > own["switch"]]["busiest"]
    if before.empty or after.empty:
        return Finding(SHOWS)
    text = (
        f"busiest expert {before.iloc[-1]:.2f} times an even share before the switch, "
        f"{after.iloc[0]:.2f} after it, {after.iloc[-1]:.2f} at the end"
    )
    return Finding(SHOWS, text, "1 run", "not in the paper")
