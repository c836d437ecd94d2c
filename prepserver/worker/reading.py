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
            if not _may_pass(e):
                raise
            time.sleep(wait_s)
    return source.read(index)


def _may_pass(error: BaseException | None) -> bool:
    """Says whether an error, or one that it came from, is a failed system call that may succeed later.

    A sample error has no errno; that of a sample's part, such as its mask, comes from another sample error. Only an
    argument may hold an exception: in `read_patiently` it would be a reference cycle through the traceback, which would
    keep the rings of dropped lanes mapped until the garbage collector runs.
    """
    return isinstance(error, OSError) and (error.errno in _TRANSIENT or _may_pass(error.__cause__))
