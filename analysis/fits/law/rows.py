"""Rows that a law of superposition is fitted to, or asked about: published, own or planned runs.

Columns: params, tokens (latent), bag_size, step_ratio, weighting, targets (`effective_targets`),
loss (nats per token, annealed), level (label of the baseline that a run is compared with), prefix
(label of the runs that are taken to share an error: runs of a level that differ in r alone usually
fork from one shared prefix run), size (label)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tst_study.analysis import published
from tst_study.analysis.checks import Floats, needs_columns, positive
from tst_study.analysis.fits.scaling.points import points_of
from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.tables.eligible import eligible, excluded_row
from tst_study.analysis.verdict.comparison import PAIRED
from tst_study.config.superposition_setting import SuperpositionSetting
from tst_study.errors import UserError
from tst_study.superposition.weighting import NAMED_WEIGHTINGS, Weighting, offset_weights
from tst_study.text import big

TOKENS_PER_STEP = 2**21
"""Latent tokens per step of the published grids."""


def effective_targets(bag_size: int, weighting: Weighting = "uniform") -> float:
    """Return exp(entropy) of the normalised target weights: a number of tokens from 1 to s."""
    weights = np.array(offset_weights(weighting, bag_size), dtype=float)
    share = weights[weights > 0] / weights.sum()
    return float(np.exp(-(share * np.log(share)).sum()))


def settings(
    params: float,
    tokens: float,
    bag_size: float | Floats,
    step_ratio: float | Floats,
    weighting: Weighting = "uniform",
) -> pd.DataFrame:
    """Return rows to ask a law about: every s with every r, r varying fastest."""
    s, r = (
        part.ravel()
        for part in np.meshgrid(np.atleast_1d(bag_size), np.atleast_1d(step_ratio), indexing="ij")
    )
    targets = s if weighting == "uniform" else [effective_targets(int(bag), weighting) for bag in s]
    rows = pd.DataFrame({"bag_size": s, "step_ratio": r, "targets": targets})
    return rows.assign(params=params, tokens=tokens)


def published_rows() -> pd.DataFrame:
    """Return Tables 4–7 as rows of a law; the baseline that two tables share is there once."""
    rows = published.loss_grid().query("step_ratio < 1")
    shared = rows["bag_size"].eq(1) & rows.duplicated(["size", "steps", "bag_size", "loss"])
    rows = rows[~shared].reset_index(drop=True)
    return rows.assign(
        tokens=rows["steps"] * float(TOKENS_PER_STEP),
        targets=_targets(rows),
        level="loss of " + rows["size"] + ", " + rows["steps"].astype(str) + " steps",
        prefix=rows.groupby(["table", "bag_size"], sort=True).ngroup(),
    )


def rows_of_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Return rows of a law from params, tokens, bag_size, step_ratio, loss and, if there,
    weighting, seed, size and level.

    Without `level`, runs of one size, token count and seed get one; `prefix` labels each s and
    weighting of a level.

    Raises `UserError` for a missing column, a bad value, or a superposed run without a baseline.
    """
    rows = frame.reset_index(drop=True)
    for name, value in (("weighting", "uniform"), ("seed", 0)):
        rows[name] = rows.get(name, value)
    positive(rows, ("params", "tokens", "bag_size", "loss"), "frame")
    needs_columns(rows, ("step_ratio",), "frame")
    if not rows["step_ratio"].between(0, 1, inclusive="left").all():
        raise UserError("frame: column 'step_ratio' must be at least 0 and below 1")
    rows["weighting"] = rows["weighting"].where(rows["bag_size"] > 1, "uniform")
    if "size" not in rows:
        rows["size"] = [big(params) for params in rows["params"]]
    if "level" not in rows:
        tokens, seeds = rows["tokens"].map("{:.4g}".format), rows["seed"].map(str)
        rows["level"] = "loss of " + rows["size"] + ", " + tokens + " tokens, seed " + seeds
    alone = set(rows["level"]) - set(rows["level"][rows["bag_size"] == 1])
    if alone:
        raise UserError(
            f"{min(alone)}: superposed runs without a baseline (bag_size 1) of their own"
        )
    named = [rows[name].map(str) for name in ("level", "bag_size", "weighting")]
    return rows.assign(targets=_targets(rows), prefix=named[0] + named[1] + named[2])


def rows_of_runs(runs: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows of a law, and the runs left out with their reason, from a run table
    (`source.load`).

    Runs that share group, learning rate, held-out text and seeds have one level, the label of their
    baseline. One law is fitted to one `kind`: a corpus and a held-out text. Ablations are left out,
    except runs that differ by a named weighting alone.
    """
    kept, excluded = eligible(runs)
    level = kept[list(PAIRED)].map(str).agg(" ".join, axis=1)
    baselines = set(level[kept["method"] == "baseline"])
    fits = []
    for run, own in zip(rows_of(kept), level, strict=True):
        setting, reason = SuperpositionSetting.of_row(run), ""
        if own not in baselines:
            reason = "no finished baseline of its seeds, rate and held-out text"
        elif not setting.is_baseline and not (
            setting.is_plain_but("weighting") and run["weighting"] in NAMED_WEIGHTINGS
        ):
            reason = "an ablation, of which the law says nothing"
        if reason:
            excluded.append(excluded_row(run, reason))
        fits.append(not reason)
    rows = points_of(kept).assign(level=level, kind=kept["corpus"] + ", " + kept["eval_set"])[fits]
    if not (rows["bag_size"] > 1).any():
        raise UserError(
            "no superposed run with a finished baseline of its seed: nothing to predict"
        )
    columns = ["kind", "level", "params", "tokens", "bag_size", "step_ratio", "weighting", "loss"]
    return rows_of_frame(rows[[*columns, "seed"]]), pd.DataFrame(excluded)


def _targets(rows: pd.DataFrame) -> list[float]:
    known = zip(rows["bag_size"], rows["weighting"], strict=True)
    return [effective_targets(int(bag), weighting) for bag, weighting in known]
