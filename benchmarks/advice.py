"""Writes the evidence behind `tst-study advise`: `analysis/published/evidence.json`.

    python -m benchmarks.advice

The file holds four things. The first is the fit of the law of superposition (`analysis.fits.law`)
to the paper's Tables 4–7. The second is a test of the law at sizes and lengths that were left out
of the fit: how well it predicts the gains there, and how many nats its choice of s and r loses
against the best published choice, compared with two choices that need no law.
`docs/research/coverage.md` shows this test as a table. The third is the gains of our own campaigns,
paired by seed. The fourth is how often a pilot's rule errs in simulated pilots. Tests compute all
of it again and compare."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tst_study.analysis import published
from tst_study.analysis.advice.expected_gain import beyond, expected, own_gain
from tst_study.analysis.advice.intended_run import (
    ALWAYS,
    OUTPUT_ONLY,
    PLAIN,
    POWER_LAW,
    IntendedRun,
)
from tst_study.analysis.advice.pilot import Measured, by_looks
from tst_study.analysis.fits.law.held_out import copied, nearest, observed_gains, splits
from tst_study.analysis.fits.law.rows import published_rows, settings
from tst_study.analysis.fits.law.superposition_law import DATA_EXPONENT, Law, as_data, fit_law
from tst_study.analysis.statistics import rmse
from tst_study.analysis.tables.archive import read_archive
from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.verdict.comparison import compare
from tst_study.analysis.verdict.question import MOST_SEEDS, read_questions
from tst_study.atomic_files import write_json

RECORDS = Path(__file__).parents[1] / "docs" / "records"
CAMPAIGNS = {
    "campaign": "first campaign",
    "what-does-the-work": "second campaign",
    "tuned": "third campaign, with a tuned baseline",
    "batch": "fourth campaign, with a baseline of twice the batch",
}
"""The name of each campaign, by its archive in `RECORDS`."""
ASKED = {
    "the better of output only and power law against the tuned baseline": OUTPUT_ONLY,
    "superposition, power law against the tuned baseline": POWER_LAW,
    "superposition against the tuned baseline": PLAIN,
    "output only, 0.23 million weights against the tuned baseline": OUTPUT_ONLY,
    "output only, 1.07 million weights against the tuned baseline": OUTPUT_ONLY,
    "output, s = 4, r = 0.25 (larger32output) against baseline (larger64)": OUTPUT_ONLY,
}
"""The label of the arm, by the name of a campaign's question. Such an arm may differ from its
baseline in rate, so that `compare` does not pair the two without the question. The pilot sweep
chose output only for the first of these questions."""
COLUMNS = ("source", "corpus", "params", "tokens", "learning_rate", "arm", "text", "seeds")
COLUMNS += ("gain", "deviation", "sequences", "tuned")
"""Columns of our own evidence. `params`: active parameters. `tokens`: latent tokens. `arm`: label.
`text`: raw tokens, as a multiple of the baseline's. `gain`, `deviation`: mean and standard
deviation of the paired gains, in nats per token. `sequences`: the baseline's sequences a step.
`tuned`: what was tuned in the baseline at this size and length (`batch and rate`, `batch`, `rate`
or nothing), if a question of `ASKED` is about the arm. A rate was tuned if several were tried with
one batch."""
LEAST_SEEDS = 4
"""Fewest paired seeds with which a setting is part of the evidence."""
CHOSEN_FROM = 0.5
"""Largest r at which the predicted gains are judged. Nobody would look for the best r beyond it:
too short a recovery leaves a large loss there (the law's debt), and the errors of the law, which
are large as well, say little about the choice of r."""


def evidence() -> dict[str, Any]:
    """Return the content of `evidence.json`."""
    rows = published_rows()
    table, error = left_out(rows)
    own = [row for record, name in CAMPAIGNS.items() for row in paired(record, name)]
    fit, made = as_data(fit_law(rows)), [pilots(pairs) for pairs in (3, 5, 8, MOST_SEEDS)]
    return {"law": fit, "error": error, "left_out": table, "own": own, "pilots": made}


def left_out(rows: pd.DataFrame) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Return the rows of the table in `docs/research/coverage.md`, and the relative error that the
    law makes for each factor of e beyond the sizes (`params`) and lengths (`tokens`) that it was
    fitted to.

    The law is fitted without each size in turn, and without each length in turn. The error is that
    of the mean gain at r up to `CHOSEN_FROM`: one root mean square over the sizes that were left
    out, and another over the lengths. Only runs with uniform weights count.
    """
    rows = rows.assign(gain=observed_gains(rows))
    rows = rows[(rows["weighting"] == "uniform")].reset_index(drop=True)
    far: dict[str, list[float]] = {"params": [], "tokens": []}
    judged = []
    for split, ((fitted, predicted), *_) in splits(rows).items():
        known, out = rows[fitted], rows[predicted & (rows["bag_size"] > 1)]
        for name in far:
            if not known[name].isin(out[name]).any():
                law = fit_law(known.reset_index(drop=True))
                params, tokens = (float(out[unit].iloc[0]) for unit in far)
                near = out[out["step_ratio"] <= CHOSEN_FROM]
                ratio = law.of_rows(near).mean() / near["gain"].mean()
                far[name].append((ratio - 1) / beyond(law, params, tokens)[name])
                judged.append((split.partition("→ ")[2], law, known, out))
    error = {name: float(np.sqrt(np.mean(np.square(errors)))) for name, errors in far.items()}
    table = [
        {"left_out": words, **_judged(law, known, out, error)} for words, law, known, out in judged
    ]
    return table, error


def _judged(
    law: Law, known: pd.DataFrame, out: pd.DataFrame, error: dict[str, float]
) -> dict[str, Any]:
    """Judge a law by the rows that were left out of its fit (`out`), all of one size and length.

    `held` is the share of the gains at r up to `CHOSEN_FROM` that lie in the intervals of
    `expected`, and `half` the mean half-width of these intervals. `error`, `copied` and `scaled`
    are the root mean square errors of the law and of two rules without a law at these gains. `law`,
    `always` and `nearest` are the nats that a choice of s and r loses against the best published
    cell: the law's choice (`s`, `r`), `ALWAYS`, and the best cell of the nearest fitted size and
    length. The published cell nearest to a choice stands for it."""
    params, tokens = (float(out[name].iloc[0]) for name in ("params", "tokens"))
    near = out[out["step_ratio"] <= CHOSEN_FROM]
    before = known[known["bag_size"] > 1]
    by_copy = copied(before, before["gain"], near)
    by_rule = copied(before, before["gain"], near, DATA_EXPONENT)
    _, low, high = expected(law, near, by_copy.to_numpy(), error)
    cells = out.set_index(["bag_size", "step_ratio"])["gain"]
    asked = settings(params, tokens, np.arange(2.0, 17.0), np.round(np.arange(0.1, 0.91, 0.01), 2))
    best = asked.iloc[int(law.of_rows(asked).argmax())]
    tried = nearest(known[known["bag_size"] > 1], params, tokens)
    best_near = tried.loc[tried["gain"].idxmax()]
    choices = {
        "law": (best["bag_size"], best["step_ratio"]),
        "always": ALWAYS,
        "nearest": (best_near["bag_size"], best_near["step_ratio"]),
    }
    lost = {}
    for way, (bag, ratio) in choices.items():
        places = cells.index.to_frame()
        off = np.abs(np.log(places["bag_size"] / bag)) * 10 + np.abs(places["step_ratio"] - ratio)
        lost[way] = float(cells.max() - cells[off.idxmin()])
    return {
        "cells": len(near),
        "held": float(near["gain"].between(low, high).mean()),
        "half": float((high - low).mean() / 2),
        "error": rmse(law.of_rows(near) - near["gain"]),
        "copied": rmse(by_copy - near["gain"]),
        "scaled": rmse(by_rule - near["gain"]),
        "s": float(best["bag_size"]),
        "r": float(best["step_ratio"]),
        **lost,
    }


def paired(record: str, name: str) -> list[dict[str, Any]]:
    """Return a row for each of a campaign's settings, and for each of its questions in `ASKED`,
    with `LEAST_SEEDS` or more seeds in common with their baseline; its keys are `COLUMNS`. An arm
    that such a question names has no other rows: its pairs at equal rates are of a pilot sweep."""
    runs, questions = read_archive(RECORDS / record).runs, read_questions(RECORDS / record)
    found = compare(runs, [question for question in questions if question.name in ASKED])
    settings, asked = found.table, found.verdicts
    settings = settings.assign(
        arm=settings["setting"],
        text=settings["data_multiplier"],
        run_id=settings["run_ids"].str[-1],
        against=settings["run_ids"].str[0],
    )
    ends = {"run_id": asked["run_ids"].str[0], "against": asked["run_ids"].str[-1]}
    asked = asked.assign(arm=asked["question"].map(ASKED), **ends)
    asked = asked[asked["arm"].notna()]
    settings = settings[~settings["arm"].isin(asked["arm"])]
    # Numbers from questions are objects, which would not be rounded.
    arms = pd.concat([settings, asked], join="inner").infer_objects()
    facts = {"active_parameters": "params", "latent_tokens": "tokens"}
    runs = runs.rename(columns=facts)
    of_batches = runs[runs["method"] == "baseline"].groupby([*facts.values(), "sequences"])
    rates = of_batches["learning_rate"].nunique().groupby([*facts.values()])
    tried = pd.DataFrame({"batch": rates.size() > 1, "rate": rates.max() > 1})
    tuned = tried.apply(lambda row: " and ".join(row.index[row]), axis=1)
    batches = runs.set_index("run_id")["sequences"]
    runs = runs[["run_id", "corpus", *facts.values(), "learning_rate"]]
    arms = arms[arms["seeds"] >= LEAST_SEEDS].merge(runs, on="run_id").assign(source=name)
    arms = arms.join(tuned.rename("tuned"), on=[*facts.values()])
    arms["sequences"] = arms["against"].map(batches)
    arms["tuned"] = arms["tuned"].where(arms["arm"].isin(asked["arm"]), "")
    arms = arms.round({"gain": 5, "deviation": 5}).astype(dict.fromkeys(facts.values(), float))
    return list(rows_of(arms[list(COLUMNS)]))


def pilots(pairs: int, made: int = 20_000) -> dict[str, float]:
    """Return shares of simulated pilots that begin with so many pairs: those with a wrong go, or a
    wrong stop before `MOST_SEEDS`, if the true gain is just the least that counts (`go`, `stop`),
    and those whose last interval holds the true gain (`held`)."""
    random, run = np.random.default_rng(pairs), IntendedRun(1e9, 1e9, 1e11)
    gain, found = 0.0026, []
    for drawn in random.normal(gain, 0.0044, (made, MOST_SEEDS)):
        looked: list[Measured] = []
        for seeds in dict.fromkeys((pairs, MOST_SEEDS)):
            seen = {"seeds": seeds, "gain": drawn[:seeds].mean(), "source": ""}
            seen["deviation"] = drawn[:seeds].std(ddof=1)
            looked.append(Measured(run, seeds, own_gain(seen), 0.0, worthwhile=gain, first=seeds))
            last = by_looks(looked)
            if last.decision != "more":
                break
        held = (last.gain.low or 0) <= gain <= (last.gain.high or 0)
        early = last.seeds < MOST_SEEDS and last.decision == "stop"
        found.append((last.decision == "go", early, held))
    shares = np.mean(found, axis=0).round(4).tolist()
    return {"pairs": pairs, **dict(zip(("go", "stop", "held"), shares, strict=True))}


if __name__ == "__main__":
    write_json(published.FOLDER / "evidence.json", evidence())
