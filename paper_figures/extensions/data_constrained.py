"""Data-constrained map: which method wins with few unique tokens, at equal FLOPs."""

from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.fits.law.data_constrained import WORTH_RANGE, published_win_map, winners_of_runs
from analysis.fits.law.rows import TOKENS_PER_STEP
from analysis.tables.columns import rows_of
from analysis.wording import number, told_apart
from paper_figures.catalogue import figure, submit
from paper_figures.drawing import CLAIMED, heat_map, key
from paper_figures.groups import Group
from paper_figures.item import Finding
from paper_figures.picture import Picture
from paper_figures.sources import Sources
from paper_figures.style import INK, PAGE, new_figure
from tst_study.text import big

LETTERS = {"baseline": "B", "full": "F", "input_only": "I", "output_only": "O"}
DATA = ["panel", "unique_tokens", "steps", "epochs", "winner", "s", "r", "gain", "low", "high"]
DATA += ["seeds", "verdict", "certain", "source"]


@figure(
    "data_constrained",
    title="Who wins with limited text",
    published=["final_loss_grid", "loss_curves"],
    needs=submit("data-constrained", "one-gpu"),
)
def data_constrained(sources: Sources) -> Picture:
    """Left the map of the fitted laws, right the winners among runs that repeat their text."""
    own, group = _measured(sources)
    laws = published_win_map().assign(panel="600M by the fitted laws: winner, gain in mnats")
    data = pd.concat([laws, own], ignore_index=True).reindex(columns=DATA)
    return Picture(
        caption="The method with the lowest loss at equal FLOPs when text is limited (B baseline, "
        "F full, I input-only, O output-only superposition, each at its best s and r), with its "
        "gain over the baseline on the same text. Not runs: the law of superposition fitted to "
        "Tables 4 to 7, the shares of the gain of Figure 6, and the worth of repeated tokens of "
        f"Muennighoff et al. (R_D* 15.4); a question mark: another winner at R_D* = "
        f"{WORTH_RANGE[0]} or {WORTH_RANGE[1]:.0f}.",
        measured=f"Right, measured: {number(len(own), 'group')} of runs, largest mean gain in "
        "mnats; a question mark: the interval over seeds does not exclude zero.",
        data=data,
        folders=group.folders if len(own) else (),
        draw=partial(_figure, data),
        finding=_finding(laws, own),
    )


def _measured(sources: Sources) -> tuple[pd.DataFrame, Group]:
    """Winners of the groups in which some arm reads its text more than once."""
    runs, every = sources.runs, sources.all_settings
    repeating = runs[runs["raw_tokens"] > 1.05 * runs["unique_raw_tokens"]]["group"]
    rows = every.rows[every.rows["group"].isin(repeating)]
    found = winners_of_runs(sources.summary.comparison, runs)
    found = found[found["group"].isin(rows["group"])]
    sizes = found["group"].map(runs.drop_duplicates("group").set_index("group")["parameters"])
    panels = told_apart(["measured"] * len(found), [f"{big(size)} parameters" for size in sizes])
    return found.assign(panel=panels, certain=found["verdict"].isin(CLAIMED)), every.only(rows)


def _figure(data: pd.DataFrame) -> Figure:
    panels = list(data.groupby("panel", sort=False))
    high = 1000 * float(data["gain"].max())
    scale = (max(min(1000 * float(data["gain"].min()), 0.0), -high), high)
    widths = [2.0 + cells["unique_tokens"].nunique() for _, cells in panels]
    widths = [max(width, 0.65 * max(widths)) for width in widths]
    drawn, (row,) = new_figure(PAGE, 3.0, len(panels), width_ratios=widths)
    for axes, (title, cells) in zip(row, panels, strict=True):
        image = _draw(axes, cells, scale)
        axes.set_title(str(title))
    drawn.colorbar(image, ax=row, label="gain (mnats)", pad=0.01)
    look = {"color": INK, "markersize": 6}
    names = {letter: mode.replace("_", "-") for mode, letter in LETTERS.items()}
    names["?"] = "may be another"
    entries = {words: {"marker": f"${sign}$", **look} for sign, words in names.items()}
    key(drawn, entries, loc="outside lower center", columns=len(entries))
    return drawn


def _draw(axes: Axes, data: pd.DataFrame, scale: tuple[float, float]) -> Any:
    texts = [
        LETTERS[row["winner"]] + ("\n" if row["certain"] else "?\n") + f"{1000 * row['gain']:.0f}"
        for row in rows_of(data)
    ]
    cells = data.assign(mnats=1000 * data["gain"], text=texts)
    cells = cells.drop_duplicates(["steps", "unique_tokens"])
    wide = cells.pivot(index="steps", columns="unique_tokens", values="mnats")
    words = cells.pivot(index="steps", columns="unique_tokens", values="text").fillna("")
    image = heat_map(axes, wide, *scale, words)
    axes.set_xticklabels([big(float(tokens)) for tokens in wide.columns])
    per_step = TOKENS_PER_STEP if data["source"].iloc[0] != "runs" else None
    axes.set_yticklabels(
        [f"{s:,.0f}" + (f"\n({big(s * per_step)})" if per_step else "") for s in wide.index]
    )
    axes.set_xlabel("unique tokens")
    axes.set_ylabel("steps (tokens of a baseline)" if per_step else "steps")
    return image


def _finding(laws: pd.DataFrame, own: pd.DataFrame) -> Finding:
    counts = laws["winner"].str.replace("_", " ").value_counts()
    winners = ", ".join(f"{mode} {count}" for mode, count in counts.items())
    said = (
        "named as future work; output-only is recommended where data is short. By the fitted laws, "
        f"winners of {len(laws)} cells at 600M: {winners}"
    )
    texts = "; ".join(
        f"{row['epochs']:.3g} epochs of a baseline: {row['winner'].replace('_', ' ')}"
        f"{'' if row['certain'] else ' (not shown)'}"
        for row in rows_of(own)
    )
    return Finding(said, texts, "", "not in the paper")
