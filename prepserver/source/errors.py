"""Errors of a dataset, and of one of its samples."""

from __future__ import annotations

import errno
import importlib
import os
from typing import Any

from prepserver.telemetry.logs import printable as printable


class SourceError(Exception):
    """The dataset cannot be used: missing, empty, unreadable or badly written. The `reason` says what to do."""

    def __init__(self, reason: str) -> None:
        self.reason = printable(reason)  # one line, although it names paths
        super().__init__(self.reason)


class SampleError(OSError):
    """The bytes of one sample cannot be read; the other samples are fine. The `reason` is a line without the path.

    If the reading process itself lacks something (descriptors, memory), that stays a plain OSError: it says nothing
    about the sample, and a row must not depend on it.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def library(module: str, what: str, extra: str) -> Any:
    """Import an optional module, or raise `SourceError`: it says `what` needs it, and which `extra` installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SourceError(f"{what} where the daemon runs: pip install 'prepserver[{extra}]' ({error})") from error


def unusable(what: str, path: str | bytes, error: OSError) -> SourceError:
    """Return the error for a failed system call on `what` of a dataset, such as "the folder", at `path`."""
    shown = printable(os.fsdecode(path))
    if isinstance(error, SampleError):
        return SourceError(f"cannot read {what} {shown}: {error.reason}")
    match error.errno:
        case errno.ENOENT:
            return SourceError(f"{what} {shown} does not exist on machine {os.uname().nodename}; check the path")
        case errno.ENOTDIR:
            return SourceError(f"{what} {shown} is not a folder")
        case errno.EACCES | errno.EPERM:
            return SourceError(
                f"no permission to read {what} {shown} as uid {os.geteuid()}; let that user read this, "
                "and enter every folder above it"
            )
        case errno.ELOOP:
            return SourceError(f"{what} {shown} is a link that leads back to itself; remove the link")
        case _:
            return SourceError(f"cannot read {what} {shown}: {error.strerror or error}")
