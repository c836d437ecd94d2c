"""How `Windows` is read: the listing says where series begin, and the rows of windows are read as blocks."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from prepserver.pipeline.kinds import ITEM_BYTES, Shape, Text
from prepserver.pipeline.record import Columns
from prepserver.pipeline.sources.windows import Windows, is_joined
from prepserver.source.composed import ComposedReader, ComposedSource, records
from prepserver.source.container import Container
from prepserver.source.errors import SampleError, SourceError
from prepserver.source.maps import I64, IndexMap, Place
from prepserver.source.progress import Progress
from prepserver.source.reader import Listing
from prepserver.source.samples import Indices, Record, Source

Into = Mapping[str, npt.NDArray[Any]]  # as in `Source.read_block`

_AT_ONCE = 1 << 16  # rows of the source that are read at once
KEPT_BYTES = 64 << 20  # of each `_Together`


class WindowsReader(ComposedReader):
    spec: Windows

    def map(self, listing: Container) -> _Series:
        return _Series(self.spec, np.frombuffer(listing.section("begins"), np.int64))

    def over(self, listing: Container, opened: Sequence[Source]) -> Source:
        return _Joined(self.spec, listing, opened, self.map(listing))

    def index(self, cache_dir: Path, report: Callable[[int], None]) -> Listing:
        info = super().index(cache_dir, report)
        more = info.samples * _nbytes(self.spec.columns[name].stored() for name in self.spec.windows)
        return replace(info, coarse_bytes=info.coarse_bytes and info.coarse_bytes + more)

    def _sections(self, opened: Sequence[Source], progress: Progress) -> dict[str, memoryview]:
        n, begins, unread = len(opened[0]), [np.zeros(1, np.int64)], [np.empty(0, np.int64)]
        last: Any = None
        for start in range(0, n, _AT_ONCE) if self.spec.within else ():
            rows = np.arange(start, min(start + _AT_ONCE, n))
            values, there = _values(opened[0], self.spec, rows)
            unread.append(np.setdiff1d(rows, there))  # nobody knows whose they are, so their windows are bad
            if len(there):
                is_new = np.append(last is not None and _is_other(values[0], last), _is_other(values[1:], values[:-1]))
                begins.append(there[is_new])
                last = values[-1]
            progress.found(start + len(rows))
        listed = np.concatenate([*begins, [n]])
        series = _Series(self.spec, listed)
        if not series.count:
            has = f"the longest series has {np.diff(listed).max()} rows, and a window needs {series.span}"
            raise SourceError(f"{self.spec.location}: {has}: join fewer, sort the rows, or pass pad=True")
        return {"begins": listed.view(np.uint8).data, "unread": np.concatenate(unread).view(np.uint8).data}


def _values(source: Source, spec: Windows, rows: I64) -> tuple[npt.NDArray[Any], I64]:
    """Return what tells the series of rows, and these rows; without those that cannot be read."""
    name = spec.within or ""
    is_text = isinstance(kind := spec.sources[0].columns[name], Text)
    into = np.empty(0 if is_text else len(rows), object if is_text else kind.stored()[1])
    with contextlib.suppress(OSError):  # one by one, to find which
        if not is_text and source.read_block(rows, {name: into}):
            return into, rows
    found = {
        row: each[name] for row, each in records(source, int(rows[0]), int(rows[-1]) + 1, name) if each is not None
    }
    return np.array([*found.values()], into.dtype), np.array([*found], np.int64)


def _is_other(value: Any, last: Any) -> Any:
    return (value != last) & ((value == value) | (last == last))  # nan, for missing, is one value


def _nbytes(stored: Iterable[tuple[Shape, str]]) -> int:
    """Return the bytes that columns take in a row."""
    return sum(math.prod(shape) * ITEM_BYTES[dtype] for shape, dtype in stored)


class _Series(IndexMap):
    """Leads from a sample to its own row; series lie between `begins`, whose last is the end of all."""

    def __init__(self, spec: Windows, begins: I64) -> None:
        places = [] if spec.pad else spec.windows.values()
        before = max(0, *(-min(each) for each in places), 0)
        after = max(0, *(max(each) for each in places), 0)
        self.span = before + after + 1
        self._begins, self._stride = begins, spec.stride
        self._firsts = begins[:-1] + before  # of each series, the row of its first sample, if it has one
        counts = (np.diff(begins) - self.span) // spec.stride + 1
        self._ends = np.cumsum(counts.clip(0))
        self.count = int(self._ends[-1])

    def at(self, index: int) -> Place:
        """As `IndexMap.at`; a binary search."""
        return 0, int(self.rows(np.array([index]))[0][0])

    def places(self, indices: I64) -> tuple[I64, I64]:
        return np.zeros_like(indices), self.rows(indices)[0]

    def rows(self, indices: I64) -> tuple[I64, I64, I64]:
        """Return the rows of samples, and the first and the last row of the series of each."""
        series = np.searchsorted(self._ends, indices, "right")
        before = np.where(series, self._ends[series - 1], 0)
        rows = self._firsts[series] + (indices - before) * self._stride
        return rows, self._begins[series], self._begins[series + 1] - 1


class _Together:
    """Columns whose rows have the same places, and are read together.

    A source that reads no blocks gives rows one by one. Unless they are too many, their numbers are kept then, because
    each is a step of many windows.
    """

    def __init__(self, source: Source, names: Sequence[str], places: Sequence[int], kinds: Columns) -> None:
        self._source, self.names, self.places = source, names, np.array(places)
        self._stored = {name: kinds[name].stored() for name in names if is_joined(kinds[name])}
        self._may_keep = len(source) * _nbytes(self._stored.values()) <= KEPT_BYTES
        self._kept: Into = {}  # by row
        self._is_kept = np.empty(0, np.bool_)

    def read(self, rows: I64, into: Into) -> None:
        """Read columns of rows into arrays of as many; raises `SampleError`, which names the row that is bad."""
        flat = {name: each.reshape(rows.size, *self._stored[name][0]) for name, each in into.items()}
        rows = rows.ravel()
        if not (self._kept and self._is_kept[rows].all()):
            with contextlib.suppress(OSError):  # one by one, to find which
                if self._source.read_block(rows, flat):
                    return
        values, rows = self._one_by_one(rows, list(into))
        for name, each in flat.items():
            np.take(values[name], rows, axis=0, out=each)

    def _one_by_one(self, rows: I64, names: Sequence[str]) -> tuple[Into, I64]:
        """Return values of columns, and where those of each row are."""
        if not self._may_keep:
            distinct, places = np.unique(rows, return_inverse=True)
            values = self._empty(len(distinct), names)
            for place, row in enumerate(distinct.tolist()):
                self.read_row(row, values, place)
            return values, places
        if not self._kept:
            self._kept = self._empty(len(self._source), [*self._stored])
            self._is_kept = np.zeros(len(self._source), np.bool_)
        for row in self.missing(rows).tolist():
            self.read_row(row, self._kept, row)
            self._is_kept[row] = True
        return self._kept, rows

    def missing(self, rows: I64) -> I64:
        """Return rows that are not kept, each once."""
        return np.unique(rows[~self._is_kept[rows]] if self._kept else rows)

    def _empty(self, count: int, names: Sequence[str]) -> Into:
        return {name: np.empty((count, *self._stored[name][0]), self._stored[name][1]) for name in names}

    def read_row(self, row: int, into: Into, place: int) -> None:
        """Read columns of one row to a place of arrays; raises as `read`."""
        try:
            found = self._source.read_columns(row, list(into))
        except SampleError as error:  # the same one: its class and cause say whether it may pass
            error.reason = f"its row {self._source.name(row)}: {error.reason}"
            error.args = (error.reason,)
            raise
        for name, value in found.items():
            into[name][place] = value


class _Joined(ComposedSource):
    """A `Source` of windows."""

    def __init__(self, spec: Windows, listing: Container, opened: Sequence[Source], series: _Series) -> None:
        super().__init__(spec, listing, opened, series)
        self._source, self._series, self._pads = opened[0], series, spec.pad
        self._within, self._masks, windows = spec.within or "", spec.masks, spec.windows
        self._unread = np.frombuffer(listing.section("unread"), np.int64)
        self._columns = list(spec.columns)
        self._made = {name: spec.columns[name].stored() for name in (*windows, *spec.masks.values())}
        self._numbers = {name for name, kind in spec.columns.items() if is_joined(kind)}
        alike: defaultdict[Sequence[int], list[str]] = defaultdict(list)
        kinds = {name: kind for name, kind in spec.sources[0].columns.items() if name in spec.columns}
        for name in kinds:
            alike[windows.get(name, (0,))].append(name)
        self._parts = [_Together(opened[0], names, each, kinds) for each, names in alike.items()]
        self._at_once = max(1, _AT_ONCE // max(map(len, alike)))
        if self._label in windows:  # the labels of steps, which no composition numbers anew
            self._classes, self._is_numbered = [], False

    def read(self, index: int) -> Record:
        return self.read_columns(index, self._columns)

    def read_columns(self, index: int, columns: Sequence[str]) -> Record:
        _, own = self._at(index)
        into = {name: np.empty((1, *shape), dtype) for name, (shape, dtype) in self._made.items() if name in columns}
        self._join(np.array([index]), into)
        rest = [name for name in columns if name not in into]
        record = {name: each[0] for name, each in into.items()}
        record |= self._source.read_columns(own, rest) if rest else {}
        return {name: record[name] for name in columns}

    def read_block(self, indices: Indices, into: Into) -> bool:
        if self.reads_ahead or not into.keys() <= self._numbers:
            return False  # the first: each sample may have to be waited for, with its own deadline
        asked = np.asarray(indices, np.int64)
        if not 0 <= asked.min() <= asked.max() < self._count:
            raise IndexError(f"indices {asked.min()} to {asked.max()} of a source of {self._count} samples")
        for at in range(0, len(asked), self._at_once):
            here = slice(at, at + self._at_once)
            self._join(asked[here], {name: each[here] for name, each in into.items()})
        return True

    def _join(self, indices: I64, into: Into) -> None:
        """Read columns of samples, the rows of all windows at once; raises `SampleError`."""
        for part, rows, is_pad in self._rows(indices):
            wanted = {name: into[name] for name in part.names if name in into}
            for mask in {self._masks.get(name, "") for name in part.names} & into.keys():
                into[mask][...] = is_pad
            if wanted:
                part.read(rows, wanted)
                for row in np.intersect1d(rows, self._unread).tolist() if self._unread.size else ():
                    part.read_row(row, {self._within: np.empty(1, object)}, 0)
                    where = f"the {self._within} of its row {self._source.name(row)}"
                    raise SampleError(f"{where} could not be read when it was listed: touch its file, and attach again")

    def _rows(self, indices: I64) -> Iterator[tuple[_Together, I64, npt.NDArray[np.bool_]]]:
        """Yield columns of the source, the rows that each of these samples needs of them, and which are padding."""
        own, first, last = (each[:, None] for each in self._series.rows(indices))
        for part in self._parts:
            rows = own + part.places
            inside = rows.clip(first, last) if self._pads else rows
            yield part, inside, inside != rows

    def prefetch(self, indices: Sequence[int]) -> None:
        rows = [part.missing(rows) for part, rows, _ in self._rows(np.asarray(indices, np.int64))]
        self._source.prefetch(np.concatenate(rows).tolist())
