"""Figures 4, 5, 8 and 11: final loss over bag size s, a curve and an optimum for every r.

The published files name tables, not figures: the four grids are taken in the order of their tables
(Figure 4 is Table 4, Figure 5 Table 5, Figure 8 Table 6, Figure 11 Table 7).
"""

from __future__ import annotations

import pandas as pd

from analysis.run_row import rows_of
from paper_figures.item import Item, Missing
from paper_figures.measured import Arm, folders, grid_arm
from paper_figures.paper.final_loss_grid import GRIDS, Published
from paper_figures.picture import Picture
from paper_figures.published_numbers import LOSSES, loss_grid
from paper_figures.sources import Sources

TABLE_OF = {"figure4": "table4", "figure5": "table5", "figure8": "table6", "figure11": "table7"}
NEAR = (0.1, 0.2, 0.3, 0.4, 0.5)
"""Step ratios shown near the optimum."""
DATA = ("source", "step_ratio", "bag_size", "loss", "low", "high", "seeds", "baseline")


def items(sources: Sources, name: str) -> list[Item | Missing]:
    which = GRIDS[TABLE_OF[name]]
    arm = grid_arm(
        sources.summary, which.params, which.steps, which.weighting, any_scale=which.any_scale
    )
    data = _published(which)
    if arm is not None:
        data = pd.concat([data, _measured(arm)], ignore_index=True)
    return [
        Picture(
            "bag_size_curves",
            name,
            f"Figure {name.removeprefix('figure')}. Final loss over bag size, {which.words}",
            "",
            data,
            folders(sources.summary, arm.rows) if arm else (),
            lambda: _figure(data),
            published=(LOSSES,),
            finding=None,
        )
    ]


def _published(which: Published) -> pd.DataFrame:
    grid = loss_grid(which.number)
    level = float(grid[grid["bag_size"] == 1]["final_loss"].iloc[0])
    cells = grid[(grid["bag_size"] > 1) & (grid["step_ratio"] < 1)]
    table = pd.DataFrame(
        {
            "source": "published",
            "step_ratio": cells["step_ratio"],
            "bag_size": cells["bag_size"],
            "loss": cells["final_loss"],
            "baseline": level,
        }
    )
    return table.reindex(columns=list(DATA))


def _measured(arm: Arm) -> pd.DataFrame:
    """At the baseline's level over all seeds, less the paired gain, as `loss_over_bag_size`."""
    level = float(arm.rows["baseline"].mean())
    rows = [
        {
            "source": "measured",
            "step_ratio": round(row["step_ratio"], 3),
            "bag_size": row["bag_size"],
            "loss": level - row["gain"],
            "low": level - row["high"] if pd.notna(row["high"]) else None,
            "high": level - row["low"] if pd.notna(row["low"]) else None,
            "seeds": row["seeds"],
            "baseline": level,
        }
        for row in rows_of(arm.rows)
    ]
    return pd.DataFrame(rows, columns=list(DATA))
