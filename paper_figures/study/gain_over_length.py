"""Gain over the number of steps: from where on does superposition win?"""

from functools import partial

import pandas as pd
from matplotlib.figure import Figure

from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.verdict.comparison import SAME_BUT_LENGTH
from tst_study.analysis.wording import gain, number, signed, span, told_apart
from tst_study.config.superposition_setting import COLUMNS as SETTING
from tst_study.paper_figures.answers import of_one_family
from tst_study.paper_figures.catalogue import figure, submit
from tst_study.paper_figures.drawing import CLAIMED, arm_key, is_hollow, lines, log_axis, point
from tst_study.paper_figures.groups import Group, file_part
from tst_study.paper_figures.item import Item
from tst_study.paper_figures.picture import Picture
from tst_study.paper_figures.sources import Sources
from tst_study.paper_figures.style import COLUMN, MUTED, Look, marks_of, new_figure

LENGTHS = "Gain against the number of steps"


@figure(
    "gain_over_length",
    title=LENGTHS,
    lacks="one setting and its baseline at two or more numbers of steps: "
    f"{submit('laptop', 'desktop')}",
)
def gain_over_length(sources: Sources) -> list[Item]:
    """Show each corpus, model and learning rate with a setting at two or more lengths."""
    every = sources.all_settings.plain()
    found: list[Group] = []
    for _, rows in every.rows.groupby(list(SAME_BUT_LENGTH), sort=False):
        lengths = rows.groupby("setting")["steps"].transform("nunique")
        if (lengths >= 2).any():
            found.append(every.only(rows[lengths >= 2]))
    firsts = [group.rows.iloc[0] for group in found]
    sizes = [group.model.split()[0] for group in found]
    rates = [f"{first['learning_rate']:g}" for first in firsts]
    names = told_apart(
        [file_part(first["corpus"]) for first in firsts],
        sizes,
        [f"lr{rate}" for rate in rates],
        [file_part(first["eval_set"]) for first in firsts],
        [first["family"][:6] for first in firsts],
        by="-",
    )
    titles = told_apart(
        [first["corpus"] for first in firsts],
        [f"{size} parameters" for size in sizes],
        [f"learning rate {rate}" for rate in rates],
    )
    return [_of_lengths(*one) for one in zip(found, names, titles, strict=True)]


def _of_lengths(group: Group, name: str, title: str) -> Picture:
    columns = ["setting", *SETTING, "steps", "seeds", "comparisons", "gain", "low", "high"]
    rows = group.rows.sort_values(["step_ratio", "bag_size", "steps"], ignore_index=True)
    rows = of_one_family(rows, group.summary.verdicts)
    data, rate = rows[[*columns, "verdict"]], rows["learning_rate"].iloc[0]
    first, last = (next(rows_of(data.iloc[[place]])) for place in (0, -1))
    return Picture(
        name=f"gain_over_length-{name}",
        title=f"From {first['steps']:,} to {last['steps']:,} steps the gain goes from "
        f"{signed(first['gain'])} to {signed(last['gain'])} nats ({title})",
        caption=f"{'; '.join(data['setting'].unique())}; {group.model}, learning rate {rate:g}. "
        "Baseline minus superposition at equal FLOPs, held-out next-token loss, each point a run "
        "of its own whose learning rate was annealed; above zero, superposition is better. Bars: "
        "95% interval over paired seeds; hollow: it includes zero, or one seed and no claim. "
        f"{_allowance(data)}",
        data=data,
        folders=group.folders,
        draw=partial(_draw_lengths, data),
    )


def _allowance(data: pd.DataFrame) -> str:
    allowed = sorted(set(data["comparisons"]))
    if len(allowed) == 1:
        return f"All intervals allow for {number(allowed[0], 'comparison')}."
    return "Below the seeds: for how many comparisons an interval allows."


def _draw_lengths(data: pd.DataFrame) -> Figure:
    drawn, ((axes,),) = new_figure(COLUMN, 2.5, 1)
    axes.axhline(0, color=MUTED, linewidth=0.7)
    looks, count = marks_of(data, "setting"), data["setting"].nunique()
    # A line through two points would look like a fit.
    joined = data.groupby("setting").filter(lambda rows: len(rows) > 2)
    if len(joined):
        lines(axes, joined, looks, x="steps", y="gain", by="setting", band=False)
    for place, (name, rows) in enumerate(data.groupby("setting", sort=False)):
        # A little aside, so that bars do not cover one another.
        aside = 2 ** (0.06 * (place - (count - 1) / 2))
        for row in rows_of(rows):
            said = f"{name}, {row['steps']:,} steps: {gain(row)} nats, {row['verdict']}"
            at, bar = (row["steps"] * aside, row["gain"]), (row["low"], row["high"])
            hollow = is_hollow(row, "setting")
            point(axes, at, looks[str(name)], bar, hollow=hollow, words=said)
    texts = []
    for steps, rows in data.groupby("steps"):
        lines_ = [f"{steps:,}", span(rows["seeds"], "seed")]
        if data["comparisons"].nunique() > 1:
            lines_.append(f"for {'/'.join(map(str, sorted(set(rows['comparisons']))))}")
        texts.append("\n".join(lines_))
    log_axis(axes, "x", sorted(set(data["steps"])), texts)
    axes.margins(x=0.08)
    axes.set_xlabel("steps (log scale)")
    axes.set_ylabel("gain (nats per token)")
    more: dict[str, Look] = {}
    if data["verdict"].isin(CLAIMED).any() and not data["verdict"].isin(CLAIMED).all():
        more = {"no difference shown": {"marker": "s", "markerfacecolor": "none"}}
    arm_key(axes, "", looks, 3, more, markers=True, curves=len(joined) > 0)
    return drawn
