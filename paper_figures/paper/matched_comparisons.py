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
from tst_study.paper_figures.drawing import is_baseline, key_above, level_line
from tst_study.paper_figures.item import Finding, judged
from tst_study.paper_figures.picture import Picture
from tst_study.paper_figures.sources import Sources
from tst_study.paper_figures.style import PAGE, new_figure

PANELS = {
    "a_equal_flops": ("equal FLOPs", "dense_3b_baseline_20k", "20k"),
    "b_equal_loss": ("equal loss", "dense_3b_baseline_36k", "36k"),
    "c_equal_data": ("equal data", "dense_3b_baseline_50k", "50k"),
}
SWITCH = 6_000


@dataclass(frozen=True)
class Measured:
    """One superposed setting and the baselines that match it, from `analysis.verdict.matched`."""

    superposed: pd.DataFrame
    """Rows of the run table, one per seed."""
    matches: dict[str, dict[str, Any]]
    """Row of `matched` by kind of match, where it holds a number."""
    baselines: dict[str, pd.DataFrame]
    """The baseline runs nearest to each match."""
    again: tuple[dict[str, Any], ...]
    """Rows of `matched` at equal FLOPs: the same setting and length in other groups of runs."""

    @property
    def folders(self) -> tuple[str, ...]:
        tables = (self.superposed, *self.baselines.values())
        return tuple(sorted({str(path) for table in tables for path in table["folder"]}))

    @property
    def scale(self) -> str:
        first = next(rows_of(self.superposed))
        seeds = number(self.superposed["seed"].nunique(), "seed")
        return (
            f"{group_label(self.superposed)}, {SuperpositionSetting.of_row(first).label}, {seeds}"
        )


@figure(
    "figure3",
    title="Figure 3. Equal FLOPs, equal loss and equal data, 3B",
    published=["loss_curves"],
    needs=submit("equal-cost", "paper", "one-gpu"),
)
def matched_comparisons(sources: Sources) -> Picture:
    """Above the published panels, below the matches among the runs."""
    data = pd.concat([_published(panel) for panel in PANELS], ignore_index=True)
    found = find(sources.summary)
    if found is not None:
        data = pd.concat([data, _curves(sources.summary, found)], ignore_index=True)
    return Picture(
        caption="Training loss, 3B, s = 6, r = 0.3; numbers: the last of each curve; dotted: the "
        f"level that TST reached. {curves.SMOOTHED}; one run each. Before the switch the loss of "
        "bags, another quantity, lies above the frame. The baseline of 20k steps ends at 2.755 "
        "here and at 2.808 in Table 1.",
        measured=_said_of_runs(found) if found else "",
        data=data,
        folders=found.folders if found else (),
        draw=partial(_figure, data, found.matches if found else {}),
        finding=_finding(data, found),
    )


def find(summary: Summary) -> Measured | None:
    """The plain setting on prose with most kinds of match (there is none at equal loss where no
    baseline reached it); of equals that with most seeds, then the longest."""
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
    """Baselines of its seeds, of the length nearest to the match."""
    baselines = runs[(runs["method"] == "baseline") & runs["seed"].isin(own["seed"])]
    same = alike(baselines, own.iloc[0], SAME_BUT_LENGTH)
    away = (same["steps"] - match["baseline_steps"]).abs()
    nearest: pd.DataFrame = same[away == away.min()]
    return nearest


def _curves(summary: Summary, found: Measured) -> pd.DataFrame:
    parts = []
    for panel, (kind, _, _) in PANELS.items():
        if kind in found.matches:
            match, level = found.matches[kind], None
            for name, runs in (("baseline", found.baselines[kind]), ("TST", found.superposed)):
                label = f"{name}, {runs['steps'].iloc[0]:,} steps"
                loss = float(runs["nats_per_token"].astype(float).mean())
                end = {"label": label, "step": runs["steps"].iloc[0], "loss": loss, "switch": 0}
                end["seeds"] = runs["seed"].nunique()
                if level is not None:
                    end |= _end_of_match(match, level)
                level = loss
                ends = pd.DataFrame([end]).assign(source="measured", quantity="held_out")
                both = pd.concat([curves.mean_curve(summary, label, runs), ends], ignore_index=True)
                parts.append(both.assign(panel=panel).reindex(columns=list(curves.COLUMNS)))
    return pd.concat(parts, ignore_index=True)


def _end_of_match(match: dict[str, Any], level: float) -> dict[str, Any]:
    """Interval of a paired gain at the baseline's level; a ratio of steps has none in nats."""
    if match["kind"] != "equal loss":
        bounds = {"low": level - match["high"], "high": level - match["low"]}
        bounds = bounds if pd.notna(match["low"]) else {}
        return {"loss": level - match["gain"], **bounds, "verdict": match["verdict"]}
    low, high = (float("nan") if match[end] is None else match[end] for end in ("low", "high"))
    return {"verdict": "better" if low > 1 else "worse" if high < 1 else ""}


def _published(panel: str) -> pd.DataFrame:
    _, baseline, length = PANELS[panel]
    runs = {f"baseline, {length} steps": baseline, "TST, 20k steps": "dense_3b_tst_s6_20k"}
    return curves.published_curves(3, runs, SWITCH, panel)


def _figure(data: pd.DataFrame, matches: dict[str, dict[str, Any]]) -> Figure:
    by_source = [part for _, part in data.groupby("source", sort=False)]
    counts = [part["panel"].nunique() for part in by_source]
    drawn, rows = new_figure(PAGE, 2.7 * len(counts), *counts)
    for row, mine in zip(rows, by_source, strict=True):
        panels = [part for _, part in mine.groupby("panel", sort=False)]
        loss = _limits(panels)
        for axes, part in zip(row, panels, strict=True):
            looks = curves.marks(list(part["label"]))
            curves.draw(axes, part, looks, (0.0, curves.end_of(part)), loss)
            level_line(axes, _end(part))
            kind = PANELS[part["panel"].iloc[0]][0]
            title = f"{part['source'].iloc[0]}: {kind}"
            if part["source"].iloc[0] == "measured":
                title += ", held-out loss" if kind != "equal loss" else _ratio(matches[kind])
            key_above(axes, title, curves.legend_looks(part, looks))
        row[0].set_ylabel("loss (nats per token)")
    return drawn


def _limits(panels: list[pd.DataFrame]) -> tuple[float, float]:
    """One range of losses for all panels of a row, so that they can be compared."""
    each = [curves.limits(part, (0.0, curves.end_of(part)), 0.12) for part in panels]
    return min(low for low, _ in each), max(high for _, high in each)


def _end(data: pd.DataFrame) -> float:
    """What superposition reached: held-out where it was measured here."""
    own = data[~data["label"].map(is_baseline)]
    held_out = own[own["quantity"] == "held_out"]["loss"]
    return float(held_out.iloc[0]) if len(held_out) else curves.last(own)


def _said_of_runs(found: Measured) -> str:
    lacking = [kind for kind, _, _ in PANELS.values() if kind not in found.matches]
    lacks = f" No match of {' or of '.join(lacking)} among the runs." if lacking else ""
    return (
        f"Below, measured: {found.scale}; {curves.READING}; numbers: held-out loss; at equal loss, "
        f"the baseline nearest in length to the interpolated one.{lacks}"
    )


def _finding(data: pd.DataFrame, found: Measured | None) -> Finding:
    gains = []
    for panel, (words, _, _) in PANELS.items():
        mine = data[(data["source"] == "published") & (data["panel"] == panel)]
        base = curves.last(mine[mine["label"].map(is_baseline)])
        gains.append(f"{words}: {signed(base - _end(mine))}")
    said = "gains of TST in nats: " + ", ".join(gains)
    if found is None:
        return Finding(said)
    measured = "; ".join(
        f"{kind}{_ratio(row)}" if kind == "equal loss" else f"{kind}: {gain(row)}"
        for kind, row in found.matches.items()
    )
    for row in found.again:
        seeds = number(int(row["seeds"]), "seed")
        measured += f"; again at equal FLOPs, {row['study']}, {seeds}: {gain(row)}"
    every = (found.matches.get("equal FLOPs", {"verdict": ""}), *found.again)
    return Finding(said, measured, found.scale, judged(row["verdict"] for row in every))


def _ratio(row: dict[str, Any]) -> str:
    interval = f" [{found}]" if (found := bounds(row)) else ""
    return f": {row['steps_ratio']:.2f}{interval} times the steps"
