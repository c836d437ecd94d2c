"""Records and sources as workers see them, and how to read a file that may turn out to be anything."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from prepserver.pipeline.urls import is_url
from prepserver.source.errors import SampleError
from prepserver.source.roots import ANYWHERE, OutsideRootsError, Roots, open_below
from prepserver.source.storage import remote

# No encoded photo is nearly this large. A video or an archive in its place may be, and would take the worker down.
MAX_ENCODED_BYTES = 256 << 20

# These are troubles of this process or machine, not of the sample.
NOT_THE_SAMPLE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})

OUTSIDE = "the file lies outside the source roots of the server"

Indices = Sequence[int] | npt.NDArray[np.int64]

Record = dict[str, Any]
"""One sample as stored, by column: the number of a label; the encoded bytes of an image, or from a packed dataset an
`IndexedScan` or `StoredPixels`, which can be decoded in part; an array of the shape and dtype of its kind; boxes or
points as an array, or as a pair of that array and the (height, width) of the upright image."""


class Source(Protocol):
    """Encoded samples by index. Each worker opens it once and reads any index at any time."""

    computes: bool = False  # whether reading is mostly computing: the time for it then counts as making rows
    _classes: Sequence[str] = ()
    _stamp: int = 0
    _label: str = "label"

    def __len__(self) -> int:
        """Return the number of samples."""

    def read(self, index: int) -> Record:
        """Return the sample at an index.

        Raises:
            IndexError: `index` is not in range(len(self)).
            SampleError: This sample's bytes cannot be read.
            OSError: The process cannot read anything just now (no descriptors, no memory).
        """

    def read_columns(self, index: int, columns: Sequence[str]) -> Record:
        """Return some columns of a sample, which may cost less than to `read` it; raises what `read` does."""
        record = self.read(index)
        return {column: record[column] for column in columns}

    def read_block(self, indices: Indices, into: Mapping[str, npt.NDArray[Any]]) -> bool:
        """Read columns of many samples at once, if they are stored as rows hold them.

        `into` has an array for each of these columns, of the kind's shape and dtype, with a row for each sample. The
        result False (the default) means that the samples must be `read` one by one; the arrays may then hold anything.

        Raises:
            OSError: At least one sample cannot be read; `read` finds which, and why.
        """
        return False

    def label(self, index: int) -> int:
        """Return the label of a sample, 0 if it has none; by default from its record, unless `_label` is empty."""
        return int(self.read(index).get(self._label, 0)) if self._label else 0

    def labels(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the labels of the samples in [start, stop)."""
        return np.fromiter(map(self.label, range(start, stop)), np.int64, stop - start)

    @property
    def reads_ahead(self) -> bool:
        """Whether `prefetch` has an effect at present."""
        return False

    def prefetch(self, indices: Sequence[int]) -> None:
        """Begin to read samples that `read` will be asked for soon; do not wait. Called only if it `reads_ahead`."""
        return None

    def group(self, index: int) -> Hashable:
        """Return what a sample is decoded together with, equal for all samples of it, if a worker cannot keep that.

        By default None. A cache keeps all of them at once, because decoding them again for each one would take hours.
        """
        return None

    def name(self, index: int) -> str:
        """Return what messages call a sample: the path below the source's folder, or as the list gives it.

        Bytes that are not UTF-8 are spelled as lone surrogates.
        """

    def with_files(self, index: int, reason: str) -> str:
        """Return why a row of a sample cannot be made, with those of its files that `name` does not say."""
        return reason

    def classes(self) -> list[str]:
        """Return the names of the classes by label; empty if labels are only numbers."""
        return list(self._classes)

    @property
    def is_numbered(self) -> bool:
        """Whether some labels are only numbers, without a name."""
        return not self.classes()

    def stamp(self, index: int) -> int:
        """Return a number that changes with the stored bytes of a sample; 0 if only a new listing shows changes.

        A cache asks for it with each sample, so it may cost one system call.

        Raises:
            OSError: The sample's file is gone.
        """
        return self._stamp


def is_path(text: str) -> bool:
    """Say whether a text can be the path of a file: JSON may hold half a surrogate pair, which has no bytes."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def file_stamp(status: os.stat_result) -> int:
    """Return `Source.stamp` of a sample that is a whole file."""
    return hash((status.st_mtime_ns, status.st_size))


def read_regular_file(
    path: bytes, limit_bytes: int = MAX_ENCODED_BYTES, roots: Roots = ANYWHERE, opened: int | None = None
) -> bytes:
    """Return the whole content of a file that may turn out to be anything; about 18 us for a cached photo.

    If it is `opened`, this descriptor is read, and closed.

    Raises:
        SampleError: Missing, not allowed, outside the roots, not a regular file, empty, too large, or an I/O error.
        OSError: The process has no descriptors or memory left.
    """
    try:
        descriptor = open_below(roots, "the file", path) if opened is None else opened
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise SampleError("not a regular file")
            size = status.st_size
            if size > limit_bytes:
                raise SampleError(
                    f"{size} bytes are more than the limit of {limit_bytes} for a file that is read whole"
                )
            if size == 0:
                raise SampleError("the file is empty")
            data = os.read(descriptor, size)
            # A read may return less than asked: after a signal, or after the file was cut.
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


def remote_bytes(wanted: remote.RemoteRead, limit_bytes: int = MAX_ENCODED_BYTES) -> bytes:
    """Read what a sample needs; raises `SampleError`, which names the URL, if that fails."""
    failed = SampleError(f"{wanted.url}: the object is empty")
    try:
        if data := remote.link().read(wanted, limit_bytes):
            return data
    except OutsideRootsError:
        failed = SampleError(f"{wanted.url}: {OUTSIDE}")
    except SampleError as error:
        failed = SampleError(f"{wanted.url}: {error.reason}")
        failed.errno = error.errno
    raise failed


def read_file(path: str, limit_bytes: int = MAX_ENCODED_BYTES, roots: Roots = ANYWHERE) -> bytes:
    """Return the whole content of a file or an object; raises as `read_regular_file` and `remote_bytes`."""
    if is_url(path):
        return remote_bytes(remote.RemoteRead(path), limit_bytes)
    return read_regular_file(os.fsencode(path), limit_bytes, roots)


def _reason(error: OSError, path: bytes) -> str:
    match error.errno:
        case errno.ENOENT:
            return "the file is gone, or a link to nothing"
        case errno.EACCES if os.access(path, os.R_OK, effective_ids=True):  # Landlock does not control access(2)
            return (
                "the worker's sandbox denies it: the link led elsewhere when the dataset was listed. Touch the folder "
                "that holds the link, or the list that names it, and attach again"
            )
        case errno.EACCES | errno.EPERM:
            return f"no permission to read the file as uid {os.geteuid()}"
        case errno.ENXIO:
            return "not a regular file"
        case _:
            return f"cannot read the file: {error.strerror}"
