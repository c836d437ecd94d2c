"""One memfd: made, sized and sealed by the daemon; checked by whoever receives its descriptor.

A memfd has no name, is not bound by the size of /dev/shm, and vanishes with its last holder, so a
`kill -9` of anybody leaves nothing to clean up.
"""

from __future__ import annotations

import fcntl
import os

from prepserver.memory.errors import SegmentError

# linux/fcntl.h; Python's fcntl has the commands but not every seal on every build
_F_ADD_SEALS = 1033
_F_GET_SEALS = 1034
_F_SEAL_SEAL = 0x0001
_F_SEAL_SHRINK = 0x0002
_F_SEAL_GROW = 0x0004


def create_segment(name: str, nbytes: int) -> int:
    """A new memfd of exactly `nbytes`, sealed against resizing; no page of it is allocated yet.

    Whether the memory is there is asked before (`prepserver.memory.budget`): past a cgroup's limit the
    kernel kills instead of returning an error.

    Returns:
        The descriptor, close-on-exec; the caller owns it.
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, nbytes)
        fcntl.fcntl(fd, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_GROW | _F_SEAL_SEAL)
    except OSError:
        os.close(fd)
        raise
    return fd


def check_segment(fd: int, nbytes: int) -> None:
    """Refuses a received descriptor that could later fault under us.

    Raises:
        SegmentError: Not of `nbytes`, or not sealed against shrinking (a shrunk file is a SIGBUS).
    """
    held = os.fstat(fd).st_size
    if held != nbytes:
        raise SegmentError(f"the segment has {held} bytes, the layout says {nbytes}")
    try:
        seals = fcntl.fcntl(fd, _F_GET_SEALS)
    except OSError as e:
        raise SegmentError(f"the descriptor is not a memfd: {e}") from e
    if not seals & _F_SEAL_SHRINK:
        raise SegmentError("the segment is not sealed against shrinking")
