"""One memfd: made, sized and sealed by the daemon; checked by each process that receives its descriptor.

A memfd has no name, is not limited by the size of /dev/shm, and vanishes with its last holder, so a `kill -9` of any
process leaves nothing to clean up.
"""

from __future__ import annotations

import fcntl
import os

from prepserver.memory.errors import SegmentError

# linux/fcntl.h; not every build of Python's fcntl has every seal
_F_ADD_SEALS = 1033
_F_GET_SEALS = 1034
_F_SEAL_SEAL = 0x0001
_F_SEAL_SHRINK = 0x0002
_F_SEAL_GROW = 0x0004

FILES_LIMIT = (
    "its limit on the size of files (ulimit -f; systemd: LimitFSIZE=) counts for shared memory, too. Raise it, and "
    "start it again"
)
"""What to say of a daemon that gets EFBIG."""


def create_segment(name: str, nbytes: int) -> int:
    """Return a new memfd of exactly `nbytes`, sealed against resizing and close-on-exec; the caller owns it.

    No page of it is allocated yet. Check `prepserver.memory.budget` first: past a cgroup's limit the kernel kills
    instead of returning an error. Only this user may open the segment again through ``/proc``.
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.fchmod(fd, 0o600)
        os.ftruncate(fd, nbytes)
        fcntl.fcntl(fd, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_GROW | _F_SEAL_SEAL)
    except OSError:
        os.close(fd)
        raise
    return fd


def open_again(fd: int) -> int:
    """Open a segment a second time, so that `is_open_elsewhere` can tell the two openings apart; the caller owns it."""
    return os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)


def is_open_elsewhere(fd: int) -> bool:
    """Say whether any process has a segment open or mapped other than through `fd`, which `open_again` made.

    The kernel grants a write lease only on a file that nobody else has open for writing; the lease is given back at
    once. This also sees descriptors that were passed on, which no list of processes shows. Never pass `fd` on.
    """
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except BlockingIOError:
        return True
    except OSError:  # a kernel without leases on such files
        return False
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False


def check_segment(fd: int, nbytes: int) -> None:
    """Raise `SegmentError` unless a received descriptor has `nbytes` and cannot shrink, which would mean a SIGBUS."""
    held = os.fstat(fd).st_size
    if held != nbytes:
        raise SegmentError(f"the segment has {held} bytes, the layout says {nbytes}")
    try:
        seals = fcntl.fcntl(fd, _F_GET_SEALS)
    except OSError as e:
        raise SegmentError(f"the descriptor is not a memfd: {e}") from e
    if not seals & _F_SEAL_SHRINK:
        raise SegmentError("the segment is not sealed against shrinking")
