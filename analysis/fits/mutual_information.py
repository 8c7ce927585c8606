"""Mutual information of two tokens by their distance, from a token file, and its decay.

Counting pairs overestimates it: most pairs of unrelated tokens, too, are seen once, and a pair seen
once looks like a dependence. The estimate here uses Grassberger's entropy (arXiv physics/0307138)
and subtracts what the same estimator finds between tokens half a file apart. For independent tokens
its expectation is zero; for strongly related ones it is a few hundredths of a nat too low. The
plug-in value, which a plain count gives, stands beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

from tst_study.analysis import published
from tst_study.analysis.answer import Answer
from tst_study.analysis.checks import Floats
from tst_study.analysis.fits.scaling.laws import power_law
from tst_study.analysis.fits.solver.problem import Problem
from tst_study.analysis.fits.solver.solve import fit, grid_of_starts
from tst_study.data.token_file import TokenFile
from tst_study.errors import UserError
from tst_study.superposition.weighting import mutual_information_weights

DISTANCES: tuple[int, ...] = (*range(1, 17), 20, 24, 32, 48, 64, 100)
BLOCKS = 200
_PAIRS_OF_BLOCK = 5_000
_WORKERS, _DRAWS = 2, 1000


@dataclass(frozen=True)
class Decay:
    """A fitted decay C0 + a d^k of mutual information (nats) over the distance d (tokens)."""

    constant: float
    amplitude: float
    exponent: float
    rmse: float


def measure(
    tokens: str | Path | TokenFile,
    distances: Sequence[int] = DISTANCES,
) -> pd.DataFrame:
    """Measure the mutual information (nats) of tokens d apart in the same document.

    distances: in tokens, at least 1 and shorter than the longest document. Columns: distance,
    pairs, mutual_information (corrected), low, high (95%, bootstrap over blocks of text), plug_in,
    unrelated (plug-in value of tokens half a file apart)."""
    file = tokens if isinstance(tokens, TokenFile) else TokenFile(tokens)
    ids = np.asarray(file.tokens)
    words = int(ids.max()) + 1
    lengths = np.diff(file.document_starts(0, file.document_count + 1))
    document = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    # A shift by half the file, unlike a shuffle, keeps the repetitions that text has.
    unrelated = np.roll(ids, len(ids) // 2)

    def at(distance: int) -> dict[str, Any]:
        within = document[:-distance] == document[distance:]
        first = ids[:-distance][within].astype(np.int64) * words
        # The part that is chance depends on the number of pairs, which the distance changes.
        null = _estimate(first + unrelated[:-distance][within], words)
        codes = first + ids[distance:][within]
        related = _estimate(codes, words)
        error = _block_errors(codes, related, words)
        value = related.corrected - null.corrected
        return {
            "distance": distance,
            "pairs": len(codes),
            "mutual_information": value,
            "low": value + error[0],
            "high": value + error[1],
            "plug_in": related.plug_in,
            "unrelated": null.plug_in,
        }

    with ThreadPoolExecutor(_WORKERS) as pool:
        rows = list(pool.map(at, distances))
    return pd.DataFrame(rows)


def fit_decay(distances: Floats, values: Floats) -> Decay:
    """Fit C0 + a d^k by least squares to positive values (nats) at distances (tokens), shapes (n,);
    C0 and a are positive.

    Raises `UserError` for fewer than four distances.
    """
    x, y = np.asarray(distances, dtype=float), np.asarray(values, dtype=float)
    if len(x) < 4:
        raise UserError(f"{len(x)} distances: a decay of three parameters needs at least four")
    model = power_law(x)
    grid = {"log_E": [np.log(y.min())], "alpha": (0.3, 0.8, 1.5)}
    fitted = fit(Problem(model, y, on="loss"), grid_of_starts(model, grid))
    rmse = float(np.sqrt((fitted.residuals**2).mean()))
    constant, amplitude = np.exp(fitted["log_E"]), np.exp(fitted["log_A"])
    return Decay(float(constant), float(amplitude), -fitted["alpha"], rmse)


def weights(decay: Decay, bag_size: int) -> tuple[float, ...]:
    """Return the loss weights g(1) … g(s) of a decay for `superposition.weighting`; their sum is
    not 1."""
    return mutual_information_weights(
        bag_size, constant=decay.constant, amplitude=decay.amplitude, exponent=decay.exponent
    )


def mutual_information_answer(
    tokens: str | Path | None = None, distances: Sequence[int] = DISTANCES
) -> Answer:
    """Answer `tst-study analyse mutual-information` for a token file, or for the published
    curve."""
    if tokens is None:
        table = published.mutual_information()
        inputs = published.fingerprints("mutual_information")
        source = "Published curve on DCLM; its unit is not stated."
    else:
        file = TokenFile(tokens)
        longest = int(np.diff(file.document_starts(0, file.document_count + 1)).max())
        spanned = [distance for distance in distances if distance < longest]
        if len(spanned) < 4:
            raise UserError(
                f"{file.prefix}: its longest document has {longest:,} tokens; a decay over "
                "distance needs longer ones"
            )
        table = measure(file, spanned)
        inputs = {str(file.prefix): f"{file.token_count} tokens, {file.document_count} documents"}
        first = table.iloc[0]
        source = (
            f"A plain count gives {first['plug_in']:.3f} nats at distance 1, and "
            f"{first['unrelated']:.3f} between tokens that have nothing to do with each other: so "
            "much of a plain count is chance."
        )
    positive = table[table["mutual_information"] > 0]
    decay = fit_decay(
        positive["distance"].to_numpy(dtype=float),
        positive["mutual_information"].to_numpy(dtype=float),
    )
    given = weights(decay, 8)
    plain = np.arange(1.0, 9.0) ** decay.exponent
    shares = {"weight": np.array(given) / sum(given), "without_the_constant": plain / plain.sum()}
    shown = pd.DataFrame({"i": range(1, 9), **shares})
    return Answer(
        "mutual-information",
        {"Mutual information by distance": table, "Loss weights at s = 8, of 1": shown},
        (
            f"C0 + a d^k: C0 = {decay.constant:.3f}, a = {decay.amplitude:.3f}, "
            f"k = {decay.exponent:.3f} (rmse {decay.rmse:.4f}).",
            source,
            "As weights of a run at s = 8: superposition.weighting = "
            f"[{', '.join(f'{weight:.4g}' for weight in given)}].",
        ),
        inputs,
    )


@dataclass(frozen=True)
class _Estimate:
    plug_in: float
    corrected: float
    codes: NDArray[Any]
    """Distinct pairs, sorted."""
    counts: NDArray[np.int64]
    """Number of times that each pair was seen."""
    first: NDArray[np.int64]
    """Counts of first tokens, by id."""
    second: NDArray[np.int64]
    """Counts of second tokens, by id."""


def _estimate(codes: NDArray[Any], words: int) -> _Estimate:
    pairs, counts = np.unique(codes, return_counts=True)
    first = np.bincount((pairs // words).astype(np.int64), counts, words).astype(np.int64)
    second = np.bincount((pairs % words).astype(np.int64), counts, words).astype(np.int64)
    parts = [_entropies(histogram) for histogram in (first, second, counts)]
    plug_in, corrected = (parts[0][i] + parts[1][i] - parts[2][i] for i in (0, 1))
    return _Estimate(plug_in, corrected, pairs, counts, first, second)


def _entropies(counts: NDArray[np.int64]) -> tuple[float, float]:
    """Return the plug-in and Grassberger's entropy of a histogram, nats."""
    # Few different counts occur, so that the special functions are evaluated once for each.
    values, times = np.unique(counts[counts > 0], return_counts=True)
    n = values.astype(float)
    weight = times * n
    total = float(weight.sum())
    sign = np.where(values % 2 == 0, 1.0, -1.0)
    digamma = special.digamma(n) + 0.5 * sign * (
        special.digamma((n + 1) / 2) - special.digamma(n / 2)
    )
    plug_in = np.log(total) - float((weight * np.log(n)).sum()) / total
    return plug_in, float(np.log(total) - (weight * digamma).sum() / total)


def _block_errors(codes: NDArray[Any], estimate: _Estimate, words: int) -> tuple[float, float]:
    """Return the 2.5% and 97.5% quantiles of the bootstrap error of the mean pointwise information
    over blocks of text: to first order the estimate's error, what tokens of one text share
    included."""
    random = np.random.default_rng(0)
    blocks = np.array_split(np.arange(len(codes)), min(BLOCKS, len(codes)))
    total = float(len(codes))
    means = np.empty(len(blocks))
    for i, block in enumerate(blocks):
        chosen = codes[random.choice(block, min(len(block), _PAIRS_OF_BLOCK), replace=False)]
        seen = estimate.counts[np.searchsorted(estimate.codes, chosen)]
        first = estimate.first[(chosen // words).astype(np.int64)].astype(float)
        second = estimate.second[(chosen % words).astype(np.int64)].astype(float)
        means[i] = float(np.log(seen * total / first / second).mean())
    drawn = means[random.integers(len(means), size=(_DRAWS, len(means)))].mean(axis=1)
    low, high = np.quantile(drawn - means.mean(), [0.025, 0.975])
    return float(low), float(high)
