"""Figure 1: the 10B-A1B runs, baseline and superposition, stopped at about the same loss."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from analysis.summary import Summary
from paper_figures.item import Finding, Item, Missing, command
from paper_figures.measured import Arm, arms, folders, plain
from paper_figures.paper import curves
from paper_figures.paper.measured_curves import of_settings
from paper_figures.picture import Picture
from paper_figures.published_numbers import CURVES
from paper_figures.sources import Sources
from paper_figures.study.selection import representative
from paper_figures.style import PAGE, new_grid

RUNS = (
    curves.Run("moe_10b_a1b_baseline", "baseline"),
    curves.Run("moe_10b_a1b_tst_s16", "TST, s = 16", 12_483),
)
NEEDS = command("mixture-10b-a1b", "paper")


def items(sources: Sources, name: str) -> list[Item | Missing]:
    """Above the published curves, below those of mixtures of experts that were run here."""
    data, arm = curves.published(1, None, RUNS), _arm(sources.summary)
    if arm is not None:
        chosen = representative(arm.rows, most=1)
        arm = Arm(chosen, arm.members, arm.at_scale)
        names = [f"TST, {setting}" for setting in chosen["setting"]]
        own = of_settings(sources.summary, chosen, names)
        data = pd.concat([data, own], ignore_index=True)
    return [
        Picture(
            "mixture_of_experts_run",
            name,
            "Figure 1. Loss curves of a mixture of experts, 10B-A1B",
            _caption(arm),
            data,
            folders(sources.summary, arm.rows) if arm else (),
            lambda: _figure(data),
            published=(CURVES,),
            finding=_finding(data, arm),
        )
    ]


def _arm(summary: Summary) -> Arm | None:
    """The longest comparison of a mixture of experts."""
    found = [arm for arm in arms(summary) if arm.members["experts"].notna().all()]
    found = [Arm(plain(arm.rows), arm.members, False) for arm in found if len(plain(arm.rows))]
    return max(found, key=lambda arm: int(arm.members["flops"].iloc[0]), default=None)


def reached(data: pd.DataFrame) -> dict[str, Any]:
    """Last losses and steps of both curves."""
    is_baseline = data["label"].str.startswith("baseline")
    base, other = (
        (int(part["step"].max()), curves.last(part))
        for part in (data[is_baseline], data[~is_baseline])
    )
    return {"baseline": base, "tst": other, "steps_ratio": base[0] / other[0]}


def _figure(data: pd.DataFrame) -> Figure:
    sources = list(dict.fromkeys(data["source"]))
    figure, rows = new_grid(PAGE, 2.5 * len(sources), len(sources), 2)
    for (left, right), source in zip(rows, sources, strict=True):
        mine = data[data["source"] == source]
        look, steps = curves.marks(list(dict.fromkeys(mine["label"]))), curves.end_of(mine)
        curves.draw(left, mine, look, window=(0, steps), legend="upper right")
        left.set_title(f"{source}: the whole run")
        left.set_ylabel("loss (nats per token, log scale)")
        end, window = mine[mine["quantity"] == "next_token"], (0.25 * steps, steps)
        fitting = curves.limits(end, window)
        curves.draw(right, end, look, window=window, loss=fitting, legend=None)
        curves.level_line(right, reached(mine)["tst"][1])
        right.set_title("the end, with the level that TST reached")
    return figure


def _caption(arm: Arm | None) -> str:
    text = (
        "Training loss against steps of equal FLOPs; numbers: the last of each curve. "
        f"{curves.SMOOTHED}; one run each. The pale part before the switch is the loss of bags, "
        "another quantity. "
    )
    if arm is None:
        return text + f"Nothing measured: `{NEEDS}`."
    return text + f"Below, measured: {arm.scale}; mean over seeds, shading: their range."


def _finding(data: pd.DataFrame, arm: Arm | None) -> Finding:
    found = reached(data[data["source"] == "published"])
    published = (
        f"TST ends at {found['tst'][1]:.3f} after {found['tst'][0]:,} steps, the baseline at "
        f"{found['baseline'][1]:.3f} after {found['baseline'][0]:,}: {found['steps_ratio']:.1f} "
        "times the steps"
    )
    if arm is None:
        return Finding(published, needs=NEEDS)
    row = arm.rows.iloc[0]
    measured_text = f"gain of {row['gain']:+.3f} nats at equal steps ({row['verdict']})"
    verdict = {"better": "agrees", "worse": "disagrees"}.get(str(row["verdict"]), "undecided")
    return Finding(published, measured_text.replace("-", "−"), arm.scale, verdict)  # type: ignore[arg-type]
