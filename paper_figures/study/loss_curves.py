"""Loss against steps, of one superposed setting and its baseline."""

from functools import partial

import pandas as pd
from matplotlib.figure import Figure

from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.wording import gain, group_details
from tst_study.paper_figures import curves
from tst_study.paper_figures.catalogue import PAIR, figure
from tst_study.paper_figures.drawing import arm_key
from tst_study.paper_figures.item import Item
from tst_study.paper_figures.picture import Picture
from tst_study.paper_figures.sources import Sources
from tst_study.paper_figures.style import BASELINE, COLUMN, Mark, marks_of, new_figure


@figure("loss_curves", title="Loss against steps", lacks=PAIR)
def loss_curves(sources: Sources) -> list[Item]:
    """Show one setting of the comparison that most was asked of, on natural text if there is."""
    groups = [group for group in sources.groups if len(group.plain().rows)]
    if not groups:
        return []
    group = max(groups, key=lambda group: (not group.is_generated, group.weight)).representative()
    data, row = curves.group_curves(group, list(group.rows["setting"])), next(rows_of(group.rows))
    if not data["quantity"].isin(("next_token", "held_out")).any():
        return []  # imported runs need not have a curve
    looks = {"baseline": BASELINE, **marks_of(group.rows, "setting")}
    held_out = bool((data["quantity"] == "held_out").any())
    what = "held-out loss" if held_out else "training loss, a running mean over 5% of the steps"
    picture = Picture(
        title=f"{row['setting']} ends {_against(row['verdict'])} its baseline: {group.label}",
        caption=f"{group_details(group.members)}. Mean {what} over {group.seeds}; shading: range "
        f"over seeds. Final gain in held-out loss: {gain(row)} nats, {row['verdict']}. Every step "
        "costs the same FLOPs. Before the switch superposition trains on the loss of bags, another "
        "quantity, which is not drawn.",
        data=data,
        folders=group.folders,
        draw=partial(_figure, data, looks),
    )
    return [picture]


def _against(verdict: str) -> str:
    return {"better": "ahead of", "worse": "behind"}.get(verdict, "with no shown difference from")


def _figure(data: pd.DataFrame, looks: dict[str, Mark]) -> Figure:
    drawn, ((axes,),) = new_figure(COLUMN, 2.5, 1)
    curves.draw(axes, data, looks, (0.0, curves.end_of(data)))
    ends = data[data["quantity"] == "end"]
    names = curves.legend_looks(data, looks) if len(ends) else looks
    arm_key(axes, "", names)
    return drawn
