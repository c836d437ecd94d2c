"""What can be wrong with a dataset, and with one of its samples."""

from __future__ import annotations

import errno
import os

from prepserver.telemetry.logs import printable as printable


class SourceError(Exception):
    """The dataset cannot be used: missing, empty, unreadable or badly written. The text says what to do.

    Attributes:
        reason: The text, in one line although it names paths.
    """

    def __init__(self, reason: str) -> None:
        self.reason = printable(reason)
        super().__init__(self.reason)


class SampleError(OSError):
    """The bytes of one sample cannot be read; the other samples are fine.

    If the reading process itself lacks something (descriptors, memory), that stays a plain OSError: it says nothing
    about the sample, and a row must not depend on it.

    Attributes:
        reason: One line without the path.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def unusable(what: str, path: str | bytes, error: OSError) -> SourceError:
    """Return the error for a failed system call on `what` of a dataset, such as "the folder", at `path`."""
    shown = printable(os.fsdecode(path))
    if isinstance(error, SampleError):
        return SourceError(f"cannot read {what} {shown}: {error.reason}")
    match error.errno:
        case errno.ENOENT:
            return SourceError(f"{what} {shown} does not exist on the server's machine; check the path")
        case errno.ENOTDIR:
            return SourceError(f"{what} {shown} is not a folder")
        case errno.EACCES | errno.EPERM:
            return SourceError(
                f"no permission to read {what} {shown} as uid {os.geteuid()}, the server's user; "
                "let it read this and enter every folder above it"
            )
        case errno.ELOOP:
            return SourceError(f"{what} {shown} is a link that leads back to itself")
        case _:
            return SourceError(f"cannot read {what} {shown}: {error.strerror or error}")
