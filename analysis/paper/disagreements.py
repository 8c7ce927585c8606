"""Where the paper disagrees with itself, found in its own tables and curves by code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from scipy import optimize

from analysis import published
from analysis.answer import Answer
from analysis.law.rows import TOKENS_PER_STEP
from analysis.law.superposition_law import published_law
from analysis.paper.table_checks import (
    check,
    headline,
    hours_per_step,
    tables_against_grids,
    tokens,
    unrecovered,
)

CURVE = 0.01
"""Nats: what smoothing and reading may move the end of a drawn curve (the 36,000- and 50,000-step
baselines differ by 0.006 and 0.013 from their table entries)."""
_PLAUSIBLE = (0.1, 1.0)
"""Exponents of loss against steps: scaling laws have found 0.25 to 0.37."""

_CURVES = (
    ("1", "moe_10b_a1b_baseline", "10B-A1B", 0, 125_000),
    ("1", "moe_10b_a1b_tst_s16", "10B-A1B", 12_483, 49_983),
    ("3a", "dense_3b_baseline_20k", "3B", 0, 20_000),
    ("3a", "dense_3b_tst_s6_20k", "3B", 6_000, 20_000),
    ("3b", "dense_3b_baseline_36k", "3B", 0, 36_000),
    ("3c", "dense_3b_baseline_50k", "3B", 0, 50_000),
)
COLUMNS = ("what", "here", "value", "there", "other", "difference", "allowed", "verdict", "note")


def disagreements() -> pd.DataFrame:
    """One row per check: what is compared, both values with their places, the difference, what
    rounding or reading allows, and `agree`, `disagree`, or `agree too closely` for values that
    ought to differ."""
    rows = [
        *_curve_ends(),
        *_trend_of_3b(),
        *_not_annealed(),
        _gain_at_3b(),
        _unnamed_model(),
        *tables_against_grids(),
        unrecovered(),
        *hours_per_step(),
        *tokens(),
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def disagreements_answer() -> Answer:
    """`tst-study analyse disagreements`."""
    table = disagreements()
    found = table[table["verdict"] != "agree"]
    counts = table["verdict"].value_counts()
    return Answer(
        "disagreements",
        {"Checks": table},
        (
            f"Of {len(table)} checks {counts['disagree']} disagree and "
            f"{counts.get('agree too closely', 0)} agree too closely.",
            *found["note"],
        ),
        published.fingerprints("headline_runs", "final_loss_grid", "loss_curves"),
    )


def exponent_needed(steps: tuple[float, float, float], losses: tuple[float, float, float]) -> float:
    """The b of E + a steps^−b through three points (steps rising, losses falling); NaN if none
    between 0.001 and 6."""
    (s0, s1, s2), (l0, l1, l2) = steps, losses
    target = (l0 - l1) / (l1 - l2)

    def excess(b: float) -> float:
        return float((s0**-b - s1**-b) / (s1**-b - s2**-b) - target)

    if excess(1e-3) * excess(6.0) > 0:
        return float("nan")
    return float(optimize.brentq(excess, 1e-3, 6.0))


def _curve(figure: str, run: str) -> pd.DataFrame:
    curves = published.curves(int(figure[0]))
    in_panel = curves["panel"].str.startswith(figure[1:])
    return curves[in_panel & curves["run"].eq(run)].sort_values("step")


def _end(figure: str, run: str) -> float:
    return float(_curve(figure, run)["loss"].iloc[-1])


def _curve_ends() -> list[dict[str, Any]]:
    rows = []
    for figure, run, size, superposed, steps in _CURVES:
        end = _end(figure, run)
        table = float(headline(size, superposed, steps)["final_loss"])
        what = f"final loss, {size}, {steps:,} steps, {'TST' if superposed else 'baseline'}"
        # The end of the 50,000-step curve is smoothed over part of its decay.
        rows.append(check(what, (f"Figure {figure}", end), ("Table 1", table), 1.5 * CURVE))
    return rows


def _trend_of_3b() -> list[dict[str, Any]]:
    """Which loss at 20,000 steps goes with those at 36,000 and 50,000 on one power law."""
    steps = (20_000.0, 36_000.0, 50_000.0)
    first, second, third = (float(headline("3B", 0, int(n))["final_loss"]) for n in steps)
    low, high = _PLAUSIBLE
    bounds = [_on_trend(b, steps, second, third) for b in _PLAUSIBLE]
    rows = []
    for place, loss in (("Table 1", first), ("Figure 3a", _end("3a", "dense_3b_baseline_20k"))):
        exponent = exponent_needed(steps, (loss, second, third))
        note = (
            f"The 3B baseline at 20,000 steps in {place} ({loss:.3f}) lies on one power law with "
            f"those at 36,000 and 50,000 only with exponent {exponent:.2f}; exponents of "
            f"{low}–{high} give {bounds[0]:.3f}–{bounds[1]:.3f}."
        )
        rows.append(
            check(
                f"3B baseline at 20,000 steps on the trend of the longer ones, {place}",
                (place, loss),
                (f"trend, exponent {low}–{high}", min(max(loss, bounds[0]), bounds[1])),
                0.0,
                note,
                disagree=not low <= exponent <= high,
            )
        )
    return rows


def _on_trend(b: float, steps: tuple[float, float, float], second: float, third: float) -> float:
    a = (second - third) / (steps[1] ** -b - steps[2] ** -b)
    return float(second + a * (steps[0] ** -b - steps[1] ** -b))


def _not_annealed() -> list[dict[str, Any]]:
    """Is the table's 20,000-step loss a longer run's, at that step, before its decay?"""
    table = float(headline("3B", 0, 20_000)["final_loss"])
    rows = []
    for figure, run in (("3b", "dense_3b_baseline_36k"), ("3c", "dense_3b_baseline_50k")):
        curve = _curve(figure, run)
        running = float(np.interp(20_000, curve["step"], curve["loss"]))
        rows.append(
            check(
                f"3B baseline of Table 1 (20,000 steps) against the {run[-3:]} run at that step",
                ("Table 1", table),
                (f"Figure {figure} at step 20,000, not annealed", running),
                CURVE,
                f"Table 1's 3B baseline at 20,000 steps ({table:.3f}) is what the longer run of "
                f"Figure {figure} reads at step 20,000 before its decay ({running:.3f}): it may be "
                "a checkpoint that was not annealed.",
                disagree=abs(running - table) <= CURVE,
                word="agree too closely",
            )
        )
    return rows


def _unnamed_model() -> dict[str, Any]:
    """Figures 6 and 9 name no model: is it one of the two of Tables 4–7, at 40,000 steps?"""
    law, end = published_law(), _end("6", "baseline")
    expected = {size: law.loss(size, 40_000 * TOKENS_PER_STEP, 1, 0.0) for size in ("270M", "600M")}
    size = min(expected, key=lambda name: abs(expected[name] - end))
    both = " and ".join(f"{loss:.3f} ({name})" for name, loss in expected.items())
    return check(
        "baseline of Figures 6 and 9, 40,000 steps",
        ("Figure 6", end),
        (f"{size}, interpolated between its lengths", expected[size]),
        2 * CURVE,
        f"The baseline of Figures 6 and 9 ends at {end:.3f}; between the lengths of Tables 4–7 the "
        f"models named there would end at {both}: it is another model or another set-up.",
    )


def _gain_at_3b() -> dict[str, Any]:
    base = headline("3B", 0, 20_000)["final_loss"]
    superposed = headline("3B", 6_000, 20_000)["final_loss"]
    drawn = _end("3a", "dense_3b_baseline_20k") - _end("3a", "dense_3b_tst_s6_20k")
    expected = published_law().gain(published.PARAMS["3B"], 20_000 * TOKENS_PER_STEP, 6, 0.3)
    return check(
        "gain at 3B, equal FLOPs",
        ("Table 1", float(base - superposed)),
        ("Figure 3a", drawn),
        2 * CURVE,
        f"The gain at 3B is {base - superposed:.3f} by Table 1 and {drawn:.3f} by Figure 3a; 270M "
        f"and 600M gained 0.070 and 0.076, and the law fitted to them says {expected:.3f}.",
    )
