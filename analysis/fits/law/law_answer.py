"""The answer of `tst-study analyse law`: the law of superposition fitted to the paper's Tables 4–7,
or to the user's runs, with its errors beside those of simpler predictions (`held_out`)."""

import functools
from typing import Any

import numpy as np
import pandas as pd

from tst_study.analysis import published
from tst_study.analysis.answer import Answer
from tst_study.analysis.fits.law.held_out import NULLS, copied, held_out, nearest, observed_gains
from tst_study.analysis.fits.law.rows import TOKENS_PER_STEP, rows_of_runs, settings
from tst_study.analysis.fits.law.superposition_law import Law, fit_law, published_law
from tst_study.analysis.fits.scaling.laws import Base
from tst_study.analysis.fits.solver.uncertainty import linearised
from tst_study.analysis.statistics import rmse
from tst_study.analysis.tables.columns import rows_of
from tst_study.errors import UserError
from tst_study.text import big

CHINCHILLA = Base(0.5971, 6.17796, 7.64273, 0.34781, 0.36585)
"""Chinchilla's law as Besiroglu et al. 2024 (arXiv 2404.10102) refitted it: log E, log A, log B, α,
β. A test fits it again. Only differences between losses at one size are taken from it; these depend
on the data term alone."""
Target = tuple[float, float]
"""Parameters and latent tokens."""


def law_answer(target: Target | None = None) -> Answer:
    """Answer for the published grids: the fit, its errors on gains left out of it, the recommended
    settings, and what it predicts at 3B and 10B-A1B, which were not fitted.

    target: the size and length to recommend a setting for; by default each fitted size and length.
    Raises `UserError` for a target outside the range of these.
    """
    law = published_law()
    tables, sentences = _described(law, target)
    tables["Runs that were not fitted: gains at equal steps, nats"] = published_beside_law()
    return Answer(
        "law",
        tables,
        (
            *sentences,
            "The mixture's gains stand on Chinchilla's data term in place of a baseline of its "
            "length; 3B and the mixture lie beyond what was fitted, so that they have no interval.",
            "Two sizes, two lengths, one seed each; learning rate and size changed together; the "
            "form was chosen while looking at all four tables.",
        ),
        published.fingerprints("final_loss_grid", "headline_runs"),
    )


def law_on_runs(runs: pd.DataFrame, target: Target | None = None) -> Answer:
    """Answer for the rows of a run table: a law for each corpus and held-out text, or a sentence
    that says why there is none.

    target: as in `law_answer`. Raises `UserError` if no superposed run has a baseline, and for a
    target outside the sizes and lengths of a fitted law.
    """
    rows, excluded = rows_of_runs(runs)
    tables: dict[str, pd.DataFrame] = {}
    sentences: list[str] = []
    for kind, own in rows.groupby("kind", sort=True):
        try:
            law = fit_law(own.reset_index(drop=True))
        except UserError as error:
            sentences.append(f"{kind}: no law: {error}.")
            continue
        described, own_sentences = _described(law, target)
        tables |= {f"{kind}. {title}": table for title, table in described.items()}
        sentences += [f"{kind}: {sentence}" for sentence in own_sentences]
    return Answer("law", tables, tuple(sentences), excluded=excluded)


def _described(law: Law, target: Target | None) -> tuple[dict[str, pd.DataFrame], list[str]]:
    """Return the tables and sentences that describe a fitted law."""
    fitted = law.rows[["params", "tokens"]].drop_duplicates().sort_values(["params", "tokens"])
    targets = [target] if target else fitted.to_numpy()
    advice = pd.DataFrame([recommend(law, params, tokens) for params, tokens in targets])
    errors = held_out(law.rows)
    tables = {
        "Parameters, with 95% t-intervals": _parameters(law),
        "Errors on held-out gains, nats (root mean square)": errors,
        "Recommended (s, r), uniform weights": advice.assign(
            s_95=advice["s_95"].map("{0[0]}–{0[1]}".format),
            r_95=advice["r_95"].map("{0[0]:.2f}–{0[1]:.2f}".format),
        ),
    }
    sentences = [
        f"{len(law.fit.theta)} parameters, {law.rows['level'].nunique()} of them levels of "
        f"baselines, explain {len(law.rows)} runs to {rmse(law.rows['error']):.4f} nats "
        f"({law.noise.shared:.4f} shared by all r at one s, {law.noise.own:.4f} by a run alone); "
        f"{law.fit.agreed} of {law.fit.started} starts agree.",
        *(f"Held: {name}, {why}." for name, why in law.held.items()),
        *(_verdict(row) for row in rows_of(errors)),
    ]
    return tables, sentences


def _verdict(row: dict[str, Any]) -> str:
    if np.isnan(row["law"]):
        return f"{row['split']}: no prediction ({row['note']})."
    null = min(NULLS, key=lambda name: float(row[name]))
    word = "better than" if row["law"] < row[null] else "no better than"
    return f"{row['split']}: {row['law']:.4f}, {word} {NULLS[null]} ({row[null]:.4f})."


def _parameters(law: Law) -> pd.DataFrame:
    """Return a row for each parameter: parameter, value, low and high (95% t-interval; NaN for a
    parameter that was not fitted), and held (why it was not fitted, or empty). The levels, which
    are the fitted losses of the baselines, come last."""
    levels = set(law.rows["level"])
    names = sorted(law.values, key=lambda name: name in levels)
    root, critical = linearised(law.fit)
    half = critical * np.linalg.norm(root, axis=1)
    known = pd.Series(half, law.fit.problem.model.parameters).reindex(names).to_numpy()
    value = np.array([law.values[name] for name in names])
    return pd.DataFrame(
        {
            "parameter": [name.replace("_", " ") for name in names],
            "value": value,
            "low": value - known,
            "high": value + known,
            "held": [law.held.get(name, "") for name in names],
        }
    )


def recommend(law: Law, params: float, tokens: float) -> dict[str, Any]:
    """Find the s and r with the largest gain by the law, under uniform weights, for a size
    (parameters) and a length (latent tokens). It tries every whole s, and r in steps of 0.01,
    between the smallest and the largest that were fitted.

    `s`, `r`, `gain`: the best setting and its gain, nats per token. `low`, `high`: the 95% interval
    of that gain. `s_95`: the smallest and the largest s for which some r is not shown to be worse
    than the best setting; `r_95`: likewise for r. `best_run`, `its_gain`: the fitted setting with
    the largest mean gain at the nearest fitted size and length, and that gain; this advice needs no
    law. `note`: whether the best s or r is the smallest or the largest that was tried.

    Raises `UserError` for a size or a length outside the fitted ones.
    """
    law.refuse_outside(params, tokens)
    tried = law.rows[law.rows["bag_size"] > 1]
    least, most = (tried[["bag_size", "step_ratio"]].agg(end) for end in ("min", "max"))
    bags = np.arange(least["bag_size"], most["bag_size"] + 1, dtype=float)
    hundredths = round(100 * (most["step_ratio"] - least["step_ratio"])) + 1
    ratios = np.round(least["step_ratio"] + 0.01 * np.arange(hundredths), 4)
    rows = settings(params, tokens, bags, ratios)
    gains = law.of_rows(rows)
    best = rows.iloc[[int(gains.argmax())]]
    half = float(law.errors(best)[0])
    # The settings that are not shown to be worse, by the interval of the difference from the best.
    level = rows[gains.max() - gains <= law.errors(rows, best)]
    bag, ratio = int(best["bag_size"].item()), float(best["step_ratio"].item())
    at_end = [
        f"{symbol} at the {word} tried"
        for symbol, name in (("s", "bag_size"), ("r", "step_ratio"))
        for word, end in (("smallest", least), ("largest", most))
        if abs(best[name].item() - end[name]) < 1e-9
    ]
    near = nearest(tried.assign(gain=observed_gains(law.rows)), params, tokens)
    means = near.groupby(["bag_size", "step_ratio"])["gain"].mean()
    s, r = list(means.index)[int(means.argmax())]
    return {
        "params": big(params),
        "tokens": big(tokens),
        "s": bag,
        "s_95": (int(level["bag_size"].min()), int(level["bag_size"].max())),
        "r": ratio,
        "r_95": (float(level["step_ratio"].min()), float(level["step_ratio"].max())),
        "gain": float(gains.max()),
        "low": float(gains.max()) - half,
        "high": float(gains.max()) + half,
        "best_run": f"s = {s:.0f}, r = {r:.2g}",
        "its_gain": float(means.max()),
        "note": "; ".join(at_end),
    }


@functools.cache
def published_beside_law() -> pd.DataFrame:
    """Compare the published law with the published runs at 3B and 10B-A1B, to which it was not
    fitted.

    The table has a row for each of the two. Columns: run, tokens (latent), bag_size, step_ratio,
    and four gains over a baseline of equal steps, nats per token: `law`; `copied`, which is copied
    from the nearest fitted size and length; `table_1`, by the losses that Table 1 prints; and
    `figures`, by the losses read from Figures 3a and 1. For the law and the copy, the size of
    the mixture is its number of active parameters.

    The superposed mixture has 49,983 steps, and no baseline of that length was published.
    Chinchilla's data term says how much higher such a baseline would end than the published one of
    125,000 steps. A step of the mixture has 8M (2²³) tokens.
    """
    law = published_law()
    ends = published.curves().sort_values("step").groupby(["panel", "run"])["loss"].last()
    table = published.headline_runs().set_index(["params", "method", "total_steps"])["final_loss"]
    three, mixture = table["3B"], table["10B-A1B"]
    slope = CHINCHILLA.loss(1e9, np.array([49_983.0, 125_000.0]) * 2**23)
    missing = float(slope[0] - slope[1])
    by_table = missing + mixture["baseline", 125_000] - mixture["tst", 49_983]
    moe, dense = ends[""], ends["a_equal_flops"]
    by_figure = missing + moe["moe_10b_a1b_baseline"] - moe["moe_10b_a1b_tst_s16"]
    dense_table = three["baseline", 20_000] - three["tst", 20_000]
    dense_figure = dense["dense_3b_baseline_20k"] - dense["dense_3b_tst_s6_20k"]
    known = law.rows[law.rows["bag_size"] > 1]
    gains = observed_gains(law.rows)[known.index]
    rows = []
    for run, steps, bag, ratio, table_1, figures in (
        ("3B", 20_000, 6, 0.3, dense_table, dense_figure),
        ("10B-A1B", 4 * 49_983, 16, 0.25, by_table, by_figure),
    ):
        tokens = float(steps * TOKENS_PER_STEP)
        asked = settings(published.PARAMS[run], tokens, bag, ratio).assign(weighting="uniform")
        law_says, copy = law.of_rows(asked)[0], copied(known, gains, asked)[0]
        rows.append((run, tokens, bag, ratio, law_says, copy, float(table_1), float(figures)))
    columns = ["run", "tokens", "bag_size", "step_ratio", "law", "copied", "table_1", "figures"]
    return pd.DataFrame(rows, columns=columns)
