"""CRC-32 as in zlib, by the CPU's own instructions if the compiled kernels are there.

Every packed sample is checked before it is decoded. For 100 kB, zlib takes 60 to 100 us and the kernel some 5 us. Both
give the same numbers, so it does not matter which of them wrote what is stored.

The kernel lies in the library of `prepserver.transform.native` and uses nothing else of it. This module opens
the file itself, because sources are read without the decoders.
"""

from __future__ import annotations

import ctypes
import os
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

_LIBRARY = Path(__file__).parent / "transform" / "native" / "_native.so"
_LEAST_BYTES = 4096  # below this size, zlib takes less time than a call of the kernel


def crc32(data: bytes, start: int = 0, before: int = 0) -> int:
    """Return the CRC-32 of `data` from `start` on, or of it and earlier data whose CRC is `before`."""
    size = len(data) - start
    kernel = _kernel() if size >= _LEAST_BYTES else None
    if kernel is None:
        return zlib.crc32(memoryview(data)[start:], before)
    return kernel(data, start, size, before)


def load() -> None:
    """Load the kernel now, for forks of this process that may not open it."""
    _kernel()


@cache
def _kernel() -> Callable[[bytes, int, int, int], int] | None:
    """Return the kernel; None if it is not built, turned off, not for this CPU, or disagrees with zlib."""
    if os.environ.get("PREPSERVER_NATIVE") == "0":
        return None
    try:
        library = ctypes.CDLL(str(_LIBRARY))
        kernel, serves = library.prep_crc32, library.prep_crc32_serves
    except (OSError, AttributeError):
        return None
    size = ctypes.c_size_t
    kernel.argtypes, kernel.restype = (ctypes.c_char_p, size, size, ctypes.c_uint32), ctypes.c_uint32
    sample = bytes(range(251)) * 5
    sizes = range(0, len(sample), 23)  # every way: byte by byte, 16, 64 and 256 at a time
    agrees = serves() and all(kernel(sample, 1, size, 7) == zlib.crc32(sample[1 : size + 1], 7) for size in sizes)
    return kernel if agrees else None
