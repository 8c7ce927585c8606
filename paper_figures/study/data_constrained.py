"""`data_constrained`: loss against the amount of unique text.

It shows what repeating a short text costs the baseline and superposition. The runs are those of a
study that trains both for equally many steps on different amounts of text.
"""

import json
from collections.abc import Iterable, Mapping
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from tst_study.analysis.fits.scaling.repetition import PUBLISHED, Repetition, fit_repetition
from tst_study.analysis.statistics import critical_t
from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.tables.run_folders import of_config
from tst_study.analysis.wording import disambiguate, number
from tst_study.errors import UserError
from tst_study.paper_figures.catalogue import figure, submit
from tst_study.paper_figures.drawing import Picture, arm_key, log_axis, means
from tst_study.paper_figures.item import Item
from tst_study.paper_figures.sources import Sources
from tst_study.paper_figures.style import COLUMN, INK, MUTED, Look, Mark, marks_of, new_figure
from tst_study.text import big

SAME = ["set_up", "learning_rate", "eval_set"]
"""Columns in which runs on different amounts of text must agree to be compared. `set_up` is the
family that a run would have if its text were that of all others."""


@figure(
    "data_constrained",
    title="Loss against unique text",
    lacks="a setting and its baseline at one number of steps on two or more amounts of text: "
    f"{submit('data-constrained', 'laptop')}",
)
def data_constrained(sources: Sources) -> Item | None:
    """Show runs that agree in `SAME` and in their number of steps. If several sets of runs do, show
    the one with the most amounts of unique text.

    A setting is drawn only if it was run on every amount that the baseline has. Returns None if no
    set has a baseline and another setting on two or more amounts, one of which was read more than
    once.
    """
    names = {"raw_tokens": "tokens", "unique_raw_tokens": "unique", "nats_per_token": "loss"}
    runs = sources.summary.comparison.eligible.rename(columns=names)
    runs = runs[runs["unique"].notna()].astype(dict.fromkeys(names.values(), float))
    runs["set_up"] = [of_config(json.loads(text), {})["family"] for text in runs["config"]]
    families = [_on_every_text(same) for _, same in runs.groupby([*SAME, "steps"], sort=False)]
    families = [
        same
        for same in families
        if same["setting"].nunique() > 1 and (same["tokens"] > same["unique"]).any()
    ]
    if not families:
        return None
    same = max(families, key=lambda rows: (rows["unique"].nunique(), len(rows)))
    baselines = runs[runs["setting"] == "baseline"].merge(same[SAME].head(1), on=SAME)
    try:
        law, law_words = (fit := fit_repetition(baselines)), _said(fit, baselines)
    except UserError as error:
        law, law_words = None, f"No law: {error}."
    data, first = _means(same), next(rows_of(same.sort_values("bag_size")))
    wide = data.pivot(index="unique", columns="setting", values="loss")
    cost, names = wide.iloc[0] - wide.iloc[-1], _short(wide.columns)
    costs = ", ".join(f"{cost[label]:.3f} ({name})" for label, name in names.items())
    return Picture(
        title=f"{wide.index[0] / wide.index[-1]:.0%} of the text, repeated, raises the loss by "
        f"{costs}",
        caption=f"Final held-out loss of runs of equal FLOPs ({big(first['parameters'])} "
        f"parameters, {first['steps']:,} steps), means over seeds with 95% intervals (t). "
        f"A smaller text is also a different one. {law_words}",
        data=data,
        folders=tuple(sorted({*same["folder"], *baselines["folder"]})),
        fits={"R*": law.constant, "rmse": law.errors} if law else {},
        draw=partial(_figure, data, marks_of(same, "setting"), law, first["tokens"]),
    )


def _on_every_text(same: pd.DataFrame) -> pd.DataFrame:
    """Keep the settings that were run on every amount of text that the baseline has: of each amount
    those of the comparison group that has the most settings. No row is left if the baseline has
    fewer than two amounts."""
    settings = same.groupby(["unique", "group"])["setting"].agg(["nunique", "size"])
    chosen = settings.sort_values(["nunique", "size"]).groupby("unique").tail(1).index
    same = same[pd.MultiIndex.from_frame(same[["unique", "group"]]).isin(chosen)]
    amounts = set(same["unique"][same["setting"] == "baseline"])
    kept = same[same["unique"].isin(amounts)]
    whole = kept.groupby("setting")["unique"].transform("nunique") == len(amounts)
    return kept[whole & (len(amounts) > 1)]


def _means(same: pd.DataFrame) -> pd.DataFrame:
    groups = same.groupby(["setting", "unique"])
    data = groups.agg(epochs=("epochs", "mean"), loss=("loss", "mean"), seeds=("loss", "size"))
    several = data["seeds"].where(data["seeds"] > 1)
    critical = several.map(lambda seeds: critical_t(int(seeds) - 1), na_action="ignore")
    half = critical * groups["loss"].std() / several**0.5
    return data.assign(low=data["loss"] - half, high=data["loss"] + half).reset_index()


def _said(law: Repetition, baselines: pd.DataFrame) -> str:
    again = baselines[baselines["tokens"] > baselines["unique"]]
    return (
        "Lines: the law of Muennighoff et al. (arXiv 2305.16264) for the baseline, its E, B and β "
        f"fitted to {number(len(baselines) - len(again), 'run')} on fresh text, its R* to "
        f"{number(len(again), 'run')} that repeat {number(again['unique'].nunique(), 'text')}: "
        f"R* = {law.constant:.2f}, without an interval. RMSE on the runs that repeat: "
        f"{law.errors['fitted']:.3f} nats; with the published R* = {PUBLISHED}: "
        f"{law.errors['published']:.3f}; if repeated text were as good as new (the null): "
        f"{law.errors['null']:.3f}."
    )


def _figure(
    data: pd.DataFrame, looks: dict[str, Mark], law: Repetition | None, tokens: float
) -> Figure:
    drawn, ((axes,),) = new_figure(COLUMN, 3.6, 1)
    amounts, more = sorted(set(data["unique"])), dict[str, Look]()
    at = np.geomspace(amounts[0] / 1.2, amounts[-1] * 1.2, 200)
    if law:
        for name, constant, look in (
            (f"law, R* = {law.constant:.1f}", law.constant, {"color": INK, "linestyle": "-"}),
            (f"law, published R* = {PUBLISHED}", PUBLISHED, {"color": INK, "linestyle": "--"}),
            ("no cost (null)", np.inf, {"color": MUTED, "linestyle": ":"}),
        ):
            more[name] = {"linewidth": 0.9, **look}
            axes.plot(at, law.loss(np.full_like(at, tokens), at, constant), **more[name])
    means(axes, data, looks, "unique", apart=1.05)
    names = _short(data["setting"].unique())
    log_axis(axes, "x", amounts, [_epochs(rows, names) for _, rows in data.groupby("unique")])
    axes.set_xlim(amounts[0] / 1.5, amounts[-1] * 1.5)
    axes.set(xlabel="unique text (log scale)", ylabel="held-out loss (nats per token)")
    arm_key(axes, "", looks, 2, more, markers=True, curves=False)
    return drawn


def _epochs(rows: pd.DataFrame, names: Mapping[str, str]) -> str:
    lines = [f"{names[row['setting']]}: {row['epochs']:.2g} epochs" for row in rows_of(rows)]
    return "\n".join([f"{big(rows['unique'].iloc[0])} tokens", *lines])


def _short(settings: Iterable[str]) -> dict[str, str]:
    """Shorten the labels of settings to their last ablation, or, if they have none, to their first
    part (`s = 4` for `s = 4, r = 0.3`). Where two would be equal, the other parts follow."""
    parts = [label.split(", ") for label in settings]
    ends = [(one[0], one[1:]) if len(one) <= 2 else (one[-1], one[:-1]) for one in parts]
    names = disambiguate([name for name, _ in ends], [", ".join(rest) for _, rest in ends])
    return dict(zip(map(", ".join, parts), names, strict=True))
