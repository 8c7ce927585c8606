"""The rows that the law of superposition is fitted to, from the paper's tables, from a user's table
or from a user's runs, and the rows that it is asked about (`settings`).

Every row has the columns params, tokens (latent), bag_size, step_ratio and targets
(`effective_targets`). Rows to fit also have weighting, loss (nats per token, annealed), size (a
label), level and prefix. Rows of one level are compared with the same baseline. Rows of one prefix
are taken to share an error: they differ in r alone, and such runs are usually branches of one
shared prefix run."""

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
    """Return ŝ, the exponential of the entropy of the normalised target weights: a number of tokens
    from 1 to s, which is s for uniform weights."""
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
    """Return rows to ask a law about, at one size and length: every s with every r, where r varies
    fastest."""
    s, r = (
        part.ravel()
        for part in np.meshgrid(np.atleast_1d(bag_size), np.atleast_1d(step_ratio), indexing="ij")
    )
    targets = s if weighting == "uniform" else [effective_targets(int(bag), weighting) for bag in s]
    rows = pd.DataFrame({"bag_size": s, "step_ratio": r, "targets": targets})
    return rows.assign(params=params, tokens=tokens)


def published_rows() -> pd.DataFrame:
    """Return the runs of Tables 4–7 with r < 1 as rows to fit. A baseline that two tables print is
    there once."""
    rows = published.loss_grid()
    shared = rows["bag_size"].eq(1) & rows.duplicated(["size", "steps", "bag_size", "loss"])
    rows = rows[~shared].reset_index(drop=True)
    return rows.assign(
        tokens=rows["steps"] * float(TOKENS_PER_STEP),
        targets=_targets(rows),
        level="loss of " + rows["size"] + ", " + rows["steps"].astype(str) + " steps",
        prefix=rows.groupby(["table", "bag_size"], sort=True).ngroup(),
    )


def rows_of_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Return rows to fit from a table with the columns params, tokens, bag_size, step_ratio, loss
    and, if there, weighting (`uniform` by default), seed, size and level.

    Without a column `level`, runs of one size, number of tokens and seed form a level. Within a
    level, the rows of one s and one weighting form a prefix.

    Raises `UserError` for a missing column, a bad number, or a level without a baseline, and
    `ValueError` for an unknown weighting.
    """
    rows = frame.reset_index(drop=True)
    for name, value in (("weighting", "uniform"), ("seed", 0)):
        rows[name] = rows[name].fillna(value) if name in rows else value
    rows = positive(rows, ("params", "tokens", "bag_size", "loss"), "frame")
    needs_columns(rows, ("step_ratio",), "frame")
    rows["step_ratio"] = pd.to_numeric(rows["step_ratio"], errors="coerce")
    if not rows["step_ratio"].between(0, 1, inclusive="left").all():
        raise UserError("frame: column 'step_ratio' must be at least 0 and below 1")
    rows["weighting"] = rows["weighting"].where(rows["bag_size"] > 1, "uniform")
    if "size" not in rows:
        rows["size"] = [big(params) for params in rows["params"]]
    if "level" not in rows:
        tokens, seeds = rows["tokens"].map("{:.4g}".format), rows["seed"].map(str)
        rows["level"] = (
            "loss of " + rows["size"].map(str) + ", " + tokens + " tokens, seed " + seeds
        )
    alone = set(rows["level"]) - set(rows["level"][rows["bag_size"] == 1])
    if alone:
        raise UserError(f"{min(alone)}: superposed runs without a baseline (bag_size 1)")
    named = [rows[name].map(str) for name in ("level", "bag_size", "weighting")]
    return rows.assign(targets=_targets(rows), prefix=named[0] + " " + named[1] + " " + named[2])


def rows_of_runs(runs: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return rows to fit from a run table (`source.load`), and the runs that were left out, each
    with its reason.

    Runs that agree in comparison group, learning rate, held-out text and both seeds form a level. A
    further column, `kind`, names the corpus and the held-out text: a law is fitted to the rows of
    one kind. Ablations are left out, except superposed runs that differ from the paper's method by
    a named weighting alone.

    Raises `UserError` if no superposed run is left.
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
        raise UserError("no superposed run has a finished baseline of its seed: nothing to predict")
    columns = ["kind", "level", "params", "tokens", "bag_size", "step_ratio", "weighting", "loss"]
    return rows_of_frame(rows[[*columns, "seed"]]), pd.DataFrame(excluded)


def _targets(rows: pd.DataFrame) -> list[float]:
    known = zip(rows["bag_size"], rows["weighting"], strict=True)
    return [effective_targets(int(bag), weighting) for bag, weighting in known]
