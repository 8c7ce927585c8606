"""The compute multiplier: how many times as much compute the baseline needs for the same loss, as a
function of that loss. Also the answer of `tst-study analyse compute`."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from tst_study.analysis import published
from tst_study.analysis.answer import Answer
from tst_study.analysis.fits.scaling.approaches import side_by_side
from tst_study.analysis.fits.scaling.frontier import isoflop, next_budget
from tst_study.analysis.fits.scaling.points import (
    alike_in_kind,
    at_best_settings,
    doubts,
    points_of,
)
from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.verdict.comparison import SAME_BUT_LENGTH, compare
from tst_study.analysis.verdict.length_curve import LengthCurve, floors, hull, paired_tables
from tst_study.analysis.verdict.question import Question
from tst_study.analysis.wording import disambiguate_by_set_up
from tst_study.config.superposition_setting import COLUMNS as SETTING
from tst_study.config.superposition_setting import SuperpositionSetting
from tst_study.errors import UserError


def compute_multiplier(
    baseline: pd.DataFrame, method: pd.DataFrame, losses: int = 9, comparisons: int = 1
) -> pd.DataFrame:
    """Return the compute multiplier (baseline FLOPs over method FLOPs at equal loss) for `losses`
    values of the loss, spaced evenly over the range that both reached.

    Both tables: flops, loss (nats per token, annealed runs) and seed; two or more lengths each.
    Only seeds that were run at every length of both are used. If there are fewer than two such
    seeds, the lengths that a single seed ran are left out, provided that this leaves two such seeds
    (`paired_tables`). If the loss of an arm is no lower at a length than at the length before it,
    this length and all longer ones are left out. `attrs["note"]` of the result says which lengths
    were left out. Between neighbouring lengths the loss follows a power law above a floor
    (`length_curve`). The multiplier is never read beyond the shortest or the longest run, but its
    interval may reach beyond them.

    Columns of the result: loss, multiplier, seeds (their number), low and high. The interval is a
    95% interval for all `comparisons` methods together, by the t-test of the seeds' paired
    differences. `low` or `high` is missing if it lies too far beyond the lengths that were run
    (`LengthCurve.reached`). With a single seed both are missing, so that nothing is claimed.

    Raises `UserError` if an arm has one length only or its second length is no better than its
    first, if no loss was reached by both, if no seed was run at every length, and if a seed ran a
    length twice.
    """
    (first, second), note = paired_tables([baseline, method], "flops")
    curves = LengthCurve.of(first, "baseline"), LengthCurve.of(second, "method")
    lowest = max(curve.means[-1] for curve in curves)
    highest = min(curve.means[0] for curve in curves)
    if lowest >= highest:
        ends = (f"{curve.means[-1]:.4f}–{curve.means[0]:.4f}" for curve in curves)
        raise UserError(
            "no loss reached by both: baseline {}, method {}; run lengths that overlap".format(
                *ends
            )
        )
    of_baseline, of_method = curves
    allowed = floors([*curves])
    rows = []
    for loss in np.linspace(highest, lowest, losses):
        places = [of_method.place(float(loss), floor) for floor in allowed]
        multiplier, low, high = hull(
            [
                of_baseline.reached(of_method.at(place, floor), floor, place, comparisons)
                for place, floor in zip(places, allowed, strict=True)
            ]
        )
        rows.append((float(loss), multiplier, len(of_baseline.losses), low, high))
    table = pd.DataFrame(rows, columns=["loss", "multiplier", "seeds", "low", "high"])
    table.attrs["note"] = "; ".join(filter(None, (note, of_baseline.note, of_method.note)))
    return table


def compute_answer(
    runs: pd.DataFrame | None = None, questions: Sequence[Question] = (), own_rates: bool = False
) -> Answer:
    """Answer `tst-study analyse compute`: compute multipliers, and compute-optimal sizes by
    Chinchilla's second approach (`laws` has the third).

    runs: a run table (`source.load`); by default the published runs. `questions` and `own_rates`
    are those of `comparison.compare`. If the runs do not allow a number, a sentence says what is
    missing.
    """
    inputs: dict[str, str] = {}
    of_paper = runs is None
    if runs is None:
        # The one run that only Table 2 has is left out: it is an ablation, at one length. Table 1
        # is kept, because only it has 3B and the mixture; it also prints some of the grids' runs
        # again, which `eligible` counts once.
        runs = published.runs().query("source != 'Table 2'")
        inputs = published.fingerprints("headline_runs", "final_loss_grid")
    found = compare(runs, questions, own_rates)
    points = points_of(found.eligible)
    excluded = found.excluded[~found.excluded["folder"].isin(points["folder"])]
    tables: dict[str, pd.DataFrame] = {}
    sentences: list[str] = []
    multipliers: list[pd.DataFrame] = []
    families = [own for _, own in points.groupby(list(SAME_BUT_LENGTH), dropna=False)]
    firsts = [own.iloc[0] for own in families]
    labels = disambiguate_by_set_up([str(first["corpus"]) for first in firsts], firsts)
    for label, family in zip(labels, families, strict=True):
        for name, members, table in multipliers_of(family, losses=3):
            note = table if isinstance(table, str) else table.attrs["note"]
            if not found.unstable.isdisjoint(members["run_id"]):
                note = "; ".join(filter(None, ("unstable, as runs diverged", note)))
            if note:
                sentences.append(f"{label}, {name}: {note}.")
            if isinstance(table, pd.DataFrame):
                multipliers.append(table.assign(family=label, setting=name))
    if multipliers:
        order = ["family", "setting", "loss", "multiplier", "low", "high", "seeds"]
        title = "Compute multiplier: baseline FLOPs over FLOPs at equal loss"
        tables[title] = pd.concat(multipliers, ignore_index=True)[order]
    for label, rows in alike_in_kind(points[points["method"] == "baseline"]):
        own, left_out = at_best_settings(rows)
        title = f"Chinchilla, approach 2, {label}"
        try:
            frontier = isoflop(own)
            low, high = frontier.params_interval or (None, None)
            tables[title] = frontier.table.assign(
                params_exponent=frontier.params_exponent,
                exponent_low=low,
                exponent_high=high,
                tokens_exponent=frontier.tokens_exponent,
            )
            both, agreed = side_by_side(own, frontier, None)
            if len(both):
                tables[f"Both approaches at the largest budget, {label}"] = both
            notes = [next_budget(frontier), frontier.note, *agreed]
            notes += [] if of_paper else doubts(own)
        except UserError as error:
            notes = [str(error)]
        notes.append(left_out)
        sentences += [f"{title}: {note}." for note in notes if note]
    if not (tables or sentences):
        raise UserError("no baseline among these runs, and no setting at two lengths or more")
    return Answer("compute", tables, tuple(sentences), inputs, excluded)


def multipliers_of(
    family: pd.DataFrame, losses: int
) -> list[tuple[str, pd.DataFrame, pd.DataFrame | str]]:
    """Return the label, the runs and the multipliers of every setting that was run at two or more
    lengths; in place of the multipliers there may be the reason why there are none.

    The runs of a family agree in all but their setting and length. Step ratios that agree to two
    decimals count as one. `losses`: number of losses, as in `compute_multiplier`. The intervals
    hold jointly for all settings that have several seeds."""
    results: list[tuple[str, pd.DataFrame, pd.DataFrame | str]] = []
    keys = [name for name in SETTING if name != "superposed_steps"]
    rounded = family.assign(step_ratio=family["step_ratio"].astype(float).round(2))
    is_baseline = family["method"] == "baseline"
    several = [
        members
        for _, members in rounded[~is_baseline].groupby(keys, sort=False, dropna=False)
        if members["steps"].nunique() > 1
    ]
    question = max(1, sum(members["seed"].nunique() > 1 for members in several))
    for members in several:
        name = SuperpositionSetting.of_row(next(rows_of(members))).label
        try:
            if members["seed"].isna().any():
                raise UserError("runs without seeds, by which both arms would be paired")
            table = compute_multiplier(family[is_baseline], members, losses, question)
            results.append((name, members, table))
        except UserError as error:
            results.append((name, members, str(error)))
    return results
