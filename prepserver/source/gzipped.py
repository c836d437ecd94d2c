"""Files that gzip has compressed, read in the middle: by points, one in each MiB, from which unpacking can begin.

Listing a file unpacks it twice: once for indexed_gzip, which finds the points, and once for Python's own gzip, which
notices each kind of damage. Nothing is written unpacked. A point takes 32 KiB of the index, so 3 % of what is unpacked.
"""

from __future__ import annotations

import gzip
import io
import zlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from prepserver.source.errors import SampleError, SourceError
from prepserver.source.samples import MAX_ENCODED_BYTES
from prepserver.source.shards import Shards
from prepserver.source.storage import File, Stream, stream

try:
    import indexed_gzip  # here, because a worker can load nothing once it reads files
except ImportError:
    indexed_gzip = None

MAGIC = b"\x1f\x8b\x08"

MOST_BYTES = 64 << 30
"""Of one file, unpacked: its points then take 2 GiB, of the 8 that an indexer may have."""

_SPAN_BYTES = 1 << 20
_STEP_BYTES = 16 << 20
_POINTS_BYTES = 256 << 20
_SPANS_KEPT_BYTES = 16 << 20
"""What a source keeps of points, and of spans that are unpacked; the latest in any case."""


def check_installed(path: str) -> None:
    """Raise `SourceError` where indexed_gzip is not installed."""
    if indexed_gzip is None:
        raise SourceError(
            f"{path} is compressed (gzip), and reading it needs indexed-gzip where the daemon runs: "
            "pip install 'prepserver[tfrecord]', or unpack it, gzip -dc"
        )


class GzippedFile:
    """A compressed file, for listing: a `File` of what is in it, read in ascending order.

    Args:
        path: Its path, for messages.
        file: The file.

    Attributes:
        points: Where unpacking can begin, in indexed_gzip's form.

    Raises:
        SourceError: It is damaged or holds too much, or indexed_gzip is not installed.
        OSError: It cannot be read.
    """

    def __init__(self, path: str, file: File) -> None:
        check_installed(path)
        self._path, self._file, self.version = path, file, file.version
        self._plain, self._last = gzip.GzipFile(fileobj=stream(file)), (0, b"")
        self.size, self.points = 0, b""
        opened = _opened(Stream(file.read, file.size))
        try:
            while (at := opened.seek(self.size + _STEP_BYTES)) > self.size:  # it finds points on the way
                self.size = at
                if at > MOST_BYTES:
                    raise SourceError(
                        f"{path} holds more than {MOST_BYTES} bytes when it is unpacked, the limit for a compressed "
                        "file: write several files, or unpack it, gzip -dc"
                    )
        except OSError as error:
            self.check_end()  # it says what is wrong with the file
            if not self._plain.tell():
                return  # it holds nothing
            raise SourceError(f"{path} cannot be read in the middle ({error}): unpack it, gzip -dc") from error
        spans = pairwise([*(at for at, _ in opened.seek_points()), self.size])
        if any(end - begin > MAX_ENCODED_BYTES for begin, end in spans):
            raise SourceError(
                f"{path} cannot be read in the middle: it was compressed in pieces of more than {MAX_ENCODED_BYTES} "
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
            raise self._damaged(error) from error
        self._last = offset, data
        return data

    def whole(self) -> bytes:
        """As `File.whole`."""
        return self.read(self.size, 0)

    def close(self) -> None:
        """As `File.close`."""
        self._file.close()

    def check_end(self) -> None:
        """Read on to the end; raise `SourceError` if the file is damaged or cut off."""
        while self.read(_STEP_BYTES, self._plain.tell()):
            pass

    def _damaged(self, error: Exception) -> SourceError:
        return SourceError(f"{self._path} is cut off or damaged (gzip: {error}). Copy it again")


class GzippedShards(Shards):
    """Shards of which some are compressed; ranges are of what they hold when they are unpacked.

    Args:
        shards: The shards as they lie.
        sizes: Bytes of each shard as it lies.
        lengths: Bytes of each shard when it is unpacked.
        points: Returns `GzippedFile.points` of a shard; nothing if it is not compressed.
    """

    def __init__(
        self, shards: Shards, sizes: Sequence[int], lengths: Sequence[int], points: Callable[[int], bytes]
    ) -> None:
        self._shards, self._sizes, self._lengths, self._points = shards, sizes, lengths, points
        self.wants = shards.wants
        self._files: OrderedDict[int, _Points | None] = OrderedDict()
        self._spans: OrderedDict[tuple[int, int], bytes] = OrderedDict()

    def read(self, shard: int, offset: int, length: int) -> bytes:
        """As `Shards.read`."""
        if (points := self._file(shard)) is None:
            return self._shards.read(shard, offset, length)
        pieces = []
        for number in points.numbers(offset, length):
            begin, data = points.begins[number], self._span(shard, points, number)
            pieces.append(data[max(0, offset - begin) : offset + length - begin])
        return b"".join(pieces)

    def want(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        """As `Shards.want`."""
        self._shards.want(dict.fromkeys(self._stored(ranges)))

    def has_arrived(self, shard: int, offset: int, length: int) -> bool:
        """As `Shards.has_arrived`."""
        return all(self._shards.has_arrived(*each) for each in self._stored([(shard, offset, length)]))

    def check(self, shard: int) -> None:
        """As `Shards.check`."""
        self._shards.check(shard)

    def name(self, shard: int) -> str:
        """As `Shards.name`."""
        return self._shards.name(shard)

    def _stored(self, ranges: Iterable[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
        """Yield what must be read of the shards as they lie."""
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
            points = self._points(shard)
            made = _Points(points, self._sizes[shard], self._lengths[shard]) if points else None
            self._files[shard] = made
            while len(self._files) > 1 and sum(each.nbytes for each in self._files.values() if each) > _POINTS_BYTES:
                self._files.popitem(last=False)
        self._files.move_to_end(shard)
        return self._files[shard]


class _Points:
    """The points of a file.

    Args:
        points: `GzippedFile.points`.
        size: Bytes of the file.
        length: Bytes of what it holds.
    """

    def __init__(self, points: bytes, size: int, length: int) -> None:
        self.nbytes = len(points)
        self._held = _Held()
        self._opened = _opened(Stream(self._held.read, size))
        self._opened.import_index(fileobj=io.BytesIO(points))
        self.begins, places = map(list, zip(*self._opened.seek_points(), strict=True))
        self._ends, self._places = [*self.begins[1:], length], [0, *places[1:], size]

    def numbers(self, offset: int, length: int) -> range:
        """Return which spans hold a range."""
        return range(bisect_right(self.begins, offset) - 1, bisect_right(self.begins, offset + max(length, 1) - 1))

    def stored(self, number: int) -> tuple[int, int]:
        """Return offset and length of what must be read to unpack a span: a byte before it may be a part of it."""
        begin = max(0, self._places[number] - 1)
        return begin, self._places[number + 1] - begin

    def unpacked(self, number: int, stored: bytes) -> bytes:
        """Return a span, from the bytes that `stored` says."""
        self._held.begin, self._held.data = self.stored(number)[0], stored
        try:
            data: bytes = self._opened.pread(self._ends[number] - self.begins[number], self.begins[number])
        finally:
            self._held.data = b""
        return data


class _Held:
    """A range of a file, in the place of all of it."""

    begin = 0
    data = b""

    def read(self, length: int, offset: int) -> bytes:
        at = offset - self.begin
        return self.data[at : at + length] if at >= 0 else b""


def _opened(file: Stream) -> Any:
    """Return a file whose checksums others compare: Python's gzip, and records that have their own."""
    return indexed_gzip._IndexedGzipFile(fileobj=file, spacing=_SPAN_BYTES, skip_crc_check=True)
