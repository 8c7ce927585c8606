"""Who wins when unique tokens are few: baseline, full, input-only or output-only superposition.

Full and input-only superposition read s times the text in their first phase, and so repeat a small
corpus sooner; output-only reads no more than the baseline. Repeated tokens are worth less and less
(Muennighoff et al., arXiv 2305.16264). Runs decide where there are some; until then the map is
drawn from fitted laws and says so in its `source`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from analysis import published
from analysis.answer import Answer
from analysis.checks import Floats
from analysis.fits.law.rows import TOKENS_PER_STEP, settings
from analysis.fits.law.superposition_law import published_law
from analysis.tables.columns import rows_of
from analysis.verdict.comparison import SAME, Comparison
from analysis.verdict.decide import paired
from tst_study.errors import UserError

Mode = Literal["baseline", "full", "input_only", "output_only"]
MODES: tuple[Mode, ...] = ("baseline", "full", "input_only", "output_only")
WORTH_OF_REPEATS = 15.4
"""R_D* of Muennighoff et al.: the e-folding number of repetitions."""
WORTH_RANGE = (7.6, 100.0)
"""What their own runs allow by profile likelihood: 7.6 and up, without an upper bound."""
BAGS = np.arange(2, 17, dtype=float)
RATIOS = np.round(np.arange(0.05, 0.51, 0.05), 2)
STEPS = (5_000.0, 10_000.0, 20_000.0, 50_000.0, 100_000.0)
UNIQUE = (0.5e9, 1e9, 2e9, 5e9, 10e9, 20e9, 50e9, 100e9, 200e9)
"""Of the map: steps of 2M tokens, and unique tokens."""


def effective_tokens(
    tokens: Floats | float, unique_tokens: Floats | float, worth: float = WORTH_OF_REPEATS
) -> Floats:
    """Unique tokens that would be worth as much as `tokens` read from `unique_tokens`.

    U (1 + R* (1 − exp(−R / R*))) with R = tokens / U − 1 repetitions; equal to `tokens` where
    nothing is repeated.
    """
    read = np.asarray(tokens, dtype=float)
    unique = np.minimum(np.asarray(unique_tokens, dtype=float), read)
    value: Floats = unique * (1.0 - worth * np.expm1(-(read / unique - 1.0) / worth))
    return value


@functools.cache
def shares_of_full() -> dict[Mode, float]:
    """Gain of each mode over that of full superposition: ends of Figure 6 (s = 4, r = 0.5, 40,000
    steps, one run each)."""
    curves = published.curves(6).sort_values("step")
    ends = curves.groupby("run")["loss"].last()
    full = float(ends["baseline"] - ends["full_superposition"])
    names: dict[Mode, str] = {
        "full": "full_superposition",
        "input_only": "input_superposition",
        "output_only": "output_superposition",
    }
    gains = {mode: float(ends["baseline"] - ends[run]) / full for mode, run in names.items()}
    shares: dict[Mode, float] = {"baseline": 0.0, **gains}
    return shares


@dataclass(frozen=True)
class Choice:
    """The best setting of a mode for a budget."""

    mode: Mode
    loss: float
    """Relative to the baseline of the same steps on unlimited data: negative is better."""
    bag_size: int
    step_ratio: float


def best_of_mode(
    mode: Mode,
    params: float,
    steps: float,
    unique_tokens: float,
    worth: float = WORTH_OF_REPEATS,
) -> Choice:
    """By the law: the (s, r) with the lowest loss after `steps` steps of 2M tokens.

    Assumes that a repeated token loses its worth alike in both phases, so that all of a run's
    steps count by the mean worth of the raw tokens it reads, and that modes keep the share of the
    full gain that Figure 6 shows.
    """
    law, latent = published_law(), steps * TOKENS_PER_STEP
    bags, ratios = (np.ones(1), np.zeros(1)) if mode == "baseline" else (BAGS, RATIOS)
    gains = law.of_rows(settings(params, latent, bags, ratios)).reshape(len(bags), len(ratios))
    gains *= shares_of_full()[mode]
    more = 0 if mode == "output_only" else (bags[:, None] - 1) * ratios
    raw = latent * (1 + more) * np.ones_like(gains)
    counted = effective_tokens(raw, unique_tokens, worth) / raw
    losses = law.falls(latent * counted, latent) - gains
    i, j = np.unravel_index(int(losses.argmin()), losses.shape)
    return Choice(
        mode=mode,
        loss=float(losses[i, j]),
        bag_size=int(bags[i]),
        step_ratio=float(ratios[j]),
    )


def win_map(params: float, unique_tokens: Sequence[float], steps: Sequence[float]) -> pd.DataFrame:
    """The winner over (unique tokens, steps), at equal FLOPs, from the fitted laws.

    Columns: unique_tokens, steps, epochs (of the baseline), winner, s, r, gain over the baseline on
    the same data (nats), gains of the three modes, `certain` (the same winner at both ends of what
    is known of R_D*), source.
    """
    rows = []
    for unique, count in itertools.product(unique_tokens, steps):
        choices = [
            [best_of_mode(mode, params, count, unique, worth) for mode in MODES]
            for worth in (WORTH_OF_REPEATS, *WORTH_RANGE)
        ]
        best, *winners = (min(of, key=lambda choice: choice.loss) for of in choices)
        alone = choices[0][0].loss
        rows.append(
            {
                "unique_tokens": float(unique),
                "steps": float(count),
                "epochs": count * TOKENS_PER_STEP / unique,
                "winner": best.mode,
                "s": best.bag_size,
                "r": best.step_ratio,
                "gain": alone - best.loss,
                **{str(choice.mode): alone - choice.loss for choice in choices[0][1:]},
                "certain": all(winner.mode == best.mode for winner in winners),
                "source": "fitted law, not runs",
            }
        )
    return pd.DataFrame(rows)


def winners_of_runs(comparison: Comparison, runs: pd.DataFrame) -> pd.DataFrame:
    """From runs: per group (same unique tokens and FLOPs) and held-out text the mode with the
    largest mean gain.

    Columns: group, corpus, eval_set, steps, unique_tokens, epochs, winner, setting, learning_rate,
    gain, low, high, seeds, verdict (these against the baseline, allowing for all settings tried:
    the best of them was picked), tied (the other settings that the seeds do not tell from it).
    """
    columns = ["group", "corpus", "eval_set", "steps", "unique_tokens", "epochs", "winner"]
    columns += ["setting", "learning_rate", "gain", "low", "high", "seeds", "verdict", "tied"]
    columns += ["source"]
    unique = runs.groupby("group")["unique_raw_tokens"].first()
    rows: list[dict[str, Any]] = []
    for _, members in comparison.table.groupby(["group", "eval_set"], sort=True):
        best = next(rows_of(members.sort_values("gain", ascending=False)))
        group = best["group"]
        latent = runs.loc[runs["group"] == group, "latent_tokens"].iloc[0]
        rows.append(
            {
                **best,
                "unique_tokens": unique[group],
                "epochs": latent / unique[group] if unique[group] else None,
                "winner": best["mode"] if best["gain"] > 0 else "baseline",
                "tied": ", ".join(_tied(best, members, comparison.pairs)),
                "source": "runs",
            }
        )
    return pd.DataFrame(rows, columns=columns)


def _tied(best: dict[str, Any], members: pd.DataFrame, pairs: pd.DataFrame) -> list[str]:
    """Settings whose gain is not shown to be smaller, allowing for every pair among them."""
    key = [*SAME, "setting"]
    gains = {names: rows.set_index("seed")["gain"] for names, rows in pairs.groupby(key)}
    mine = gains[tuple(best[name] for name in key)]
    count = len(members) * (len(members) - 1) // 2
    found = []
    for row in rows_of(members):
        lead = (mine - gains[tuple(row[name] for name in key)]).dropna()
        same = row["setting"] == best["setting"] and row["learning_rate"] == best["learning_rate"]
        if not same and (lead.empty or paired(list(lead), count).verdict != "better"):
            other = row["learning_rate"] != best["learning_rate"]
            found.append(row["setting"] + (f" at {row['learning_rate']:g}" if other else ""))
    return found


def data_answer(comparison: Comparison, runs: pd.DataFrame, inputs: dict[str, str]) -> Answer:
    """`tst-study analyse data`: winners from runs."""
    table = winners_of_runs(comparison, runs)
    if table.empty:
        raise UserError("no superposed run with a finished baseline of its seed: no winner")
    said = (
        "Winners have the largest mean over seeds; `verdict`, which allows for all settings "
        "tried, says whether they beat the baseline, and `tied` what else may be the best.",
    )
    return Answer("data", {"Winners, from runs": table}, said, inputs, comparison.excluded)


def published_data_answer() -> Answer:
    """The map of the fitted laws."""
    shares = shares_of_full()
    table = win_map(published.PARAMS["600M"], UNIQUE, STEPS)
    return Answer(
        "data",
        {"Winner at equal FLOPs, 600M parameters (from fitted laws)": table},
        (
            "Not from runs: the law of superposition on Tables 4–7, repeated tokens by Muennighoff "
            "et al. (R_D* 15.4; `certain`: the same at 7.6 and at 100), and from Figure 6 that "
            f"input-only keeps {shares['input_only']:.0%} and output-only "
            f"{shares['output_only']:.0%} of the full gain (one run each).",
        ),
        published.fingerprints("final_loss_grid", "loss_curves"),
    )
