"""The README's picture: one run with its switch, and what came of all settings."""

import pandas as pd
from matplotlib.figure import Figure

from analysis.wording import number
from paper_figures import curves
from paper_figures.drawing import forest
from paper_figures.groups import folders_of
from paper_figures.item import Item
from paper_figures.picture import Picture
from paper_figures.registration import figure
from paper_figures.sources import Sources
from paper_figures.study.gains import PAIR, gain_data
from paper_figures.study.loss_curves import curves_of, draw_whole
from paper_figures.style import PAGE, Mark, new_figure

MOST_ROWS = 6
"""Settings per corpus in the right panel."""


@figure("overview", title="The study at a glance", lacks=PAIR)
def overview(sources: Sources) -> list[Item]:
    """Left a run on natural text (or on what there is), right the gain by setting."""
    groups = [group for group in sources.main_groups if len(group.plain().rows)]
    if not groups:
        return []
    groups.sort(key=lambda group: group.is_generated)
    label = groups[0].label
    data, looks = curves_of(groups[0].representative(most=1))
    shown = [group.representative(MOST_ROWS) for group in groups]
    table = pd.concat([gain_data(group).assign(group=group.label) for group in shown])
    return [
        Picture(
            caption=f"Left: training loss, {label}; the pale part is the loss of bags, another "
            f"quantity; in the inset, {curves.ENDS}. Right: gain in held-out next-token loss over "
            f"the baseline at equal FLOPs, {number(len(table), 'setting')}. Bars: 95% intervals "
            "over paired seeds; ticks: single seeds; hollow: no difference shown.",
            data=pd.concat([data, table.drop(columns="ticks")], ignore_index=True),
            folders=folders_of(shown),
            draw=lambda: _figure(data, looks, table, label),
        )
    ]


def _figure(data: pd.DataFrame, looks: dict[str, Mark], table: pd.DataFrame, label: str) -> Figure:
    drawn, ((left, right),) = new_figure(PAGE, 2.7, 2)
    draw_whole(left, data, looks, f"Held-out loss at the end: {label}", 2)
    forest(right, table, "group")
    return drawn
