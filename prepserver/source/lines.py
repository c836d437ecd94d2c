"""Files of samples one after the other, such as lines. The index holds where each begins, 8 bytes a sample.

It counts bytes over all files, one after the other. A sample ends where the next one begins, or with its file; the line
ends between them are cut off.
"""

from __future__ import annotations

import hashlib
import json
import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from prepserver.pipeline.record import class_names, label_of
from prepserver.source.container import BrokenContainerError, Container
from prepserver.source.errors import SampleError, SourceError
from prepserver.source.gzipped import GzippedShards, check_installed
from prepserver.source.ranges import refuse_compressed
from prepserver.source.reader import FilesReader, Sections
from prepserver.source.roots import Roots
from prepserver.source.samples import MAX_ENCODED_BYTES, Source
from prepserver.source.shards import open_shards
from prepserver.source.storage import File

_BLOCK_BYTES = 16 << 20
_LF, _CR, _QUOTE = b'\n\r"'
_BOM = b"\xef\xbb\xbf"

_STRETCH = 4096
"""The index holds the line number of each sample whose place is a multiple of this; others are counted from there, for
messages."""

_MOST_COUNTED_BYTES = 64 << 20  # most bytes that are read to count the lines of such a stretch, which may be long

U64 = npt.NDArray[np.uint64]


@dataclass(slots=True)
class Lines:
    """The samples in a file."""

    begins: U64  # where each sample begins in the file
    numbers: U64  # number of the line, from 1, of each `_STRETCH`-th sample
    length: int  # bytes of the file, unpacked
    header: bytes = b""  # the first record, if it names the columns
    # of a table: the number of cells of a record, then the place of each column's cell
    cells: list[int] = field(default_factory=list)
    points: bytes = b""  # `GzippedFile.points`, if it is compressed


def list_lines(path: str, file: File, found: Callable[..., None], quotes: bool = False, header: bool = False) -> Lines:
    """List one file; `found` is called with a number of samples.

    With `quotes`, a line end inside double quotes ends no sample. With `header`, the first record names the columns.

    Raises:
        SourceError: A quote is never closed, or the file is compressed, or one of Parquet's.
        OSError: It cannot be read.
    """
    begin = file.read(16, 0)
    refuse_compressed(path, begin)
    if begin.startswith(b"PAR1") and file.read(4, file.size - 4) == b"PAR1":
        raise SourceError(f"{path} is a Parquet file, which has no lines: read it with Parquet")
    begins, numbers = _begins(path, file, quotes, header, found)
    first = b""
    if header and len(begins):
        end = int(begins[1]) if len(begins) > 1 else file.size
        first = file.read(min(end - int(begins[0]), MAX_ENCODED_BYTES), int(begins[0]))
        begins = begins[1:]
    return Lines(begins, numbers, file.size, first)


def _begins(path: str, file: File, quotes: bool, header: bool, found: Callable[..., None]) -> tuple[U64, U64]:
    """Return where samples and the header begin, and `Lines.numbers`."""
    size = file.size
    at = begin = len(_BOM) if file.read(len(_BOM), 0) == _BOM else 0
    begins, numbers = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    line = number = 1  # where the block begins; of the sample that begins at `begin`
    is_open, samples, last = False, -1 if header else 0, b"-"

    def add(starts: npt.NDArray[np.int64], lines: npt.NDArray[np.int64]) -> None:
        nonlocal samples
        begins.append(starts)
        numbers.append(lines[-samples % _STRETCH :: _STRETCH].copy())
        samples += len(starts)
        found(len(starts))

    while at < size and (data := file.read(min(_BLOCK_BYTES, size - at), at)):
        block = np.frombuffer(data, np.uint8)
        ends = np.flatnonzero(block == _LF)
        lines = np.arange(line + 1, line + 1 + len(ends))  # the number of the line after each end
        line += len(ends)
        if quotes:
            marks = np.flatnonzero(block == _QUOTE)
            outside = (np.searchsorted(marks, ends) + is_open) % 2 == 0
            is_open ^= len(marks) % 2 == 1
            ends, lines = ends[outside], lines[outside]
        starts = np.concatenate(([begin], ends + (at + 1)))
        lines = np.concatenate(([number], lines))
        lengths = np.diff(starts)
        pairs = np.flatnonzero(lengths == 2)
        if len(pairs):  # perhaps CR LF and nothing else; the first CR may lie in the block before
            before = last if starts[pairs[0]] < at else b"-"
            firsts = np.concatenate((np.frombuffer(before, np.uint8), block))[starts[pairs] - at + 1]
            lengths[pairs[firsts == _CR]] = 1
        is_sample = lengths > 1
        add(starts[:-1][is_sample], lines[:-1][is_sample])
        begin, number = int(starts[-1]), int(lines[-1])
        at += len(data)
        last = data[-1:]
    if is_open:
        raise SourceError(
            f"{path}: a quote in the record of line {number} is never closed; double the quotes inside cells"
        )
    if begin < size and file.read(2, begin) != b"\r":  # the last line has no end
        add(np.array([begin]), np.array([number]))
    return np.concatenate(begins).view(np.uint64), np.concatenate(numbers).view(np.uint64)


class LinesReader(FilesReader[Lines]):
    """A reader of files of lines."""

    def list_file(self, path: str, file: File, found: Callable[..., None]) -> Lines:
        return list_lines(path, file, found)

    def table(self, paths: list[str], files: list[Lines]) -> tuple[dict[str, Any], Sections]:
        counts = [len(each.begins) for each in files]
        if not sum(counts):
            raise SourceError(f"{self.spec.location} holds no lines")
        begins = np.empty(sum(counts) + 1, np.uint64)
        at, offset = 0, 0
        for each in files:
            np.add(each.begins, np.uint64(offset), out=begins[at : at + len(each.begins)])
            at, offset = at + len(each.begins), offset + each.length
        begins[-1] = offset
        digest = hashlib.sha256(json.dumps([list(map(os.path.basename, paths)), counts]).encode())
        digest.update(begins.data)
        if classes := class_names(self.spec.columns):
            digest.update(json.dumps(classes).encode())
        meta = {
            "n": sum(counts), "classes": classes, "num_classes": len(classes), "content_digest": digest.hexdigest(),
            "counts": counts, "cells": [each.cells for each in files], "lengths": [each.length for each in files],
        }  # fmt: skip
        numbers = np.concatenate([each.numbers for each in files])
        sections = {"begins": begins.view(np.uint8).data, "numbers": numbers.view(np.uint8).data}
        if any(each.points for each in files):
            meta["points"] = [len(each.points) for each in files]
            sections["points"] = memoryview(b"".join(each.points for each in files))
        return meta, sections


class LinesSource(Source):
    """A `Source` over files of lines."""

    def __init__(self, container: Container, spec: Any, roots: Roots) -> None:
        meta = container.meta
        self._spec, self._roots, self._label = spec, roots, label_of(spec.columns)
        self._files: list[str] = meta["files"]
        self._cells: list[list[int]] = meta["cells"]
        self._shards = open_shards(self._files, meta["sizes"], roots, meta["mtimes_ns"])
        self._stamp = self._shards.stamp
        if "points" in meta:
            self._shards = self._gzipped(container)
        self._classes = class_names(spec.columns)
        self._starts = [0, *accumulate(meta["lengths"])]  # of the files
        self._firsts = [0, *accumulate(meta["counts"])]  # samples
        self._container = container
        self._begins = container.rows("begins", "QQ", 8)
        self._numbered: tuple[int, U64] = (-1, np.empty(0, np.uint64))

    def __len__(self) -> int:
        return len(self._begins)

    @property
    def reads_ahead(self) -> bool:
        return self._shards.wants

    def prefetch(self, indices: Sequence[int]) -> None:
        self._shards.want(each for each in map(self._place, indices) if each[2] <= MAX_ENCODED_BYTES)

    def _gzipped(self, container: Container) -> GzippedShards:
        ends = [0, *accumulate(container.meta["points"])]

        def points(file: int, offset: int, length: int) -> bytes:
            begin = ends[file] + offset
            return container.piece("points", begin, min(begin + length, ends[file + 1]))

        check_installed(self._files[0])
        return GzippedShards(self._shards, container.meta["sizes"], container.meta["lengths"], points)

    def _place(self, index: int) -> tuple[int, int, int]:
        """Return a sample's file, and offset and length of its bytes there."""
        begin, end = self._begins[index]
        file = bisect_right(self._starts, begin) - 1
        return file, begin - self._starts[file], min(end, self._starts[file + 1]) - begin

    def line(self, index: int) -> tuple[int, str]:
        """Return the number of a sample's file, and its line; raises `SampleError` if it is unreadable or not text."""
        file, data = self.piece(index)
        try:
            return file, data.rstrip(b"\r\n").decode()
        except UnicodeDecodeError as error:
            raise SampleError(
                f"byte {error.start} of the line, {data[error.start]:#04x}, is not UTF-8: convert the file with iconv"
            ) from None

    def piece(self, index: int) -> tuple[int, bytes]:
        """Return the number of a sample's file, and its bytes; raises `SampleError` if it cannot be read."""
        file, begin, length = self._place(index)
        if length > MAX_ENCODED_BYTES:
            raise SampleError(f"it has {length} bytes, more than the limit of {MAX_ENCODED_BYTES}")
        data = self._shards.read(file, begin, length)
        if len(data) != length:
            raise SampleError(f"{self._shards.name(file)} is cut off")
        return file, data

    def name(self, index: int) -> str:
        file = bisect_right(self._firsts, index) - 1
        place = index - self._firsts[file]
        try:
            number = self._number(file, place)
        except BrokenContainerError:
            raise
        except OSError:  # the file has changed
            number = None
        where = f"sample {place}" if number is None else f"line {number}"
        return f"{self._files[file]}, {where}"

    def _number(self, file: int, place: int) -> int | None:
        """Return the number of a sample's line in its file; None if counting it would read too much."""
        stretch = self._firsts[file] + place - place % _STRETCH
        if self._numbered[0] != stretch:
            count = min(_STRETCH, self._firsts[file + 1] - stretch)
            begins = np.frombuffer(self._container.piece("begins", 8 * stretch, 8 * (stretch + count)), np.uint64)
            before = sum(-(-count // _STRETCH) for count in np.diff(self._firsts[: file + 1]).tolist())
            mark = self._container.rows("numbers", "Q", 8)[before + place // _STRETCH][0]
            start, nbytes = int(begins[0]), int(begins[-1] - begins[0])
            if nbytes > _MOST_COUNTED_BYTES:
                return None
            data = self._shards.read(file, start - self._starts[file], nbytes)
            ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _LF)
            self._numbered = stretch, mark + np.searchsorted(ends, begins - begins[0]).astype(np.uint64)
        return int(self._numbered[1][place % _STRETCH])
