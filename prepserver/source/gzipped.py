"""Random access to files compressed by gzip: points, one in each MiB, from which unpacking can begin.

Listing a file unpacks it twice: once for indexed_gzip, which finds the points, and once for Python's own gzip, which
notices each kind of damage. Nothing is written unpacked. A point takes 32 KiB of the index, 3 % of the unpacked size.
"""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from prepserver.pipeline.urls import is_url
from prepserver.source.errors import SampleError, SourceError
from prepserver.source.samples import MAX_ENCODED_BYTES
from prepserver.source.shards import Shards
from prepserver.source.storage import File, Stream, stream

try:
    import indexed_gzip  # here, because a worker can load nothing once it reads files
except ImportError:
    indexed_gzip = None

MAGIC = b"\x1f\x8b\x08"

MOST_BYTES = 64 << 30  # of one file, unpacked: its points take 2 GiB then, of the 8 GiB that an indexer may have

_HELD_BYTES = 256 << 20
"""A file on the network of up to this size is held in memory while it is listed, up to eight at a time; a larger one is
downloaded twice."""

_SPAN_BYTES = 1 << 20
_STEP_BYTES = 16 << 20
_SPANS_KEPT_BYTES = 16 << 20  # most bytes of unpacked spans that a source keeps; it always keeps the latest one

# Points in indexed_gzip's form, a file that its C library writes: a head, a table, and 32 KiB for most of them.
_HEAD = struct.Struct("<31sI")
_POINT = np.dtype([("place", "<u8"), ("begin", "<u8"), ("bits", "u1"), ("windows", "u1")])
_WINDOW_BYTES = 32768


def check_installed(path: str) -> None:
    """Raise `SourceError` where indexed_gzip is not installed."""
    if indexed_gzip is None:
        raise SourceError(
            f"{path} is compressed (gzip), and reading it needs indexed-gzip where the daemon runs: "
            "pip install 'prepserver[tfrecord]', or unpack it, gzip -dc"
        )


class GzippedFile:
    """A compressed file, for listing: its unpacked content, read in ascending order.

    Its `points` say where unpacking can begin, in indexed_gzip's form.

    Raises:
        SourceError: It is damaged or holds too much, or indexed_gzip is not installed.
        OSError: It cannot be read.
    """

    def __init__(self, path: str, file: File) -> None:
        check_installed(path)
        self._path = path
        if is_url(path) and file.size <= _HELD_BYTES:  # downloaded once
            content = file.whole()
            twice: list[Any] = [io.BytesIO(content), io.BytesIO(content)]
        else:
            twice = [stream(file), Stream(file.read, file.size)]
        self._plain, self._last = gzip.GzipFile(fileobj=twice[0]), (0, b"")
        self.size, self.points = 0, b""
        opened = _opened(twice[1])
        try:
            while (at := opened.seek(self.size + _STEP_BYTES)) > self.size:  # seeking finds the points
                self.size = at
                if at > MOST_BYTES:
                    raise SourceError(
                        f"{path} holds more than {MOST_BYTES} bytes when it is unpacked, the limit for a compressed "
                        "file: write several files, or unpack it, gzip -dc"
                    )
        except OSError as error:
            self.check_end()  # raises if the file is damaged
            if not self._plain.tell():
                return  # it holds nothing
            raise SourceError(f"{path} cannot be read from its middle ({error}): unpack it, gzip -dc") from error
        spans = pairwise([*(at for at, _ in opened.seek_points()), self.size])
        if any(end - begin > MAX_ENCODED_BYTES for begin, end in spans):
            raise SourceError(
                f"{path} cannot be read from its middle: it was compressed in pieces of more than {MAX_ENCODED_BYTES} "
                "bytes. Unpack it, gzip -dc"
            )
        opened.export_index(fileobj=(points := io.BytesIO()))
        self.points = points.getvalue()

    def read(self, length: int, offset: int) -> bytes:
        """As `File.read`; a range may begin in the one before it."""
        begin, last = self._last
        kept = last[offset - begin :][:length] if begin <= offset else b""
        try:
            self._plain.seek(offset + len(kept))
            data = kept + self._plain.read(length - len(kept))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise SourceError(f"{self._path} is cut off or damaged (gzip: {error}). Copy it again") from error
        self._last = offset, data
        return data

    def check_end(self) -> None:
        """Read on to the end; raise `SourceError` if the file is damaged or cut off."""
        while self.read(_STEP_BYTES, self._plain.tell()):
            pass


class GzippedShards(Shards):
    """Shards of which some are compressed; ranges are ranges of their unpacked content.

    `sizes` are the sizes of the stored shards, `lengths` of their unpacked content. `points` returns a range of a
    shard's `GzippedFile.points`, by offset and length; b"" if the shard is not compressed.
    """

    def __init__(
        self, shards: Shards, sizes: Sequence[int], lengths: Sequence[int], points: Callable[[int, int, int], bytes]
    ) -> None:
        self._shards, self._sizes, self._lengths, self._points = shards, sizes, lengths, points
        self.wants = shards.wants
        self._files: dict[int, _Points | None] = {}
        self._spans: OrderedDict[tuple[int, int], bytes] = OrderedDict()

    def read(self, shard: int, offset: int, length: int) -> bytes:
        if (points := self._file(shard)) is None:
            return self._shards.read(shard, offset, length)
        pieces = []
        for number in points.numbers(offset, length):
            begin, data = int(points.begins[number]), self._span(shard, points, number)
            pieces.append(data[max(0, offset - begin) : offset + length - begin])
        return b"".join(pieces)

    def want(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        self._shards.want(dict.fromkeys(self._stored(ranges)))

    def has_arrived(self, shard: int, offset: int, length: int) -> bool:
        return all(self._shards.has_arrived(*each) for each in self._stored([(shard, offset, length)]))

    def check(self, shard: int) -> None:
        self._shards.check(shard)

    def name(self, shard: int) -> str:
        return self._shards.name(shard)

    def _stored(self, ranges: Iterable[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
        """Yield the ranges of the stored shards that must be read."""
        for shard, offset, length in ranges:
            if (points := self._file(shard)) is None:
                yield shard, offset, length
            else:
                numbers = points.numbers(offset, length)
                yield from ((shard, *points.stored(each)) for each in numbers if (shard, each) not in self._spans)

    def _span(self, shard: int, points: _Points, number: int) -> bytes:
        data = self._spans.get((shard, number))
        if data is None:
            at, length = points.stored(number)
            stored = self._shards.read(shard, at, length)
            try:
                data = points.unpacked(number, stored)
            except (indexed_gzip.ZranError, indexed_gzip.NotCoveredError) as error:
                raise SampleError(f"{self.name(shard)} cannot be unpacked: it is damaged, or has changed") from error
            self._spans[shard, number] = data
            while len(self._spans) > 1 and sum(map(len, self._spans.values())) > _SPANS_KEPT_BYTES:
                self._spans.popitem(last=False)
        self._spans.move_to_end((shard, number))
        return data

    def _file(self, shard: int) -> _Points | None:
        if shard not in self._files:
            piece = partial(self._points, shard)
            is_compressed = bool(piece(0, 1))
            self._files[shard] = _Points(piece, self._sizes[shard], self._lengths[shard]) if is_compressed else None
        return self._files[shard]


class _Points:
    """The points of a file of `size` bytes that holds `length`; the window of one is read when unpacking begins there.

    `piece` returns a range of `GzippedFile.points`. Attribute `begins`: where each span begins and the last one ends.
    """

    def __init__(self, piece: Callable[[int, int], bytes], size: int, length: int) -> None:
        self._piece, self._size = piece, size
        self._head, count = _HEAD.unpack(piece(0, _HEAD.size))
        self._table = np.frombuffer(piece(_HEAD.size, count * _POINT.itemsize), _POINT)
        self.begins = np.append(self._table["begin"], length).astype(np.int64)
        self._places = np.append(self._table["place"], size).astype(np.int64)
        self._places[0] = 0
        before = np.cumsum(self._table["windows"], dtype=np.int64) - self._table["windows"]
        self._windows = _HEAD.size + self._table.nbytes + before * _WINDOW_BYTES

    def numbers(self, offset: int, length: int) -> range:
        """Return which spans hold a range."""
        first, last = np.searchsorted(self.begins[:-1], (offset, offset + max(length, 1) - 1), "right").tolist()
        return range(first - 1, last)

    def stored(self, number: int) -> tuple[int, int]:
        """Return offset and length of the stored bytes that a span needs: the byte before it may be a part of it."""
        place, end = self._places[number : number + 2].tolist()
        begin = max(0, place - 1)
        return begin, end - begin

    def unpacked(self, number: int, stored: bytes) -> bytes:
        """Unpack a span from its stored bytes."""
        first, point = self.stored(number)[0], self._table[number : number + 1]
        begin, end = self.begins[number : number + 2].tolist()

        def read(length: int, offset: int) -> bytes:
            return stored[offset - first : offset - first + length] if offset >= first else b""

        window = self._piece(int(self._windows[number]), _WINDOW_BYTES * int(point["windows"][0]))
        opened = _opened(Stream(read, self._size))
        opened.import_index(fileobj=io.BytesIO(_HEAD.pack(self._head, 1) + point.tobytes() + window))
        data: bytes = opened.pread(end - begin, begin)
        return data


def _opened(file: Stream | io.BytesIO) -> Any:
    """Open without comparing checksums: Python's gzip compares them when listing, and records have their own."""
    return indexed_gzip._IndexedGzipFile(fileobj=file, spacing=_SPAN_BYTES, skip_crc_check=True)
