"""From a position of a stream to the index of a sample: pure arithmetic, no stored permutation.

`make_order` is the whole door. An order knows its kind, the number of samples and a seed; it knows
nothing of files, jobs, rows or epochs in flight. Equal arguments give equal values in every release, on every machine
and with every numpy: a job's saved state is only a position, so a changed value would silently repeat some samples and
lose others. `tests/unit/order` holds golden numbers that keep this promise.
"""

from __future__ import annotations

from prepserver.order.feistel import KeyedPermutation
from prepserver.order.orders import (
    MAX_SAMPLES,
    NO_SAMPLE,
    BatchOrder,
    CyclicOrder,
    FullOrder,
    Order,
    SequentialOrder,
    ShardOrder,
    Shuffle,
    make_order,
)

__all__ = [
    "MAX_SAMPLES",
    "NO_SAMPLE",
    "BatchOrder",
    "CyclicOrder",
    "FullOrder",
    "KeyedPermutation",
    "Order",
    "SequentialOrder",
    "ShardOrder",
    "Shuffle",
    "make_order",
]
