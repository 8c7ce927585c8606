"""Finds the runs that answer planned questions (`question`), and computes from them the contrasts,
which `decide` judges. For reports it computes the losses and costs of the questions' arms, and the
gains in the course of training."""

import functools
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from tst_study.analysis.tables.columns import Tables, rows_of
from tst_study.analysis.tables.eligible import NOT_WHOLE
from tst_study.analysis.verdict.decide import BLOCK, Contrast, block, paired
from tst_study.analysis.verdict.documents import documents_of
from tst_study.analysis.verdict.question import Question, declared, questions_of
from tst_study.analysis.verdict.registration import asked_when
from tst_study.analysis.wording import AFTERWARDS, number
from tst_study.errors import UserError
from tst_study.text import listed

COSTS = ["raw_tokens", "flops"]
"""Columns of the run table that say what a whole run costs, as planned."""
SIZES = ["parameters", "steps", "learning_rate"]
"""Columns of the run table that say how large an arm's runs are."""


def asked_contrasts(
    kept: pd.DataFrame, lost: pd.DataFrame, questions: Sequence[Question]
) -> list[Contrast]:
    """Return the contrast of each question.

    `kept`: the runs that may be compared; `lost`: those that diverged or were excluded by hand.

    Raises `UserError` for an arm that holds two runs of one seed, or names a column that the run
    table does not have.
    """
    contrasts = []
    shown = [name for name in _OF_CONTRASTS if name in kept]
    for question in (one for one in questions if one.matched != "loss"):
        arm, against = question.arm, question.against
        arm_runs, against_runs = question.runs(kept, shown)
        # Runs with seeds are paired on one held-out text, which their block names. Runs without
        # seeds are compared as two samples, so texts that only one arm has are left out here.
        if arm_runs["seed"].isna().all() and against_runs["seed"].isna().all():
            texts = set(arm_runs["eval_set"]) & set(against_runs["eval_set"])
            arm_runs, against_runs = (
                own[own["eval_set"].isin(texts)] for own in (arm_runs, against_runs)
            )
        diverged, when = standing(question, (arm_runs, against_runs), lost)
        losses, against_losses = _losses(arm_runs, arm.name), _losses(against_runs, against.name)
        alone = []
        if both := {*losses.index} & {*against_losses.index}:
            for side, runs in (("the arm", arm_runs), ("the comparison arm", against_runs)):
                seeds = runs["seed"][~runs["block"].isin(both)].dropna()
                alone += [f"seed {seed} of {side}" for seed in seeds]
            arm_runs, against_runs = (
                runs[runs["block"].isin(both)] for runs in (arm_runs, against_runs)
            )
        costs = arm_runs[COSTS].mean() / against_runs[COSTS].mean()
        contrasts.append(
            Contrast(
                name=question.name,
                losses=losses,
                against_losses=against_losses,
                alone=f"without a pair: {listed(alone, 4)}" if alone else "",
                diverged=len(diverged[0]),
                diverged_against=len(diverged[1]),
                run_ids=(*arm_runs["run_id"], *against_runs["run_id"]),
                folders=(*arm_runs["folder"], *against_runs["folder"]),
                text=costs["raw_tokens"],
                flops=costs["flops"],
                asked=question,
                when=when,
                differs=differences(arm_runs, against_runs),
                documents=documents_of(arm_runs, against_runs),
            )
        )
    return contrasts


def standing(
    question: Question, sides: Sequence[pd.DataFrame], lost: pd.DataFrame
) -> tuple[list[pd.DataFrame], tuple[str, str]]:
    """Return the runs of either side that diverged, and the question's heading with a note.

    Runs that diverged count although a person excluded them, if they had the rate at which their
    side is judged. If other runs were excluded, those that are judged are not the registered ones,
    and the question counts as asked afterwards. `sides`: the runs of both arms that may be
    compared; `lost` is that of `asked_contrasts`.
    """
    diverged, everyone, taken_out = [], [], set()
    for own, out in zip(sides, question.runs(lost, _OF_LOST), strict=True):
        at_rate = out["rate"].isin(own["rate"]) | own.empty | (out["exclusion"] == "")
        diverged.append(out[(out["state"] == "diverged") & at_rate])
        everyone.append(pd.concat([own[[*_OF_EVERYONE]], diverged[-1][[*_OF_EVERYONE]]]))
        others = out[~out["fingerprint"].isin(everyone[-1]["fingerprint"])]
        taken_out |= _seeds(others)
    heading, note = asked_when(question, *everyone)
    if taken_out:
        every = len(taken_out.union(*map(_seeds, everyone)))
        registered = "registered " if question.registered or question.registration else ""
        note = f"{len(taken_out)} of its {number(every, f'{registered}seed')} excluded by hand"
        heading = AFTERWARDS
    return diverged, (heading, note)


_OF_EVERYONE: tuple[str, ...] = ("run_id", "seed", "fingerprint", "launches")
_OF_LOST = (*_OF_EVERYONE, "state", "exclusion", "rate", "steps")
"""Columns of all runs that `standing` reads, and of those that are lost (`matched`, too)."""


def _seeds(runs: pd.DataFrame) -> set[Any]:
    """Return the seeds of runs, and the ids of those that have none."""
    return set(runs["seed"].astype(object).where(runs["seed"].notna(), runs["run_id"]))


DIFFER: tuple[str, ...] = ("corpus", "parameters", "steps", "sequences", "sequence_length")
DIFFER += ("schedule", "learning_rate")
"""Columns of what arms may differ in besides superposition."""
_OF_CONTRASTS: tuple[str, ...] = ("run_id", "folder", "seed", "block", "eval_set", "nats_per_token")
_OF_CONTRASTS += ("documents", "launches", "config", "rate", "fingerprint", *COSTS, *DIFFER)
"""Columns that `asked_contrasts` reads; only some tables have `documents`."""


def differences(arm: pd.DataFrame, against: pd.DataFrame) -> str:
    """Say in what two arms differ besides superposition: `learning rate 0.002 against 0.004`.
    Empty if in nothing, or if an arm has no runs."""
    if arm.empty or against.empty:
        return ""
    tables = []
    for runs in (arm, against):
        shown = {name: {_plain(cell) for cell in runs[name].unique().tolist()} for name in DIFFER}
        configs = [_optimizer_and_batch(text) for text in runs["config"] if isinstance(text, str)]
        for name in dict.fromkeys(name for config in configs for name in config):
            shown[name] = {config.get(name, "null") for config in configs}
        tables.append({name: sorted(cells) for name, cells in shown.items()})
    parts = []
    for name, own in tables[0].items():
        if (other := tables[1].get(name, own)) != own:
            words = name.rpartition(".")[2].replace("_", " ")
            parts.append(f"{words} {' or '.join(own)} against {' or '.join(other)}")
    return "; ".join(parts)


@functools.lru_cache(4096)
def _optimizer_and_batch(config: str) -> dict[str, str]:
    """Return the values, as JSON, of these two sections' keys that no column of `DIFFER` holds."""
    return {
        f"{section}.{key}": json.dumps(value)
        for section, keys in declared(config).items()
        if section in ("optimizer", "batch")
        for key, value in keys.items()
        if key not in DIFFER
    }


def _plain(value: Any) -> str:
    if pd.isna(value):
        return "unknown"
    return (
        f"{value:,}"
        if isinstance(value, int)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


def without_early_looks(tables: Tables) -> Tables:
    """Take out the runs of each pilot with a stop rule that is not whole: the questions of one
    folder are whole together."""
    asked = [one for one in questions_of(tables.roots) if one.rule]
    runs = labelled(tables.runs) if asked else tables.runs
    early = {one.within for one in asked if one.unfinished(runs)}
    for question in (one for one in asked if one.within in early):
        for own in question.runs(runs, ["exclusion"]):
            runs.loc[own.index[own["exclusion"] == ""], "exclusion"] = NOT_WHOLE
    return replace(tables, runs=runs[tables.runs.columns])


def uncovered(runs: pd.DataFrame, questions: Sequence[Question]) -> set[str]:
    """Return the folders of the runs that no question covers, although there are questions about
    other runs of their study: sweeps, trials, and runs that the study no longer asks for. `runs`: a
    run table."""
    runs = labelled(runs)
    covered: set[str] = set()
    beside: set[str] = set()
    for question in questions:
        own = pd.concat(question.runs(runs, ["study", "folder"]))
        covered |= set(own["folder"])
        study = runs["study"].isin(own["study"]) & runs["folder"].str.startswith(question.within)
        beside |= set(runs["folder"][study])
    return beside - covered


def arms(kept: pd.DataFrame, questions: Sequence[Question]) -> pd.DataFrame:
    """Return one row per arm that a question names: arm (its name), seeds (number of runs), loss
    (mean), deviation (standard deviation of the loss over seeds), raw_tokens and flops (per run),
    and parameters, steps and learning_rate (the largest of its runs).

    `kept`, here and in the functions below: the runs that may be compared (`Comparison.eligible`).
    """
    return pd.DataFrame(
        {
            "arm": name,
            "seeds": len(runs),
            "loss": runs["nats_per_token"].mean(),
            "deviation": runs["nats_per_token"].std(),
            **runs[COSTS].mean(),
            **runs[SIZES].max(),
        }
        for name, runs in _arm_runs(kept, questions)
    )


def arm_losses(kept: pd.DataFrame, questions: Sequence[Question]) -> pd.DataFrame:
    """Return the final losses of every arm that a question names (columns), by `block` (rows). Arms
    of one name that hold different runs have a column each."""
    losses = [_losses(runs, name).rename(name) for name, runs in _arm_runs(kept, questions)]
    return pd.concat(losses, axis=1)


def _arm_runs(kept: pd.DataFrame, questions: Sequence[Question]) -> list[tuple[str, pd.DataFrame]]:
    """Return name and runs of each arm that a question names, each arm once. A question's
    comparison arm comes before its arm."""
    every = {}
    shown = ["block", "nats_per_token", *COSTS, *SIZES]
    for question in (one for one in questions if one.matched != "loss"):
        runs, against = question.runs(kept, shown)
        for arm, arm_runs in ((question.against, against), (question.arm, runs)):
            every[question.within + arm.model_dump_json()] = (arm.name, arm_runs)
    return list(every.values())


def gains_over_training(
    kept: pd.DataFrame, held_out: pd.DataFrame, questions: Sequence[Question]
) -> pd.DataFrame:
    """Return the gain of each question, with its interval, at the evaluations after the switch. An
    evaluation counts if both arms have it, at the same share of their steps, in all common seeds.
    Columns: `WAY_COLUMNS`.

    The intervals are those of paired t-tests and not adjusted for each other, because these gains
    were not planned as questions. Evaluations before the switch are left out, because superposed
    models are not yet trained to predict the next token.
    """
    rows = held_out[held_out["phase"] == "recovery"].astype({"folder": str})
    rows = rows.merge(kept[["folder", "eval_set", "steps"]])
    rows["share"] = (rows["step"] / rows["steps"]).round(6)
    losses = rows.pivot_table("nats_per_token", "share", "folder", aggfunc="last")
    table = []
    for question in (one for one in questions if one.matched != "loss"):
        arm, against = (
            losses[list(runs["folder"])].set_axis(runs["block"], axis="columns")
            for runs in question.runs(kept, ["folder", "block"])
        )
        both = arm.columns.intersection(against.columns)
        names = (question.family, question.name, question.arm.name, question.against.name)
        for share, gains in (against[both] - arm[both]).dropna().iterrows() if len(both) else ():
            estimate = paired(list(gains))
            table.append((*names, share, estimate.gain, estimate.low, estimate.high))
    return pd.DataFrame(table, columns=list(WAY_COLUMNS))


WAY_COLUMNS = ("family", "question", "arm", "against", "share", "gain", "low", "high")
"""Columns of `gains_over_training`. `share` is the share of a run's steps that were done."""


def since(gains: pd.DataFrame) -> str:
    """Say since which share of the steps a question's gain has had the sign that it has at the end:
    `ahead since 75%`, `behind throughout`, `ahead at the end`. `gains`: the question's rows of
    `gains_over_training`."""
    lead = "ahead" if gains["gain"].iloc[-1] > 0 else "behind"
    shares = settled(gains)
    if len(shares) == len(gains):
        return f"{lead} throughout"
    return f"{lead} since {shares.iloc[0]:.0%}" if len(shares) > 1 else f"{lead} at the end"


def settled(gains: pd.DataFrame) -> pd.Series:
    """Return the shares of the steps from which on a question's gain always has its final sign."""
    other = gains["share"][gains["gain"] * gains["gain"].iloc[-1] <= 0].max()
    shares: pd.Series = gains["share"][~(gains["share"] <= other)]
    return shares


def labelled(runs: pd.DataFrame) -> pd.DataFrame:
    """Add two columns to a run table: `block`, the label by which runs are paired, and `setting`,
    the label by which arms name a run's setting."""
    columns = {
        "setting": runs["arm"].tolist(),
        "block": list(map(block, rows_of(runs[list(BLOCK)]))),
    }
    # Without runs the lists are empty, and pandas would take them for numbers.
    return runs.astype({"folder": str}).assign(**columns).astype(dict.fromkeys(columns, object))


def _losses(runs: pd.DataFrame, name: str) -> pd.Series:
    """Return final losses by `block`. Raises `UserError`, which names the arm (`name`), if two runs
    have the same block."""
    losses = runs.set_index("block")["nats_per_token"].astype(float)
    twice = losses.index[losses.index.duplicated()]
    if len(twice):
        raise UserError(
            f"arm {name!r}: two runs of seed {twice[0]}; say in its `where` which of them is meant"
        )
    return losses
