"""The one error of a spec: which field, which value, why."""

from __future__ import annotations


class PrepClientError(Exception):
    """Base of all errors of prepclient. The text says what to do."""


class SpecError(PrepClientError, ValueError):
    """A source, order or pipeline that cannot work.

    Raised where the spec is built (in the client, before anything is sent), and again where it arrives (the daemon
    trusts no client).

    Attributes:
        field: Path of the offending field, such as ``pipeline[1].scale``.
        value: What was given.
        reason: What would be right, for a person.
    """

    def __init__(self, field: str, value: object, reason: str) -> None:
        shown = repr(value)
        if len(shown) > 80:
            shown = shown[:77] + "..."
        super().__init__(f"{field} = {shown}: {reason}")
        self.field = field
        self.value = value
        self.reason = reason
