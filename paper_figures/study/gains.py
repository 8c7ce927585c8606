"""Gain over the baseline at equal FLOPs, setting by setting, with its interval.

The one picture that answers the study's question; wins, ties and losses alike.
"""

import pandas as pd
from matplotlib.figure import Figure

from analysis.compare.comparison import SAME
from analysis.runs.run_row import rows_of
from analysis.wording import number
from paper_figures.drawing import forest
from paper_figures.groups import Group
from paper_figures.item import Item
from paper_figures.picture import Picture
from paper_figures.registration import figure, submit
from paper_figures.sources import Sources
from paper_figures.style import COLUMN, new_figure

PAIR = f"a finished baseline and a finished superposed run of one seed: {submit('laptop', 'quick')}"
READING = (
    "Baseline minus superposition, held-out next-token loss, paired by seed: right of zero, "
    "superposition is better. Bars: 95% t-interval over seeds; short ticks: single seeds. A filled "
    "mark has an interval that excludes zero; a hollow one shows no difference, and without a bar "
    "it is one seed and no claim."
)


@figure("gains", title="Gain over the baseline at equal FLOPs", lacks=PAIR)
def gains(sources: Sources) -> list[Item]:
    """One picture per corpus and model, at its main length (`loss_over_length` has the others)."""
    return [_picture(group) for group in sources.main_groups]


def _picture(group: Group) -> Picture:
    data = gain_data(group)
    return Picture(
        name=f"gains-{group.slug}",
        title=f"Gain over the baseline, {group.label}",
        caption=f"{READING} {number(len(data), 'setting')}, {group.seeds} each.",
        data=data.assign(ticks=[" ".join(f"{gain:.6f}" for gain in row) for row in data["ticks"]]),
        folders=group.folders,
        draw=lambda: _figure(data),
    )


def gain_data(group: Group) -> pd.DataFrame:
    """Rows of the comparison as drawn; `ticks` lists the single gains, in order of seed."""
    key = [*SAME, "setting"]
    columns = ["setting", "steps", "bag_size", "seeds", "gain", "low", "high", "verdict"]
    by_setting = group.pairs.sort_values("seed").groupby(key)["gain"].agg(list)
    ticks = [by_setting[tuple(row[name] for name in key)] for row in rows_of(group.rows)]
    return group.rows[columns].assign(ticks=ticks).reset_index(drop=True)


def _figure(data: pd.DataFrame) -> Figure:
    drawn, ((axes,),) = new_figure(COLUMN, 0.75 + 0.2 * max(len(data), 2))
    forest(axes, data)
    return drawn
