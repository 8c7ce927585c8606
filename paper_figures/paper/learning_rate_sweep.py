"""Figure 7: final loss over the peak learning rate, baseline and superposition.

The paper's own sweep is not among the published numbers (a picture without a table); what it chose
for each model is.
"""

from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tst_study.analysis import published
from tst_study.analysis.summary import Summary
from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.tables.eligible import over_shared_seeds
from tst_study.analysis.verdict.learning_rate import swept
from tst_study.analysis.wording import group_label, number, told_apart
from tst_study.config.superposition_setting import COLUMNS as SETTING
from tst_study.config.superposition_setting import SuperpositionSetting
from tst_study.paper_figures.catalogue import figure, submit
from tst_study.paper_figures.drawing import key_above, log_axis, means, note, point
from tst_study.paper_figures.item import Finding
from tst_study.paper_figures.picture import Picture
from tst_study.paper_figures.sources import Sources
from tst_study.paper_figures.style import BASELINE, COLUMN, PAGE, Look, new_figure, setting_marks
from tst_study.text import big

MOST = 6
"""Settings of one panel."""
PANELS = 3
CHOSEN = "published: chosen for each model"
DATA: tuple[str, ...] = ("panel", "setting", "bag_size", "step_ratio", "learning_rate")
DATA += ("seeds", "loss", "low", "high", "diverged")


@figure(
    "figure7",
    title="Figure 7. Learning-rate sweeps",
    needs=submit("learning-rates", "paper", "one-gpu"),
)
def learning_rate_sweep(sources: Sources) -> Picture:
    """What the paper chose, and one panel per group that has a baseline at two or more rates."""
    sweeps, used = sweep_data(sources.summary)
    rates = published.LEARNING_RATE
    chosen = pd.DataFrame(
        {"panel": CHOSEN, "setting": list(rates), "learning_rate": rates.values()}
    )
    data = pd.concat([chosen.reindex(columns=list(DATA)), sweeps], ignore_index=True)
    more = list(dict.fromkeys(data["panel"]))[PANELS:]
    not_drawn = f" In the data alone: {', '.join(more)}." if more else ""
    return Picture(
        caption="The peak learning rates that the paper used; its sweep is a picture whose numbers "
        "were not published.",
        measured="Measured: held-out loss over the peak learning rate (log scale); points: means "
        "over the seeds that all rates of a setting share, bars: their range; crosses at the upper "
        f"edge: diverged. {number(len(used), 'run')}.{not_drawn}",
        data=data,
        folders=used,
        draw=partial(_figure, data),
        finding=_finding(sweeps),
    )


def sweep_data(summary: Summary) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Means by rate, and the run folders they are of; groups in order of name."""
    found = swept(summary.tables.runs, summary.comparison.eligible)
    panels = told_apart(
        [group_label(members) for members in found],
        [f"{big(members['parameters'].iloc[0])} parameters" for members in found],
        [f"held out: {members['eval_set'].iloc[0]}" for members in found],
        [f"[{members['group'].iloc[0][:6]}]" for members in found],
    )
    shown = [
        (panel, *one)
        for panel, members in sorted(zip(panels, found, strict=True), key=lambda one: one[0])
        for one in _shown(members)
    ]
    tables = [
        _by_rate(same).assign(
            panel=panel,
            setting=setting.label,
            bag_size=setting.bag_size,
            step_ratio=setting.step_ratio,
        )
        for panel, setting, same in shown
    ]
    folders = sorted(folder for *_, same in shown for folder in same["folder"])
    data = pd.concat(tables) if tables else pd.DataFrame(columns=list(DATA))
    return data[list(DATA)], tuple(folders)


def _shown(members: pd.DataFrame) -> list[tuple[SuperpositionSetting, pd.DataFrame]]:
    """Settings with several rates; where only the baseline has them, a plain setting beside it."""
    by_setting = members.groupby(list(SETTING), dropna=False, sort=False)
    settings = [(SuperpositionSetting.of_row(next(rows_of(same))), same) for _, same in by_setting]
    settings.sort(key=lambda one: one[0].order)
    several = [one for one in settings if one[1]["learning_rate"].nunique() > 1][:MOST]
    single = [one for one in settings if one[1]["learning_rate"].nunique() == 1]
    single = [one for one in single if not one[0].ablations]
    return several if len(several) > 1 else several + single[:1]


def _by_rate(same: pd.DataFrame) -> pd.DataFrame:
    """Means, and from the lowest to the highest seed, over the seeds that every rate has."""
    losses = over_shared_seeds(same[same["state"] == "done"], "learning_rate", "nats_per_token")
    columns = {"loss": "mean", "low": "min", "high": "max", "seeds": "count"}
    table = pd.DataFrame({name: losses.agg(way, axis=1) for name, way in columns.items()})
    lost = same["state"].eq("diverged").groupby(same["learning_rate"]).sum().rename("diverged")
    table = table.join(lost, how="right").fillna({"seeds": 0}).astype({"seeds": int})
    return table.reset_index()


def _figure(data: pd.DataFrame) -> Figure:
    panels = list(dict.fromkeys(data["panel"]))[:PANELS]
    drawn, (row,) = new_figure(PAGE if len(panels) > 1 else COLUMN, 2.6, len(panels))
    _draw_chosen(row[0], data[data["panel"] == CHOSEN])
    for axes, panel in zip(row[1:], panels[1:], strict=True):
        _draw(axes, data[data["panel"] == panel], panel)
        axes.set_ylabel("held-out loss (nats per token)")
    return drawn


def _draw_chosen(axes: Axes, data: pd.DataFrame) -> None:
    for row in rows_of(data):
        at = (published.PARAMS[row["setting"]], row["learning_rate"])
        point(axes, at, BASELINE, words=f"{row['setting']}: {row['learning_rate']:g}")
        note(axes, row["setting"], at, (4, 3))
    log_axis(axes, "x", [3e8, 1e9, 3e9, 1e10], ["300M", "1B", "3B", "10B"])
    log_axis(axes, "y", sorted(set(data["learning_rate"])))
    axes.margins(x=0.25, y=0.12)
    axes.set_xlabel("parameters (log scale)")
    axes.set_ylabel("peak learning rate (log scale)")
    axes.set_title(CHOSEN)


def _draw(axes: Axes, data: pd.DataFrame, panel: str) -> None:
    looks = setting_marks(data, "setting")
    means(axes, data, looks, _said, x="learning_rate")
    for row in rows_of(data[data["diverged"] > 0]):
        edge: Look = {"transform": axes.get_xaxis_transform(), "clip_on": False}
        axes.plot(row["learning_rate"], 1.0, "x", color=looks[row["setting"]].colour, **edge)
    log_axis(axes, "x", sorted(set(data["learning_rate"])))
    axes.set_xlabel("peak learning rate (log scale)")
    key_above(axes, f"measured: {panel}", looks, 3)


def _said(row: dict[str, Any]) -> str:
    return f"{row['setting']}, {row['learning_rate']:g}: {row['loss']:.4f}"


def _finding(sweeps: pd.DataFrame) -> Finding:
    said = "a sweep shown as a picture; its numbers were not published"
    if sweeps.empty:
        return Finding(said)
    texts = []
    known = sweeps[sweeps["loss"].notna() & (sweeps["diverged"] == 0)].sort_values("loss")
    for panel, rows in known.groupby("panel", sort=True):
        best = rows.drop_duplicates("setting").set_index("setting")["learning_rate"]
        texts.append(
            f"{panel}: " + ", ".join(f"{name} best at {at:g}" for name, at in best.items())
        )
    seeds = number(int(sweeps["seeds"].max()), "seed")
    return Finding(said, "; ".join(texts), f"at most {seeds}", "undecided")
