"""Word order, copies and long contexts: what `tst-study evaluate --context` found in both arms."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.paired import mean_interval
from analysis.run_row import rows_of
from analysis.summary import Summary
from analysis.wording import group_label, number
from paper_figures.item import Item, Missing
from paper_figures.picture import Picture
from paper_figures.sources import Sources
from paper_figures.study.selection import main_groups, pairs_of, representative, slug
from paper_figures.style import MUTED, PAGE, bag_size_mark
from tst_study.run_record import read_task_results
from tst_study.task_results import TaskResult

KIND = "context_checks"
TITLE = "Word order, copies and long contexts"
GAINS = {
    "word_order": "order_gain",
    "copied_spans": "copy_gain",
    "induction": "repeat_gain",
}
COLUMNS = (
    "check",
    "arm",
    "setting",
    "bag_size",
    "x",
    "value",
    "low",
    "high",
    "seeds",
    "interval_over",
)
READING = (
    "Above: held-out next-token loss by the number of tokens read, octave by octave, up to four "
    "times the training length (dotted line), of both arms and their paired difference; above "
    "zero, superposition is better. Below: loss that is saved because the context's words are in "
    "order (not shuffled within bags), because a span was read before, and because random tokens "
    "are repeated, of both arms and their paired difference; right of zero, superposition makes "
    "more of it. Bars that are longer than the frame are cut."
)


def items(sources: Sources, name: str = KIND) -> list[Item | Missing]:
    """One per corpus and model with both arms of a pair measured on the same tokens."""
    summary = sources.summary
    found: list[Item | Missing] = []
    for group, rows in main_groups(summary):
        pairs = _measured(summary, representative(rows))
        if not pairs:
            continue
        data = pd.DataFrame([*_positions(pairs), *_gains(pairs)], columns=list(COLUMNS))
        over = sorted(set(data["interval_over"]))
        seeds = int(data["seeds"].max())
        runs = summary.tables.runs
        found.append(
            Picture(
                KIND,
                f"{KIND}-{slug(summary, group)}",
                f"{TITLE}, {group_label(runs[runs['group'] == group])}",
                f"{READING} Bars: 95% interval over {' or '.join(over)}; "
                f"up to {number(seeds, 'seed')}.",
                data,
                tuple(sorted({str(pair[arm]) for pair in pairs for arm in FOLDERS})),
                lambda data=data, pairs=pairs: _figure(data, _training_length(pairs)),  # type: ignore[misc]
            )
        )
    return found or [
        Missing(
            KIND,
            TITLE,
            "Needs a baseline and a superposed run of one seed, both measured: "
            "`tst-study evaluate RUN --context`.",
        )
    ]


FOLDERS = ("baseline_folder", "superposed_folder")


def _measured(summary: Summary, rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Pairs, with `baseline` and `superposed` results by check, equal in data and final."""
    if rows.empty:
        return []
    steps = dict(zip(summary.tables.runs["folder"], summary.tables.runs["steps"], strict=True))
    sizes = dict(zip(rows["setting"], rows["bag_size"], strict=True))
    found = []
    for pair in rows_of(pairs_of(summary, rows)):
        arms = [
            {row["task"]: row for row in read_task_results(folder) if row["step"] == steps[folder]}
            for folder in (pair[name] for name in FOLDERS)
        ]
        same = [
            check
            for check in ("loss_by_position", *GAINS)
            if all(check in arm for arm in arms)
            and arms[0][check]["data"] == arms[1][check]["data"]
        ]
        if same:
            baseline, superposed = ({check: arm[check] for check in same} for arm in arms)
            more = {"bag_size": sizes[pair["setting"]], "checks": (baseline, superposed)}
            found.append({**pair, **more})
    return found


Pairs = Sequence[dict[str, Any]]


def _positions(pairs: Pairs) -> Iterator[tuple[Any, ...]]:
    """Rows of both arms and of their paired difference, by tokens read."""
    check = "loss_by_position"
    for setting, size, members in _by_setting(pairs, check):
        places = members[0][0]["details"]["tokens_read"]
        baseline, superposed = (
            np.array([arm["details"]["nats_of_sequences"] for arm in both]).astype(float)
            for both in zip(*members, strict=True)
        )  # (seeds, sequences, octaves) each
        for arm, name, bag, values in (
            ("baseline", "baseline", 1, baseline),
            ("superposition", setting, size, superposed),
            ("difference", setting, size, baseline - superposed),
        ):
            for place, x in enumerate(places):
                yield check, arm, name, bag, x, *_interval(values[..., place])


def _gains(pairs: Pairs) -> Iterator[tuple[Any, ...]]:
    for check, stem in GAINS.items():
        for setting, size, members in _by_setting(pairs, check):
            metrics = [[arm["metrics"] for arm in both] for both in members]
            for label in metrics[0][0]:
                # A bag size of its own is measured where a run has one: not in both arms.
                shared = all(label in arm for both in metrics for arm in both)
                if label.endswith("_stderr") or not shared:
                    continue
                x = label.removeprefix(stem).replace("_", " ").strip()
                one, other = ([float(both[place][label]) for both in metrics] for place in (0, 1))
                errors = [float(arm[f"{label}_stderr"]) for arm in metrics[0]]
                gained = [b - a for a, b in zip(one, other, strict=True)]
                for arm, name, bag, values, error in (
                    ("baseline", "baseline", 1, one, errors[0]),
                    ("superposition", setting, size, other, errors[1]),
                    # Of one seed: as if the arms were independent, which is on the safe side.
                    ("difference", setting, size, gained, math.hypot(*errors)),
                ):
                    yield check, arm, name, bag, x, *_over_seeds(values, error)


def _by_setting(pairs: Pairs, check: str) -> Iterator[tuple[str, int, list[Any]]]:
    groups: dict[str, list[Any]] = defaultdict(list)
    sizes: dict[str, int] = {}
    for pair in pairs:
        baseline, superposed = pair["checks"]
        if check in baseline:
            groups[pair["setting"]].append((baseline[check], superposed[check]))
            sizes[pair["setting"]] = int(pair["bag_size"])
    for setting, members in sorted(groups.items(), key=lambda group: sizes[group[0]]):
        # Seeds that were measured on other tokens than the first are another measurement.
        data = members[0][0]["data"]
        yield setting, sizes[setting], [both for both in members if both[0]["data"] == data]


def _interval(values: Any) -> tuple[float, float, float, int, str]:
    """(seeds, sequences): over seeds where there are several, else over the sequences of one."""
    over_sequences = float(values[0].std(ddof=1)) / math.sqrt(values.shape[1])
    return _over_seeds([float(seed.mean()) for seed in values], over_sequences)


def _over_seeds(values: list[float], error: float) -> tuple[float, float, float, int, str]:
    several = mean_interval(values)
    if several is not None:
        return (*several, len(values), "seeds")
    return values[0], values[0] - 1.96 * error, values[0] + 1.96 * error, 1, "sequences of one seed"


def _training_length(pairs: Pairs) -> int:
    row: TaskResult | None = next(
        (found for pair in pairs if (found := pair["checks"][0].get("loss_by_position"))), None
    )
    return 0 if row is None else int(row["details"]["training_length"])


def _figure(data: pd.DataFrame, training_length: int) -> Figure:
    figure = Figure(figsize=(PAGE, 4.6))
    (above, above_right), (below, below_right) = figure.subplots(2, 2)
    positions = data["check"] == "loss_by_position"
    paired = data["arm"] == "difference"
    _curves(above, data[positions & ~paired], training_length)
    above.set_ylabel("held-out loss (nats per token)")
    above.legend(loc="best")
    above_right.axhline(0, color=MUTED, linewidth=0.7)
    _curves(above_right, data[positions & paired], training_length)
    above_right.set_ylabel("baseline − superposition (nats)")
    _dots(below, data[~positions & ~paired])
    below.set_xlabel("loss saved (nats per token)")
    _dots(below_right, data[~positions & paired])
    below_right.set_xlabel("superposition − baseline (nats)")
    return figure


def _curves(axes: Axes, data: pd.DataFrame, training_length: int) -> None:
    drawn = data.drop_duplicates(["setting", "x"])  # the baseline is every setting's partner
    for place, (setting, rows) in enumerate(drawn.groupby("setting", sort=False)):
        mark = bag_size_mark(int(rows["bag_size"].iloc[0]))
        # An octave is named by its end; marks of several settings stand side by side.
        x = rows["x"].astype(float) * 2 ** (0.08 * place - 0.5)
        axes.plot(
            x, rows["value"], mark.marker, color=mark.colour, linestyle=mark.dash, label=setting
        )
        axes.vlines(x, rows["low"], rows["high"], color=mark.colour, linewidth=1.0)
    if training_length:
        axes.axvline(training_length, color=MUTED, linewidth=0.7, linestyle=(0, (1, 1.5)))
    axes.set_ylim(*_frame(drawn))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel("tokens read (log scale)")


def _frame(data: pd.DataFrame, zero: bool = False) -> tuple[float, float]:
    """Holds all means, and zero if asked; the vast intervals of two seeds are cut."""
    values = [*data["value"], *([0.0] if zero else [])]
    low, high = float(min(values)), float(max(values))
    span = max(high - low, 1e-3)
    bottom = max(min(float(data["low"].min()), low), low - 0.8 * span)
    top = min(max(float(data["high"].max()), high), high + 0.8 * span)
    return bottom - 0.05 * span, top + 0.05 * span


_NAMES = {"copied_spans": "copied span", "induction": "repeated tokens"}


def _dots(axes: Axes, data: pd.DataFrame) -> None:
    labels = [_label(row) for row in rows_of(data)]
    order = list(dict.fromkeys(labels))
    drawn = data.assign(label=labels).drop_duplicates(["setting", "label"])
    settings = list(drawn["setting"].unique())
    for row in rows_of(drawn):
        shift = 0.16 * (settings.index(row["setting"]) - (len(settings) - 1) / 2)
        place = order.index(row["label"]) + shift
        mark = bag_size_mark(int(row["bag_size"]))
        axes.hlines(place, row["low"], row["high"], color=mark.colour, linewidth=1.0)
        axes.plot(row["value"], place, mark.marker, color=mark.colour)
    axes.axvline(0, color=MUTED, linewidth=0.7)
    axes.set_yticks(range(len(order)), order)
    axes.set_ylim(len(order) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(*_frame(drawn, zero=True))


def _label(row: dict[str, Any]) -> str:
    return _NAMES.get(row["check"]) or f"order, {row['x']}"
