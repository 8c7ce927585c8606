"""A shuffled order that is computed, not stored. `corpus_order` shuffles the pieces of a corpus
with it.

`permuted` maps 0 … size − 1 one-to-one onto itself, by a Feistel network on a grid that is only
slightly larger than `size` (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002). So
each entry of the permutation can be computed without the others, and no table is needed. `size` may
be up to 2^62, and the order is the same on every machine.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

ROUNDS = 6
"""Rounds of the Feistel network."""
# Both multipliers are those of splitmix64's finaliser (Steele et al., 2014).
_MULTIPLY_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLY_2 = np.uint64(0x94D049BB133111EB)
_SHIFT = np.uint64(31)


def permutation_key(*parts: int) -> NDArray[np.uint64]:
    """Derive the keys of the rounds, (ROUNDS,), from integers such as a seed and an epoch."""
    text = ",".join(str(int(part)) for part in parts).encode()
    digest = hashlib.blake2b(text, digest_size=8 * ROUNDS).digest()
    return np.frombuffer(digest, dtype="<u8").astype(np.uint64)


def permuted(indices: NDArray[np.int64], size: int, key: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the entries `indices` of a pseudo-random permutation of 0 … size − 1.

    Args:
        indices: int64 (n,), each in 0 … size − 1.
        size: how many integers are permuted, at least 1.
        key: from `permutation_key`; another key gives another order.

    Returns:
        int64 (n,), each in 0 … size − 1. Different indices have different entries.
    """
    rows = max(1, int(np.ceil(np.sqrt(size))))
    columns = max(1, -(-size // rows))
    result = _encrypted(indices, rows, columns, key)
    # Fewer than `rows` points of the grid lie outside 0 … size − 1. A result there is put through
    # the network again until it is inside, which keeps the map one-to-one. Few results need it.
    outside = result >= size
    while outside.any():
        result[outside] = _encrypted(result[outside], rows, columns, key)
        outside = result >= size
    return result


def _encrypted(
    indices: NDArray[np.int64], rows: int, columns: int, key: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """Apply the network once to points of the grid of `rows` × `columns`."""
    left, right = np.divmod(indices.astype(np.uint64), np.uint64(columns))
    for number, round_key in enumerate(key):
        if number % 2 == 0:
            left = (left + _mixed(right + round_key)) % np.uint64(rows)
        else:
            right = (right + _mixed(left + round_key)) % np.uint64(columns)
    return (left * np.uint64(columns) + right).astype(np.int64)


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash each value to a number below 2^33, so that adding it to a coordinate never
    overflows."""
    values = values * _MULTIPLY_1
    values ^= values >> _SHIFT
    values *= _MULTIPLY_2
    values >>= _SHIFT
    return values
