"""The points that a scaling law is fitted to: annealed runs, with the columns params, tokens, flops
and loss (the final one, in nats per token).

If the learning rate was not annealed, a loss is too high by a few hundredths of a nat, and pulls
the optimum towards small models; such points are left out. Checkpoints of one training share
errors, and so do runs of several lengths that branch off one shared prefix run. If such rows have
the same label in a column `model`, the bootstrap draws them together; without that column it draws
all rows of one size together."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from tst_study.analysis.checks import Floats, positive
from tst_study.analysis.tables.eligible import over_shared_seeds
from tst_study.analysis.wording import disambiguate, number
from tst_study.errors import UserError

SAME_SIZE = 0.02
"""Relative difference in parameters up to which runs count as having one size."""


def points_of(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of a run table as points: params (active ones), tokens (latent), flops, loss
    (held-out, nats per token), and the table's other columns. The runs must be eligible
    (`tables/eligible.py`)."""
    names = {"active_parameters": "params", "latent_tokens": "tokens", "nats_per_token": "loss"}
    numbers = dict.fromkeys(("params", "tokens", "flops", "loss"), float)
    return runs.rename(columns=names).astype(numbers)


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
    """Return the annealed points, with a further column `size` (`sizes_of`). Without a column
    `annealed` all points count as annealed.

    Raises `UserError` if one of the `needed` columns is missing or holds a bad value, and if no
    point is annealed."""
    points = positive(points, needed, "points")
    points = points.assign(size=sizes_of(points["params"]))
    if "annealed" not in points:
        return points
    kept = points[points["annealed"].isin([True])]
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


def at_best_rates(points: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return the points at the best learning rate of each size, length and set-up, and a note.

    A law of badly tuned runs would describe the tuning. The best rate has the lowest mean loss over
    the seeds that the rates share, or over all seeds if they share none. Runs of one set-up agree
    in the column `family`. Rates that are not known count as one rate. The note counts the runs at
    worse rates, and the sizes and lengths that mix several set-ups."""
    points = points.assign(learning_rate=points.get("learning_rate", 0.0)).reset_index(drop=True)
    points = points.fillna({"learning_rate": 0.0})
    sizes = sizes_of(points["params"])
    best = pd.Series(False, index=points.index)
    for _, own in points.groupby([sizes, "tokens", "family"], sort=False):
        seeds = own.assign(seed=own.get("seed", 0))
        means = over_shared_seeds(seeds, "learning_rate", "loss").mean(axis=1)
        best[own.index] = own["learning_rate"] == means.idxmin()
    notes = []
    if dropped := int((~best).sum()):
        notes.append(f"{number(dropped, 'run')} at worse learning rates left out")
    cells = points[best].groupby([sizes[best.to_numpy()], "tokens"])
    if several := int((cells["family"].nunique() > 1).sum()):
        where = f"at {several} of {len(cells)} sizes and lengths"
        notes.append(f"{where} several set-ups are fitted together")
    return points[best], "; ".join(notes)
