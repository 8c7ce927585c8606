"""Loss curves, published and measured, as tables with the same columns; and a function that draws
them.

The loss of bags before the switch is another quantity than the next-token loss, so it is in the
data but never drawn. A panel shows either training losses or held-out losses, never both."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from tst_study.analysis import published
from tst_study.analysis.summary import Summary
from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.wording import gain
from tst_study.paper_figures.drawing import CLAIMED, arm_key, is_baseline, lines, mark_step, point
from tst_study.paper_figures.sources import Group
from tst_study.paper_figures.style import Mark

COLUMNS = (
    *("source", "panel", "label", "quantity", "step", "loss", "low", "high", "switch"),
    *("seeds", "verdict", "said"),
)
"""Columns of the tables of curves. `quantity` is `bag_loss` or `next_token` (training losses),
`held_out`, or `end`, which is the final held-out loss of an arm; an `end` row also has the arm's
verdict and, in `said`, its words in the figure's key. `low` and `high` are the range over seeds,
for measured curves only. `switch` is the number of superposed steps; it is 0 for baselines and in
`end` rows. Losses are in nats per token."""
SMOOTHED = "Published curves are smoothed as the paper drew them, about 1,000 points each"
SMOOTHING = 0.05
"""Width of the running mean that smooths measured training losses, as a share of all steps."""
SETTLED = {"training": 0.04, "held-out": 0.5}
"""The y-axis is fitted to the losses after this share of the steps that a panel shows, so that
earlier lines come in from above. Held-out losses of our runs differ by a hundredth of a nat at the
end, which would not be seen beside what they lose in the first half."""
OFTEN = 10
"""If every run of an arm has at least this many evaluations, the arm has a held-out curve. If all
arms of a panel have one, these are drawn and not the next-token training losses, which are so noisy
that they hide what superposition does."""
READING = "means over seeds; shading: range over seeds; brackets: the gain's 95% interval"
"""How to read measured curves, for a caption."""
POINTS = 500
"""Largest number of points that are kept for each quantity of a measured curve; a printed
column cannot show more."""


def published_curves(
    figure: int, runs: Mapping[str, str], superposed: int, panel: str = ""
) -> pd.DataFrame:
    """Return the published curves of one panel in the columns of `COLUMNS`.

    `runs`: for each label, the run's name in the published file. `superposed`: the number of
    superposed steps of every run that is no baseline.
    """
    table = published.curves(figure).query("panel == @panel").sort_values("step")
    parts = []
    for label, run in runs.items():
        rows, switch = table[table["run"] == run], 0 if is_baseline(label) else superposed
        quantity = np.where(rows["step"] <= switch, "bag_loss", "next_token")
        parts.append(rows.assign(source="published", label=label, switch=switch, quantity=quantity))
    return pd.concat(parts, ignore_index=True).reindex(columns=list(COLUMNS))


def group_curves(group: Group, names: Sequence[str], panel: str = "") -> pd.DataFrame:
    """Return the curves of a group's settings and of their baseline. `names`: the label of each
    setting, in the order of `group.rows`.

    If every arm has a held-out curve, each also has an `end` row. The baseline's row has the mean
    loss of the baselines; a setting's row has that mean less the setting's paired gain.
    """
    runs, pairs = group.summary.tables.runs, group.pairs
    parts = [mean_curve(group.summary, "baseline", group.baselines)]
    for name, setting in zip(names, group.rows["setting"], strict=True):
        own = pairs[pairs["setting"] == setting]["superposed_folder"]
        parts.append(mean_curve(group.summary, name, runs[runs["folder"].isin(own)]))
    ends: list[dict[str, Any]] = [
        {"label": "baseline", "loss": group.level, "said": f"baseline: {group.level:.3f}"}
    ]
    for name, row in zip(names, rows_of(group.rows), strict=True):
        end = {"label": name, "loss": group.level - row["gain"], "verdict": row["verdict"]}
        ends.append({**end, "said": f"{name}: gain {gain(row)}"})
    if all((part["quantity"] == "held_out").any() for part in parts):
        table = pd.DataFrame(ends)
        parts.append(table.assign(quantity="end", step=group.steps, switch=0, source="measured"))
    whole = pd.concat(parts, ignore_index=True).assign(panel=panel)
    return whole.reindex(columns=list(COLUMNS))


def mean_curve(summary: Summary, label: str, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the mean curve of runs (rows of the run table) that differ only in their seeds: a row
    for each quantity and step, thinned to at most `POINTS` steps. There are no rows if no run has a
    curve.

    An interrupted run may have logged other steps than the others. Each run is interpolated between
    its own first and last row, so that the mean at a step is over all runs whose rows span it.
    """
    curves, first = summary.tables.curves, runs.iloc[0]
    mine = curves[curves["folder"].isin(runs["folder"])].astype({"folder": str})
    steps = int(first["steps"])
    held_out = _held_out(summary, runs)
    kind = ["phase", "loss_name"]
    # Runs that logged the same steps, told by a hash of them, are smoothed together.
    mine["logged"] = pd.util.hash_array(mine["step"].to_numpy())
    mine["logged"] = mine.groupby(["folder", *kind])["logged"].transform("sum")
    parts = [smoothed(rows, steps) for _, rows in mine.groupby([*kind, "logged"], sort=True)]
    tables = []
    logged = [rows for rows in (held_out, *parts) if len(rows)]
    if not logged:
        return pd.DataFrame(columns=list(COLUMNS), dtype=float)
    for quantity, rows in pd.concat(logged).groupby("quantity", sort=True):
        by_run = rows.pivot_table(index="step", columns="folder", values="loss")
        whole = by_run.interpolate("index", limit_area="inside").T
        spread = {"loss": whole.mean(), "low": whole.min(), "high": whole.max()}
        tables.append(pd.DataFrame(spread).reset_index().assign(quantity=quantity))
    table = pd.concat(tables, ignore_index=True)
    # Thin to the last row of each of `POINTS` equal stretches of steps, the same in every arm.
    stretch = (table["step"] * POINTS / steps).apply(np.ceil)
    table = table[~table.assign(stretch=stretch).duplicated(["quantity", "stretch"], keep="last")]
    table = table.assign(source="measured", panel="", label=label, seeds=len(runs))
    return table.assign(switch=first["superposed_steps"]).reindex(columns=list(COLUMNS))


def _held_out(summary: Summary, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the held-out losses of the recovery phase (folder, step, loss, quantity); no rows if
    any run has fewer than `OFTEN` evaluations."""
    table = summary.tables.held_out
    table = table[table["folder"].isin(runs["folder"]) & table["eval_set"].isin(runs["eval_set"])]
    table = table.astype({"folder": str})
    if table.groupby("folder").size().reindex(runs["folder"].astype(str)).fillna(0).min() < OFTEN:
        table = table.iloc[:0]
    rows = table[table["phase"] == "recovery"].rename(columns={"nats_per_token": "loss"})
    return rows[["folder", "step", "loss"]].assign(quantity="held_out")


def smoothed(rows: pd.DataFrame, steps: int) -> pd.DataFrame:
    """Smooth the training losses of one phase of runs that logged the same steps, each by a centred
    running mean. `steps`: the length of the whole run."""
    by_run = rows.pivot(index="step", columns="folder", values="loss")
    spacing = float(np.median(np.diff(by_run.index))) if len(by_run) > 1 else 1.0
    window = max(1, round(SMOOTHING * steps / spacing))
    means = by_run.rolling(window, center=True, min_periods=1).mean()
    is_next_token = rows["loss_name"].iloc[0] == "next_token"
    quantity = "next_token" if is_next_token else "bag_loss"
    return means.reset_index().melt("step", value_name="loss").assign(quantity=quantity)


def draw(
    axes: Axes, data: pd.DataFrame, looks: Mapping[str, Mark], title: str, start: float = 0.0
) -> None:
    """Draw one panel from step `start` on. It shows held-out curves if every arm has one, or else
    next-token training curves. Final losses (`end` rows, if there are any) and switches are marked,
    and a key says how each arm ended."""
    window = (start, end_of(data))
    shown = data[data["quantity"].isin(("next_token", "held_out"))]
    held_out = set(shown["label"][shown["quantity"] == "held_out"]) == set(data["label"])
    shown = shown[shown["quantity"] == ("held_out" if held_out else "next_token")]
    shown = shown[shown["step"].between(*window)]
    lines(axes, shown, looks)
    for row in rows_of(data[data["quantity"] == "end"]):
        # The baseline has no verdict, since the others are compared with it.
        hollow = pd.notna(row["verdict"]) and row["verdict"] not in CLAIMED
        at, mark = (row["step"], row["loss"]), looks[row["label"]]
        point(axes, at, mark, hollow=hollow, clip_on=False, markersize=3.5)
    axes.set_xlim(*window)
    settled = SETTLED["held-out" if held_out else "training"]
    late = shown[shown["step"] >= window[0] + settled * (window[1] - window[0])]
    late = data[data["quantity"] == "end"] if late.empty else late
    low, high = late[["loss", "low"]].min().min(), late[["loss", "high"]].max().max()
    # Where possible the axis ends below the first loss of each line, which then enters from above.
    first = shown.groupby("label")["loss"].max().min()
    padded = high + 0.05 * (high - low)
    top = min(first, padded) if first > (low + high) / 2 else padded
    axes.set_ylim(low - 0.1 * (top - low), top)
    for switch in sorted(set(data["switch"].astype(int)) - {0}):
        if switch > start:
            mark_step(axes, switch, "switch")
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(3, integer=True, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    marks = "" if held_out or "end" not in set(data["quantity"]) else ", marks: held-out"
    axes.set_ylabel(f"{'held-out' if held_out else 'training'} loss{marks} (nats per token)")
    said = data.drop_duplicates("label", keep="last").set_index("label")["said"]
    ended = data[data["quantity"].isin(("next_token", "end"))]  # an arm may have bag losses alone
    words = {
        said[label] if held_out else f"{label}: {last(rows):.3f}": looks[str(label)]
        for label, rows in ended.groupby("label", sort=False)
    }
    arm_key(axes, title, words, 2)


def end_of(data: pd.DataFrame) -> float:
    """Return the last step, rounded up to three significant digits, because published curves end a
    few steps early."""
    step = float(data["step"].max())
    unit = 10.0 ** (math.floor(math.log10(step)) - 2)
    return math.ceil(step / unit) * unit


def last(rows: pd.DataFrame) -> float:
    """Return the final loss of an arm: that of its `end` row or, if it has none, its last
    next-token training loss."""
    ends = rows[rows["quantity"] == "end"]
    tokens = rows[rows["quantity"] == "next_token"] if ends.empty else ends
    return float(tokens.sort_values("step")["loss"].iloc[-1])
