"""The errors of a spec: which field, which value, why."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class PrepClientError(Exception):
    """Base of all errors of prepclient. The text says what to do."""


class InvalidSpec(PrepClientError, ValueError):
    """An invalid source, pipeline or argument.

    Attributes:
        field: Path of the offending field, such as ``pipeline[1].scale``; empty if there is none.
    """

    def __init__(self, text: str, field: str = "") -> None:
        super().__init__(text)
        self.field = field


class SpecError(InvalidSpec):
    """A value that cannot work.

    Raised where the spec is built (in the client, before anything is sent), and again where it arrives (the daemon
    trusts no client).

    Attributes:
        field: See `InvalidSpec`.
        value: What was given.
        reason: What would be right, as a human-readable text.
    """

    def __init__(self, field: str, value: object, reason: str) -> None:
        shown = repr(value)
        if len(shown) > 80:
            shown = shown[:77] + "..."
        super().__init__(f"{field} = {shown}: {reason}", field)
        self.value = value
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return InvalidSpec, (str(self), self.field)  # the value may be anything, even something that cannot be pickled


@contextmanager
def within(place: str) -> Iterator[None]:
    """Put a place before the field of an error that is raised inside: ``scale`` becomes ``pipeline[1].scale``."""
    try:
        yield
    except SpecError as error:
        raise SpecError(f"{place}.{error.field}", error.value, error.reason) from None
