"""How far a gain depends on which documents were held out.

An interval over seeds is about the documents that were measured. Where evaluations have a loss for
each document, a second interval is given, for a gain on any text of the same kind. It takes
documents for a random sample, and adds their scatter to that of the seeds: the squares of the
half-widths are summed (Zou and Donner, 2008). It decides no verdict.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from pydantic_core import from_json

from tst_study.analysis.statistics import critical_t
from tst_study.analysis.tables.columns import Tables

FEWEST = 4.0
"""Fewest documents with which the second interval is given, counted by their weights: one that has
almost all tokens counts as hardly more than one."""


@dataclass(frozen=True)
class Documents:
    """What documents say of a gain: the scatter of its parts, each the mean over the seeds."""

    count: int
    error: float
    """Standard error of the gain over documents, in nats, each weighted by its tokens."""
    freedom: float

    def ends(self, gain: float, high: float, comparisons: int) -> tuple[float, float]:
        """Return the interval of a gain over documents and seeds. `high`: the upper end of its
        interval over seeds."""
        half = np.hypot(high - gain, critical_t(self.freedom, comparisons) * self.error)
        return float(gain - half), float(gain + half)


def with_documents(tables: Tables) -> pd.DataFrame:
    """Return the run table with a column `documents`: the losses and the numbers of tokens of each
    document of a run's last evaluation, shape (2, documents); None where these are not known."""
    known = tables.held_out[["folder", "step", "eval_set", "document_losses", "document_tokens"]]
    known = known.dropna().astype({"folder": str}).set_index(["folder", "step", "eval_set"])
    known = known[~known.index.duplicated(keep="last")]
    runs = tables.runs
    keys = zip(runs["folder"], runs["evaluated_step"], runs["eval_set"], strict=True)
    cells = dict(zip(known.index, known.itertuples(index=False, name=None), strict=True))
    found = [cells.get(key) for key in keys]
    parsed = [cell and np.array(list(map(from_json, cell)), float) for cell in found]
    return runs.assign(documents=pd.Series(parsed, runs.index, dtype=object))


def documents_of(arm: pd.DataFrame, against: pd.DataFrame) -> Documents | None:
    """Return what documents say of the gain of an arm over another, both `labelled`, over the seeds
    that both have; None if a run lacks losses by document, or has other documents, and for fewer
    documents than `FEWEST`."""
    if "documents" not in arm or "documents" not in against:
        return None
    sides = [arm, against]
    if both := {*arm["block"]} & {*against["block"]}:
        sides = [side[side["block"].isin(both)] for side in sides]
    parts = [list(side["documents"]) for side in sides]
    first = next((part for own in parts for part in own if part is not None), None)
    if first is None or not all(parts):
        return None
    for part in (part for own in parts for part in own):
        if part is None or part.shape != first.shape or (part[1] != first[1]).any():
            return None
    shares = first[1] / first[1].sum()
    effective, count = float(1 / (shares**2).sum()), len(shares)
    if effective < FEWEST:
        return None
    own, other = (np.mean([part[0] for part in side], axis=0) for side in parts)
    apart = (other - own) - shares @ (other - own)
    # A document's distance from the mean is smaller the more the mean is its own gain.
    own_part = 1 - 2 * shares + (shares**2).sum()
    error = float(np.sqrt((shares**2 * apart**2 / own_part).sum()))
    return Documents(count, error, effective - 1)
