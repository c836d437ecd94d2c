"""Errors of making a row."""

from __future__ import annotations

from collections.abc import Mapping

from prepserver.opfile import BadFile


class BadSample(Exception):
    """A sample that gives no row: broken, too large, or no image.

    Whether a sample is bad is a pure function of (bytes, pipeline, key), as its pixels are.
    """

    def __init__(self, reason: str, failures: Mapping[int, str] | None = None) -> None:
        line = " ".join(reason.split())[:300]
        super().__init__(line)
        self.reason = line  # one line, for a person, without paths and addresses
        # From `make_rows` only: the place in `targets` of each row that was not made, with its reason. The other rows
        # are complete: a row must not depend on what shares its decode.
        self.failures: Mapping[int, str] = dict(failures or {})


def is_shortage(error: Exception) -> bool:
    """Say whether the process lacks a resource, or the pipeline a file: no row may depend on that."""
    if isinstance(error, RuntimeError):  # torch's
        return "allocate memory" in str(error)
    # Not a PluginError: what a plug-in asks for at a sample belongs to the sample.
    return isinstance(error, OSError | MemoryError | BadFile)
