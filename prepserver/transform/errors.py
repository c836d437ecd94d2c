"""The one error of making a row: this sample cannot be made into it, and why."""

from __future__ import annotations

from collections.abc import Mapping


class BadSample(Exception):
    """A sample that gives no row: broken, too large, or no image at all.

    Whether a sample is bad is as pure a function of (bytes, pipeline, key) as its pixels are.

    Attributes:
        reason: One line, for a person; never holds a path or an address.
        failures: Out of `make_rows` only: the place in `targets` of each row that was not made, with its reason.
            The other rows are complete: a row's fate may not depend on who shares its decode.
    """

    def __init__(self, reason: str, failures: Mapping[int, str] | None = None) -> None:
        line = " ".join(reason.split())[:300]
        super().__init__(line)
        self.reason = line
        self.failures: Mapping[int, str] = dict(failures or {})
