"""How often the intervals of `docs/predictions.py` hold the gain that runs of the longest length
would have: made gains on the campaign's own grids, with the noise that G1 measured.

    python -m benchmarks.prediction_coverage [--made 150] [--to FILE.csv]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.law.rows import rows_of_frame
from analysis.law.superposition_law import published_law
from docs.predictions import Interval, main_law, predict, targets
from experiments.studies.campaign import BAG_SIZES, HELD_OUT_STEPS, STEP_RATIOS

RECORD = Path(__file__).parent / "records" / "prediction_coverage.csv"
DEVIATIONS = {5_000: 0.0123, 10_000: 0.0095, 20_000: 0.0067}
"""Of a pair's difference, nats, by length (docs/findings.md, G1)."""
SHARED = 0.6
"""Correlation of a seed's gains at two lengths, about what G1 has (0.5 to 0.8)."""
TOKENS, SEEDS, SEEDS_OF_GRIDS = 1024.0, range(3, 11), 4
TRUTHS: dict[str, Callable[[float], float]] = {
    "grows as a power of the length": lambda steps: 0.011 * (steps / 20_000) ** 0.5,
    "crosses zero": lambda steps: 0.014 * np.log(steps / 5_000) / np.log(4) - 0.003,
}
"""Gain at s = 4, r = 0.25; the law can bend to the first alone."""


def shape(bag_size: int, step_ratio: float) -> float:
    """Gain over that of the main setting, as the paper's first grid has it."""
    law, place = published_law(), (270e6, 20_000 * 2.0**21)
    return law.gain(*place, bag_size, step_ratio) / law.gain(*place, 4, 0.25)


def grids(random: np.random.Generator, gain: Callable[[float], float]) -> pd.DataFrame:
    """Rows of a law: three lengths, and at the longest a cross through s and r."""
    params, cross = targets()[0][1], [(s, 0.25) for s in BAG_SIZES] + [(4, r) for r in STEP_RATIOS]
    rows = []
    for place, seed in enumerate(SEEDS):
        of_seed = random.standard_normal()
        for steps, deviation in DEVIATIONS.items():
            whole = steps == max(DEVIATIONS) and place < SEEDS_OF_GRIDS
            rows.append((params, steps * TOKENS, 1, 0.0, seed, 3.3))
            for s, r in [(4, 0.25), *(cross if whole else [])]:
                own = SHARED**0.5 * of_seed + (1 - SHARED) ** 0.5 * random.standard_normal()
                loss = 3.3 - gain(steps) * shape(s, r) - deviation * own
                rows.append((params, steps * TOKENS, s, r, seed, loss))
    names = ["params", "tokens", "bag_size", "step_ratio", "seed", "loss"]
    return rows_of_frame(pd.DataFrame(rows, columns=names))


def measured(name: str, made: int) -> list[dict[str, Any]]:
    """Share of `made` data sets whose interval holds the truth, and that show one at all."""
    gain, random = TRUTHS[name], np.random.default_rng(list(name.encode()))
    shown: dict[str, list[Interval]] = {"law": [], "trend": []}
    for _ in range(made):
        rows = grids(random, gain)
        law, _ = main_law(rows, targets()[0][1])
        found = predict(rows, law, *targets()[0])
        shown["trend"].append(found.trend)
        shown["law"] += [] if found.law is None else [found.law]
    truth = gain(HELD_OUT_STEPS)
    return [
        {
            "gain": name,
            "way": way,
            "made": made,
            "shown": round(len(found) / made, 3),
            "covered": round(float(np.mean([low <= truth <= high for _, low, high in found])), 3),
            "truth": round(truth, 4),
            "mean": round(float(np.mean([value for value, _, _ in found])), 4),
            "median width": round(float(np.median([high - low for _, low, high in found])), 4),
        }
        for way, found in shown.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--made", type=int, default=150)
    parser.add_argument("--to", type=Path, default=RECORD)
    options = parser.parse_args()
    rows = [row for name in TRUTHS for row in measured(name, options.made)]
    print(pd.DataFrame(rows).to_string(index=False))
    pd.DataFrame(rows).to_csv(options.to, index=False)


if __name__ == "__main__":
    main()
