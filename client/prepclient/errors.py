"""The client's errors. Each text says what to do."""

from __future__ import annotations

from prepserver.pipeline.errors import InvalidSpec as InvalidSpec
from prepserver.pipeline.errors import PrepClientError as PrepClientError


class NoServer(PrepClientError):
    """No daemon listens in the runtime directory."""


class NoPermission(PrepClientError):
    """A daemon runs, but this user may not use it."""


class VersionMismatch(PrepClientError):
    """Client and daemon speak no common protocol version."""


class UnknownField(InvalidSpec):
    """`fields` names a field that batches do not have."""


class MemoryRefused(PrepClientError):
    """The daemon has no memory for the ring."""


class SourceUnavailable(PrepClientError):
    """The dataset is missing, empty or unreadable for the daemon."""


class SourceChanged(PrepClientError):
    """The dataset has changed since the running epoch or the checkpoint began."""


class ForkedClient(PrepClientError, RuntimeError):
    """A client that attached in one process is used in a fork of that process."""


class ServerBusy(PrepClientError):
    """The daemon had no place for another client within `timeout_s`."""


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
            f"sample {index} cannot be used: {reason}. Repair or remove it, or pass on_error='skip' (another sample "
            "takes its place) or on_error='mask' (the same, and the batch marks such rows)"
        )
        self.index = index
        self.reason = reason


class ServerGone(PrepClientError):
    """The daemon ended or was killed while this client used it."""


class BatchTimeout(PrepClientError, TimeoutError):
    """No batch came within `timeout_s`, although the daemon runs."""


class ProtocolViolation(PrepClientError):
    """One side sent what the protocol does not allow: a bug."""
