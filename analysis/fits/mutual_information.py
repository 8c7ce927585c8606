"""The mutual information of two tokens of a text as a function of their distance, and its decay,
from which loss weights for a bag follow: the answer of `tst-study analyse mutual-information`.

A plain count of pairs overestimates mutual information: most pairs of tokens are seen once at most,
and a pair that was seen once looks like a dependence even if its tokens are unrelated. The estimate
here uses Grassberger's entropy (arXiv physics/0307138) and subtracts what the same estimator finds
between tokens half a file apart. For independent tokens its expectation is zero; for strongly
related ones it is a few hundredths of a nat too low. The plug-in value, which a plain count gives,
stands beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import scipy
from numpy.typing import ArrayLike, NDArray
from scipy import special

from tst_study.analysis import published
from tst_study.analysis.answer import Answer
from tst_study.analysis.checks import Floats
from tst_study.analysis.statistics import rmse
from tst_study.data.token_file import TokenFile
from tst_study.errors import UserError
from tst_study.superposition.weighting import mutual_information_weights

DISTANCES: tuple[int, ...] = (*range(1, 17), 20, 24, 32, 48, 64, 100)
"""Distances, in tokens, that are measured by default."""


@dataclass(frozen=True)
class Decay:
    """A fitted decay C0 + a d^k of mutual information over the distance d (tokens). Amounts are in
    the unit of the fitted values: nats, or that of the published curve, which the paper does not
    state."""

    constant: float
    """C0."""
    amplitude: float
    """a, the amount beyond C0 at a distance of one token."""
    exponent: float
    """k."""
    rmse: float
    """Root mean square error of the fit."""


def measure(file: TokenFile, distances: Sequence[int] = DISTANCES) -> pd.DataFrame:
    """Measure the mutual information (nats) of two tokens of one document, by their distance.

    distances: in tokens, at least 1 and shorter than the longest document. Columns: distance, pairs
    (their number), mutual_information (corrected), plug_in, unrelated (the plug-in value of tokens
    half a file apart)."""
    ids = np.asarray(file.tokens).astype(np.int64)
    lengths = np.diff(file.document_starts(0, file.document_count + 1))
    document = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    # A shift by half the file, unlike a shuffle, keeps the repetitions that text has.
    unrelated = np.roll(ids, len(ids) // 2)
    rows = []
    for distance in distances:
        within = document[:-distance] == document[distance:]
        first = ids[:-distance][within]
        plug_in, corrected = _information(first, ids[distance:][within])
        # The part of the value that is due to chance depends on the number of pairs, and thus on
        # the distance.
        unrelated_plug_in, chance = _information(first, unrelated[:-distance][within])
        rows.append((distance, len(first), corrected - chance, plug_in, unrelated_plug_in))
    columns = ["distance", "pairs", "mutual_information", "plug_in", "unrelated"]
    return pd.DataFrame(rows, columns=columns)


def fit_decay(distances: ArrayLike, values: ArrayLike) -> Decay:
    """Fit C0 + a d^k, with C0 and a at least 0, by least squares to values at distances (tokens),
    shapes (n,).

    Raises `UserError` for fewer than four distances.
    """
    x, y = np.asarray(distances, dtype=float), np.asarray(values, dtype=float)
    if len(x) < 4:
        raise UserError(f"{len(x)} distances with positive values: the fit needs at least four")

    # In units of the values' range, because the solver's tolerances are absolute.
    unit = float(np.ptp(y)) or 1.0

    def residuals(theta: Floats) -> Floats:
        errors: Floats = theta[0] + theta[1] * x ** theta[2] - y / unit
        return errors

    bounds = ([0.0, 0.0, -np.inf], np.inf)
    fitted = scipy.optimize.least_squares(residuals, (y.min() / unit, 1.0, -1.0), bounds=bounds)
    constant, amplitude, exponent = map(float, fitted.x)
    return Decay(unit * constant, unit * amplitude, exponent, unit * rmse(fitted.fun))


def mutual_information_answer(
    tokens: str | Path | None = None, distances: Sequence[int] = DISTANCES
) -> Answer:
    """Answer `tst-study analyse mutual-information` for a token file, given by its path without
    `.bin`, or by default for the published curve. Distances without a positive estimate are left
    out of the fit; raises `UserError` if fewer than four remain."""
    if tokens is None:
        table = published.mutual_information()
        inputs = published.fingerprints("mutual_information")
        source = "Published curve on DCLM; its unit is not stated."
    else:
        file = TokenFile(tokens)
        longest = int(np.diff(file.document_starts(0, file.document_count + 1)).max())
        table = measure(file, [distance for distance in distances if distance < longest])
        inputs = {str(file.prefix): f"{file.token_count} tokens, {file.document_count} documents"}
        source = (
            "A plain count gives {plug_in:.3f} nats at distance {distance:.0f}, and "
            "{unrelated:.3f} between tokens that have nothing to do with each other: so much of a "
            "plain count is chance."
        )
    positive = table[table["mutual_information"] > 0]
    decay = fit_decay(positive["distance"], positive["mutual_information"])
    weights = mutual_information_weights(
        8, constant=decay.constant, amplitude=decay.amplitude, exponent=decay.exponent
    )
    return Answer(
        "mutual-information",
        {"Mutual information by distance": table},
        (
            f"C0 + a d^k: C0 = {decay.constant:.3f}, a = {decay.amplitude:.3f}, "
            f"k = {decay.exponent:.3f} (rmse {decay.rmse:.4f}).",
            source.format(**table.iloc[0]),
            "As weights of a run at s = 8: superposition.weighting = "
            f"[{', '.join(f'{weight:.4g}' for weight in weights)}].",
        ),
        inputs,
    )


def _information(first: NDArray[np.int64], second: NDArray[np.int64]) -> Floats:
    """Return the mutual information of pairs of tokens, nats, by two estimators of entropy: the
    plug-in value, and the value by Grassberger's."""
    pairs = np.unique(first * (second.max() + 1) + second, return_counts=True)[1]
    of_first, of_second, of_both = map(_entropies, (np.bincount(first), np.bincount(second), pairs))
    return of_first + of_second - of_both


def _entropies(counts: NDArray[np.int64]) -> Floats:
    """Return the plug-in entropy and Grassberger's entropy of a histogram, nats."""
    # Few different counts occur, so the special functions are evaluated once for each of them.
    values, times = np.unique(counts[counts > 0], return_counts=True)
    n = values.astype(float)
    weight = times * n
    total = float(weight.sum())
    sign = np.where(values % 2 == 0, 1.0, -1.0)
    grassberger = special.digamma(n) + 0.5 * sign * (
        special.digamma((n + 1) / 2) - special.digamma(n / 2)
    )
    sums = np.array([(weight * np.log(n)).sum(), (weight * grassberger).sum()])
    entropies: Floats = np.log(total) - sums / total
    return entropies
