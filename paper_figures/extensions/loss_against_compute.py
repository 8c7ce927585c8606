"""Loss against compute of both arms, and the compute multiplier: their distance at equal loss."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tst_study.analysis import published
from tst_study.analysis.fits.scaling.compute_multiplier import multipliers_of
from tst_study.analysis.summary import Summary
from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.verdict.length_curve import LengthCurve, floors, paired_tables
from tst_study.analysis.wording import number
from tst_study.config.superposition_setting import SuperpositionSetting
from tst_study.paper_figures.catalogue import figure, submit
from tst_study.paper_figures.drawing import arm_key, lines, log_axis, note, point
from tst_study.paper_figures.item import Finding
from tst_study.paper_figures.picture import Picture
from tst_study.paper_figures.sources import Sources
from tst_study.paper_figures.style import (
    BASELINE,
    INK,
    MUTED,
    PAGE,
    Look,
    Mark,
    arm_mark,
    new_figure,
)
from tst_study.statistics import critical_t

TABLES = (4, 5)
"""Tables of one model at two lengths: 270M at 20,000 and 100,000 steps."""
BAG, RATIO = 6, 0.3
"""The published setting that was run at both sizes."""
LOSSES = 9
DATA = ("panel", "quantity", "label", "flops", "loss", "low", "high", "multiplier", "seeds")


@dataclass(frozen=True)
class Pair:
    """Both arms at several lengths, from one text, model and learning rate."""

    panel: str
    setting: SuperpositionSetting
    curves: pd.DataFrame
    """Rows of `DATA`: `point` for a length, `curve` for the fit between lengths, `multiplier`."""
    folders: tuple[str, ...] = ()

    @property
    def multipliers(self) -> pd.DataFrame:
        return self.curves[self.curves["quantity"] == "multiplier"]

    @property
    def widest(self) -> dict[str, Any]:
        """The multiplier at the lowest loss that both arms reached."""
        return next(rows_of(self.multipliers.sort_values("loss")))

    @property
    def said(self) -> str:
        row = self.widest
        bounds = [("open" if pd.isna(row[end]) else f"{row[end]:.2f}") for end in ("low", "high")]
        interval = f" [{', '.join(bounds)}]" if set(bounds) != {"open"} else ""
        return f"{row['multiplier']:.2f}{interval} times the FLOPs at a loss of {row['loss']:.3f}"


@figure(
    "loss_against_compute",
    title="Loss against compute of both arms, and the multiplier between them",
    published=["headline_runs", "final_loss_grid"],
    needs=submit("loss-against-compute", "one-gpu"),
)
def loss_against_compute(sources: Sources) -> Picture:
    """Show the published sizes and the runs of two or more lengths, a column for each."""
    of_paper = _published()
    own, reasons = _measured(sources.summary)
    pairs = [*of_paper, *own]
    said = "; ".join(f"{pair.panel}: {pair.said}" for pair in own)
    both = " and ".join(f"{pair.widest['multiplier']:.1f}" for pair in of_paper)
    title = f"For the same loss the baseline needs {both} times the FLOPs in the paper"
    if own:
        title += f", {own[0].widest['multiplier']:.2f} times here"
    not_drawn = f" Not drawn: {'; '.join(reasons)}." if reasons else ""
    return Picture(
        title=title,
        caption="Above: final loss over FLOPs, curves: a power law beyond a shared floor between "
        "the lengths that were run; the arrow is the multiplier. Below: the multiplier at every "
        f"loss that both arms reached, on one scale. Published: s = {BAG}, r = {RATIO}, one seed "
        "each, no interval; 270M from Tables 4 and 5, 3B from Table 1, which has superposition at "
        f"one length alone.{not_drawn}",
        measured=f"Measured: {number(sum(len(pair.folders) for pair in own), 'run')}; bars and "
        "bands: 95% over seeds; the multiplier's by the seeds' paired differences, for all "
        "settings of one text, model and learning rate together.",
        data=pd.concat([pair.curves for pair in pairs], ignore_index=True)[list(DATA)],
        folders=tuple(sorted({folder for pair in own for folder in pair.folders})),
        draw=partial(_figure, pairs),
        finding=Finding(
            "not shown as a curve; from its numbers: "
            + "; ".join(f"{pair.panel}: {pair.said}" for pair in of_paper),
            said,
            verdict="not in the paper",
        ),
    )


def _published() -> list[Pair]:
    cells = pd.concat([published.loss_grid(table) for table in TABLES])
    cells = cells[(cells["bag_size"] == 1) | (cells["step_ratio"] == RATIO)]
    grid = cells[cells["bag_size"].isin([1, BAG])].assign(params="270M")
    runs = published.headline_runs().query("params == '3B' and method in ['baseline', 'tst']")
    runs = runs.rename(columns={"total_steps": "steps", "final_loss": "loss"})
    runs["bag_size"] = runs["bag_size"].where(runs["method"] == "tst", 1)
    found = []
    for size, rows in (("270M", grid), ("3B", runs)):
        rows = rows.assign(flops=rows["steps"] * float(published.step_flops(size)), seed=0)
        arms = [rows[(rows["bag_size"] == 1) == baseline] for baseline in (True, False)]
        setting = SuperpositionSetting(BAG, 1, RATIO)
        found.append(_pair(f"published: {size}", setting, arms[0], arms[1]))
    return found


def _measured(summary: Summary) -> tuple[list[Pair], list[str]]:
    """Return plain settings that were run, like their baseline, at two or more lengths, those with
    most runs first, and why others are not drawn."""
    runs = summary.comparison.eligible
    runs = runs.assign(loss=runs["nats_per_token"].astype(float))
    found: list[Pair] = []
    reasons: list[str] = []
    for _, family in runs.groupby(["family", "learning_rate", "eval_set"], sort=True):
        baseline = family[family["method"] == "baseline"]
        if baseline["steps"].nunique() < 2:
            continue
        superposed = family[family["method"] != "baseline"]
        for name, members, table in multipliers_of(baseline, superposed, losses=LOSSES):
            first = next(rows_of(members))
            setting = SuperpositionSetting.of_row(first)
            panel = f"measured: {first['corpus']}"
            if not setting.is_plain:
                continue
            if isinstance(table, str):
                reasons.append(f"{panel}, {name}: {table}")
                continue
            own = _pair(panel, setting, baseline, members, table)
            found.append(own)
    found.sort(key=lambda pair: -len(pair.folders))
    reasons += [f"{pair.panel}, {pair.setting.label}: fewer runs" for pair in found[1:]]
    return found[:1], reasons


def _pair(
    panel: str,
    setting: SuperpositionSetting,
    baseline: pd.DataFrame,
    method: pd.DataFrame,
    table: pd.DataFrame | None = None,
) -> Pair:
    """Tidy both arms: the points, the curve between them, and the multipliers."""
    (first, second), _ = paired_tables([baseline, method], "flops")
    single = len(second) == 1
    one = LengthCurve.of(first, "baseline")
    fitted = [one] if single else [one, LengthCurve.of(second, "method")]
    floor = float(floors(fitted)[0])
    rows: list[dict[str, Any]] = []
    for label, wide in (("baseline", first), (setting.label, second)):
        seeds = wide.shape[1]
        half = critical_t(seeds - 1) * wide.std(axis=1) / seeds**0.5 if seeds > 1 else np.nan
        means = wide.mean(axis=1)
        spread = pd.DataFrame({"loss": means, "low": means - half, "high": means + half})
        for row in rows_of(spread.reset_index(names="flops")):
            rows.append({**row, "quantity": "point", "label": label, "seeds": seeds})
    for label, curve in zip(("baseline", setting.label), fitted, strict=False):
        for place in np.linspace(curve.x[0], curve.x[-1], 40):
            loss = float(curve.at(place, floor).mean())
            rows.append({"quantity": "curve", "label": label, "flops": np.exp(place), "loss": loss})
    if table is None:
        two = fitted[-1]
        highest, lowest = (min(one.means[0], two.means[0]), max(one.means[-1], two.means[-1]))
        reached = (
            [float(second.to_numpy(float)[0, 0])]
            if single
            else np.linspace(highest, lowest, LOSSES)
        )
        own = [np.log(second.index[0])] if single else [two.place(loss, floor) for loss in reached]
        places = [one.place(loss, floor) for loss in reached]
        ratios = np.exp(np.subtract(places, own))
        table = pd.DataFrame({"loss": reached, "multiplier": ratios, "seeds": 1})
    more = table.assign(quantity="multiplier", label=setting.label)
    curves = pd.concat([pd.DataFrame(rows), more], ignore_index=True).reindex(columns=list(DATA))
    folders = ()
    if "folder" in baseline:
        folders = tuple(sorted({*baseline["folder"], *method["folder"]}))
    return Pair(panel, setting, curves.assign(panel=panel), folders)


def _figure(pairs: list[Pair]) -> Figure:
    drawn, (above, below) = new_figure(PAGE, 4.4, len(pairs), len(pairs))
    top = 1.15 * max(pair.multipliers[["multiplier", "high"]].max().max() for pair in pairs)
    for loss_axes, axes, pair in zip(above, below, pairs, strict=True):
        looks = {"baseline": BASELINE, pair.setting.label: arm_mark(pair.setting)}
        _draw_losses(loss_axes, pair, looks)
        axes.axhline(1, color=MUTED, linewidth=0.7)
        rows = pair.multipliers
        lines(axes, rows, looks, x="loss", y="multiplier")
        if len(rows) == 1:
            point(
                axes, (rows["loss"].iloc[0], rows["multiplier"].iloc[0]), looks[pair.setting.label]
            )
        axes.invert_xaxis()
        log_axis(axes, "y", [0.8, 1, 1.25, 1.5, 2, 2.5, 3])
        axes.set_ylim(0.75, max(top, 1.3))
        axes.set_xlabel("loss of both arms (nats)")
    above[0].set_ylabel("final loss (nats per token)")
    below[0].set_ylabel("compute multiplier (log scale)")
    return drawn


def _draw_losses(axes: Axes, pair: Pair, looks: dict[str, Mark]) -> None:
    rows = pair.curves
    lines(axes, rows[rows["quantity"] == "curve"], looks, x="flops", band=False)
    for row in rows_of(rows[rows["quantity"] == "point"]):
        point(axes, (row["flops"], row["loss"]), looks[row["label"]], (row["low"], row["high"]))
    widest = pair.widest
    curve = rows[(rows["quantity"] == "curve") & (rows["label"] == "baseline")]
    to = float(np.interp(-widest["loss"], -curve["loss"], curve["flops"]))
    ends = ((to, widest["loss"]), (to / widest["multiplier"], widest["loss"]))
    arrow: Look = {"arrowstyle": "<->", "color": INK, "lw": 0.9, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", ends[1], xytext=ends[0], arrowprops=arrow)
    place: Look = {"ha": "right", "va": "top", "fontweight": "bold"}  # below a falling curve
    note(axes, f"{widest['multiplier']:.2f}×", ends[1], (-4, -2), **place)
    own = rows[rows["quantity"] == "point"]["flops"]
    low, high = float(own.min()), float(own.max())
    exponent = int(np.floor(np.log10(low)))
    marks = [m * 10.0**e for e in (exponent, exponent + 1, exponent + 2) for m in (1, 2, 5)]
    marks = [mark for mark in marks if low * 0.85 <= mark <= high * 1.2]
    log_axis(axes, "x", marks, [f"{mark:.0e}".replace("e+", "e") for mark in marks])
    axes.set_xlim(low / 1.15, high * 1.15)
    axes.set_xlabel("FLOPs of a run (log scale)")
    arm_key(axes, pair.panel, looks, 2, markers=True)
