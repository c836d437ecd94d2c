"""Host memory for batches that the user may keep, reused when the last tensor over it is gone.

Page faults in fresh memory cost more than the copy (10 MB: 0.2 ms in warm memory, several ms at first touch), and
malloc returns blocks of this size to the kernel each time.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import weakref

import torch

_KEPT_FREE = 4  # batches whose free blocks are kept; only a burst frees more at once


class HostBlocks:
    """Blocks of `nbytes` bytes each; a batch takes `of_batch` of them."""

    def __init__(self, nbytes: int, of_batch: int = 1) -> None:
        self._nbytes = max(1, nbytes)
        self._kept = _KEPT_FREE * of_batch
        self._free: list[mmap.mmap] = []

    def take(self) -> torch.Tensor:
        """A uint8 tensor over one block, uninitialised.

        Its storage holds a buffer object, whose finalizer gives the block back. So a block is reused only after the
        tensor and all its views are gone.
        """
        block = self._free.pop() if self._free else self._allocate()
        buffer = (ctypes.c_ubyte * self._nbytes).from_buffer(block)
        finalizer = weakref.finalize(buffer, _give_back, self._free, self._kept, block)
        finalizer.atexit = False
        return torch.frombuffer(buffer, dtype=torch.uint8)

    def _allocate(self) -> mmap.mmap:
        block = mmap.mmap(-1, self._nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError, AttributeError):
            block.madvise(mmap.MADV_HUGEPAGE)  # fewer and cheaper page faults
        return block


def _give_back(free: list[mmap.mmap], kept: int, block: mmap.mmap) -> None:
    if len(free) < kept:
        free.append(block)
