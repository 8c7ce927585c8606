"""Figures 1 and 3: loss curves of the paper's headline runs, and of runs like them that were made
here.

Figure 1 has the mixture of experts, whose baseline and superposed run end at about the same loss.
Figure 3 has the 3B model: superposition against baselines of equal FLOPs, equal loss and equal
data.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tst_study.analysis import published
from tst_study.analysis.summary import Summary
from tst_study.analysis.tables.columns import rows_of, settings_of
from tst_study.analysis.verdict.comparison import SAME_BUT_LENGTH, alike
from tst_study.analysis.wording import bounds, gain, group_label, number, signed
from tst_study.config.superposition_setting import SuperpositionSetting
from tst_study.paper_figures import curves, style
from tst_study.paper_figures.catalogue import figure, submit
from tst_study.paper_figures.drawing import Picture, arm_key, is_baseline, level_line, note
from tst_study.paper_figures.item import Finding, judged
from tst_study.paper_figures.sources import Group, Sources

MIXTURE = {"baseline": "moe_10b_a1b_baseline", "TST, s = 16": "moe_10b_a1b_tst_s16"}
"""The runs of Figure 1: their names in the published file, by the labels in the figure."""
MIXTURE_SWITCH = 12_483
"""Superposed steps of the published TST run in Figure 1."""


@figure(
    "figure1", published=["loss_curves", "headline_runs"], needs=submit("mixture-10b-a1b", "paper")
)
def mixture_of_experts_run(sources: Sources) -> Picture:
    """Show the published curves and, if a mixture of experts was run here, those of one setting and
    its baseline."""
    data, group = curves.published_curves(1, MIXTURE, MIXTURE_SWITCH), _mixture(sources)
    looks = {"baseline": style.BASELINE, "TST, s = 16": style.mark_of(16, MIXTURE_SWITCH / 50_000)}
    (long, _), (short, _) = reached(data, True), reached(data, False)
    if group is not None:
        names = [f"TST, {setting}" for setting in group.rows["setting"]]
        data = pd.concat([data, curves.group_curves(group, names)], ignore_index=True)
        looks |= style.marks_of(group.rows.assign(name=names), "name")
    return Picture(
        title=f"Figure 1. TST reaches the baseline's loss in {long / short:.1f} times fewer steps "
        "(mixture of experts, 10B-A1B)",
        caption="Training loss against steps of equal FLOPs; numbers: the last of each curve. "
        f"{curves.SMOOTHED}; one run each. Before the switch TST trains on the loss of bags, "
        "another quantity, which is not drawn. B200-hours: those of the baseline in Table 1, by "
        "its steps.",
        measured=f"Measured: {group.scale}; {curves.READING}." if group else "",
        data=data,
        folders=group.folders if group else (),
        draw=partial(_draw_mixture, data, looks),
        finding=_mixture_finding(data, group),
    )


def _mixture(sources: Sources) -> Group | None:
    """Return one setting of the paper's method on a mixture of experts that was run here, or None.

    It is from the comparison group whose runs have the most FLOPs.
    """
    single_settings = [group.representative() for group in sources.groups]
    mixtures = [g for g in single_settings if len(g.rows) and g.members["experts"].notna().all()]
    return max(mixtures, key=lambda group: int(group.members["flops"].iloc[0]), default=None)


def reached(data: pd.DataFrame, baseline: bool) -> tuple[int, float]:
    """Return the last step and the final loss of the baseline, or of the superposed arm if
    `baseline` is false."""
    curve = data[data["label"].map(is_baseline) == baseline]
    return int(curve["step"].max()), curves.last(curve)


def _draw_mixture(data: pd.DataFrame, looks: dict[str, style.Mark]) -> Figure:
    sources = list(dict.fromkeys(data["source"]))
    drawn, (row,) = style.new_figure(style.PAGE, 2.6, len(sources))
    for axes, source in zip(row, sources, strict=True):
        mine = data[data["source"] == source]
        curves.draw(axes, mine, looks, source)
        if source == "published":
            _draw_saving(axes, mine)
    return drawn


def _draw_saving(axes: Axes, data: pd.DataFrame) -> None:
    """Mark the final loss of the superposed run, and how many times fewer steps that run took than
    the baseline.

    The axis is labelled in steps and in B200-hours, converted at the baseline's hours per step.
    """
    (long, _), (short, level) = reached(data, True), reached(data, False)
    level_line(axes, level)
    arrow: style.Look = {"arrowstyle": "->", "color": style.INK, "lw": 0.9, "shrinkA": 0}
    axes.annotate("", (short, level), xytext=(long, level), arrowprops=arrow)
    words = f"{long / short:.1f} times fewer steps"
    note(axes, words, ((short + long) / 2, level), (0, 3), ha="center")
    runs = published.headline_runs().query("params == '10B-A1B' and method == 'baseline'")
    hours = float(runs["b200_hours"].iloc[0] / runs["total_steps"].iloc[0])
    axes.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}\n{step * hours:,.0f} h")
    axes.set_xlabel("step, and B200-hours")


def _mixture_finding(data: pd.DataFrame, group: Group | None) -> Finding:
    own = data[data["source"] == "published"]
    (long, base), (short, tst) = reached(own, True), reached(own, False)
    theirs = (
        f"TST ends at {tst:.3f} after {short:,} steps, the baseline at {base:.3f} after {long:,}: "
        f"{long / short:.1f} times the steps"
    )
    if group is None:
        return Finding(theirs)
    row = group.rows.iloc[0]
    measured = f"gain of {signed(row['gain'])} nats at equal steps ({row['verdict']})"
    return Finding(theirs, measured, group.scale, judged([row["verdict"]]))


PANELS = {
    "equal FLOPs": ("a_equal_flops", "20k"),
    "equal loss": ("b_equal_loss", "36k"),
    "equal data": ("c_equal_data", "50k"),
}
"""For each kind of match, the paper's panel in Figure 3 and the number of steps of its baseline."""
SWITCH = 6_000
"""Superposed steps of the published TST run of the 3B model in Figure 3."""


@dataclass(frozen=True)
class Side:
    """One panel of Figure 3 as it is drawn here, published or measured: a superposed setting and
    the baselines that match it."""

    source: str
    data: pd.DataFrame
    """The curves, in the columns `curves.COLUMNS`. The column `panel` has the name of the paper's
    panel for the kind of match (`PANELS`)."""
    mark: style.Mark
    """Colour, marker and dash pattern of the superposed setting."""
    results: dict[str, tuple[int, str]]
    """For each kind of match, the steps of the baseline and the result in words."""
    folders: tuple[str, ...] = ()
    scale: str = ""
    again: tuple[dict[str, Any], ...] = ()
    """Further matches at equal FLOPs: the same setting, length, learning rate and family, but
    another held-out text."""
    verdicts: tuple[str, ...] = ()
    """Verdicts of the matches at equal FLOPs: the one shown, and those of `again`."""


@figure(
    "figure3",
    title="Figure 3. In the paper, TST is ahead at equal FLOPs and behind a baseline that reads as "
    "much text",
    published=["loss_curves"],
    needs=submit("equal-cost", "paper", "one-gpu"),
)
def matched_comparisons(sources: Sources) -> Picture:
    """Show the published runs, and beside them one measured setting with the baselines that match
    it."""
    theirs, ours = _published(), _measured(sources.summary)
    sides, measured = [theirs], ""
    if ours:
        sides.append(ours)
        lacking = [kind for kind in PANELS if kind not in ours.results]
        lacks = f" No match of {' or of '.join(lacking)} among the runs." if lacking else ""
        measured = f"Measured: {ours.scale}; {curves.READING}.{lacks}"
    return Picture(
        caption="Training loss, 3B, s = 6, r = 0.3, against baselines of equal FLOPs, equal loss "
        f"and equal data; dotted: the level that TST reached. {curves.SMOOTHED}; one run each. "
        "Before the switch TST trains on the loss of bags, another quantity, which is not drawn. "
        "The baseline of 20k steps ends at 2.755 here and at 2.808 in Table 1.",
        measured=measured,
        data=pd.concat([side.data for side in sides], ignore_index=True),
        folders=ours.folders if ours else (),
        draw=partial(_draw_matches, sides),
        finding=_match_finding(theirs, ours),
    )


def _published() -> Side:
    parts, results = [], {}
    for kind, (panel, length) in PANELS.items():
        baseline = f"baseline, {length} steps"
        runs = {baseline: f"dense_3b_baseline_{length}", "TST, 20k steps": "dense_3b_tst_s6_20k"}
        part = curves.published_curves(3, runs, SWITCH, panel)
        parts.append(part)
        ends = [curves.last(rows) for _, rows in part.groupby(part["label"] == baseline)]
        results[kind] = 1000 * int(length.removesuffix("k")), f"gain {signed(ends[1] - ends[0])}"
    return Side("published", pd.concat(parts, ignore_index=True), style.mark_of(6, 0.3), results)


def _measured(summary: Summary) -> Side | None:
    """Return the measured panel, or None if no setting of the paper's method on natural text has a
    match.

    Of several such settings, the one with the most kinds of match is shown; ties are broken by the
    number of seeds, then by the number of steps.

    Equal FLOPs needs a baseline of the same FLOPs, and equal data one that read as many raw tokens.
    Equal loss needs baselines of several lengths, whose losses lie on both sides of the setting's.
    A kind without such a baseline is left out of the panel.
    """
    runs = summary.comparison.eligible
    settings = settings_of(runs)
    plain = runs.loc[[setting.is_plain for setting in settings]]
    plain = plain[plain["optimal_nats_per_token"].isna()]
    key = [*SAME_BUT_LENGTH, "steps", "setting"]
    matches = summary.matches[summary.matches["baseline_steps"].notna()]
    candidates = []
    for name, rows in plain.groupby(key, sort=False, dropna=False):
        kinds = {row["kind"]: row for row in rows_of(alike(matches, rows.iloc[0], key))}
        weight = (len(kinds), len(rows), int(rows["steps"].iloc[0]))
        candidates += [(weight, name, rows, kinds)] if kinds else []
    if not candidates:
        return None
    _, name, own, kinds = max(candidates, key=lambda candidate: candidate[0])
    again = tuple(
        {"study": rows["study"].iloc[0], **found["equal FLOPs"]}
        for _, other, rows, found in candidates  # the third key, the held-out text, differs
        if other != name and other[:2] + other[3:] == name[:2] + name[3:] and "equal FLOPs" in found
    )
    parts, results, folders = [], {}, set(own["folder"])
    for kind in (kind for kind in PANELS if kind in kinds):
        near = _nearest(runs, own, kinds[kind]["baseline_steps"])
        folders |= set(near["folder"])
        for arm, arm_runs in (("baseline", near), ("TST", own)):
            parts.append(_with_end(summary, arm, arm_runs).assign(panel=PANELS[kind][0]))
        said = f"gain {gain(kinds[kind])}"
        if kind == "equal loss":
            interval = f" [{ends}]" if (ends := bounds(kinds[kind])) else ""
            said = f"{kinds[kind]['steps_ratio']:.2f}{interval} times the steps"
        said += ", unstable" * str(kinds[kind]["verdict"]).startswith("unstable")
        results[kind] = int(kinds[kind]["baseline_steps"]), said
    setting = SuperpositionSetting.of_row(next(rows_of(own)))
    return Side(
        "measured",
        pd.concat(parts, ignore_index=True),
        style.arm_mark(setting),
        results,
        tuple(sorted(map(str, folders))),
        f"{group_label(own)}, {setting.label}, {number(len(own), 'seed')}",
        again,
        tuple(row["verdict"] for row in (kinds.get("equal FLOPs"), *again) if row),
    )


def _nearest(runs: pd.DataFrame, own: pd.DataFrame, steps: float) -> pd.DataFrame:
    """Return the baseline runs whose number of steps is nearest to `steps`.

    Baselines count only if they have the seeds, family, learning rate and held-out text of `own`,
    the setting's runs.
    """
    baselines = runs[(runs["method"] == "baseline") & runs["seed"].isin(own["seed"])]
    same = alike(baselines, own.iloc[0], SAME_BUT_LENGTH)
    away = (same["steps"] - steps).abs()
    nearest: pd.DataFrame = same[away == away.min()]
    return nearest


def _with_end(summary: Summary, arm: str, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the mean curve of an arm, and a row of the quantity `end` that has the arm's mean
    final held-out loss."""
    steps, loss = runs["steps"].iloc[0], float(runs["nats_per_token"].astype(float).mean())
    label = f"{arm}, {steps:,} steps"
    end = {"source": "measured", "quantity": "end", "label": label, "step": steps, "loss": loss}
    end |= {"switch": 0, "seeds": len(runs), "said": f"{label}: {loss:.3f}"}
    curve = curves.mean_curve(summary, label, runs)
    both = pd.concat([curve, pd.DataFrame([end])], ignore_index=True)
    return both.reindex(columns=list(curves.COLUMNS))


def _draw_matches(sides: list[Side]) -> Figure:
    drawn, (row,) = style.new_figure(style.PAGE, 3.6, len(sides))
    for axes, side in zip(row, sides, strict=True):
        # The paper repeats the superposed run in every panel, and a measured baseline may match in
        # two ways. Here all curves share one panel, so each label is drawn once.
        first = side.data.groupby("label")["panel"].transform("first")
        once = side.data[side.data["panel"] == first]
        looks = {name: style.BASELINE if is_baseline(name) else side.mark for name in once["label"]}
        curves.draw(axes, once, looks, side.source)
        level_line(axes, curves.last(once[~once["label"].map(is_baseline)]))
        for label, rows in once[once["label"].map(is_baseline)].groupby("label"):
            words, step = str(label).split(", ")[-1].removesuffix(" steps"), rows["step"].max()
            is_last = step == once["step"].max()
            place: style.Look = {"ha": "right"} if is_last else {}
            at = (step, curves.last(rows))
            note(axes, words.replace(",000", "k"), at, (-3, -9) if is_last else (4, 1), **place)
        results: dict[str, style.Look] = {
            f"{kind} ({steps:,} steps): {said}": {} for kind, (steps, said) in side.results.items()
        }
        names = {name.split(",")[0]: look for name, look in looks.items()}
        arm_key(axes, side.source, names, 1, results)
    return drawn


def _match_finding(theirs: Side, ours: Side | None) -> Finding:
    gains = [f"{kind}: {words.split()[-1]}" for kind, (_, words) in theirs.results.items()]
    published = "gains of TST in nats: " + ", ".join(gains)
    if ours is None:
        return Finding(published)
    measured = "; ".join(f"{kind}: {words}" for kind, (_, words) in ours.results.items())
    for row in ours.again:
        seeds = number(int(row["seeds"]), "seed")
        measured += f"; again at equal FLOPs, {row['study']}, {seeds}: {gain(row)}"
    verdict = judged(ours.verdicts)
    if verdict == "agrees" and set(ours.verdicts) != {"better"}:
        verdict = "undecided"  # one held-out text shows the gain, and another does not
    return Finding(published, measured, ours.scale, verdict)
