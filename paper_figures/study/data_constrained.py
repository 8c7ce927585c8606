"""Loss against unique text: what repeating a short text costs either arm."""

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from tst_study.analysis.fits.scaling.repetition import PUBLISHED, Repetition, fit_repetition
from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.wording import number
from tst_study.config.superposition_setting import SuperpositionSetting
from tst_study.errors import UserError
from tst_study.paper_figures.catalogue import figure, submit
from tst_study.paper_figures.drawing import arm_key, log_axis, point
from tst_study.paper_figures.item import Item
from tst_study.paper_figures.picture import Picture
from tst_study.paper_figures.sources import Sources
from tst_study.paper_figures.style import (
    BASELINE,
    COLUMN,
    INK,
    MUTED,
    Look,
    Mark,
    arm_mark,
    new_figure,
)
from tst_study.statistics import critical_t
from tst_study.text import big

SAME = ["parameters", "learning_rate", "sequences", "sequence_length", "eval_set"]
DATA = ["setting", "unique_raw_tokens", "epochs", "loss", "low", "high", "seeds"]
LAWS: dict[str, Look] = {
    "fitted": {"color": INK, "linestyle": "-"},
    "published": {"color": INK, "linestyle": (0, (4, 2))},
    "null": {"color": MUTED, "linestyle": (0, (1, 1.5))},
}
"""How the law is drawn with its fitted R*, with the published one and without any discount."""


@figure(
    "data_constrained",
    title="Loss against unique text",
    lacks="a setting and its baseline at one number of steps on two or more amounts of text: "
    f"{submit('data-constrained', 'laptop')}",
)
def data_constrained(sources: Sources) -> list[Item]:
    """Show the runs of one model and length with most amounts of unique text."""
    runs = sources.summary.comparison.eligible
    runs = runs[runs["unique_raw_tokens"].notna()]
    runs = runs.assign(
        setting=[SuperpositionSetting.of_row(row).label for row in rows_of(runs)],
        loss=runs["nats_per_token"].astype(float),
        tokens=runs["raw_tokens"].astype(float),
        unique=runs["unique_raw_tokens"].astype(float),
    )
    found = [_both_arms(same) for _, same in runs.groupby([*SAME, "steps"], sort=False)]
    found = [same for same in found if same["unique"].nunique() > 1]
    if not found:
        return []
    same = max(found, key=lambda rows: (rows["unique"].nunique(), len(rows)))
    first = next(rows_of(same))
    family = runs[np.logical_and.reduce([runs[name] == first[name] for name in SAME])]
    baselines = family[family["setting"] == "baseline"]
    law, why = None, ""
    try:
        law = fit_repetition(baselines)
    except UserError as error:
        why = f" No law: {error}."
    data = pd.DataFrame(_means(same), columns=DATA)
    looks = {row["setting"]: arm_mark(SuperpositionSetting.of_row(row)) for row in rows_of(same)}
    tokens = float(same[same["setting"] == "baseline"]["tokens"].iloc[0])
    return [
        Picture(
            title=_message(data),
            caption=f"Final held-out loss of runs of equal FLOPs ({big(first['parameters'])} "
            f"parameters, {first['steps']:,} steps), means over seeds with 95% intervals (t); "
            f"numbers: epochs. Less text is also other text. {_said(law, baselines)}{why}",
            data=data,
            folders=tuple(sorted({*same["folder"], *baselines["folder"]})),
            fits={"R*": law.constant, "rmse": law.errors} if law else {},
            draw=partial(_figure, data, looks, law, tokens),
        )
    ]


def _both_arms(same: pd.DataFrame) -> pd.DataFrame:
    """Keep the settings that were run on every amount of text that the baseline was."""
    amounts = set(same[same["setting"] == "baseline"]["unique"])
    kept = same[same["unique"].isin(amounts)]
    whole = kept.groupby("setting")["unique"].transform("nunique") == len(amounts)
    kept = kept[whole]
    return kept if kept["setting"].nunique() > 1 else kept.iloc[:0]


def _means(same: pd.DataFrame) -> list[dict[str, Any]]:
    rows = []
    for (setting, unique), own in same.groupby(["setting", "unique"]):
        mean, count = float(own["loss"].mean()), len(own)
        half = critical_t(count - 1) * float(own["loss"].std()) / count**0.5 if count > 1 else None
        ends = {} if half is None else {"low": mean - half, "high": mean + half}
        more = {"epochs": float(own["epochs"].mean()), "loss": mean, "seeds": count, **ends}
        rows.append({"setting": setting, "unique_raw_tokens": unique, **more})
    return rows


def _message(data: pd.DataFrame) -> str:
    """Say how much each arm loses on the shortest text, against the longest."""
    wide = data.pivot(index="unique_raw_tokens", columns="setting", values="loss")
    cost = wide.iloc[0] - wide.iloc[-1]
    said = ", ".join(f"{_short(str(name))} {cost[name]:.3f}" for name in cost.index)
    share = wide.index[0] / wide.index[-1]
    return f"Repeating {share:.0%} of the text costs, in nats: {said}"


def _said(law: Repetition | None, baselines: pd.DataFrame) -> str:
    if law is None:
        return ""
    again = baselines[baselines["tokens"] > baselines["unique"]]
    amounts, error = again["unique"].nunique(), law.errors
    return (
        "Lines: the law of Muennighoff et al. (arXiv 2305.16264) for the baseline, its E, B and β "
        f"fitted to {number(len(baselines) - len(again), 'run')} on fresh text, its R* to "
        f"{number(len(again), 'run')} that repeat {number(amounts, 'text')}: R* = "
        f"{law.constant:.2f}, without an interval. RMSE on the runs that repeat: "
        f"{error['fitted']:.3f} nats; with the published R* = {PUBLISHED}: "
        f"{error['published']:.3f}; "
        f"if repeated text were as good as new (the null) {error['null']:.3f}."
    )


def _figure(
    data: pd.DataFrame, looks: dict[str, Mark], law: Repetition | None, tokens: float
) -> Figure:
    drawn, ((axes,),) = new_figure(COLUMN, 2.9, 1)
    amounts = sorted(set(data["unique_raw_tokens"]))
    more: dict[str, Look] = {}
    if law:
        at = np.geomspace(amounts[0] / 1.2, amounts[-1] * 1.2, 200)
        names = {"fitted": f"law, R* = {law.constant:.1f}"}
        names |= {"published": f"law, published R* = {PUBLISHED}", "null": "no cost (null)"}
        constants = {"fitted": None, "published": PUBLISHED, "null": np.inf}
        for name, look in LAWS.items():
            heights = law.loss(np.full_like(at, tokens), at, constants[name])
            axes.plot(at, heights, lw=0.9, zorder=1, **look)
            more[names[name]] = {"lw": 0.9, **look}
    for place, (setting, rows) in enumerate(data.groupby("setting", sort=False)):
        aside = 1.05 ** (place - (data["setting"].nunique() - 1) / 2)
        for row in rows_of(rows):
            place_, bar = (row["unique_raw_tokens"] * aside, row["loss"]), (row["low"], row["high"])
            point(axes, place_, looks[str(setting)], bar, words=f"{setting}: {row['loss']:.4f}")
    log_axis(axes, "x", amounts, [_epochs(data, amount) for amount in amounts])
    axes.set_xlim(amounts[0] / 1.5, amounts[-1] * 1.5)
    axes.set_xlabel("unique text (log scale)")
    axes.set_ylabel("held-out loss (nats per token)")
    arm_key(axes, "", {"baseline": BASELINE, **looks}, 2, more, markers=True, curves=False)
    return drawn


def _epochs(data: pd.DataFrame, amount: float) -> str:
    own = data[data["unique_raw_tokens"] == amount]
    said = [f"{_short(row['setting'])}: {row['epochs']:.2g} epochs" for row in rows_of(own)]
    return "\n".join([f"{big(amount)} tokens", *said])


def _short(setting: str) -> str:
    """Name a setting by what tells it from the others, without the r that they share."""
    parts = setting.split(", ")
    return parts[0] if len(parts) <= 2 else parts[-1]
