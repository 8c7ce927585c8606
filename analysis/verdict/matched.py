"""Matches each superposed setting with baselines at equal FLOPs, equal data and equal loss.

The baselines agree with the setting in data, model, batch, held-out text and schedule, except that
steps and warm-up may differ, and in learning rate unless each arm is compared at its own.

- At equal FLOPs the verdict is that of `comparison`.
- At equal data the baseline has read as many raw tokens. If no question was planned, the intervals
  of all settings with the same family, held-out text and length hold jointly with a probability of
  95%.
- At equal loss, baselines of several lengths are interpolated (`length_curve`), within the range of
  losses that they reached. Outside it there is a note in place of a number; baselines of one length
  give at most a bound. The interval allows for as many comparisons as the one at equal FLOPs.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from tst_study.analysis import published
from tst_study.analysis.answer import Answer
from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.verdict.comparison import (
    SAME,
    SAME_BUT_LENGTH,
    Comparison,
    alike,
    asked_of,
    compare,
)
from tst_study.analysis.verdict.decide import estimates, unstable
from tst_study.analysis.verdict.intervals import FEW, difference
from tst_study.analysis.verdict.length_curve import speed_up
from tst_study.analysis.verdict.planned import standing
from tst_study.analysis.verdict.question import Question
from tst_study.config.superposition_setting import COLUMNS as SETTING
from tst_study.config.superposition_setting import SuperpositionSetting
from tst_study.cost.compute import EQUAL_WITHIN
from tst_study.errors import UserError
from tst_study.text import big

EQUAL_FLOPS, EQUAL_DATA, EQUAL_LOSS = "equal FLOPs", "equal data", "equal loss"

COLUMNS: tuple[str, ...] = (*SAME_BUT_LENGTH, "group", "corpus", "params", "setting", "steps")
COLUMNS += ("learning_rate",)
COLUMNS += ("kind", "baseline_steps", "seeds", "gain", "steps_ratio", "flops_ratio")
COLUMNS += ("hours_ratio", "low", "high", "smallest_detectable", "verdict", "note")
"""Columns of the table of matches."""


def ledger(runs: pd.DataFrame) -> pd.DataFrame:
    """Return eligible runs with two more columns: `loss` (nats per token) and `hours`.

    Hours are device-hours. They are the published ones or, for other runs, the training time times
    the number of devices, or times one if that number is not known. They are NaN if the time is not
    known. The column `seed` is replaced by the label by which runs are paired (`block`).
    """
    rows = runs.assign(loss=runs["nats_per_token"].astype(float), seed=runs["block"])
    if "gpu_hours" in rows:
        return rows.assign(hours=rows["gpu_hours"].astype(float))
    count = rows["device_count"].astype(float).fillna(1.0)
    return rows.assign(hours=rows["training_seconds"].astype(float) * count / 3600.0)


def matched(found: Comparison) -> pd.DataFrame:
    """Return a row (`COLUMNS`) for each setting and each of the three kinds of match.

    At equal FLOPs and equal data it has the gain with its interval and verdict. At equal loss there
    is no gain, and the interval is that of `steps_ratio`. All ratios are those of the baseline over
    the superposed runs. If there is no match, `note` says why.
    """
    book = ledger(found.eligible)
    superposed, baselines = (book[book["method"] == arm] for arm in ("superposition", "baseline"))
    cells = superposed.groupby([*SAME, "steps", *SETTING], sort=False, dropna=False)
    settings = sorted((members for _, members in cells), key=_order)
    tried = Counter(_together(members) for members in settings if members["seed"].nunique() > 1)
    rows: list[dict[str, Any]] = []
    for members in settings:
        near = alike(baselines, members.iloc[0], SAME_BUT_LENGTH)
        first = next(rows_of(members.head(1)))
        same = (*SAME_BUT_LENGTH, "group", "corpus", "setting", "steps", "learning_rate")
        shared = {**{name: first[name] for name in same}, "params": big(first["parameters"])}
        allowed = tried[_together(members)]
        decided = next(rows_of(alike(found.table, first, (*SAME, *SETTING)).head(1)), None)
        gone = alike(found.lost[found.lost["state"] == "diverged"], first, SAME_BUT_LENGTH[:2])
        diverged = (alike(gone, first, ("group", *SETTING)), gone[gone["method"] == "baseline"])
        for column, kind in (("flops", EQUAL_FLOPS), ("raw_tokens", EQUAL_DATA)):
            row = _equal(members, near, column, kind, allowed, found.verdicts, diverged)
            if decided and kind == EQUAL_FLOPS and "gain" in row:
                row |= {name: decided[name] for name in _JUDGED}
            rows.append({**shared, "kind": kind, **row})
        asked = decided["comparisons"] if decided else allowed
        row = _equal_loss(members, near, asked)
        row |= _unstable(members, near, diverged)
        rows.append({**shared, "kind": EQUAL_LOSS, **row})
    return pd.DataFrame(rows, columns=list(COLUMNS))


WORTH: tuple[str, ...] = ("family", "question", "when", "steps", "baseline_steps", "seeds")
WORTH += ("steps_ratio", "flops_ratio", "low", "high", "note")
"""Columns of `worth`."""


def worth(kept: pd.DataFrame, lost: pd.DataFrame, questions: Sequence[Question]) -> pd.DataFrame:
    """Answer the questions of an equal loss: how many baseline steps an arm's loss is worth, as in
    `matched`, with intervals that hold together for those of a family. `kept`, `lost`:
    those of a `Comparison`. Raises `UserError` if an arm has several lengths."""
    asked = [question for question in questions if question.matched == "loss"]
    families = Counter(question.family for question in asked)
    rows = []
    for question in asked:
        sides = question.runs(kept)
        diverged, (when, note) = standing(question, sides, lost)
        members, baselines = map(ledger, sides)
        row: dict[str, Any] = {"note": "no run of it yet"}
        if members["steps"].nunique() > 1:
            raise UserError(f"arm {question.arm.name!r}: several lengths; name one in its `where`")
        if len(members):
            row = _equal_loss(members, baselines, families[question.family])
            row["steps"] = int(members["steps"].iloc[0])
        notes = [row["note"], note, *_unstable(members, baselines, diverged).values()]
        row |= {"when": when, "note": "; ".join(filter(None, notes))}
        rows.append({"family": question.family, "question": question.name, **row})
    return pd.DataFrame(rows, columns=list(WORTH))


def _order(members: pd.DataFrame) -> tuple[Any, ...]:
    first = next(rows_of(members.head(1)))
    return (first["family"], first["steps"], *SuperpositionSetting.of_row(first).order)


def _together(members: pd.DataFrame) -> tuple[Any, ...]:
    """Return the values that settings share if their intervals at equal data hold jointly."""
    return tuple(members[["family", "eval_set", "steps"]].iloc[0])


_JUDGED = ("seeds", "gain", "low", "high", "smallest_detectable", "verdict")
"""Columns of a match that are taken from a verdict."""


def matched_answer(
    runs: pd.DataFrame | None = None,
    inputs: dict[str, str] | None = None,
    questions: Sequence[Question] = (),
    own_rates: bool = False,
) -> Answer:
    """Answer `tst-study analyse matched` for a run table, or without one for the paper's Tables 1
    and 2. `inputs`: fingerprints of the runs. `questions` and `own_rates` are those of `compare`.

    Raises `UserError` if there is no superposed run to match.
    """
    if runs is None:
        runs = published.runs().query("source in ['Table 1', 'Table 2']")
    compared = compare(runs, questions, own_rates)
    matches = matched(compared)
    if matches.empty:
        out = compared.excluded
        why = f" ({out['reason'].iloc[0]})" if len(out) else ""
        raise UserError(f"no finished superposed run among these: there is nothing to match{why}")
    partners = matches["seeds"].notna().groupby(matches["kind"])
    counts = tuple(
        f"{kind}: {partners.sum()[kind]} of {partners.size()[kind]} settings have a partner."
        for kind in (EQUAL_FLOPS, EQUAL_DATA)
    )
    title = "Matches (gains in nats; ratios are baseline over superposed)"
    shown = matches.drop(columns=["family", "eval_set", "group", "rate"])
    marks = inputs or published.fingerprints("headline_runs")
    return Answer("matched", {title: shown}, counts, marks, compared.excluded)


def _equal(
    members: pd.DataFrame,
    baselines: pd.DataFrame,
    column: str,
    kind: str,
    allowed: int,
    verdicts: pd.DataFrame,
    diverged: Sequence[pd.DataFrame],
) -> dict[str, Any]:
    """Return the cells of a match at equal FLOPs or equal data, or a note why there is none.

    The match is with the baselines nearest in `column`, if within `EQUAL_WITHIN`. If one of
    `verdicts` is about exactly these runs, it counts; otherwise a t-test does, paired if the runs
    have seeds and adjusted for `allowed` comparisons, unless so many runs `diverged` that a side is
    unstable.
    """
    away = (baselines[column].astype(float) / float(members[column].iloc[0]) - 1).abs()
    nearest = baselines["steps"].isin(baselines["steps"][away == away.min()])
    near = baselines[(away <= EQUAL_WITHIN) & nearest]
    if near.empty:
        return {"note": f"no baseline of {kind}"}
    # Warm-ups may differ: those of the setting's own count, or else there must be one of a seed.
    of_group = near[near["group"] == members["group"].iloc[0]]
    near = near if of_group.empty else of_group
    if near["seed"].duplicated().any():
        return {"note": f"two baselines of {kind} have one seed; keep one"}
    pairs = members.merge(near, on="seed", suffixes=("", "_baseline"))
    own = difference(*(runs.set_index("seed")["loss"] for runs in (members, near)))
    if not own.seeds:
        return {"note": f"no baseline of {kind} with its seeds"}
    if own.unpaired:
        pairs = members.merge(near, how="cross", suffixes=("", "_baseline"))
    ids = {*pairs["run_id"], *pairs["run_id_baseline"]}
    planned = [
        row
        for row in asked_of(verdicts, ids)
        if len(row["run_ids"]) == len(ids) and math.isclose(row["gain"], own.gain, rel_tol=1e-6)
    ]
    judged = planned[0] if planned else {**vars(estimates([own], allowed, "paired")[0])}
    if not planned:
        judged |= _unstable(members, near, diverged)
    ratios = {
        f"{name}_ratio": float((pairs[f"{name}_baseline"] / pairs[name]).mean())
        for name in ("steps", "flops", "hours")
    }
    steps = int(pairs["steps_baseline"].iloc[0])
    verdict = {name: judged[name] for name in _JUDGED}
    return {"baseline_steps": steps, **ratios, **verdict, "note": judged.get("alone", "")}


def _unstable(
    members: pd.DataFrame, baselines: pd.DataFrame, diverged: Sequence[pd.DataFrame]
) -> dict[str, Any]:
    """Return the verdict if a setting, or its baseline of any length, is unstable. `diverged`: the
    runs of either that diverged."""
    own, others = (runs.groupby("steps").size() for runs in (diverged[1], baselines))
    arm = (len(diverged[0]), len(members))
    said = (unstable(arm, (int(own.get(steps, 0)), count)) for steps, count in others.items())
    return next(({"verdict": verdict} for verdict in said if verdict), {})


def _equal_loss(members: pd.DataFrame, baselines: pd.DataFrame, allowed: int) -> dict[str, Any]:
    """Return the cells of a match at equal loss; without one, a note why, or the bound."""
    row: dict[str, Any] = {"seeds": members["seed"].nunique()}
    if baselines.empty:
        return {**row, "note": "no baseline"}
    if baselines["steps"].nunique() == 1:
        bounds = members.merge(baselines, on="seed", suffixes=("", "_baseline"))
        notes = dict.fromkeys(_bound(pair) for pair in rows_of(bounds))
        return {**row, "note": "; ".join(notes) or "no baseline with its seeds"}
    match = speed_up(baselines, members, allowed)
    ratio, few = match["speed_up"], FEW.get(match["seeds"], "")
    if ratio is None:
        return {**row, "note": match["note"]}
    # A step of superposition costs as much as one of its baseline, and a small one of a rival less.
    per_step, cheaper = ((each["flops"] / each["steps"]).mean() for each in (baselines, members))
    rival = SuperpositionSetting.of_row(next(rows_of(members.head(1)))).is_rival
    known = baselines.groupby("steps")["hours"].mean()
    spent = float(np.interp(match["baseline_steps"], known.index.astype(float), known))
    return {
        **{name: match[name] for name in ("seeds", "low", "high")},
        "baseline_steps": round(match["baseline_steps"]),
        "steps_ratio": ratio,
        "flops_ratio": ratio * float(per_step / cheaper) if rival else ratio,
        "hours_ratio": spent / float(members["hours"].mean()),
        "verdict": few,
        "note": "" if few else match["note"],
    }


def _bound(pair: dict[str, Any]) -> str:
    """Return a note on what baselines of one length show, as they allow no interpolation."""
    steps = pair["steps_baseline"] / pair["steps"]
    if pair["loss"] >= pair["loss_baseline"] or steps <= 1:
        return f"its baseline has one length only ({pair['steps_baseline']:,} steps)"
    hours = pair["hours_baseline"] / pair["hours"]
    spent = "" if math.isnan(hours) else f" and {hours:.2f} times the hours"
    return (
        f"at least {steps:.2f} times the steps{spent}: the only baseline ran that long, and "
        f"its loss is still higher ({pair['loss_baseline']:.3f} against {pair['loss']:.3f})"
    )
