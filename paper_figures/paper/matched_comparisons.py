"""Figure 3: superposition against baselines of equal FLOPs, equal loss and equal data."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from tst_study.analysis.summary import Summary
from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.verdict.comparison import SAME_BUT_LENGTH, alike
from tst_study.analysis.wording import bounds, gain, group_label, number, signed
from tst_study.config.superposition_setting import SuperpositionSetting
from tst_study.paper_figures import curves
from tst_study.paper_figures.catalogue import figure, submit
from tst_study.paper_figures.drawing import arm_key, is_baseline, level_line
from tst_study.paper_figures.item import Finding, judged
from tst_study.paper_figures.picture import Picture
from tst_study.paper_figures.sources import Sources
from tst_study.paper_figures.style import (
    BASELINE,
    PAGE,
    Look,
    Mark,
    arm_mark,
    new_figure,
    plain_mark,
)

PANELS = {
    "equal FLOPs": ("a_equal_flops", "20k"),
    "equal loss": ("b_equal_loss", "36k"),
    "equal data": ("c_equal_data", "50k"),
}
"""The published panel and the length of its baseline, by kind of match."""
SWITCH = 6_000


@dataclass(frozen=True)
class Measured:
    """One superposed setting and the baselines that match it, from `analysis.verdict.matched`."""

    superposed: pd.DataFrame
    """Rows of the run table, one per seed."""
    matches: dict[str, dict[str, Any]]
    """The row of `matched` for each kind of match that has a number."""
    baselines: dict[str, pd.DataFrame]
    """The baseline runs nearest to each match."""
    again: tuple[dict[str, Any], ...]
    """Rows of `matched` at equal FLOPs: the same setting and length in other groups of runs."""

    @property
    def folders(self) -> tuple[str, ...]:
        tables = (self.superposed, *self.baselines.values())
        return tuple(sorted({str(path) for table in tables for path in table["folder"]}))

    @property
    def setting(self) -> SuperpositionSetting:
        return SuperpositionSetting.of_row(next(rows_of(self.superposed)))

    @property
    def scale(self) -> str:
        seeds = number(self.superposed["seed"].nunique(), "seed")
        return f"{group_label(self.superposed)}, {self.setting.label}, {seeds}"


@dataclass(frozen=True)
class Side:
    """One panel of the figure: superposition and the baselines that match it."""

    source: str
    data: pd.DataFrame
    """Curves, with the published panel of the match as `panel`."""
    mark: Mark
    """The mark of superposition."""
    results: dict[str, str]
    """The result in words, by kind of match."""


@figure(
    "figure3",
    title="Figure 3. In the paper, TST is ahead at equal FLOPs and behind a baseline that reads as "
    "much text",
    published=["loss_curves"],
    needs=submit("equal-cost", "paper", "one-gpu"),
)
def matched_comparisons(sources: Sources) -> Picture:
    """Show the published runs, and beside them the matches among the measured ones."""
    found = find(sources.summary)
    sides = [_published(), *([_measured(sources.summary, found)] if found else [])]
    measured = ""
    if found:
        lacking = [kind for kind in PANELS if kind not in found.matches]
        lacks = f" No match of {' or of '.join(lacking)} among the runs." if lacking else ""
        measured = f"Measured: {found.scale}; {curves.READING}.{lacks}"
    return Picture(
        caption="Training loss, 3B, s = 6, r = 0.3, against baselines of equal FLOPs, equal loss "
        f"and equal data; dotted: the level that TST reached. {curves.SMOOTHED}; one run each. "
        "Before the switch TST trains on the loss of bags, another quantity, which is not drawn. "
        "The baseline of 20k steps ends at 2.755 here and at 2.808 in Table 1.",
        measured=measured,
        data=pd.concat([side.data for side in sides], ignore_index=True),
        folders=found.folders if found else (),
        draw=partial(_figure, sides),
        finding=_finding(sides, found),
    )


def find(summary: Summary) -> Measured | None:
    """Return the plain setting on prose with most kinds of match; of equals that with most seeds,
    then the longest. There is no match at equal loss where no baseline reached it."""
    runs = summary.comparison.eligible
    if runs.empty:
        return None
    plain = runs.loc[[SuperpositionSetting.of_row(row).is_plain for row in rows_of(runs)]]
    key = [*SAME_BUT_LENGTH, "steps", "setting"]
    plain = plain.assign(setting=[SuperpositionSetting.of_row(row).label for row in rows_of(plain)])
    own = dict(iter(plain.groupby(key, sort=False)))
    found: list[tuple[Any, ...]] = []
    for name, rows in summary.matches.groupby(key, sort=False):
        matches = {row["kind"]: row for row in rows_of(rows) if pd.notna(row["baseline_steps"])}
        if matches and name in own:
            prose = bool(pd.isna(own[name]["optimal_nats_per_token"].iloc[0]))
            seeds, steps = own[name]["seed"].nunique(), int(own[name]["steps"].iloc[0])
            found.append((prose, len(matches), seeds, steps, name, matches))
    if not found:
        return None
    (*_, name, matches), *others = sorted(found, key=lambda entry: entry[:4], reverse=True)
    near = {kind: _nearest(runs, own[name], matches[kind]) for kind in matches}
    again = tuple(
        {"study": own[one]["study"].iloc[0], **rows["equal FLOPs"]}
        for *_, one, rows in others  # whatever the held-out text, which is their third
        if one[:2] + one[3:] == name[:2] + name[3:] and "equal FLOPs" in rows
    )
    return Measured(own[name], matches, near, again)


def _nearest(runs: pd.DataFrame, own: pd.DataFrame, match: dict[str, Any]) -> pd.DataFrame:
    """Return the baselines of its seeds whose length is nearest to the match."""
    baselines = runs[(runs["method"] == "baseline") & runs["seed"].isin(own["seed"])]
    same = alike(baselines, own.iloc[0], SAME_BUT_LENGTH)
    away = (same["steps"] - match["baseline_steps"]).abs()
    nearest: pd.DataFrame = same[away == away.min()]
    return nearest


def _published() -> Side:
    parts, results = [], {}
    for kind, (panel, length) in PANELS.items():
        baseline = f"baseline, {length} steps"
        runs = {baseline: f"dense_3b_baseline_{length}", "TST, 20k steps": "dense_3b_tst_s6_20k"}
        part = curves.published_curves(3, runs, SWITCH, panel)
        parts.append(part)
        base = curves.last(part[part["label"] == baseline])
        results[kind] = f"gain {signed(base - _reached(part))}"
    return Side("published", pd.concat(parts, ignore_index=True), plain_mark(6, 0.3), results)


def _measured(summary: Summary, found: Measured) -> Side:
    parts, results = [], {}
    for kind, (panel, _) in PANELS.items():
        if (row := found.matches.get(kind)) is None:
            continue
        for name, runs in (("baseline", found.baselines[kind]), ("TST", found.superposed)):
            label = f"{name}, {runs['steps'].iloc[0]:,} steps"
            loss = float(runs["nats_per_token"].astype(float).mean())
            end = {"label": label, "step": runs["steps"].iloc[0], "loss": loss, "switch": 0}
            end |= {"seeds": runs["seed"].nunique(), "said": f"{label}: {loss:.3f}"}
            ends = pd.DataFrame([end]).assign(source="measured", quantity="end")
            both = pd.concat([curves.mean_curve(summary, label, runs), ends], ignore_index=True)
            parts.append(both.assign(panel=panel).reindex(columns=list(curves.COLUMNS)))
        interval = f" [{ends_of}]" if (ends_of := bounds(row)) else ""
        ratio = f"{row['steps_ratio']:.2f}{interval} times the steps"
        results[kind] = ratio if kind == "equal loss" else f"gain {gain(row)}"
    data = pd.concat(parts, ignore_index=True)
    return Side("measured", data, arm_mark(found.setting), results)


def _figure(sides: list[Side]) -> Figure:
    drawn, (row,) = new_figure(PAGE, 2.7, len(sides))
    for axes, side in zip(row, sides, strict=True):
        # Superposition is the same run in every panel of the paper, and so may a baseline be.
        first = side.data.groupby("label")["panel"].transform("first")
        once = side.data[side.data["panel"] == first]
        looks = {name: BASELINE if is_baseline(name) else side.mark for name in once["label"]}
        curves.draw(axes, once, looks, (0.0, 1.02 * curves.end_of(once)))
        level_line(axes, _reached(once))
        kinds: dict[float, list[str]] = {}
        for kind in side.results:
            part = side.data[side.data["panel"] == PANELS[kind][0]]
            end = curves.end_of(part[part["label"].map(is_baseline)])
            kinds.setdefault(end, []).append(kind)
        words = [f"{end:,.0f}\n" + ",\n".join(same) for end, same in kinds.items()]
        axes.set_xticks([0, *kinds], ["0", *words])
        names = {name.split(",")[0]: look for name, look in looks.items()}
        results: dict[str, Look] = {f"{kind}: {said}": {} for kind, said in side.results.items()}
        arm_key(axes, side.source, names, 1, results)
    return drawn


def _reached(data: pd.DataFrame) -> float:
    """Return what superposition reached: held-out loss where it was measured here."""
    own = data[~data["label"].map(is_baseline)]
    ends = own[own["quantity"] == "end"]["loss"]
    return float(ends.iloc[0]) if len(ends) else curves.last(own)


def _finding(sides: list[Side], found: Measured | None) -> Finding:
    gains = [f"{kind}: {words.split()[-1]}" for kind, words in sides[0].results.items()]
    said = "gains of TST in nats: " + ", ".join(gains)
    if found is None:
        return Finding(said)
    measured = "; ".join(f"{kind}: {words}" for kind, words in sides[1].results.items())
    for row in found.again:
        seeds = number(int(row["seeds"]), "seed")
        measured += f"; again at equal FLOPs, {row['study']}, {seeds}: {gain(row)}"
    every = (found.matches.get("equal FLOPs", {"verdict": ""}), *found.again)
    verdicts = [row["verdict"] for row in every]
    verdict = judged(verdicts)
    if verdict == "agrees" and set(verdicts) != {"better"}:
        verdict = "undecided"  # one study shows the gain, and another does not
    return Finding(said, measured, found.scale, verdict)
