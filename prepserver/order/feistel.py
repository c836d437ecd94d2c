"""A keyed permutation of range(n) that is computed, never stored.

From 513 values up it is a Feistel network over a mixed-radix pair (L, R) in [0, a) x [0, b), with a * b at or just
above n; cycle walking handles the few values that land at or above n. It is the generalised network of J. Black and P.
Rogaway, "Ciphers with Arbitrary Finite Domains" (CT-RSA 2002). Its rounds are additive, so each round is invertible for
any a, b.

Such a network reaches only some of the permutations of a tiny domain (3 of 6 for n = 3). So for up to 512 values the
permutation is the sorting order of keyed random numbers, which is uniform. This is a shuffle, not a cipher: the mixers
are fast, not secure.

All arithmetic is uint64 on arrays: wrapping multiplication and integer remainder give the same values in any numpy.
"""

from __future__ import annotations

import hashlib
import math
import struct
from functools import lru_cache

import numpy as np
import numpy.typing as npt

U64Array = npt.NDArray[np.uint64]

# Four rounds of a random-looking function make a random-looking network (M. Luby and C. Rackoff, 1988). Ours is only a
# good mixer, so there are eight: one BLAKE2b digest gives eight keys.
ROUNDS = 8

# Up to here a permutation is a sorted table: 512 * 8 bytes and about 15 us to make.
_TABLE_LIMIT = 512

# The two multipliers of the splitmix64 finaliser (D. Stafford's "Mix13"): odd, well spread bits.
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_HALF = np.uint64(32)
# The step of splitmix64 (G. Steele et al., "Fast Splittable Pseudorandom Number Generators", 2014).
_GAMMA = np.uint64(0x9E3779B97F4A7C15)

# Part of the key of every permutation. A new construction needs a new tag and a new name of the order, because a saved
# position means something only under the order that it was saved with.
_DOMAIN = b"prepserver.ord1"


class KeyedPermutation:
    """The permutation of range(n) that belongs to a key. Making one takes about 4 us.

    `n` is 1 .. 2**40: the bound keeps the bias of a 32-bit value modulo a radix of about sqrt(n) below 1/4096. A key
    has integers in [0, 2**64), such as (purpose, seed, pass, block); keys of different lengths are different.
    """

    __slots__ = ("_a", "_b", "_keys", "_table", "n")

    def __init__(self, n: int, *key: int) -> None:
        self.n = n
        a, b = _radices(n)
        self._a, self._b = np.uint64(a), np.uint64(b)
        digest = hashlib.blake2b(struct.pack(f"<{len(key)}Q", *key), person=_DOMAIN, digest_size=8 * ROUNDS)
        self._keys = [np.uint64(word) for word in struct.unpack(f"<{ROUNDS}Q", digest.digest())]
        self._table = _sorted_table(n, self._keys[0]) if n <= _TABLE_LIMIT else None

    def __call__(self, values: U64Array) -> U64Array:
        """Return the images of `values`: uint64, shape (m,), every value below n, as the result is."""
        if self._table is not None:
            return self._table[values]
        out = self._network(values)
        outside = np.flatnonzero(out >= self.n)
        # Walking ends: the network permutes [0, a * b), so a walk that began below n comes back.
        while outside.size:
            walked = self._network(out[outside])
            out[outside] = walked
            outside = outside[walked >= self.n]
        return out

    def _network(self, values: U64Array) -> U64Array:
        """Apply all rounds once to values in [0, a * b)."""
        left, right = np.divmod(values, self._b)
        left_size, right_size = self._a, self._b
        for key in self._keys:
            mixed = right + key
            mixed *= _MIX_1
            mixed ^= mixed >> _HALF
            mixed *= _MIX_2
            mixed >>= _HALF
            mixed += left
            mixed %= left_size
            left, right = right, mixed
            left_size, right_size = right_size, left_size
        # ROUNDS is even, so the halves are back in their places.
        left *= self._b
        left += right
        return left


def _sorted_table(n: int, key: np.uint64) -> U64Array:
    """Return the order that sorts n numbers of a splitmix64 sequence; stable, so that a tie has one outcome too."""
    numbers = np.arange(n, dtype=np.uint64)
    numbers *= _GAMMA
    numbers += key
    numbers ^= numbers >> np.uint64(30)
    numbers *= _MIX_1
    numbers ^= numbers >> np.uint64(27)
    numbers *= _MIX_2
    numbers ^= numbers >> np.uint64(31)
    return np.argsort(numbers, kind="stable").astype(np.uint64)


@lru_cache(maxsize=64)
def _radices(n: int) -> tuple[int, int]:
    """Return the sizes (a, b) of the two halves: near the square root, with a * b - n small.

    Cycle walking pays for the excess. For n above a few hundred, the best of 64 candidates near the root wastes well
    under 1 % of the domain.
    """
    root = math.isqrt(n)
    lowest = max(1, root - min(64, root // 4))
    a = min(range(root, lowest - 1, -1), key=lambda size: -(-n // size) * size - n)
    return a, -(-n // a)
