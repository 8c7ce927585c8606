"""Figure 3: superposition against baselines of equal FLOPs, equal loss and equal data."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from paper_figures.item import Finding, Item, Missing, command
from paper_figures.paper import curves
from paper_figures.picture import Picture
from paper_figures.published_numbers import CURVES
from paper_figures.sources import Sources
from paper_figures.style import PAGE, new_grid

PANELS = {
    "a_equal_flops": ("equal FLOPs", "dense_3b_baseline_20k", "20k"),
    "b_equal_loss": ("equal loss", "dense_3b_baseline_36k", "36k"),
    "c_equal_data": ("equal data", "dense_3b_baseline_50k", "50k"),
}
NEEDS = command("equal-cost", "paper")


def items(sources: Sources, name: str) -> list[Item | Missing]:
    data = pd.concat([_published(panel) for panel in PANELS], ignore_index=True)
    return [
        Picture(
            "matched_comparisons",
            name,
            "Figure 3. Equal FLOPs, equal loss and equal data, 3B",
            _caption(),
            data,
            (),
            lambda: _figure(data),
            published=(CURVES,),
            finding=_finding(data),
        )
    ]


def _published(panel: str) -> pd.DataFrame:
    _, baseline, length = PANELS[panel]
    runs = (
        curves.Run(baseline, f"baseline, {length} steps"),
        curves.Run("dense_3b_tst_s6_20k", "TST, 20k steps", 6_000),
    )
    return curves.published(3, panel, runs)


def _figure(data: pd.DataFrame) -> Figure:
    sources = list(dict.fromkeys(data["source"]))
    figure, rows = new_grid(PAGE, 2.4 * len(sources), len(sources), 3)
    for row, source in zip(rows, sources, strict=True):
        mine = data[(data["source"] == source) & (data["quantity"] == "next_token")]
        ends = [mine[mine["panel"] == panel] for panel in PANELS]
        each = [curves.limits(part, (0.0, curves.end_of(part)), 0.12) for part in ends]
        shared = (min(low for low, _ in each), max(high for _, high in each))
        for axes, (panel, (words, _, _)) in zip(row, PANELS.items(), strict=True):
            mine = data[(data["source"] == source) & (data["panel"] == panel)]
            window = (0.0, curves.end_of(mine))
            look = curves.marks(list(dict.fromkeys(mine["label"])))
            curves.draw(axes, mine, look, window=window, loss=shared, legend="upper right")
            curves.level_line(axes, _end(mine))
            axes.set_title(f"{source}: {words}")
        row[0].set_ylabel("training loss (nats per token)")
    return figure


def _end(data: pd.DataFrame) -> float:
    return curves.last(data[~data["label"].str.startswith("baseline")])


def _caption() -> str:
    return (
        "Training loss, 3B, s = 6, r = 0.3; numbers: the last of each curve; dotted: the level "
        "that "
        f"TST reached. {curves.SMOOTHED}; one run each. Before the switch the loss of bags, "
        "another "
        "quantity, lies above the frame. The baseline of 20k steps ends at 2.755 here and at 2.808 "
        f"in Table 1. Nothing measured: `{NEEDS}`."
    )


def _finding(data: pd.DataFrame) -> Finding:
    said = []
    for panel, (words, _, _) in PANELS.items():
        mine = data[(data["source"] == "published") & (data["panel"] == panel)]
        base = curves.last(mine[mine["label"].str.startswith("baseline")])
        change = f"{_end(mine) - base:+.3f}".replace("-", "−")
        said.append(f"{words}: {change} nats")
    return Finding("TST minus baseline at " + ", ".join(said), needs=NEEDS)
