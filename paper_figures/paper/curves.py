"""Loss curves as the paper shows them: one line per run, its last value in the legend.

Shared by Figures 1, 3, 6 and 9. A superposed phase is a loss of bags, another quantity: pale.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from paper_figures.published_numbers import curves
from paper_figures.style import BASELINE, MUTED, Mark, cycle_mark, switch_line, thousands

COLUMNS = ("source", "panel", "label", "quantity", "step", "loss", "low", "high", "switch")
SMOOTHED = "Published curves are smoothed as the paper drew them, about 1,000 points each"


@dataclass(frozen=True)
class Run:
    """A published curve."""

    run: str
    label: str
    switch: int = 0
    """Superposed steps."""


def published(figure: int, panel: str | None, runs: Sequence[Run]) -> pd.DataFrame:
    """The published curves of one panel, in the columns of `COLUMNS`."""
    table = curves(figure, panel)
    parts = []
    for run in runs:
        rows = table[table["run"] == run.run].sort_values("step")
        bags = rows["step"] <= run.switch
        parts.append(
            pd.DataFrame(
                {
                    "source": "published",
                    "panel": panel or "",
                    "label": run.label,
                    "quantity": bags.map({True: "bag_loss", False: "next_token"}),
                    "step": rows["step"],
                    "loss": rows["train_loss"],
                    "switch": run.switch,
                }
            )
        )
    return pd.concat(parts, ignore_index=True).reindex(columns=list(COLUMNS))


def marks(labels: Sequence[str]) -> dict[str, Mark]:
    """Baselines are ink and solid; the others in their order of appearance."""
    others = [label for label in labels if not label.startswith("baseline")]
    return {
        label: cycle_mark(others.index(label)) if label in others else BASELINE for label in labels
    }


def draw(
    axes: Axes,
    data: pd.DataFrame,
    look: Mapping[str, Mark],
    *,
    window: tuple[float, float],
    loss: tuple[float, float] | None = None,
    legend: Literal["lower left", "upper right"] | None = "lower left",
    mark_switch: bool = True,
) -> None:
    """The curves of one panel between two steps; `loss`: its limits, or None for a whole run."""
    for label in dict.fromkeys(data["label"]):
        rows, mark = data[data["label"] == label], look[label]
        for quantity, part in rows.groupby("quantity"):
            bags = quantity == "bag_loss"
            width, alpha = (0.6, 0.45) if bags else (0.9, 1.0)
            line: dict[str, Any] = {"color": mark.colour, "linestyle": "-" if bags else mark.dash}
            axes.plot(part["step"], part["loss"], linewidth=width, alpha=alpha, **line)
            if part["low"].notna().any():
                axes.fill_between(
                    part["step"], part["low"], part["high"], color=mark.colour, alpha=0.12, lw=0
                )
        text = label if legend is None else f"{label}: {last(rows):.3f}"
        axes.plot([], [], color=mark.colour, linestyle=mark.dash, linewidth=1.1, label=text)
    axes.set_xlim(*window)
    if loss is None:
        whole_on_log_scale(axes, data)
    else:
        axes.set_ylim(*loss)
    for switch in sorted(set(data["switch"]) - {0}):
        if mark_switch and window[0] < switch < window[1]:
            switch_line(axes, switch, bottom=True)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(thousands))
    axes.set_xlabel("step")
    if legend is not None:
        axes.legend(loc=legend, handlelength=1.5, handletextpad=0.5)


def limits(
    data: pd.DataFrame, window: tuple[float, float], settled: float = 0.15
) -> tuple[float, float]:
    """Limits of the loss that hold all next-token losses once the first `settled` has passed."""
    start = window[0] + settled * (window[1] - window[0])
    late = data[(data["step"] >= start) & (data["step"] <= window[1])]
    late = late[late["quantity"] == "next_token"]
    low, high = float(late["loss"].min()), float(late["loss"].max())
    pad = 0.06 * (high - low)
    return low - pad, high + pad


def whole_on_log_scale(axes: Axes, data: pd.DataFrame) -> None:
    """Limits and ticks for a whole run, its loss of bags included, on a log scale."""
    started = data[data["step"] > 0.01 * data["step"].max()]
    low, high = float(data["loss"].min()), float(started["loss"].max())
    axes.set_yscale("log")
    axes.set_ylim(low * 0.98, high * 1.02)
    ticks = [tick for tick in (1, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 10) if low <= tick <= high]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


def end_of(data: pd.DataFrame) -> float:
    """The last step, rounded up to three digits: published curves end a few steps early."""
    step = float(data["step"].max())
    unit = 10.0 ** (math.floor(math.log10(step)) - 2)
    return math.ceil(step / unit) * unit


def last(rows: pd.DataFrame) -> float:
    """The last next-token loss of a run's curve."""
    tokens = rows[rows["quantity"] == "next_token"]
    return float(tokens.sort_values("step")["loss"].iloc[-1])


def level_line(axes: Axes, loss: float) -> None:
    """A thin line at one loss, for reading off where another curve reaches it."""
    axes.axhline(loss, color=MUTED, linewidth=0.6, linestyle=(0, (1, 1.5)))
