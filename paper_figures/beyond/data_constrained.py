"""Data-constrained map: which method wins with few unique tokens, at equal FLOPs."""

from __future__ import annotations

import functools
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from analysis.data_constrained import TOKENS_PER_STEP, WORTH_RANGE, win_map, winners_of_runs
from analysis.run_row import rows_of
from analysis.summary import Summary
from analysis.wording import big, number
from paper_figures.item import Finding, Item, Missing, command
from paper_figures.measured import folders
from paper_figures.picture import Picture
from paper_figures.published_numbers import CURVES, LOSSES
from paper_figures.sources import Sources
from paper_figures.style import ON_MAP, PAGE, new_figure

PARAMS = 600e6
STEPS = (5_000.0, 10_000.0, 20_000.0, 50_000.0, 100_000.0)
UNIQUE = (0.5e9, 1e9, 2e9, 5e9, 10e9, 20e9, 50e9, 100e9, 200e9)
MODES = {
    "baseline": ("B", "#e3e3e3"),
    "full": ("F", "#8fc1e3"),
    "input_only": ("I", "#f4c77b"),
    "output_only": ("O", "#8fd3bd"),
}
"""Letter and colour of the winner; the letter carries it in grey."""
NEEDS = command("data-constrained", "one-gpu")
DATA = (
    "panel",
    "unique_tokens",
    "steps",
    "epochs",
    "winner",
    "s",
    "r",
    "gain",
    "low",
    "high",
    "seeds",
    "verdict",
    "certain",
    "source",
)


def items(sources: Sources, name: str) -> list[Item | Missing]:
    """Left the map of the fitted laws, right the winners among runs that repeat their text."""
    own, used = _measured(sources.summary)
    data = pd.concat([_by_laws().assign(panel="laws"), own], ignore_index=True)
    return [
        Picture(
            "data_constrained",
            name,
            "Who wins with limited text",
            _caption(own),
            data.reindex(columns=list(DATA)),
            used,
            lambda: _figure(data),
            published=(LOSSES, CURVES),
            finding=_finding(data, own),
        )
    ]


@functools.cache
def _by_laws() -> pd.DataFrame:
    return win_map(PARAMS, UNIQUE, STEPS)


def _measured(summary: Summary) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Winners of the groups in which some arm reads its text more than once."""
    runs = summary.tables.runs
    repeating = set(runs[runs["raw_tokens"] > 1.05 * runs["unique_raw_tokens"]]["group"])
    found = winners_of_runs(summary.comparison, runs)
    found = found[found["group"].isin(repeating)]
    if found.empty:
        return pd.DataFrame(columns=list(DATA)), ()
    table = summary.comparison.table
    used = folders(summary, table[table["group"].isin(found["group"])])
    return found.assign(panel="runs"), used


def _figure(data: pd.DataFrame) -> Figure:
    own = data[data["panel"] == "runs"]
    figure, row = new_figure(PAGE, 2.7, 2 if len(own) else 1)
    _draw_laws(row[0], data[data["panel"] == "laws"])
    if len(own):
        _draw_runs(row[1], own)
    return figure


def _draw_laws(axes: Axes, data: pd.DataFrame) -> None:
    for row in rows_of(data):
        x, y = UNIQUE.index(row["unique_tokens"]), STEPS.index(row["steps"])
        letter, colour = MODES[row["winner"]]
        axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor="none"))
        text = letter if row["winner"] == "baseline" else f"{letter} {1000 * row['gain']:.0f}"
        sure = "" if row["certain"] else "?"
        axes.text(x, y, text + sure, ha="center", va="center", fontsize=7, color=ON_MAP)
    axes.set_xlim(-0.5, len(UNIQUE) - 0.5)
    axes.set_ylim(-0.5, len(STEPS) - 0.5)
    axes.set_xticks(range(len(UNIQUE)), [big(tokens) for tokens in UNIQUE])
    labels = [f"{steps:,.0f}\n({big(steps * TOKENS_PER_STEP)})" for steps in STEPS]
    axes.set_yticks(range(len(STEPS)), labels)
    axes.tick_params(length=0)
    axes.set_xlabel("unique tokens")
    axes.set_ylabel("steps (tokens of a baseline)")
    axes.set_title(f"by the fitted laws, {PARAMS / 1e6:.0f}M parameters: winner, gain in mnats")


def _draw_runs(axes: Axes, data: pd.DataFrame) -> None:
    for row in rows_of(data):
        letter, colour = MODES[row["winner"]]
        box: dict[str, Any] = {"boxstyle": "round,pad=0.25", "fc": colour, "ec": "none"}
        sure = "" if row["verdict"] in ("better", "worse") else "?"
        text = f"{letter} {1000 * row['gain']:+.0f}{sure}".replace("-", "−")
        axes.text(
            row["unique_tokens"],
            row["steps"],
            text,
            ha="center",
            va="center",
            fontsize=7,
            color=ON_MAP,
            bbox=box,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(data["unique_tokens"].min() / 2, data["unique_tokens"].max() * 2)
    axes.set_ylim(data["steps"].min() / 1.6, data["steps"].max() * 1.6)
    axes.set_xlabel("unique tokens (log scale)")
    axes.set_ylabel("steps (log scale)")
    axes.set_title("measured")


def _caption(own: pd.DataFrame) -> str:
    text = (
        "The method with the lowest loss at equal FLOPs when text is limited: B baseline, F "
        "full, I "
        "input-only, O output-only superposition, each at its best s and r, with its gain over the "
        "baseline on the same text. Not runs: the law of superposition fitted to Tables 4 to 7, "
        "the "
        "shares of the gain of Figure 6, and the worth of repeated tokens of Muennighoff et al. "
        f"(R_D* 15.4); a question mark: another winner at R_D* = {WORTH_RANGE[0]} or "
        f"{WORTH_RANGE[1]:.0f}. "
    )
    if own.empty:
        return text + f"Nothing measured: `{NEEDS}`."
    return text + (
        f"Right, measured: {number(len(own), 'group')} of runs, largest mean gain in mnats; a "
        "question mark: the interval over seeds does not exclude zero."
    )


def _finding(data: pd.DataFrame, own: pd.DataFrame) -> Finding:
    laws = data[data["panel"] == "laws"]
    counts = laws["winner"].value_counts()
    said = ", ".join(f"{str(mode).replace('_', ' ')} {count}" for mode, count in counts.items())
    published = (
        "named as future work; output-only is recommended where data is short. By the fitted laws, "
        f"winners of {len(laws)} cells at 600M: {said}"
    )
    if own.empty:
        return Finding(published, needs=NEEDS)
    texts = "; ".join(
        f"{row['epochs']:.3g} epochs of a baseline: {str(row['winner']).replace('_', ' ')}"
        for row in rows_of(own)
    )
    return Finding(published, texts, "", "not in the paper")
