"""The errors of the client. Each message says what to do."""

from __future__ import annotations

from prepserver.pipeline.errors import InvalidSpec as InvalidSpec
from prepserver.pipeline.errors import PrepClientError as PrepClientError


class NoServer(PrepClientError):
    """No daemon listens in the runtime directory."""


class NoPermission(PrepClientError):
    """A daemon runs, but this user may not connect to it."""


class VersionMismatch(PrepClientError):
    """Client and daemon are of releases that do not work together."""


class UnknownField(InvalidSpec):
    """The argument `fields` names a field that batches do not have."""


class MemoryRefused(PrepClientError):
    """The ring of rows does not fit into the memory that is free or allowed."""


class SourceUnavailable(PrepClientError):
    """The dataset is missing, empty, or not readable by the daemon."""


class SourceChanged(PrepClientError):
    """The dataset has changed since the running epoch or the checkpoint began."""


class ForkedClient(PrepClientError, RuntimeError):
    """A client that was used in one process is used again in a fork of that process."""


class ServerBusy(PrepClientError):
    """The daemon had no place for another client within `timeout_s`."""


class TooFewDescriptors(PrepClientError):
    """This process has fewer free file descriptors (``ulimit -n``) than a client needs."""


class BadSampleError(PrepClientError):
    """A sample of the batch could not be made, and `on_error` is ``"raise"``.

    The next call of ``next`` gives the batch after it, without the other rows of this one. In a job of one process, a
    `state_dict` that is taken before that call begins with this batch.

    Attributes:
        index: Index of the sample in the source.
        reason: Path of the sample, and what is wrong with it.
    """

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(
            f"sample {index} cannot be used: {reason.removesuffix('.')}. Repair this, or remove the sample, and start "
            "again; or pass on_error='skip' (another sample takes its place) or on_error='mask' (the same, and the "
            "batch marks such rows)"
        )
        self.index = index
        self.reason = reason


class ServerGone(PrepClientError):
    """The daemon ended while this client used it, and none came back within `reconnect_s`.

    The next call of ``next`` tries again, and gives the batch that is due.
    """


class BatchTimeout(PrepClientError, TimeoutError):
    """The daemon runs, but gave no batch or no answer within `timeout_s`.

    The next call of ``next`` tries again, and gives the batch that is due.
    """


class ProtocolViolation(PrepClientError):
    """Client or daemon sent a message that the protocol does not allow: a bug. Please report it."""
