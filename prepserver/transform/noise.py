"""Many random values for one sample, such as noise, from a key that a stage draws.

Only the raw words of Philox are numpy's, which are the same in every release; its distributions need not be.
"""

from __future__ import annotations

from functools import cache
from statistics import NormalDist

import numpy as np

from prepserver.transform.draw import Draws
from prepserver.transform.stage import Array


def key_of(draws: Draws) -> int:
    """Draw a key of 128 bits."""
    return draws.word() << 64 | draws.word()


def uniform_bytes(key: int, count: int) -> Array:
    """Return bytes of any value, all alike: (count,) uint8."""
    return np.random.Philox(key=key).random_raw(-(-count // 8)).astype("<u8", copy=False).view(np.uint8)[:count]


def normal(key: int, count: int) -> Array:
    """Return numbers of a normal distribution of mean 0 and standard deviation 1: (count,) float32, within +-4.4."""
    result: Array = _quantiles()[uniform_bytes(key, 2 * count).view("<u2")]
    return result


@cache
def _quantiles() -> Array:
    inverse = NormalDist().inv_cdf
    return np.array([inverse((place + 0.5) / 65536) for place in range(65536)], np.float32)
