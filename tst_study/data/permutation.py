"""A shuffled order that is computed, not stored.

`permuted` maps 0 … size − 1 one-to-one onto itself, by a Feistel network on a grid that barely
exceeds `size` (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002). So any entry can
be computed at once, without a table. `size` may be up to 2^62, and the order is the same on every
machine.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

ROUNDS = 6
_MULTIPLY_1 = np.uint64(0xBF58476D1CE4E5B9)  # the finaliser of splitmix64 (Steele et al., 2014)
_MULTIPLY_2 = np.uint64(0x94D049BB133111EB)
_SHIFT = np.uint64(31)


def permutation_key(*parts: int) -> NDArray[np.uint64]:
    """Draw round keys from integers (seed, epoch, …), shape (ROUNDS,)."""
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
        int64 (n,), all different where the indices are.
    """
    rows = max(1, int(np.ceil(np.sqrt(size))))
    columns = max(1, -(-size // rows))
    result = _encrypted(indices, rows, columns, key)
    # The grid holds fewer than `rows` points beyond `size`. Applying the network to such a point
    # again, until the result is inside, keeps the map one-to-one; few points need it even once.
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
    """Hash each value, to below 2^33, so that adding it to a coordinate never wraps around."""
    values = values * _MULTIPLY_1
    values ^= values >> _SHIFT
    values *= _MULTIPLY_2
    values >>= _SHIFT
    return values
