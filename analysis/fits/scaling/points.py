"""The points that a scaling law is fitted to: annealed runs, with the columns params, tokens, flops
and loss (the final one, in nats per token).

If the learning rate was not annealed, a loss is too high by a few hundredths of a nat, and pulls
the optimum towards small models; such points are left out. Checkpoints of one training share
errors, and so do runs of several lengths that branch off one shared prefix run. If such rows have
the same label in a column `model`, the bootstrap draws them together; without that column it draws
all rows of one size together. What is not known of the points is said with every fit (`doubts`)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from tst_study.analysis.checks import Floats, positive
from tst_study.analysis.tables.eligible import over_shared_seeds
from tst_study.analysis.tables.facts import SIX, six_nd
from tst_study.analysis.wording import disambiguate, number
from tst_study.cost.compute import EQUAL_WITHIN
from tst_study.errors import UserError

SAME_SIZE = 0.02
"""Relative difference in parameters up to which runs count as having one size."""


def points_of(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of a run table as points: params (active ones), tokens (latent), flops, loss
    (held-out, nats per token), and the table's other columns. FLOPs that differ by at most
    `EQUAL_WITHIN` between the seeds of an arm, as measured ones may, become one number. The runs
    must be eligible (`tables/eligible.py`)."""
    names = {"active_parameters": "params", "latent_tokens": "tokens", "nats_per_token": "loss"}
    numbers = dict.fromkeys(("params", "tokens", "flops", "loss"), float)
    points = runs.rename(columns=names).astype(numbers)
    least = points.groupby(["group", "arm"], dropna=False)["flops"].transform("min")
    is_equal = points["flops"] <= (1 + EQUAL_WITHIN) * least
    return points.assign(flops=points["flops"].mask(is_equal, least))


def with_tokens(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with a column tokens, which is computed from flops by C = 6 N D if it is not
    there. Raises `UserError` if neither column is there, and for bad values to compute it from."""
    if "tokens" in frame:
        return frame
    if "flops" not in frame:
        raise UserError("frame: column 'tokens' is missing, and 'flops' to compute it from")
    frame = positive(frame, ("params", "flops"), "frame")
    return frame.assign(tokens=frame["flops"] / 6.0 / frame["params"])


def annealed_points(points: pd.DataFrame, needed: Sequence[str]) -> pd.DataFrame:
    """Return the points with a further column `size` (`sizes_of`), without those that are known not
    to be annealed. Without a column `annealed` all points count as annealed.

    Raises `UserError` if one of the `needed` columns is missing or holds a bad value, and if no
    point is annealed."""
    points = positive(points, needed, "points")
    points = points.assign(size=sizes_of(points["params"]))
    if "annealed" not in points:
        return points
    kept = points[~points["annealed"].isin([False])]
    if kept.empty:
        raise UserError(
            "no point whose learning rate was annealed: a high rate costs a few hundredths of "
            "a nat, more in longer runs; evaluate after the decay"
        )
    return kept


def sizes_of(params: pd.Series) -> Floats:
    """Return the size of each run, in parameters.

    Sources count the parameters of one model a little differently. Starting from the smallest run,
    all runs that are at most 2% larger therefore get its size; the next larger run starts the next
    size."""
    sizes, smallest = params.to_numpy(dtype=float, copy=True), 0.0
    for place in np.argsort(sizes):
        if sizes[place] > (1 + SAME_SIZE) * smallest:
            smallest = sizes[place]
        sizes[place] = smallest
    return sizes


def alike_in_kind(baselines: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Split baselines by corpus, held-out text and kind of model (dense or mixture), and return
    each part with a label. Sizes may be compared only within a part."""
    sparse = baselines.get("parameters", baselines["params"]) > baselines["params"]
    kinds = list(baselines.groupby(["corpus", "eval_set", sparse], sort=True))
    names = disambiguate(
        [str(corpus) or "all runs" for (corpus, *_), _ in kinds],
        [str(text) for (_, text, _), _ in kinds],
        ["mixtures of experts" if sparse else "dense" for (*_, sparse), _ in kinds],
    )
    return [(name, own) for name, (_, own) in zip(names, kinds, strict=True)]


def at_best_settings(points: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return the points with the best setting of each size and length, and a note.

    A law of badly tuned runs would describe the tuning. Runs of one setting agree in the columns
    `learning_rate` and `family`; rates that are not known count as one. The best setting has the
    lowest mean loss over the seeds that the settings share, or over all seeds if they share none.
    Sizes are compared as they are, as those of a table read off a figure are all different; lengths
    that differ by less than `SAME_SIZE` count as one, as a batch may not divide them. The note says
    how many runs were left out, and what varied."""
    points = points.assign(learning_rate=points.get("learning_rate", 0.0)).reset_index(drop=True)
    points = points.fillna({"learning_rate": 0.0})
    settings = points[["learning_rate", "family"]].apply(tuple, axis=1)
    seeds = points.assign(seed=points.get("seed", 0), setting=pd.factorize(settings)[0])
    best = pd.Series(False, index=points.index)
    most = 1
    for _, own in seeds.groupby([points["params"], sizes_of(points["tokens"])]):
        means = over_shared_seeds(own, "setting", "loss").mean(axis=1)
        best[own.index] = own["setting"] == means.idxmin()
        most = max(most, len(means))
    dropped = int((~best).sum())
    if not dropped:
        return points[best], ""
    varied = [
        words
        for name, words in (("learning_rate", "learning rate"), ("family", "batch or set-up"))
        if points[name].nunique() > 1
    ]
    return points[best], (
        f"{number(dropped, 'run')} at worse settings left out: the best of up to {most} settings "
        f"({', '.join(varied)}) at each size and length"
    )


def outside(points: pd.DataFrame, place: Mapping[str, Any]) -> str:
    """Return which of `params` and `tokens` of a place lie outside those of the points, as text;
    empty if neither does."""
    ends = {name: (points[name].min(), points[name].max()) for name in ("params", "tokens")}
    return ", ".join(n for n, (low, high) in ends.items() if place[n] < low or place[n] > high)


def doubts(points: pd.DataFrame) -> list[str]:
    """Return sentences on what is not known of the points and what that does to a fit: the decay of
    the learning rate, whether parameters count embeddings, and FLOPs that are not 6 N D."""
    said = []
    if unknown := int(points["annealed"].isna().sum()) if "annealed" in points else 0:
        said.append(
            f"it is not known whether the learning rate of {unknown} of {len(points)} runs had "
            "decayed; where it had not, losses are too high, most in long runs, and the "
            "exponents are off"
        )
    if {"embeddings", "config"} <= {*points}:
        silent = points["embeddings"].isna() & points["config"].isna()
        if silent.any():
            said.append(
                f"of {number(int(silent.sum()), 'run')} it is not declared whether parameters "
                "count embeddings, which in small models moves the exponents; import with --set "
                "embeddings=counted or --set 'embeddings=left out'"
            )
    if "flops" in points:
        ratios = points["flops"] / 6 / points["params"] / points["tokens"]
        off = ratios[(ratios - 1).abs() > SIX]
        if len(off):
            said.append(six_nd(off.tolist(), len(points)))
    return said


def flops_ratio(points: pd.DataFrame) -> tuple[float, float]:
    """Return k and q of C = 6 k N^(1 + q) D, fitted to the points (least squares in logs): (1, 0)
    if their FLOPs are 6 N D up to `SIX`, or are not known."""
    if "flops" not in points or points["params"].nunique() < 2:
        return 1.0, 0.0
    ratio = np.log((points["flops"] / 6 / points["params"] / points["tokens"]).to_numpy(float))
    if np.abs(np.expm1(ratio)).max() <= SIX:
        return 1.0, 0.0
    slope, constant = np.polyfit(np.log(points["params"].to_numpy(float)), ratio, 1)
    return float(np.exp(constant)), float(slope)
