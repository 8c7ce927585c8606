"""The figure `loss_against_compute`: loss over FLOPs of both arms, and the compute multiplier,
which is the baseline's FLOPs divided by the superposed arm's FLOPs at equal loss."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from tst_study.analysis import published
from tst_study.analysis.fits.scaling.compute_multiplier import compute_multiplier, multipliers_of
from tst_study.analysis.fits.scaling.points import points_of
from tst_study.analysis.statistics import critical_t
from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.verdict.comparison import SAME_BUT_LENGTH, Comparison
from tst_study.analysis.verdict.length_curve import LengthCurve, floors, paired_tables
from tst_study.analysis.wording import bounds, number
from tst_study.config.superposition_setting import SuperpositionSetting
from tst_study.paper_figures.catalogue import figure, submit
from tst_study.paper_figures.drawing import Picture, arm_key, lines, log_axis, means, note
from tst_study.paper_figures.item import Finding
from tst_study.paper_figures.sources import Sources
from tst_study.paper_figures.style import BASELINE, INK, MUTED, PAGE, Look, arm_mark, new_figure

TABLES = (4, 5)
"""Tables of one model at two lengths: 270M at 20,000 and 100,000 steps."""
PAPERS = SuperpositionSetting(6, 1, 0.3)
"""The setting that the paper runs at every dense size. Its number of superposed steps is a
placeholder."""
LOSSES = 9
"""Number of values of the loss at which the multiplier is computed."""
DATA = ("panel", "quantity", "label", "flops", "loss", "low", "high", "multiplier", "seeds")


@dataclass(frozen=True)
class Pair:
    """Both arms at several lengths, from one text, model and learning rate."""

    panel: str
    setting: SuperpositionSetting
    data: pd.DataFrame
    """Columns `DATA`. `quantity` is `point` (the mean loss at a length), `curve` (the fit between
    the lengths) or `multiplier`."""
    folders: tuple[str, ...] = ()
    """Run folders of both arms; empty for published runs."""

    @property
    def widest(self) -> dict[str, Any]:
        """The row of `data` with the multiplier at the lowest loss that both arms reached."""
        own = self.data[self.data["quantity"] == "multiplier"]
        return next(rows_of(own.sort_values("loss")))

    @property
    def times(self) -> str:
        """The multiplier of `widest` in words, with its interval if there is one."""
        interval = f" [{ends}]" if (ends := bounds(self.widest)) else ""
        return f"{self.widest['multiplier']:.2f}{interval} times"

    @property
    def said(self) -> str:
        """The multiplier of `widest`, and the loss at which it was computed."""
        return f"{self.times} the FLOPs at {self.widest['loss']:.3f}, the lowest loss of both"


@figure(
    "loss_against_compute",
    title="Loss against compute of both arms, and the multiplier between them",
    published=["final_loss_grid"],
    needs=submit("loss-against-compute", "one-gpu"),
)
def loss_against_compute(sources: Sources) -> Picture:
    """Show the published pair and, in a second column, the measured pair with most runs, if there
    is one."""
    own = _measured(sources.summary.comparison)
    pairs = [_published(), *own]
    title = f"For the same loss baselines need {pairs[0].times} the FLOPs in the paper (270M)"
    return Picture(
        title=", ".join([title, *(f"{pair.times} here" for pair in own)]),
        caption="Above: final loss over FLOPs. Between the lengths that were run, the curves are "
        "power laws above one common floor. The arrow is the multiplier. Below: the multiplier at "
        f"every loss that both arms reached, on one scale. Published: {PAPERS.label}, Tables 4 and "
        "5, one seed each, no interval.",
        measured=f"Measured: {number(sum(len(pair.folders) for pair in own), 'run')}. Bars and "
        "bands: 95% intervals over seeds. The intervals of the multiplier are from the seeds' "
        "paired differences, and hold jointly for all settings of a text, model and learning rate.",
        data=pd.concat([pair.data for pair in pairs], ignore_index=True)[list(DATA)],
        folders=tuple(folder for pair in own for folder in pair.folders),
        draw=partial(_figure, pairs),
        finding=Finding(
            f"not shown as a curve; from its numbers: {pairs[0].said}",
            "; ".join(f"{pair.panel}: {pair.said}" for pair in own),
            verdict="not in the paper",
        ),
    )


def _published() -> Pair:
    cells = pd.concat([published.loss_grid(table) for table in TABLES])
    cells = cells.assign(flops=cells["steps"] * float(published.step_flops("270M")), seed=0)
    baseline = cells[cells["bag_size"] == 1]
    arm = cells["step_ratio"].eq(PAPERS.step_ratio) & cells["bag_size"].eq(PAPERS.bag_size)
    multipliers = compute_multiplier(baseline, cells[arm], LOSSES)
    return _pair("published: 270M", PAPERS, baseline, cells[arm], multipliers)


def _measured(found: Comparison) -> list[Pair]:
    """Return the measured pair with most runs, baselines included, or an empty list.

    Pairs are made for settings of the paper's method for which a multiplier can be computed; both
    the setting and its baseline need runs of two lengths or more, and neither may be unstable.
    """
    pairs: list[Pair] = []
    points = points_of(found.eligible)
    for _, family in points.groupby(list(SAME_BUT_LENGTH), dropna=False):
        for _, members, table in multipliers_of(family, losses=LOSSES):
            setting = SuperpositionSetting.of_row(next(rows_of(members)))
            is_stable = found.unstable.isdisjoint(members["run_id"])
            if setting.is_plain and is_stable and isinstance(table, pd.DataFrame):
                panel = f"measured: {members['corpus'].iloc[0]}"
                baselines = family[family["method"] == "baseline"]
                pairs.append(_pair(panel, setting, baselines, members, table))
    return sorted(pairs, key=lambda pair: -len(pair.folders))[:1]


def _pair(
    panel: str,
    setting: SuperpositionSetting,
    baseline: pd.DataFrame,
    method: pd.DataFrame,
    multipliers: pd.DataFrame,
) -> Pair:
    """Make a pair from the runs of both arms and their multipliers. Bars of the points are 95%
    intervals over seeds; with one seed there are none."""
    tables, _ = paired_tables([baseline, method], "flops")
    fitted = [LengthCurve.of(table, "arm") for table in tables]
    floor = float(floors(fitted)[0])
    parts = [multipliers.assign(quantity="multiplier", label=setting.label)]
    for label, table, curve in zip(("baseline", setting.label), tables, fitted, strict=True):
        seeds, means = table.shape[1], table.mean(axis=1)
        half = critical_t(seeds - 1) * table.std(axis=1) / seeds**0.5 if seeds > 1 else np.nan
        points = {"flops": table.index, "loss": means, "low": means - half, "high": means + half}
        parts.append(pd.DataFrame(points).assign(quantity="point", label=label))
        places = np.linspace(curve.x[0], curve.x[-1], 40)
        losses = [float(curve.at(place, floor).mean()) for place in places]
        between = pd.DataFrame({"flops": np.exp(places), "loss": losses})
        parts.append(between.assign(quantity="curve", label=label))
    data = pd.concat(parts, ignore_index=True).reindex(columns=list(DATA)).assign(panel=panel)
    runs = pd.concat([baseline, method]).reindex(columns=["folder"])["folder"].dropna()
    return Pair(panel, setting, data, tuple(sorted(set(runs))))


def _figure(pairs: list[Pair]) -> Figure:
    drawn, (above, below) = new_figure(PAGE, 4.4, len(pairs), 2)
    every = pd.concat([pair.data for pair in pairs]).query("quantity == 'multiplier'")
    ends = every[["multiplier", "low", "high"]].assign(equal=1).to_numpy(float)
    for loss_axes, axes, pair in zip(above, below, pairs, strict=True):
        _draw_losses(loss_axes, pair)
        axes.axhline(1, color=MUTED, linewidth=0.7)
        rows = pair.data[pair.data["quantity"] == "multiplier"]
        lines(axes, rows, {pair.setting.label: arm_mark(pair.setting)}, x="loss", y="multiplier")
        axes.invert_xaxis()
        log_axis(axes, "y", [0.8, 1, 1.25, 1.5, 2, 2.5, 3])
        axes.set_ylim(0.97 * np.nanmin(ends), 1.03 * np.nanmax(ends))
        axes.set_xlabel("loss of both arms (nats per token)")
    above[0].set_ylabel("final loss (nats per token)")
    below[0].set_ylabel("compute multiplier (log scale)")
    return drawn


def _draw_losses(axes: Axes, pair: Pair) -> None:
    looks = {"baseline": BASELINE, pair.setting.label: arm_mark(pair.setting)}
    curves, points = (pair.data[pair.data["quantity"] == kind] for kind in ("curve", "point"))
    lines(axes, curves, looks, x="flops")
    means(axes, points, looks, "flops", by="label")
    widest, curve = pair.widest, curves[curves["label"] == "baseline"]
    to = float(np.interp(-widest["loss"], -curve["loss"], curve["flops"]))
    start = (to / widest["multiplier"], widest["loss"])
    arrow: Look = {"arrowstyle": "<->", "color": INK, "lw": 0.9, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", start, xytext=(to, widest["loss"]), arrowprops=arrow)
    place: Look = {"ha": "right", "va": "top", "fontweight": "bold"}  # clear of the falling curve
    note(axes, f"{widest['multiplier']:.2f}×", start, (-4, -2), **place)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:.2g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.margins(y=0.12)  # room for the multiplier below the lowest curve
    axes.set_xlabel("FLOPs of a run (log scale)")
    arm_key(axes, pair.panel, looks, 2, markers=True)
