"""Figure 3: superposition against baselines of equal FLOPs, equal loss and equal data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from analysis.matched import matched
from analysis.run_row import rows_of
from analysis.summary import Summary
from analysis.wording import gain, group_label, is_plain, number, setting_label
from paper_figures.item import Finding, Item, Missing, Verdict, command
from paper_figures.paper import curves
from paper_figures.paper.measured_curves import SMOOTHED, of_runs
from paper_figures.picture import Picture
from paper_figures.published_numbers import CURVES
from paper_figures.sources import Sources
from paper_figures.style import PAGE, new_grid, say_missing

PANELS = {
    "a_equal_flops": ("equal FLOPs", "dense_3b_baseline_20k", "20k"),
    "b_equal_loss": ("equal loss", "dense_3b_baseline_36k", "36k"),
    "c_equal_data": ("equal data", "dense_3b_baseline_50k", "50k"),
}
NEEDS = command("equal-cost", "paper")


@dataclass(frozen=True)
class Measured:
    """One superposed setting and the baselines that match it, from `analysis.matched`."""

    superposed: pd.DataFrame
    """Rows of the run table, one per seed."""
    matches: dict[str, dict[str, Any]]
    """Row of `matched` by kind of match, where it holds a number."""
    baselines: dict[str, pd.DataFrame]
    """The baseline runs nearest to each match."""

    @property
    def folders(self) -> tuple[str, ...]:
        tables = (self.superposed, *self.baselines.values())
        return tuple(sorted({str(path) for table in tables for path in table["folder"]}))

    @property
    def scale(self) -> str:
        first = next(rows_of(self.superposed))
        seeds = number(self.superposed["seed"].nunique(), "seed")
        return f"{group_label(self.superposed)}, {setting_label(first)}, {seeds}"


def items(sources: Sources, name: str) -> list[Item | Missing]:
    """Above the published panels, below the matches among the runs."""
    data = pd.concat([_published(panel) for panel in PANELS], ignore_index=True)
    found = find(sources.summary)
    if found is not None:
        data = pd.concat([data, _curves(sources.summary, found)], ignore_index=True)
    return [
        Picture(
            "matched_comparisons",
            name,
            "Figure 3. Equal FLOPs, equal loss and equal data, 3B",
            _caption(found),
            data,
            found.folders if found else (),
            lambda: _figure(data),
            published=(CURVES,),
            finding=_finding(data, found),
        )
    ]


def find(summary: Summary) -> Measured | None:
    """The plain setting with most kinds of match; then the one on prose, the longest, the first."""
    runs = summary.tables.runs
    if summary.comparison.eligible.empty:
        return None
    table = matched(runs).table
    done = runs[runs["state"] == "done"]
    places: dict[tuple[Any, ...], list[int]] = {}
    for place, row in enumerate(rows_of(done)):
        if is_plain(row):
            key = (row["family"], row["steps"], setting_label(row))
            places.setdefault(key, []).append(place)
    best: tuple[tuple[Any, ...], pd.DataFrame, dict[str, dict[str, Any]]] | None = None
    for _, rows in table.groupby(["family", "steps", "setting"], sort=False):
        matches = {row["kind"]: row for row in rows_of(rows) if pd.notna(row["baseline_steps"])}
        first = next(rows_of(rows))
        mine = places.get((first["family"], first["steps"], first["setting"]), [])
        if matches and mine:
            own = done.iloc[mine]
            prose = bool(pd.isna(own["optimal_nats_per_token"].iloc[0]))
            rank = (len(matches), prose, int(first["steps"]))
            if best is None or rank > best[0]:
                best = (rank, own, matches)
    if best is None:
        return None
    _, own, matches = best
    return Measured(own, matches, {kind: _nearest(runs, own, matches[kind]) for kind in matches})


def _nearest(runs: pd.DataFrame, own: pd.DataFrame, match: dict[str, Any]) -> pd.DataFrame:
    """Finished baselines of its seeds and rate, of the length nearest to the match."""
    first = next(rows_of(own))
    same = runs[
        (runs["method"] == "baseline")
        & (runs["state"] == "done")
        & (runs["family"] == first["family"])
        & (runs["learning_rate"] == first["learning_rate"])
        & runs["seed"].isin(own["seed"])
    ]
    away = (same["steps"] - match["baseline_steps"]).abs()
    nearest: pd.DataFrame = same[away == away.min()]
    return nearest


def _curves(summary: Summary, found: Measured) -> pd.DataFrame:
    first = next(rows_of(found.superposed))
    parts = []
    for panel, (kind, _, _) in PANELS.items():
        if kind in found.matches:
            base = found.baselines[kind]
            arms = [
                (f"baseline, {base['steps'].iloc[0]:,} steps", base),
                (f"TST, {first['steps']:,} steps", found.superposed),
            ]
            parts += [of_runs(summary, label, table, panel) for label, table in arms]
    return pd.concat(parts, ignore_index=True)


def _published(panel: str) -> pd.DataFrame:
    _, baseline, length = PANELS[panel]
    runs = (
        curves.Run(baseline, f"baseline, {length} steps"),
        curves.Run("dense_3b_tst_s6_20k", "TST, 20k steps", 6_000),
    )
    return curves.published(3, panel, runs)


def _figure(data: pd.DataFrame) -> Figure:
    sources = list(dict.fromkeys(data["source"]))
    figure, rows = new_grid(PAGE, 2.4 * len(sources), len(sources), 3)
    for row, source in zip(rows, sources, strict=True):
        mine = data[data["source"] == source]
        there = [panel for panel in PANELS if (mine["panel"] == panel).any()]
        loss = _limits([mine[mine["panel"] == panel] for panel in there])
        for axes, panel in zip(row, PANELS, strict=True):
            if panel not in there:
                say_missing(axes, f"no baseline of {PANELS[panel][0]}\namong the runs:\n{NEEDS}")
                continue
            part = mine[mine["panel"] == panel]
            window = (0.0, curves.end_of(part))
            look = curves.marks(list(dict.fromkeys(part["label"])))
            curves.draw(axes, part, look, window=window, loss=loss, legend="upper right")
            curves.level_line(axes, _end(part))
            axes.set_title(f"{source}: {PANELS[panel][0]}")
        row[0].set_ylabel("training loss (nats per token)")
    return figure


def _limits(panels: list[pd.DataFrame]) -> tuple[float, float]:
    """One range of losses for all panels of a row, so that they can be compared."""
    tokens = [part[part["quantity"] == "next_token"] for part in panels]
    each = [curves.limits(part, (0.0, curves.end_of(part)), 0.12) for part in tokens]
    return min(low for low, _ in each), max(high for _, high in each)


def _end(data: pd.DataFrame) -> float:
    return curves.last(data[~data["label"].str.startswith("baseline")])


def _caption(found: Measured | None) -> str:
    text = (
        "Training loss, 3B, s = 6, r = 0.3; numbers: the last of each curve; dotted: the level "
        "that "
        f"TST reached. {curves.SMOOTHED}; one run each. Before the switch the loss of bags, "
        "another "
        "quantity, lies above the frame. The baseline of 20k steps ends at 2.755 here and at 2.808 "
        "in Table 1. "
    )
    if found is None:
        return text + f"Nothing measured: `{NEEDS}`, or `{command('equal-cost', 'one-gpu')}`."
    lacking = [kind for kind, _, _ in PANELS.values() if kind not in found.matches]
    lacks = f" No match of {' or '.join(lacking)} among the runs: `{NEEDS}`." if lacking else ""
    return text + (
        f"Below, measured: {found.scale}; means over seeds, {SMOOTHED}; at equal loss, the "
        "baseline "
        f"nearest in length to the interpolated one.{lacks}"
    )


def _finding(data: pd.DataFrame, found: Measured | None) -> Finding:
    said = []
    for panel, (words, _, _) in PANELS.items():
        mine = data[(data["source"] == "published") & (data["panel"] == panel)]
        base = curves.last(mine[mine["label"].str.startswith("baseline")])
        change = f"{base - _end(mine):+.3f}".replace("-", "−")
        said.append(f"{words}: {change}")
    published = "gains of TST in nats: " + ", ".join(said)
    if found is None:
        return Finding(published, needs=NEEDS)
    measured = "; ".join(_words(kind, row) for kind, row in found.matches.items())
    equal = found.matches.get("equal FLOPs")
    verdicts: dict[str, Verdict] = {"better": "agrees", "worse": "disagrees"}
    verdict = verdicts.get(str(equal["verdict"]), "undecided") if equal else "undecided"
    return Finding(published, measured, found.scale, verdict)


def _words(kind: str, row: dict[str, Any]) -> str:
    if kind != "equal loss":
        return f"{kind}: {gain(row)}"
    bounded = f" [{row['low']:.2f}, {row['high']:.2f}]" if pd.notna(row["low"]) else ""
    return f"{kind}: {row['steps_ratio']:.2f}{bounded} times the steps"
