"""Many random values for one sample, such as noise, from a key that a stage draws.

Only the raw words of Philox are numpy's, which are the same in every release; its distributions need not be.
"""

from __future__ import annotations

from functools import cache
from statistics import NormalDist

import numpy as np

from prepserver.transform.stage import Array


class Noise:
    """An endless sequence of random values, from `Draws.key`."""

    def __init__(self, key: int) -> None:
        self._words = np.random.Philox(key=key)

    def uniform(self, count: int) -> Array:
        """Return the next bytes of any value: (count,) uint8."""
        words = self._words.random_raw(-(-count // 8))
        return words.astype("<u8", copy=False).view(np.uint8)[:count]

    def normal(self, count: int) -> Array:
        """Return the next numbers of mean 0 and standard deviation 1: (count,) float32, within +-4.4."""
        result: Array = _quantiles()[self.uniform(2 * count).view("<u2")]
        return result


@cache
def _quantiles() -> Array:
    inverse = NormalDist().inv_cdf
    return np.array([inverse((place + 0.5) / 65536) for place in range(65536)], np.float32)
