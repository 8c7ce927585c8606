"""Pictures of a study's gains: with their intervals (`overview`, `effects`), and over training
(`loss_curves`, `gain_over_training`).
"""

import json
import math
from collections import Counter
from functools import partial

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from tst_study.analysis.summary import Summary, verdict_counts
from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.verdict.planned import settled
from tst_study.analysis.verdict.question import Question
from tst_study.analysis.wording import gain, group_details, group_label, named, number, signed, span
from tst_study.paper_figures import curves, style
from tst_study.paper_figures.answers import message
from tst_study.paper_figures.catalogue import PAIR, figure, submit
from tst_study.paper_figures.drawing import CLAIMED, Picture, key, lines, mark_step, note, point
from tst_study.paper_figures.item import Finding, Item
from tst_study.paper_figures.sources import Group, Sources
from tst_study.paper_figures.style import FAINT, INK, MUTED, PAGE, Look, new_figure, wrapped
from tst_study.text import big

FEW, MOST = 10, 60
"""The largest numbers of rows of `overview` and of `effects`. More would not fit on a page at 7
pt."""
HALF, WHOLE = (4.8, 140.0), (PAGE, 225.0)
"""Width of the picture in inches, and of the names of its rows in points: for `overview`, which
takes half of the report's first screen, and for `effects`."""
FAR = 6
"""A gain is stated in words if it is further from zero than this many times the median reach of the
rows: drawn on one scale with the others, it would squeeze them together. A row's reach is the
distance between zero and the further end of its interval, or, if no intervals are drawn, between
zero and its gain."""


@figure("overview", title="What the study found", lacks=PAIR)
def overview(sources: Sources) -> Item | None:
    """Show the first `FEW` planned questions that have a gain; families with a primary question
    come first. Without planned questions, show the first settings."""
    rows = sources.answers[sources.answers["gain"].notna()]
    rows = rows[rows["asked"] == rows["asked"].any()]
    return _picture(sources, rows, FEW, message(rows), *HALF) if len(rows) else None


@figure(
    "primary_answers",
    title="The primary answers of several studies",
    lacks="several studies, each with a primary question",
)
def primary_answers(sources: Sources) -> Item | None:
    """Show the primary question of each study, with the size of its models."""
    rows = sources.answers[sources.answers["primary"] & sources.answers["gain"].notna()]
    if (studies := rows["study"].nunique()) < 2:
        return None
    sizes = sources.runs.set_index("run_id")["parameters"]
    names = [
        f"{row['name']}; {big(sizes[list(row['run_ids'])].max())} parameters, {row['seeds']} seeds"
        for row in rows_of(rows)
    ]
    title = f"Primary questions of {studies} studies: {verdict_counts(rows)}"
    single = rows.groupby("study")["family"].transform("nunique") == 1
    headings = rows["heading"].where(~single, rows["study"] + rows["under"])
    # Rows with headings of their own need no colours.
    marks = pd.Series([style.BASELINE] * len(rows), rows.index)
    return _picture(
        sources, rows.assign(name=names, heading=headings, mark=marks), FEW, title, *WHOLE
    )


@figure(
    "effects",
    title="Every gain, with its interval",
    lacks="a setting and its baseline with two or more seeds: "
    f"{submit('seed-noise', 'one-gpu')}, or {submit('laptop', 'laptop')}",
)
def effects(sources: Sources) -> Item | None:
    """Show the first `MOST` of the study's questions and settings that have two or more seeds.

    The title counts a result once, though two questions may share it. Results on a generated
    language, which suits superposition, count only if there are no others."""
    rows = sources.answers[sources.answers["seeds"] > 1]
    runs = sources.runs
    made = set(runs["run_id"][runs["optimal_nats_per_token"].notna()])
    natural = rows["run_ids"].map(made.isdisjoint).astype(bool)
    where = " on natural text" if natural.any() else " on a generated language"
    counted = (rows[natural] if natural.any() else rows).drop_duplicates("run_ids")
    where *= not natural.all()
    title = f"{number(len(counted), 'result')}{where}: {verdict_counts(counted)}"
    return _picture(sources, rows, MOST, title, *WHOLE) if len(rows) else None


def _picture(
    sources: Sources, rows: pd.DataFrame, most: int, title: str, width: float, names: float
) -> Picture:
    runs, data = sources.runs, rows.head(most).reset_index(drop=True)
    used = runs["run_id"].isin(data["run_ids"].explode())
    more = f" {len(rows) - most} more rows in the verdicts." if len(rows) > most else ""
    seeds, alone = span(data["seeds"], "seed"), "no run is repeated with another seed"
    counts = f"{number(len(rows), 'row')}, repeats and generated text too: {verdict_counts(rows)}"
    colours = "Colour and symbol tell the setting. " if data["mark"].nunique() > 1 else ""
    return Picture(
        title=title,
        caption="Held-out next-token loss of the baseline, or of the arm that the heading or the "
        "row names, minus that of the arm, paired by seed where runs have one. Bars: 95% "
        f"intervals, which hold jointly under one heading. {colours}"
        f"Seeds: {seeds.split(' seed')[0]}.{more}",
        data=data.drop(columns=["mark", "run_ids", "study", "under"]),
        folders=tuple(sorted(runs["folder"][used].astype(str))),
        draw=partial(_draw_rows, data, width, names),
        finding=Finding(alone, counts, seeds, "not in the paper") if most == MOST else None,
    )


def inside(gains: pd.Series, ends: pd.DataFrame | None = None) -> pd.Series:
    """Return a mask of the gains that are drawn on one scale; the others are stated in words
    (`FAR`). `ends`: both ends of the intervals, if these are drawn, too."""
    reach = pd.concat([gains, ends], axis=1).astype(float).abs().max(axis=1)
    return gains.abs() <= FAR * max(float(reach.median()), 1e-9)


def _draw_rows(data: pd.DataFrame, width: float, names: float) -> Figure:
    """Draw each gain with its interval in a row of its own, and each heading above its rows."""
    ticks: list[tuple[float, str, bool]] = []
    # Where every row is a primary question, none is set apart.
    apart = data["primary"] & (not data["primary"].all())
    end, bold = 0.0, set(data["name"][apart])
    for heading, rows in data.groupby("heading", sort=False):
        for line, text in enumerate((heading, *rows["name"])):
            # Headings and primary questions are bold, which is wider.
            words = wrapped(str(text), names, 8 if text in bold or line == 0 else 7)
            count = words.count("\n") + 1
            ticks.append((end + (count - 1) / 2, words, line == 0))
            end += count
        end += 0.4
    drawn, ((axes,),) = new_figure(width, 0.8 + 0.165 * end, 1)
    axes.axvline(0, color=MUTED, linewidth=0.7)
    axes.set_yticks([place for place, *_ in ticks], [words for _, words, _ in ticks])
    gains = zip(
        rows_of(data.assign(apart=apart)), inside(data["gain"], data[["low", "high"]]), strict=True
    )
    for (place, _, is_heading), label in zip(ticks, axes.get_yticklabels(), strict=True):
        if is_heading:
            label.set(fontweight="bold", color=MUTED)
            continue
        row, is_near = next(gains)
        if row["apart"]:
            label.set_fontweight("bold")
            axes.axhspan(place - 0.45, place + 0.45, color=FAINT, alpha=0.6, lw=0, zorder=0)
        beside: Look = {"xycoords": ("axes fraction", "data"), "va": "center"}
        if is_near:
            axes.hlines(place, row["low"], row["high"], color=row["mark"].colour, linewidth=1.0)
            point(axes, (row["gain"], place), row["mark"], row["verdict"] not in CLAIMED)
            note(axes, signed(row["gain"]), (1.0, place), (4, 0), **beside)
        elif row["gain"] < 0:
            note(axes, f"← {gain(row)}, beyond the frame", (0.0, place), (4, 0), **beside)
        else:
            note(axes, f"{gain(row)} →", (1.0, place), (-4, 0), ha="right", **beside)
    axes.set_ylim(end - 0.1, -0.7)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.set_xlabel("gain (nats per token); right of zero is better")
    dot: Look = {"marker": "o", "markersize": 4, "color": INK}
    entries: dict[str, Look] = {"95% interval excludes zero": {**dot, "linestyle": "-"}}
    for unclaimed in sorted(set(data["verdict"]) - {*CLAIMED}):
        entries[unclaimed] = {**dot, "markerfacecolor": "none"}
    if apart.any():
        entries["the primary question"] = {"color": FAINT, "marker": "s", "markersize": 7}
    key(axes, entries)
    return drawn


ENDS = {"better": "ends ahead of", "worse": "ends behind"}
ENDS["no difference shown"] = "ends with no shown difference from"
"""The words for a verdict in the title of `loss_curves`. Any other verdict is named itself."""


@figure("loss_curves", title="Loss against steps", lacks=PAIR)
def loss_curves(sources: Sources) -> Item | None:
    """Show one setting of the paper's method and its baseline.

    Of the groups whose runs have curves, which imported runs may lack, both are from the one with
    the greatest `Group.weight` on natural text or, if no such group is on natural text, on
    generated text. None if there is no setting of the paper's method with curves.
    """
    groups = [group for group in sources.groups if len(group.plain().rows)]
    groups.sort(key=lambda group: (not group.is_generated, group.weight), reverse=True)
    for group in map(Group.representative, groups):
        data = curves.group_curves(group, list(group.rows["setting"]))
        arms = {"baseline", *group.rows["setting"]}
        drawn = ("held_out", "next_token")
        if any(set(data["label"][data["quantity"] == quantity]) == arms for quantity in drawn):
            return _losses(group, data)
    return None


def _losses(group: Group, data: pd.DataFrame) -> Picture:
    """Make the picture of a group of one setting. `data`: its curves (`curves.group_curves`)."""
    row = next(rows_of(group.rows))
    looks = {"baseline": style.BASELINE, **style.marks_of(group.rows, "setting")}
    held_out = bool((data["quantity"] == "end").any())
    verdict, seeds = row["verdict"], number(row["seeds"], "seed")
    what = "held-out loss" if held_out else "training loss, smoothed over 5% of the steps"
    return Picture(
        title=f"{row['setting']} {ENDS.get(verdict, f'({verdict}) beside')} its baseline: "
        f"{group_label(group.members)}{group.rate}",
        caption=f"{group_details(group.members)}. Mean over {seeds} of the {what}; shading: range "
        f"over seeds. Final gain in held-out loss: {gain(row)} nats, {verdict}. Every step "
        "costs the same FLOPs. Before the switch superposition trains on the loss of bags, another "
        "quantity, which is not drawn.",
        data=data,
        folders=group.folders,
        draw=partial(_draw_losses, data, looks),
    )


def _draw_losses(data: pd.DataFrame, looks: dict[str, style.Mark]) -> Figure:
    drawn, ((axes,),) = new_figure(style.COLUMN, 2.5, 1)
    curves.draw(axes, data, looks, "")
    return drawn


OFTEN = 5
"""An arm has a panel only if it has at least this many evaluations after the switch."""
PANELS = 12
"""The most panels with which arms of several baselines are drawn."""
COLUMNS = 4
"""The number of panels in a row."""
DEEP = 3
"""The depth of the axis below zero, as a multiple of the largest absolute final gain. Right after
the switch an arm is further behind; its line then comes in from below."""


@figure(
    "gain_over_training",
    title="When the gains appear",
    lacks="a study with planned questions whose runs were evaluated on the way: "
    "`tst-study submit what-does-the-work --scale desktop`",
)
def gain_over_training(sources: Sources) -> Item | None:
    """Show when the arms of planned questions take the lead over the arm they are compared with.

    Each arm has one panel with its gain and the interval at every evaluation after the switch. The
    arms are those that the primary question's study compares with a baseline of equal FLOPs; if
    they are more than `PANELS`, only those that are compared with the primary question's own
    baseline. An arm needs `OFTEN` evaluations. One whose final gain is much further from zero than
    the others' (`FAR`) is only named in the caption. None if there is no primary question, or no
    arm with `OFTEN` evaluations.
    """
    summary = sources.summary
    primary = next((question for question in summary.questions if question.primary), None)
    if primary is None:
        return None
    asked = _asked_arms(summary, primary)
    data, answers = (
        table.set_index(["family", "question"])
        .loc[lambda rows: rows.index.isin(list(asked))]
        .assign(arm=lambda rows: [asked[key] for key in rows.index])
        for table in (summary.gains_over_training, sources.answers)
    )
    data = data[data["low"].notna() & (data.groupby("arm")["share"].transform("size") >= OFTEN)]
    if data.empty:
        return None
    ends = data.groupby("arm", sort=False)["gain"].last()
    near = inside(ends)
    far = [f"{arm} {signed(gain)}" for arm, gain in ends[~near].items()]
    answers = answers[answers["arm"].isin(ends.index)]
    used = sources.runs[sources.runs["run_id"].isin(answers["run_ids"].explode())]
    looks = dict(zip(answers["arm"], answers["mark"], strict=True))
    late = [settled(rows).iloc[0] for _, rows in data.groupby("arm") if rows["gain"].iloc[-1] > 0]
    last = sum(share > 0.5 for share in late)
    data = _as_wide_as_judged(data, answers)
    return Picture(
        title=f"{last} of {number(len(late), 'arm')} that ended ahead took the lead in the second "
        "half of the steps"
        if late
        else "No arm ended ahead",
        caption="Baseline minus arm, held-out next-token loss after the same share of the "
        "steps, mean over paired seeds. Bands: 95% intervals, widened as the last one is for "
        "the other questions of its family. Above zero, the arm is ahead. Dotted: the switch and "
        "the start of the decay. Right after the switch arms are below the frame. Only the last "
        "point is judged by a question." + (f" Not drawn: {', '.join(far)}." if far else ""),
        data=data.drop(columns="against").reset_index(drop=True),
        folders=tuple(sorted(set(used["folder"].astype(str)))),
        draw=partial(_draw_gains, data[data["arm"].isin(ends[near].index)], looks, _times(used)),
    )


def _as_wide_as_judged(data: pd.DataFrame, answers: pd.DataFrame) -> pd.DataFrame:
    """Widen the intervals of each arm by one factor, which gives the last of them the width of the
    question's interval. That one holds jointly with the others of its family."""
    judged, last = answers.groupby("arm").last(), data.groupby("arm").last()
    wider = (judged["high"] - judged["low"]) / (last["high"] - last["low"])
    factor, gains = data["arm"].map(wider.astype(float)), data["gain"]
    ends = {end: gains + factor * (data[end] - gains) for end in ("low", "high")}
    return data.assign(**ends)


def _asked_arms(summary: Summary, primary: Question) -> dict[tuple[str, str], str]:
    """Return the questions whose gains are drawn, by family and name, each with the name of its
    arm. Of several questions about one arm the one with the most seeds counts, and the shortest
    name. Arms of the same name, such as one setting at several lengths, are called by their
    questions."""
    kept, found = summary.comparison.eligible, []
    usual = set(primary.runs(kept)[1]["run_id"])
    for question in summary.questions:
        own, against = question.runs(kept)
        if question.within != primary.within or question.matched != "flops" or own.empty:
            continue
        if (
            set(against["setting"]) != {"baseline"}
            or len(set(own["flops"]) | set(against["flops"])) > 1
        ):
            continue
        arm = tuple(sorted(set(own["group"] + own["setting"] + own["learning_rate"].map(str))))
        is_usual = set(against["run_id"]) <= usual and 2 * len(against) > len(usual)
        found.append((arm, len(own), question, is_usual))
    if len({arm for arm, *_ in found}) > PANELS:
        found = [item for item in found if item[-1]]
    drawn = {}
    for arm in dict.fromkeys(item[0] for item in found):
        same = [(seeds, question) for own, seeds, question, _ in found if own == arm]
        _, most = max(reversed(same), key=lambda item: item[0])  # the last of equals
        drawn[most.family, most.name] = named(min((one.arm.name for _, one in same), key=len))
    alike = Counter(drawn.values())
    return {
        (family, name): arm if alike[arm] == 1 else named(f"{family}: {name}")
        for (family, name), arm in drawn.items()
    }


def _times(runs: pd.DataFrame) -> dict[str, float]:
    """Return the shares of the steps at which the arms switch (`switch`) and the learning rate
    begins to decay (`decay`). Each is left out if the runs differ in it or do not have it."""
    switches = set(runs["step_ratio"][runs["bag_size"] > 1].astype(float).round(3))
    schedules = [json.loads(config).get("schedule", {}) for config in runs["config"].dropna()]
    decays = {1 - values["decay_ratio"] for values in schedules if values.get("decay_ratio")}
    times = {"switch": switches, "decay": decays}
    return {words: float(max(values)) for words, values in times.items() if len(values) == 1}


def _draw_gains(
    data: pd.DataFrame, looks: dict[str, style.Mark], times: dict[str, float]
) -> Figure:
    arms = list(dict.fromkeys(data["arm"]))
    ends, lasts = (data.groupby("arm")[name].last() for name in ("gain", "low"))
    floor = min(-DEEP * float(ends.abs().max()), float(lasts.min()))
    top = float(data["high"].max())
    columns = min(COLUMNS, len(arms))
    rows = math.ceil(len(arms) / columns)
    drawn, panels = new_figure(PAGE, 1.75 * rows, columns, rows)
    for axes in panels.flat[len(arms) :]:
        axes.remove()
    for place, (axes, arm) in enumerate(zip(panels.flat, arms, strict=False)):
        axes.axhline(0, color=MUTED, linewidth=0.7)
        lines(axes, data[data["arm"] == arm], looks, x="share", y="gain", by="arm")
        axes.set_ylim(1.05 * floor, 1.1 * top)
        axes.set_xlim(min(times.get("switch", 1.0), float(data["share"].min())) - 0.02, 1)
        for words, share in times.items():
            mark_step(axes, share, words if place == 0 else "")
        axes.set_title(wrapped(f"{arm}: {signed(ends[arm])}", 110))
        axes.xaxis.set_major_locator(MaxNLocator(3))
        axes.xaxis.set_major_formatter(PercentFormatter(1, 0))
        axes.yaxis.set_major_locator(MaxNLocator(4))
        if place % columns:
            axes.tick_params(labelleft=False)
        else:
            axes.set_ylabel("gain (nats)")
        if place + columns >= len(arms):
            axes.set_xlabel("share of the steps")
    return drawn
