"""Reads samples, and waits a moment where the system's error may pass."""

from __future__ import annotations

import errno
import time

from prepserver.source import Record, Source

_TRANSIENT = (
    *(errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM),
)
_RETRY_AFTER_S = (0.01, 0.1)


def read_patiently(source: Source, index: int) -> Record:
    """Calls `source.read`, and tries again after a pause if the system's error may be transient.

    Raises:
        SampleError: The sample is bad.
        OSError: The process lacks a resource for longer than this waits: see `prepserver.transform.is_shortage`.
    """
    for wait_s in _RETRY_AFTER_S:
        try:
            return source.read(index)
        except OSError as e:
            # A SampleError has no errno, but its cause, a failed system call, has one. The cause gets no name here: a
            # local variable that holds an exception is a reference cycle through the traceback, which would keep the
            # rings of dropped lanes mapped until the garbage collector runs.
            if (e.__cause__.errno if isinstance(e.__cause__, OSError) else e.errno) not in _TRANSIENT:
                raise
            time.sleep(wait_s)
    return source.read(index)
