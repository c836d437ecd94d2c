"""A record and a source as workers see them, and the one way to read a file of unknown character."""

from __future__ import annotations

import errno
import os
import stat
from typing import Any, Protocol

from prepserver.source.errors import SampleError
from prepserver.source.roots import OutsideRootsError, Roots, open_below

# No encoded photo comes near; a video or an archive in the wrong place does, and would take the worker down.
MAX_ENCODED_BYTES = 256 << 20

# Trouble of this process or machine, not of the sample.
NOT_THE_SAMPLE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})

OUTSIDE = "the file lies outside the source roots of the server"


Record = dict[str, Any]
"""One sample as stored, by column: an image's encoded bytes (of a packed dataset an `IndexedScan`, of which a part can
be decoded), a label's number."""


class Source(Protocol):
    """Encoded samples by index. Opened once in each worker; any index at any time."""

    def __len__(self) -> int:
        """Number of samples."""

    def read(self, index: int) -> Record:
        """The sample at an index.

        Raises:
            IndexError: index is not in range(len(self)).
            SampleError: This sample's bytes cannot be had.
            OSError: The process cannot read anything just now (descriptors, memory).
        """

    def label(self, index: int) -> int:
        """The label of `read`, without reading."""

    def name(self, index: int) -> str:
        """What to call it in a message: the path below the source's folder, or as the list gives it.

        Bytes that are not UTF-8 are spelled as lone surrogates.
        """

    def classes(self) -> list[str]:
        """Names of the classes by label; empty where labels are only numbers."""


def read_regular_file(path: bytes, limit_bytes: int = MAX_ENCODED_BYTES, roots: Roots | None = None) -> bytes:
    """The whole content of a file that may turn out to be anything; about 18 us for a cached photo.

    Args:
        path: Where.
        limit_bytes: The largest file that is read.
        roots: Where it must lie.

    Raises:
        SampleError: Missing, not allowed, outside the roots, not a regular file, empty, too large, or an I/O error.
        OSError: The process has no descriptors or memory left.
    """
    try:
        descriptor = open_below(roots, "the file", path)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise SampleError("not a regular file")
            size = status.st_size
            if size > limit_bytes:
                raise SampleError(f"{size} bytes are more than the limit of {limit_bytes} for an encoded image")
            if size == 0:
                raise SampleError("the file is empty")
            data = os.read(descriptor, size)
            # A read may return less than was asked: after a signal, or when the file has just been cut.
            while len(data) < size and (more := os.read(descriptor, size - len(data))):
                data += more
            return data
        finally:
            os.close(descriptor)
    except SampleError:
        raise
    except OutsideRootsError:
        raise SampleError(OUTSIDE) from None
    except OSError as error:
        if error.errno in NOT_THE_SAMPLE:
            raise
        raise SampleError(_reason(error, path)) from error


def _reason(error: OSError, path: bytes) -> str:
    match error.errno:
        case errno.ENOENT:
            return "the file is gone, or a link to nothing"
        case errno.EACCES if os.access(path, os.R_OK, effective_ids=True):  # which Landlock does not rule
            return (
                "the worker's sandbox keeps it out: it lies outside the folders to which links led when the dataset "
                "was listed; touch the folder of the link, or the list, and attach again"
            )
        case errno.EACCES | errno.EPERM:
            return f"no permission to read the file as uid {os.geteuid()}"
        case errno.ENXIO:
            return "not a regular file"
        case _:
            return f"cannot read the file: {error.strerror}"
