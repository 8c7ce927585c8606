"""Word order, copies and long contexts: what `tst-study evaluate --context` found in both arms."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.compare.paired import mean_interval
from analysis.runs.run_row import rows_of
from analysis.wording import number, signed
from paper_figures.drawing import DOTTED, log_axis, point, rows_below, side_by_side
from paper_figures.groups import Group
from paper_figures.item import Item
from paper_figures.picture import Picture
from paper_figures.registration import figure
from paper_figures.sources import Sources
from paper_figures.style import MUTED, PAGE, bag_size_mark, new_figure, setting_marks
from tst_study.run_record import read_task_results

TITLE = "Word order, copies and long contexts"
POSITIONS = "loss_by_position"
GAINS = {"word_order": "order_gain", "copied_spans": "copy_gain", "induction": "repeat_gain"}
CHECKS = (POSITIONS, *GAINS)
NAMES = {"copied_spans": "copied span", "induction": "repeated tokens"}
COLUMNS = ["check", "arm", "setting", "bag_size", "x", "value", "low", "high", "seeds"]
COLUMNS += ["interval_over"]
READING = (
    "Above: held-out next-token loss by the number of tokens read, octave by octave, up to four "
    "times the training length (dotted line), of both arms and their paired difference; above "
    "zero, superposition is better. Below: loss that is saved because the context's words are in "
    "order (not shuffled within bags), because a span was read before, and because random tokens "
    "are repeated, of both arms and their paired difference; right of zero, superposition makes "
    "more of it. Bars that are longer than the frame are cut."
)
ARMS = ("baseline_folder", "superposed_folder")
Pairs = Sequence[dict[str, Any]]


@figure(
    "context_checks",
    title=TITLE,
    lacks="a baseline and a superposed run of one seed, both measured: "
    "`tst-study evaluate RUN --context`",
)
def context_checks(sources: Sources) -> list[Item]:
    """One per corpus and model with both arms of a pair measured on the same tokens."""
    chosen = [group.representative() for group in sources.main_groups]
    found = [(group, _measured(group)) for group in chosen if len(group.rows)]
    return [_picture(group, pairs) for group, pairs in found if pairs]


def _picture(group: Group, pairs: Pairs) -> Picture:
    data = pd.DataFrame(_rows(pairs), columns=COLUMNS)
    over = " or ".join(sorted(set(data["interval_over"])))
    return Picture(
        name=f"context_checks-{group.slug}",
        title=f"{TITLE}, {group.label}",
        caption=f"{READING} Bars: 95% interval over {over}; up to "
        f"{number(int(data['seeds'].max()), 'seed')}.",
        data=data,
        folders=tuple(sorted({str(pair[arm]) for pair in pairs for arm in ARMS})),
        draw=lambda: _figure(data, _training_length(pairs)),
    )


def _measured(group: Group) -> list[dict[str, Any]]:
    """Pairs, with `checks` of both arms, equal in data and final."""
    sizes = dict(zip(group.rows["setting"], group.rows["bag_size"], strict=True))
    found = []
    for pair in rows_of(group.pairs):
        arms = [
            {row["task"]: row for row in read_task_results(pair[arm]) if row["step"] == group.steps}
            for arm in ARMS
        ]
        same = [
            check
            for check in CHECKS
            if all(check in arm for arm in arms)
            and arms[0][check]["data"] == arms[1][check]["data"]
        ]
        if same:
            both = tuple({check: arm[check] for check in same} for arm in arms)
            found.append({**pair, "bag_size": sizes[pair["setting"]], "checks": both})
    return found


def _rows(pairs: Pairs) -> Iterator[tuple[Any, ...]]:
    """In `COLUMNS`: each check of each setting at each x, both arms and their paired difference."""
    found: dict[tuple[Any, ...], list[tuple[Any, ...]]] = defaultdict(list)
    for pair in pairs:
        for check, data, x, values, errors in _values(*pair["checks"]):
            place = (CHECKS.index(check), pair["bag_size"], pair["setting"])
            found[*place, x].append((data, values, errors))
    for (place, size, setting, x), seeds in sorted(found.items(), key=lambda one: one[0][:3]):
        # Seeds that were measured on other tokens than the first are another measurement.
        same = [values for data, values, _ in seeds if data == seeds[0][0]]
        own = (setting, size)
        arms = (("baseline", "baseline", 1), ("superposition", *own), ("difference", *own))
        for arm, values, error in zip(arms, zip(*same, strict=True), seeds[0][2], strict=True):
            yield CHECKS[place], *arm, x, *_over_seeds(values, error)


def _values(baseline: dict[str, Any], superposed: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Check, its data, x, and of baseline, superposed run and their difference (above zero:
    superposition is better) the means and the standard errors over sequences."""
    for check, one in baseline.items():
        other = superposed[check]
        if check == POSITIONS:
            arms = [np.array(arm["details"]["nats_of_sequences"], float) for arm in (one, other)]
            every = np.stack([*arms, arms[0] - arms[1]])  # (3, sequences, octaves)
            errors = every.std(axis=1, ddof=1) / math.sqrt(every.shape[1])
            columns = zip(every.mean(axis=1).T, errors.T, strict=True)
            for x, column in zip(one["details"]["tokens_read"], columns, strict=True):
                yield check, one["data"], x, *column
            continue
        for label, value in one["metrics"].items():
            # A bag size of its own is measured where a run has one: not in both arms.
            if not label.endswith("_stderr") and label in other["metrics"]:
                x = label.removeprefix(GAINS[check]).replace("_", " ").strip()
                gained = other["metrics"][label] - value
                both = [arm["metrics"][f"{label}_stderr"] for arm in (one, other)]
                # The difference: as if the arms were independent, which is on the safe side.
                values = (value, other["metrics"][label], gained)
                yield check, one["data"], x, values, (*both, math.hypot(*both))


def _over_seeds(values: Sequence[float], error: float) -> tuple[float, float, float, int, str]:
    several = mean_interval(values)
    if several is not None:
        return (*several, len(values), "seeds")
    return values[0], values[0] - 1.96 * error, values[0] + 1.96 * error, 1, "sequences of one seed"


def _training_length(pairs: Pairs) -> int:
    found = (pair["checks"][0][POSITIONS] for pair in pairs if POSITIONS in pair["checks"][0])
    return next((int(row["details"]["training_length"]) for row in found), 0)


def _figure(data: pd.DataFrame, training_length: int) -> Figure:
    drawn, ((above, above_right), (below, below_right)) = new_figure(PAGE, 4.6, 2, 2)
    positions, paired = data["check"] == POSITIONS, data["arm"] == "difference"
    _curves(above, data[positions & ~paired], training_length)
    above.set_ylabel("held-out loss (nats per token)")
    above.legend(loc="best")
    _curves(above_right, data[positions & paired], training_length)
    above_right.axhline(0, color=MUTED, linewidth=0.7)
    above_right.set_ylabel("baseline − superposition (nats)")
    _dots(below, data[~positions & ~paired])
    below.set_xlabel("loss saved (nats per token)")
    _dots(below_right, data[~positions & paired])
    below_right.set_xlabel("superposition − baseline (nats)")
    return drawn


def _curves(axes: Axes, data: pd.DataFrame, training_length: int) -> None:
    data = data.drop_duplicates(["setting", "x"])  # the baseline is every setting's partner
    # An octave is named by its end, and its mark stands in its middle.
    middles = data.assign(middle=data["x"].astype(float) / 2**0.5)
    looks = setting_marks(data, "setting")
    side_by_side(axes, middles, looks, _read, x="middle", y="value", by="setting")
    if training_length:
        axes.axvline(training_length, color=MUTED, linewidth=0.7, linestyle=DOTTED)
    if len(data):
        axes.set_ylim(*_frame(data))
    octaves = sorted({int(x) for x in data["x"]})[:: max(1, data["x"].nunique() // 7)]
    log_axis(axes, "x", octaves, [f"{x:,}" for x in octaves])
    axes.set_xlabel("tokens read (log scale)")


def _read(row: dict[str, Any]) -> str:
    return f"{row['setting']}, {row['x']} tokens read: {row['value']:.3f}"


def _frame(data: pd.DataFrame, zero: bool = False) -> tuple[float, float]:
    """Holds all means, and zero if asked; the vast intervals of two seeds are cut."""
    values = [*data["value"], *([0.0] if zero else [])]
    low, high = float(min(values)), float(max(values))
    span = max(high - low, 1e-3)
    bottom = max(min(float(data["low"].min()), low), low - 0.8 * span)
    top = min(max(float(data["high"].max()), high), high + 0.8 * span)
    return bottom - 0.05 * span, top + 0.05 * span


def _dots(axes: Axes, data: pd.DataFrame) -> None:
    labels = [NAMES.get(row["check"]) or f"order, {row['x']}" for row in rows_of(data)]
    order = list(dict.fromkeys(labels))
    drawn = data.assign(label=labels).drop_duplicates(["setting", "label"])
    settings = list(drawn["setting"].unique())
    axes.axvline(0, color=MUTED, linewidth=0.7)
    for row in rows_of(drawn):
        shift = 0.16 * (settings.index(row["setting"]) - (len(settings) - 1) / 2)
        at, mark = (row["value"], order.index(row["label"]) + shift), bag_size_mark(row["bag_size"])
        words = f"{row['setting']}, {row['label']}: {signed(row['value'])}"
        point(axes, at, mark, (row["low"], row["high"]), across=True, words=words)
    rows_below(axes, order)
    if len(drawn):
        axes.set_xlim(*_frame(drawn, zero=True))
