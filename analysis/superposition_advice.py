"""What the law recommends for a model and a length, how far it can be believed, and what it says
of the runs that it was not fitted to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis import published
from analysis.answer import Answer
from analysis.run_row import rows_of
from analysis.superposition_forms import FORMS
from analysis.superposition_held_out import compare_forms
from analysis.superposition_law import Law, fit_law, law_rows, published_law
from tst_study.errors import UserError

BAGS = np.arange(2, 33, dtype=float)
RATIOS = np.round(np.arange(0.02, 0.91, 0.01), 2)
TOLERANCE = 0.002
"""Nats: about the error that one trunk carries. Settings closer than this are not told apart."""


@dataclass(frozen=True)
class Recommendation:
    """(s, r) for a model and a length, with ranges."""

    params: float
    steps: float
    bag_size: int
    step_ratio: float
    gain: float
    gain_interval: tuple[float, float]
    bag_interval: tuple[float, float]
    """95% of the best s over refits to redrawn noise."""
    ratio_interval: tuple[float, float]
    bag_range: tuple[int, int]
    """Bags that, at their own best r, come within `TOLERANCE` of the best."""
    ratio_range: tuple[float, float]
    """Ratios within `TOLERANCE` at the best bag."""
    belief: str


def recommend(
    params: float, steps: float, law: Law | None = None, draws: Sequence[Law] | None = None
) -> Recommendation:
    """The (s, r) of the largest predicted gain; uniform weights, steps of 2M tokens.

    Raises `UserError` for a model or a length that is not positive.
    """
    if params <= 0 or steps <= 0:
        raise UserError(f"params {params}, steps {steps}: both must be positive")
    law = law or published_law()
    draws = law.drawn() if draws is None else draws
    gains = law.gains(params, steps, BAGS, RATIOS)
    bag, ratio = np.unravel_index(int(gains.argmax()), gains.shape)
    best = float(gains[bag, ratio])
    drawn = [other.gains(params, steps, BAGS, RATIOS) for other in draws]
    places = [np.unravel_index(int(g.argmax()), g.shape) for g in drawn]
    near_bags = BAGS[gains.max(axis=1) >= best - TOLERANCE]
    near_ratios = RATIOS[gains[bag] >= best - TOLERANCE]
    return Recommendation(
        params=params,
        steps=steps,
        bag_size=int(BAGS[bag]),
        step_ratio=float(RATIOS[ratio]),
        gain=best,
        gain_interval=_interval([float(g[bag, ratio]) for g in drawn]),
        bag_interval=_interval([float(BAGS[i]) for i, _ in places]),
        ratio_interval=_interval([float(RATIOS[j]) for _, j in places]),
        bag_range=(int(near_bags.min()), int(near_bags.max())),
        ratio_range=(float(near_ratios.min()), float(near_ratios.max())),
        belief=belief(params, steps),
    )


def belief(params: float, steps: float) -> str:
    """How far the fitted grids reach towards a model and a length."""
    beyond = []
    if not 250e6 <= params <= 650e6:
        beyond.append(f"size {params / 600e6:.2g} times the largest fitted")
    if not 18_000 <= steps <= 110_000:
        beyond.append("length outside 20,000–100,000 steps")
    return "; ".join(["extrapolated", *beyond]) if beyond else "inside the fitted range"


def published_beside_law(law: Law, draws: Sequence[Law], others: Sequence[Law]) -> pd.DataFrame:
    """3B and 10B-A1B: the law's gain and worth in baseline steps beside what was published.

    The mixture's step has 8M tokens: it is read once as four steps of 2M tokens and once as one
    step. `other forms` are the gains that other forms predict.
    """
    cases: list[dict[str, Any]] = [
        {
            "run": "3B, s = 6, r = 0.3",
            "reading": "20,000 steps",
            "params": 3e9,
            "steps": 20_000,
            "bag": 6,
            "ratio": 0.3,
            "published_gain": "0.132 (Table 1), 0.07–0.08 (Figure 3a)",
            "published_steps": "1.8 (36,000 baseline steps at equal loss)",
        }
    ]
    for steps, reading in ((49_983 * 4, "as 199,932 steps of 2M"), (49_983, "as 49,983 steps")):
        cases.append(
            {
                "run": "10B-A1B, s = 16, r = 0.25",
                "reading": reading,
                "params": 10e9,
                "steps": steps,
                "bag": 16,
                "ratio": 0.25,
                "published_gain": "no baseline of its length",
                "published_steps": "2.5 at a loss 0.016 lower (Table 1), equal (Figure 1)",
            }
        )
    rows = []
    for case in cases:
        setting = (case["params"], case["steps"], case["bag"], case["ratio"])
        gain = law.gain(*setting)
        low, high = _interval([other.gain(*setting) for other in draws])
        worth = law.baseline_steps(case["steps"], gain)
        ends = [other.baseline_steps(case["steps"], other.gain(*setting)) for other in draws]
        ratios = [end / case["steps"] for end in ends if end is not None]
        between = [other.gain(*setting) for other in others]
        rows.append(
            {
                "run": case["run"],
                "reading": case["reading"],
                "gain": gain,
                "low": low,
                "high": high,
                "other_forms": f"{min(between):.3f}–{max(between):.3f}",
                "published_gain": case["published_gain"],
                "worth_steps": None if worth is None else worth / case["steps"],
                "worth_low": _interval(ratios)[0] if ratios else None,
                "worth_high": _interval(ratios)[1] if ratios else None,
                "published_steps": case["published_steps"],
            }
        )
    return pd.DataFrame(rows)


TARGETS: tuple[tuple[str, float, float], ...] = (
    ("270M", 270e6, 20_000),
    ("270M", 270e6, 100_000),
    ("600M", 600e6, 20_000),
    ("3B", 3e9, 20_000),
    ("3B", 3e9, 50_000),
    ("10B-A1B, steps of 2M", 10e9, 200_000),
)


def law_answer(draws: int = 200) -> Answer:
    """`tst-study analyse law`: the law, its rivals, held-out errors, advice, and 3B and 10B-A1B."""
    rows, law = law_rows(), published_law()
    drawn = law.drawn(draws)
    fits, errors = compare_forms(rows)
    wide = errors.pivot(index="form", columns="split", values="rmse").reindex(fits["form"])
    close = [form for form in FORMS if form.name in ("recovery by size", "effective steps")]
    others = [fit_law(rows, form, strict=False) for form in close]
    table = pd.DataFrame([other.values for other in drawn])
    parameters = pd.DataFrame(
        [
            {
                "parameter": name.replace("_", " "),
                "value": value,
                "low": float(table[name].quantile(0.025)),
                "high": float(table[name].quantile(0.975)),
            }
            for name, value in law.values.items()
        ]
    )
    advice = pd.DataFrame(
        [
            {"model": name, **_row(recommend(params, steps, law, drawn))}
            for name, params, steps in TARGETS
        ]
    )
    error = law.residuals["error"]
    held = errors[errors["form"] == law.form.name].set_index("split")["rmse"]
    return Answer(
        "law",
        {
            "Parameters (95% over redrawn trunks and cells)": parameters,
            "Fits to all rows: root mean square errors, nats": fits,
            "Errors on held-out gains, nats (root mean square)": wide.reset_index(),
            "Recommended (s, r), uniform weights": advice,
            "Runs that were not fitted": published_beside_law(law, drawn, others),
        },
        (
            f"One set of {len(law.values)} parameters explains {len(rows)} cells of Tables 4–7 to "
            f"{float(np.sqrt((error**2).mean())):.4f} nats ({law.noise.trunk:.4f} shared by all r "
            f"at one s, {law.noise.cell:.4f} by a cell alone).",
            "Fitted on 270M alone it predicts the gains at 600M to "
            f"{held['270M → 600M']:.4f} nats.",
            "Only two sizes, two lengths, one seed each, learning rate and size changed together: "
            "beyond 600M and 100,000 steps the numbers say what this form would, with intervals "
            "that do not include the choice of form; `other forms` shows that choice.",
        ),
        published.fingerprints("final_loss_grid", "headline_runs"),
    )


def _row(found: Recommendation) -> dict[str, Any]:
    return {
        "steps": found.steps,
        "s": found.bag_size,
        "s_95": f"{found.bag_interval[0]:.0f}–{found.bag_interval[1]:.0f}",
        "s_flat": f"{found.bag_range[0]}–{found.bag_range[1]}",
        "r": found.step_ratio,
        "r_95": f"{found.ratio_interval[0]:.2f}–{found.ratio_interval[1]:.2f}",
        "r_flat": f"{found.ratio_range[0]:.2f}–{found.ratio_range[1]:.2f}",
        "gain": found.gain,
        "low": found.gain_interval[0],
        "high": found.gain_interval[1],
        "belief": found.belief,
    }


def _interval(values: Sequence[float]) -> tuple[float, float]:
    low, high = np.quantile(np.asarray(values), [0.025, 0.975])
    return float(low), float(high)


def published_cells(law: Law | None = None) -> pd.DataFrame:
    """Observed and predicted losses of Tables 4–7, one row per cell (for figures)."""
    law = law or published_law()
    names = ["table", "size", "steps", "weighting", "step_ratio", "bag_size", "loss"]
    cells = law.residuals[[*names, "predicted", "error"]]
    return pd.DataFrame(list(rows_of(cells)))
