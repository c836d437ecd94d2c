"""Maps a position of a stream to the index of a sample: pure arithmetic, no stored permutation.

An order knows its kind, the number of samples and a seed; it knows nothing of files, jobs, rows or epochs. Equal
arguments give equal values in every release, on every machine and with every numpy: a job's saved state is only a
position, so a changed value would silently repeat some samples and lose others. `tests/unit/order` holds golden numbers
that keep this promise.
"""

from prepserver.order.feistel import KeyedPermutation
from prepserver.order.orders import NO_SAMPLE, CyclicOrder, Order, Shuffle, make_order

__all__ = ["NO_SAMPLE", "CyclicOrder", "KeyedPermutation", "Order", "Shuffle", "make_order"]
