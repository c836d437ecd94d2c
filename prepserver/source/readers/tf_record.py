"""How `TFRecord` is read: listing finds where each record begins, and reading parses a record.

A record is its length (uint64), the checksum of the length, its bytes, and their checksum. Listing compares the first
checksum, reading the second. In a compressed file, places count unpacked bytes.
"""

from __future__ import annotations

import logging
import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from prepserver.pipeline.kinds import Array, Bytes, Image, Kind, Label, Mask, Scalar, Text
from prepserver.pipeline.sources.tf_record import TFRecord
from prepserver.source import example
from prepserver.source.container import Container
from prepserver.source.errors import SampleError, SourceError
from prepserver.source.gzipped import MAGIC, GzippedFile
from prepserver.source.lines import Lines, LinesReader, LinesSource
from prepserver.source.reader import Sections
from prepserver.source.roots import Roots
from prepserver.source.samples import Indices, Record
from prepserver.source.storage import File
from prepserver.source.values import value_of

try:
    import google_crc32c  # here, because a worker can load nothing once it reads files
except ImportError:
    google_crc32c = None  # type: ignore[assignment]

log = logging.getLogger(__name__)

_HEAD = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_SMALL_BYTES = 4096
_BLOCK_BYTES = 1 << 16  # small records are listed in blocks; of larger ones only the heads are read

_FOUND_EVERY = 1024
_NO_NUMBERS = (), None, -1
_NOTHING: list[bytes] = []  # what a feature without a value is read as
_SHOWN = 20


def masked_crc(data: bytes) -> int:
    """Return the checksum of TFRecord files: CRC-32C, rotated, plus a constant."""
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _check_installed() -> None:
    if google_crc32c is None:
        raise SourceError("TFRecord needs google-crc32c where the daemon runs: pip install 'prepserver[tfrecord]'")


def _is_gzipped(file: File) -> bool:
    """Say whether a file is compressed; the length of a first record may be the same bytes, but has a checksum."""
    head = file.read(_HEAD.size, 0)
    return head.startswith(MAGIC) and (len(head) < _HEAD.size or masked_crc(head[:8]) != _HEAD.unpack(head)[1])


def _begins(path: str, file: File | GzippedFile) -> Iterator[int]:
    block, start, at, length, size = b"", 0, 0, 0, file.size
    while at < size:
        head = block[at - start : at - start + _HEAD.size]
        if len(head) < _HEAD.size:
            block, start = file.read(_BLOCK_BYTES if length <= _SMALL_BYTES else _HEAD.size, at), at
            head = block[: _HEAD.size]
        if len(head) < _HEAD.size:
            raise SourceError(f"{path} is cut off: a record at byte {at} of {size} has no length. Copy it again")
        length, crc = _HEAD.unpack(head)
        if masked_crc(head[:8]) != crc:
            what, do = ("is damaged", ". Copy it again") if at else ("is not a TFRecord file, or compressed", "")
            raise SourceError(f"{path} {what}: the checksum of the length at byte {at} of {size} is wrong{do}")
        if at + _HEAD.size + length + _CRC.size > size:
            raise SourceError(f"{path} is cut off: a record at byte {at} of {size} has {length} bytes. Copy it again")
        yield at
        at += _HEAD.size + length + _CRC.size


class _Examples(LinesSource):
    def __init__(self, container: Container, spec: TFRecord, roots: Roots) -> None:
        _check_installed()
        super().__init__(container, spec, roots)
        self._taken = [(name, kind, spec.names.get(name, name).encode()) for name, kind in spec.columns.items()]
        numbers = {
            name: kind.stored()
            for name, kind, _ in self._taken
            if isinstance(kind, Label | Scalar | Array) and not _is_ragged(kind)
        }
        self._plain = {name: (shape, np.dtype(dtype), prod(shape)) for name, (shape, dtype) in numbers.items()}
        self._wanted = frozenset(feature for _, _, feature in self._taken)

    def read(self, index: int) -> Record:
        _, frame = self.piece(index)
        at, end = _HEAD.size, len(frame) - _CRC.size
        if _HEAD.unpack_from(frame)[0] != end - at or masked_crc(frame[at:end]) != _CRC.unpack_from(frame, end)[0]:
            raise SampleError("its checksum is wrong: the record is damaged")
        try:
            found = example.features(frame, at, end, self._wanted)
        except example.BrokenExampleError as error:
            raise SampleError(f"it is not a tf.train.Example: {error}") from None
        if len(found) < len(self._wanted):
            for _, kind, feature in self._taken:
                if feature not in found and not kind.may_be_missing:
                    has = sorted(name.decode("utf-8", "replace") for name in example.names(frame, at, end))[:_SHOWN]
                    raise SampleError(f"it has no feature {feature.decode()!r}; it has: {', '.join(has) or 'none'}")
        record: Record = {}
        for name, kind, feature in self._taken:
            given = found.get(feature, _NOTHING)
            shape, dtype, size = self._plain.get(name, _NO_NUMBERS)
            is_plain = isinstance(given, np.ndarray) and given.dtype == dtype and given.size == size
            if is_plain and not (isinstance(kind, Label) and (given[0] < 0 or kind.classes)):  # type: ignore[operator]
                record[name] = given.reshape(shape)  # type: ignore[union-attr]
            else:
                record[name] = _value(name, kind, given)
        return record

    def read_block(self, indices: Indices, into: Mapping[str, npt.NDArray[Any]]) -> bool:
        if self.reads_ahead:
            return False  # each sample may have to be waited for, with its own deadline
        for place, index in enumerate(indices):
            for column, value in self.read_columns(int(index), list(into)).items():
                into[column][place] = value
        return True

    def name(self, index: int) -> str:
        file = bisect_right(self._firsts, index) - 1
        return f"{self._files[file]}, record {index - self._firsts[file]}"


class TFRecordReader(LinesReader):
    spec: TFRecord
    source = _Examples

    def list_file(self, path: str, file: File, found: Callable[..., None]) -> Lines:
        _check_installed()
        plain = GzippedFile(path, file) if _is_gzipped(file) else file
        begins = array("Q")
        for begin in _begins(path, plain):
            begins.append(begin)
            if not len(begins) % _FOUND_EVERY:
                found(_FOUND_EVERY)
        listed = Lines(np.array(begins, np.uint64), np.empty(0, np.uint64), plain.size)
        if isinstance(plain, GzippedFile):
            plain.check_end()
            listed.points = plain.points
        return listed

    def table(self, paths: list[str], files: list[Lines]) -> tuple[dict[str, Any], Sections]:
        if not any(len(each.begins) for each in files):
            raise SourceError(f"{self.spec.location} holds no records")
        if compressed := sum(1 for each in files if each.points):
            log.warning(
                "%s has %d compressed files: in a shuffled order most samples unpack a MiB. To be faster, keep a cache "
                "(cache='encoded'), shuffle whole batches (order='batch-shuffle-repeat'), or unpack them, gzip -d",
                self.spec.location, compressed,
            )  # fmt: skip
        return super().table(paths, files)


def _value(column: str, kind: Kind, given: example.Value) -> Any:
    """Return a feature as a value of a kind."""
    if kind.may_be_missing and not len(given):
        return value_of(column, kind, None)
    is_name = isinstance(kind, Label) and kind.classes and isinstance(given, list)
    if is_name or isinstance(kind, Image | Mask | Text | Bytes):
        if not (isinstance(given, list) and len(given) == 1):
            raise SampleError(f"its {column} is {_described(given)}, and must be one value of bytes")
        try:
            found = given[0].decode() if is_name or isinstance(kind, Text) else given[0]
        except UnicodeDecodeError as error:
            raise SampleError(f"byte {error.start} of its {column} is not UTF-8") from None
        return value_of(column, kind, found) if is_name else found
    if isinstance(kind, Label | Scalar | Array) and not _is_ragged(kind):
        return _of_shape(column, kind, given)
    if isinstance(given, list) and given:
        if isinstance(kind, Array) and len(given) == 1 and len(given[0]) % np.dtype(kind.dtype).itemsize == 0:
            return np.frombuffer(given[0], kind.dtype)
        wanted = f"numbers of type {kind.dtype}" if isinstance(kind, Array) else "integers"
        raise SampleError(f"its {column} is {_described(given)}, and must be {wanted}")
    return value_of(column, kind, np.asarray(given))


def _of_shape(column: str, kind: Label | Scalar | Array, given: example.Value) -> Any:
    """Return numbers of the shape that a kind has, or their bytes as an array."""
    shape, dtype = kind.stored()
    if isinstance(kind, Array) and isinstance(given, list) and len(given) == 1:
        if len(given[0]) == np.dtype(dtype).itemsize * prod(shape):
            return np.frombuffer(given[0], dtype).reshape(shape)
    elif isinstance(given, np.ndarray) and given.size == prod(shape):
        return value_of(column, kind, given.reshape(shape))
    raise SampleError(f"its {column} is {_described(given)}, and must be {prod(shape)} numbers of type {dtype}")


def _is_ragged(kind: Kind) -> bool:
    return isinstance(kind, Array) and kind.shape is None


def _described(given: example.Value) -> str:
    if isinstance(given, list):
        return f"one value of {len(given[0])} bytes" if len(given) == 1 else f"{len(given)} values of bytes"
    return f"{given.size} numbers of type {given.dtype}"
