"""Checks that this process may open enough files: without a free descriptor, libzmq aborts the process."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator

from prepclient import errors

_DESCRIPTORS = 20
"""A client holds at most ten: five for libzmq's context, two for its socket, the lease, and two rings during a move.
The rest is for files that are open for a moment, such as those of imports, and for other threads."""


def check_descriptors() -> None:
    """Raises `TooFewDescriptors`, before a client opens anything, unless enough descriptors are free."""
    with opening(_DESCRIPTORS), contextlib.ExitStack() as held:
        first = os.eventfd(0, os.EFD_CLOEXEC)
        held.callback(os.close, first)
        for _ in range(_DESCRIPTORS - 1):
            held.callback(os.close, os.dup(first))


@contextlib.contextmanager
def opening(count: int) -> Iterator[None]:
    """Turns an `OSError` about missing descriptors into `TooFewDescriptors`."""
    try:
        yield
    except OSError as e:
        if e.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        raise too_few_descriptors(count) from e


def too_few_descriptors(needed: int) -> errors.TooFewDescriptors:
    """The error if fewer than `needed` descriptors are free."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return errors.TooFewDescriptors(
        f"a client needs {needed} free file descriptors, and this process has fewer left: its limit (RLIMIT_NOFILE, "
        f"`ulimit -n`) is {soft} and may be raised to {hard}. Raise it, or close files: /proc/{os.getpid()}/fd "
        "lists what is open"
    )
