"""What can go wrong, each with its own name and a text that says what to do."""

from __future__ import annotations

from prepserver.pipeline.errors import PrepClientError as PrepClientError


class NoServer(PrepClientError):
    """No daemon listens in the runtime directory."""


class NoPermission(PrepClientError):
    """A daemon is there, and this user may not use it."""


class VersionMismatch(PrepClientError):
    """Client and daemon speak no common protocol version."""


class InvalidSpec(PrepClientError, ValueError):
    """A source, pipeline or argument that cannot be.

    Attributes:
        field: Path of the offending field, such as ``pipeline[1].scale``; empty if there is none.
    """

    def __init__(self, text: str, field: str = "") -> None:
        super().__init__(text)
        self.field = field


class UnknownField(InvalidSpec):
    """A field of the batch that does not exist was asked for."""


class MemoryRefused(PrepClientError):
    """The daemon has no room for the ring that was asked for."""


class SourceUnavailable(PrepClientError):
    """The dataset is missing, empty or unreadable for the daemon."""


class SourceChanged(PrepClientError):
    """The dataset has changed since the epoch that is to go on was begun."""


class ForkedClient(PrepClientError, RuntimeError):
    """A client that attached in one process is used in a fork of it."""


class ServerBusy(PrepClientError):
    """The daemon serves as many clients as it may, and had no place within `timeout_s`."""


class TooFewDescriptors(PrepClientError):
    """This process may not open as many files as a client needs (``ulimit -n``)."""


class BadSampleError(PrepClientError):
    """A sample of the batch could not be made, and `on_error` is ``"raise"``.

    Attributes:
        index: The sample's place in the source.
        reason: Path and cause.
    """

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(
            f"sample {index} cannot be used: {reason}. Mend or remove it, or pass on_error='skip' (another sample "
            "takes its place) or on_error='mask' (likewise, and the batch says which rows)"
        )
        self.index = index
        self.reason = reason


class ServerGone(PrepClientError):
    """The daemon ended or was killed while this client used it."""


class BatchTimeout(PrepClientError, TimeoutError):
    """No batch within `timeout_s`, though the daemon is there."""


class ProtocolViolation(PrepClientError):
    """The daemon said something that the protocol does not allow, or refused what we said: a bug."""
