"""The README's picture: one run with its switch, and what came of all settings."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from analysis.summary import Summary
from analysis.wording import group_label, number
from paper_figures.item import Item, Missing, command
from paper_figures.picture import Picture
from paper_figures.sources import Sources
from paper_figures.study import gains, loss_curves
from paper_figures.study.selection import (
    folders_of,
    main_groups,
    plain_rows,
    representative,
)
from paper_figures.style import PAGE, new_figure

KIND = "overview"
TITLE = "The study at a glance"
MOST_ROWS = 6
"""Settings per corpus in the right panel."""


def items(sources: Sources, name: str = KIND) -> list[Item | Missing]:
    """Left a run on natural text (or on what there is), right the gain by setting."""
    summary = sources.summary
    groups = [(group, rows) for group, rows in main_groups(summary) if len(plain_rows(rows))]
    if not groups:
        return [
            Missing(
                KIND,
                TITLE,
                "Needs a finished baseline and a finished superposed run of one seed: "
                f"`{command('laptop', 'quick')}`.",
            )
        ]
    runs = summary.tables.runs
    generated = set(runs[runs["optimal_nats_per_token"].notna()]["group"])
    groups.sort(key=lambda entry: entry[0] in generated)
    group, rows = groups[0]
    chosen = representative(rows, most=1)
    curves = loss_curves.curve_data(summary, chosen)
    shown = pd.concat([representative(rows, MOST_ROWS) for _, rows in groups])
    table = pd.concat([_named(summary, rows) for _, rows in groups], ignore_index=True)
    members = runs[runs["group"] == group]
    return [
        Picture(
            KIND,
            "overview",
            TITLE,
            f"Left: training loss, {group_label(members)}; the pale part is the loss of bags, "
            "another quantity. Right: gain in held-out next-token loss over the baseline at equal "
            f"FLOPs, {number(len(table), 'setting')}. {gains.legend_words()}",
            pd.concat([curves, table], ignore_index=True),
            folders_of(summary, shown),
            lambda: _figure(curves, table, group_label(members)),
        )
    ]


def _named(summary: Summary, rows: pd.DataFrame) -> pd.DataFrame:
    table = gains.gain_data(summary, representative(rows, MOST_ROWS))
    corpus = str(rows["corpus"].iloc[0]).removesuffix(" language")
    table["setting"] = [f"{corpus}: {setting}" for setting in table["setting"]]
    return table


def _figure(curves: pd.DataFrame, table: pd.DataFrame, label: str) -> Figure:
    figure, (left, right) = new_figure(PAGE, 2.5, panels=2)
    loss_curves.draw_whole(left, curves)
    left.set_title(f"Training loss: {label}")
    gains.draw(right, table)
    right.set_title("Gain over the baseline at equal FLOPs")
    return figure
