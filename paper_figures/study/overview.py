"""A study at a glance: a run with its switch, and the gain of every setting with its interval,
wins, ties and losses alike.
"""

from functools import partial

import pandas as pd
from matplotlib.figure import Figure

from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.verdict.comparison import SAME
from tst_study.analysis.wording import number, told_apart
from tst_study.paper_figures import curves
from tst_study.paper_figures.catalogue import PAIR, figure
from tst_study.paper_figures.drawing import forest
from tst_study.paper_figures.groups import Group, folders_of
from tst_study.paper_figures.item import Item
from tst_study.paper_figures.picture import Picture
from tst_study.paper_figures.sources import Sources
from tst_study.paper_figures.study.loss_curves import curves_of, draw_whole, has_inset
from tst_study.paper_figures.style import PAGE, Mark, new_figure

MOST_ROWS = 6
"""Settings per corpus in the overview."""


@figure("overview", title="The study at a glance", lacks=PAIR)
def overview(sources: Sources) -> list[Item]:
    """Left a run on natural text (or on what there is), right the gain by setting."""
    groups = [group for group in sources.main_groups if len(group.plain().rows)]
    if not groups:
        return []
    groups.sort(key=lambda group: (not group.is_generated, *group.weight), reverse=True)
    label = groups[0].label
    data, looks = curves_of(groups[0].representative(most=1))
    shown = [group.representative(MOST_ROWS) for group in groups]
    where = "in the inset, " if has_inset(data, looks) else ""
    names = told_apart(
        [f"{group.text}, {group.steps:,} steps" for group in shown],
        [group.model.split(",")[0] for group in shown],
    )
    table = pd.concat(
        [gain_data(group).assign(group=name) for name, group in zip(names, shown, strict=True)]
    )
    return [
        Picture(
            caption=f"Left: loss, {label}, {curves.OWN_SMOOTHING}; the pale part is the loss of "
            f"bags, another quantity; {where}{curves.ENDS}. Right: gain in held-out next-token "
            f"loss over the baseline at equal FLOPs, {number(len(table), 'setting')}. Bars: 95% "
            "intervals over paired seeds; ticks: single seeds; hollow: no difference shown.",
            data=pd.concat([data, table.drop(columns="ticks")], ignore_index=True),
            folders=folders_of(shown),
            draw=partial(_overview, data, looks, table, names[0]),
        )
    ]


def _overview(
    data: pd.DataFrame, looks: dict[str, Mark], table: pd.DataFrame, label: str
) -> Figure:
    drawn, ((left, right),) = new_figure(PAGE, 2.7, 2)
    draw_whole(left, data, looks, f"Held-out loss at the end: {label}", 2)
    forest(right, table, "group")
    return drawn


def gain_data(group: Group) -> pd.DataFrame:
    """Rows of the comparison as drawn; `ticks` lists the single gains, in order of seed."""
    key = [*SAME, "setting"]
    columns = ["setting", "steps", "bag_size", "seeds", "gain", "low", "high", "verdict"]
    by_setting = group.pairs.sort_values("seed").groupby(key)["gain"].agg(list)
    ticks = [by_setting[tuple(row[name] for name in key)] for row in rows_of(group.rows)]
    return group.rows[columns].assign(ticks=ticks).reset_index(drop=True)
