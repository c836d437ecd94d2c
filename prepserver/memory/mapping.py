"""Maps a segment: once to write, or read-only and twice end to end.

With a ring mapped twice in a row, any run of rows is one piece of memory, even where it wraps. Python's mmap cannot
place a mapping at an address, so this module calls mmap(2) itself.

A mapping lives as long as any array or tensor that was made from its buffer, because these keep the buffer alive: a
batch that outlives the client never causes a fault.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref

from prepserver.memory.errors import SegmentError

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_MAP_FAILED = ctypes.c_void_p(-1).value
_MADV_DONTFORK = 10
_MADV_POPULATE_WRITE = 23  # Linux 5.14
_SLICE_BYTES = 16 << 20  # populated per system call


class MemoryMap:
    """Bytes [offset, offset + nbytes) of a segment, `copies` times in a row: 1, or 2 for a ring whose runs may wrap.

    `fd` may be closed afterwards. `offset` is a multiple of the page size; with 2 copies `nbytes` is one, too. Unless
    `writable`, a write through any view is a SIGSEGV, by design. A `SegmentError` has the kernel's reason.
    """

    def __init__(self, fd: int, offset: int, nbytes: int, *, writable: bool, copies: int = 1) -> None:
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        total = nbytes * copies
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        base = _libc.mmap(None, total, 0, flags, -1, 0)
        if base == _MAP_FAILED:
            raise SegmentError(f"mmap of {total} bytes of address space: {_reason()}")
        for i in range(copies):
            at = base + i * nbytes
            got = _libc.mmap(at, nbytes, protection, mmap.MAP_SHARED | _MAP_FIXED, fd, offset)
            if got != at:
                reason = _reason()
                _libc.munmap(base, total)
                raise SegmentError(f"mmap of {nbytes} bytes at {offset} of the segment: {reason}")
        # A fork of the training process (a DataLoader's worker, a subprocess) must not inherit the mapping, which would
        # keep the memory alive after this process ends.
        _libc.madvise(base, total, _MADV_DONTFORK)
        self.address: int = base  # where the mapping starts in this process
        self.nbytes = total
        self.buffer = (ctypes.c_ubyte * total).from_address(base)  # to make arrays and tensors from
        self._unmap = weakref.finalize(self.buffer, _unmap_in, os.getpid(), base, total)
        # At exit a daemon thread may still touch the mapping; the kernel unmaps it then.
        self._unmap.atexit = False

    def populate(self) -> None:
        """Make the pages of a writable mapping present, so that no first touch costs a fault later. Releases the GIL.

        Linux before 5.14 does not know the call; there the first touch faults.
        """
        for at in range(0, self.nbytes, _SLICE_BYTES):
            if _libc.madvise(self.address + at, min(_SLICE_BYTES, self.nbytes - at), _MADV_POPULATE_WRITE) != 0:
                return

    def absent_from(self, start: int) -> int:
        """Return the first byte of the first page from `start` on that is not in memory; `nbytes` if there is none."""
        page = mmap.PAGESIZE
        for at in range(start // page * page, self.nbytes, _SLICE_BYTES):
            size = min(_SLICE_BYTES, self.nbytes - at)
            found = (ctypes.c_ubyte * -(-size // page))()
            if _libc.mincore(self.address + at, size, found) != 0:
                break  # unknown
            missing = bytes(found).find(0)
            if missing >= 0:
                return at + missing * page
        return self.nbytes


def _unmap_in(pid: int, base: int, nbytes: int) -> None:
    # Because of MADV_DONTFORK, this range may hold something else in a forked child.
    if os.getpid() == pid:
        _libc.munmap(base, nbytes)


def _reason() -> str:
    return os.strerror(ctypes.get_errno())
