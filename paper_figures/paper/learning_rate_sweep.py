"""Figure 7: final loss over the peak learning rate, for the baseline and for superposition.

The paper shows its sweep as a picture without numbers, so only sweeps that were measured here are
drawn. The rate that the paper chose for each model is published, and stands in the caption.
"""

from functools import partial

import pandas as pd
from matplotlib.figure import Figure

from tst_study.analysis import published
from tst_study.analysis.summary import Summary
from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.tables.eligible import over_shared_seeds
from tst_study.analysis.verdict.learning_rate import swept
from tst_study.analysis.wording import disambiguate_by_set_up, group_label, number
from tst_study.config.superposition_setting import COLUMNS as SETTING
from tst_study.config.superposition_setting import SuperpositionSetting
from tst_study.paper_figures.catalogue import figure, submit
from tst_study.paper_figures.drawing import Picture, arm_key, log_axis, means
from tst_study.paper_figures.item import Finding, Item
from tst_study.paper_figures.sources import Sources
from tst_study.paper_figures.style import COLUMN, PAGE, Look, marks_of, new_figure

PANELS = 2
"""The largest number of panels."""
DATA: tuple[str, ...] = ("panel", "setting", *SETTING, "learning_rate")
DATA += ("seeds", "loss", "low", "high", "diverged")
"""Columns of the figure's data. `loss`, `low` and `high` are the mean, the lowest and the highest
loss over seeds (nats per token); `diverged` is a number of runs."""


@figure(
    "figure7",
    title="Figure 7. Learning-rate sweeps",
    needs=submit("learning-rates", "paper", "one-gpu"),
    lacks=f"a baseline at two or more learning rates: {submit('learning-rates', 'laptop')}",
)
def learning_rate_sweep(sources: Sources) -> Item | None:
    """Show measured sweeps, each in a panel of its own.

    The sweeps with the most arms are drawn, at most `PANELS` of them; the others are in the data
    alone. None if there is no sweep.
    """
    sweeps, used = sweep_data(sources.summary)
    if sweeps.empty:
        return None
    settings = sweeps.groupby("panel")["setting"].nunique()
    shown = list(settings.index[settings == settings.max()][:PANELS])
    more = [panel for panel in settings.index if panel not in shown]
    not_drawn = f" In the data alone: {', '.join(more)}." if more else ""
    used_rates = ", ".join(f"{size} {rate:g}" for size, rate in published.LEARNING_RATE.items())
    best = _best(sweeps) if len(settings) == 1 else {}  # a title speaks for all panels
    lowest = ", ".join(f"{at:.3g} for {arm}" for arm, at in best.items())
    return Picture(
        title=f"Figure 7. The lowest loss is at a learning rate of {lowest}" if best else "",
        caption=f"Peak learning rates that the paper used: {used_rates}; its sweep is a picture "
        "whose numbers were not published.",
        measured="Measured: held-out loss over the peak learning rate (log scale); points: means "
        "over the seeds that all rates of a setting share, bars: their range. "
        f"{number(len(used), 'run')}.{not_drawn}",
        data=sweeps,
        folders=used,
        draw=partial(_figure, sweeps, shown),
        finding=_finding(sweeps),
    )


def sweep_data(summary: Summary) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Return the rows of all sweeps in the columns `DATA`, and the folders of their runs.

    A sweep is a comparison group, on one held-out text, whose baselines were run at two or more
    learning rates. Each arm that was run at two or more rates has a row for each of its rates.
    """
    sweeps = swept(summary.tables.runs)
    # A learning rate does not distinguish sweeps, because each has several.
    firsts = [members.assign(learning_rate=0).iloc[0] for members in sweeps]
    panels = disambiguate_by_set_up([group_label(members) for members in sweeps], firsts)
    tables: list[pd.DataFrame] = []
    folders: list[str] = []
    for panel, members in sorted(zip(panels, sweeps, strict=True), key=lambda pair: pair[0]):
        by_setting = members.groupby(list(SETTING), dropna=False, sort=False)
        arms = [(SuperpositionSetting.of_row(next(rows_of(own))), own) for _, own in by_setting]
        arms = [arm for arm in arms if arm[1]["learning_rate"].nunique() > 1]
        for setting, own in sorted(arms, key=lambda arm: arm[0].order):
            named = {"panel": panel, "setting": setting.label, **setting.columns()}
            tables.append(_by_rate(own).assign(**named))
            folders += list(own["folder"])
    data = pd.concat(tables) if tables else pd.DataFrame(columns=list(DATA))
    return data[list(DATA)], tuple(sorted(folders))


def _by_rate(same: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each learning rate of one arm: mean and range of the loss over seeds, the
    number of these seeds, and the number of runs that diverged.

    So that rates are compared over the same seeds, a seed counts only if it finished at every rate
    (rates at which no run finished are ignored in this). If the rates share no seed, all count.
    """
    losses = over_shared_seeds(same[same["state"] == "done"], "learning_rate", "nats_per_token")
    columns = {"loss": "mean", "low": "min", "high": "max", "seeds": "count"}
    table = pd.DataFrame({name: losses.agg(way, axis=1) for name, way in columns.items()})
    lost = same["state"].eq("diverged").groupby(same["learning_rate"]).sum().rename("diverged")
    table = table.join(lost, how="right").fillna({"seeds": 0}).astype({"seeds": int})
    return table.reset_index()


def _figure(data: pd.DataFrame, panels: list[str]) -> Figure:
    drawn, (row,) = new_figure(PAGE if len(panels) > 1 else COLUMN, 2.6, len(panels))
    for axes, panel in zip(row, panels, strict=True):
        own = data[data["panel"] == panel]
        looks, known = marks_of(own, "setting"), own[own["loss"].notna()]
        means(axes, known, looks, "learning_rate", apart=1.02, joined=True)
        more: dict[str, Look] = {}
        for row_of in rows_of(own[own["diverged"] > 0]):
            edge: Look = {"transform": axes.get_xaxis_transform(), "clip_on": False}
            colour = looks[row_of["setting"]].colour
            axes.plot(row_of["learning_rate"], 1.0, "x", color=colour, **edge)
            more = {"diverged": {"marker": "x"}}
        log_axis(axes, "x", sorted(set(own["learning_rate"])))
        axes.set(xlabel="peak learning rate (log scale)", ylabel="held-out loss (nats per token)")
        arm_key(axes, f"measured: {panel}", looks, 2, more, markers=True)
    return drawn


def _best(sweeps: pd.DataFrame) -> dict[str, float]:
    """Return for each arm the learning rate with the lowest loss, among those at which no seed
    diverged."""
    known = sweeps[sweeps["loss"].notna() & (sweeps["diverged"] == 0)].sort_values("loss")
    best = known.drop_duplicates("setting").sort_index()
    return dict(zip(best["setting"], best["learning_rate"], strict=True))


def _finding(sweeps: pd.DataFrame) -> Finding:
    theirs = "a sweep shown as a picture; its numbers were not published"
    best = {str(panel): _best(rows) for panel, rows in sweeps.groupby("panel", sort=True)}
    texts = [
        f"{panel}: " + ", ".join(f"{name} best at {at:g}" for name, at in rates.items())
        for panel, rates in best.items()
        if rates
    ]
    seeds = number(int(sweeps["seeds"].max()), "seed")
    return Finding(theirs, "; ".join(texts), f"at most {seeds}", "undecided")
