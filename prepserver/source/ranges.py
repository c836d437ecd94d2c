"""Samples that are ranges of bytes in large files: listed file by file, and read without knowledge of the format.

For each sample the index holds its file, its label, and where the bytes of each other column lie.
"""

from __future__ import annotations

import itertools
import os
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from prepserver.pipeline.kinds import Array, Text, Tokens
from prepserver.pipeline.record import label_of
from prepserver.pipeline.table import NamedColumnsSpec
from prepserver.pipeline.urls import is_url
from prepserver.source.container import Container
from prepserver.source.errors import SampleError, SourceError
from prepserver.source.files import FileTable, FileTableSource
from prepserver.source.reader import FilesReader, Sections
from prepserver.source.roots import Roots
from prepserver.source.samples import MAX_ENCODED_BYTES, Record, Source
from prepserver.source.shards import open_shards
from prepserver.source.values import value_of

MISSING = (1 << 64) - 1  # takes the place of an offset if the sample lacks the column

_COMPRESSED = re.compile(rb"(?P<gzip>\x1f\x8b)|(?P<zstd>\x28\xb5\x2f\xfd)|(?P<bzip2>BZh[1-9]1AY&SY)|(?P<xz>\xfd7zXZ)")


def refuse_compressed(path: str, begin: bytes) -> None:
    """Raise `SourceError` if a file begins as one that is compressed: nothing in its middle could be read."""
    if found := _COMPRESSED.match(begin):
        raise SourceError(f"{path} is compressed ({found.lastgroup}), so no sample can be read alone: unpack it once")


@dataclass(slots=True)
class Listed:
    """The samples in a file: their names, and class numbers, 0 without labels.

    `places` has (offsets, lengths) by sample for each column that is read from the file; see `MISSING`. `dtypes` has
    the element types of columns that are plain numbers in the file.
    """

    keys: list[bytes]
    labels: array[int]
    places: list[tuple[array[int], array[int]]]
    dtypes: dict[str, str] = field(default_factory=dict)

    @classmethod
    def empty(cls, columns: int) -> Self:
        """Return a listing of no samples yet, with this number of `columns`."""
        return cls([], array("q"), [(array("Q"), array("Q")) for _ in range(columns)])


class RangesSource(FileTableSource):
    """A `Source` that reads columns from listed files; a column ``label`` that is not among them is in the index.

    As a `FileTableSource`, it has files as folders and keys as names; the further numbers of each sample are the number
    of the file (uint32), then (offset, length) of each column (both uint64).
    """

    absent = "{file} has no {column} for it"  # what is said of a `MISSING` value

    def __init__(self, container: Container, spec: NamedColumnsSpec, roots: Roots) -> None:
        self._columns = self.stored(spec)
        self._has_label = len(self._columns) < len(spec.columns)
        self._label = label_of(spec.columns, "")
        self._kinds = spec.columns
        self._may_be_empty = {name for name, kind in self._kinds.items() if isinstance(kind, Text | Tokens | Array)}
        super().__init__(container, more="I" + "QQ" * len(self._columns))
        meta = container.meta
        self._stamps = list(zip(meta["sizes"], meta["mtimes_ns"], strict=True))
        self._shards = open_shards(meta["files"], meta["sizes"], roots, meta["mtimes_ns"])

    @staticmethod
    def stored(spec: NamedColumnsSpec) -> list[str]:
        """Return the columns that are read from the files."""
        return [column for column in spec.columns if column != "label" or not spec.has_listed_label]

    def label(self, index: int) -> int:
        if self._has_label or not self._label:
            return super().label(index)
        return int(self._read_one(index, self._label))

    def read_columns(self, index: int, columns: Sequence[str]) -> Record:
        # In a bucket, `prefetch` asks for all columns, and `read` takes them.
        if self._shards.wants or not {*columns} <= {*self._columns}:
            return super().read_columns(index, columns)
        return {column: self._read_one(index, column) for column in columns}

    def _read_one(self, index: int, column: str) -> Any:
        _, _, file, *places = self.entry(index)
        at = 2 * self._columns.index(column)
        return self._read(file, column, places[at], places[at + 1], {})

    def labels(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        return super().labels(start, stop) if self._has_label else Source.labels(self, start, stop)

    def value(self, column: str, data: bytes) -> Any:
        """Return the value of a column from its bytes; raises `SampleError` if they hold none."""
        return data

    @property
    def reads_ahead(self) -> bool:
        return self._shards.is_slow

    def prefetch(self, indices: Sequence[int]) -> None:
        self._shards.want(itertools.chain.from_iterable(map(self._ranges, indices)))

    def _ranges(self, index: int) -> Iterator[tuple[int, int, int]]:
        _, _, file, *places = self.entry(index)
        for offset, length in zip(places[::2], places[1::2], strict=True):
            if offset != MISSING and 0 < length <= MAX_ENCODED_BYTES:
                yield file, offset, length

    def read(self, index: int) -> Record:
        label, _, file, *places = self.entry(index)
        record: dict[str, Any] = {}
        pieces: dict[tuple[int, int], bytes] = {}  # several columns may be in one
        for column, offset, length in zip(self._columns, places[::2], places[1::2], strict=True):
            record[column] = self._read(file, column, offset, length, pieces)
        if self._has_label:
            record["label"] = label
        return record

    def _read(self, file: int, column: str, offset: int, length: int, pieces: dict[tuple[int, int], bytes]) -> Any:
        if offset == MISSING:
            if self._kinds[column].may_be_missing:
                return value_of(column, self._kinds[column], None)
            raise SampleError(self.absent.format(column=column, file=self._shards.name(file)))
        if length > MAX_ENCODED_BYTES:
            raise SampleError(f"its {column} has {length} bytes, more than the limit of {MAX_ENCODED_BYTES}")
        data = pieces.get((offset, length), b"")
        if length and not data:
            data = pieces[offset, length] = self._shards.read(file, offset, length)
        if len(data) != length or not (length or column in self._may_be_empty):
            raise SampleError(f"its {column} is {'cut off' if length else 'empty'} in {self._shards.name(file)}")
        return self.value(column, data)

    def stamp(self, index: int) -> int:
        """As `Source.stamp`: of the file as listed, because `read` refuses a file that has changed since."""
        entry = self.entry(index)
        return hash((self._stamps[entry[2]], entry[3:]))


def _names_of(paths: list[str]) -> list[str]:
    """Return paths relative to the folder that holds all files: the listing stays the same if the dataset moves."""
    absolute = [f"/{path.partition('://')[2]}" if is_url(path) else path for path in paths]
    base = os.path.commonpath(list(map(os.path.dirname, absolute)))
    return [os.path.relpath(path, base) for path in absolute]


class RangesReader(FilesReader[Listed]):
    """A reader of files whose samples each have a name, a label, and a range of bytes for each other column."""

    spec: NamedColumnsSpec
    source: type[RangesSource] = RangesSource

    def classes(self) -> list[str]:
        """Return the names of the classes by label; empty if labels are only numbers."""
        return []

    @property
    def columns(self) -> dict[str, str]:
        """Columns that are read from the files, and their names there; others are in the index."""
        return {column: self.spec.name_of(column) for column in self.source.stored(self.spec)}

    def table(self, paths: list[str], files: list[Listed]) -> tuple[dict[str, Any], Sections]:
        table = FileTable()
        more = [array("I"), *(array("Q") for _ in self.columns for _ in range(2))]
        for number, (path, listed) in enumerate(zip(_names_of(paths), files, strict=True)):
            folder = os.fsencode(path) + b"/"
            for key, label in zip(listed.keys, listed.labels, strict=True):
                table.add(folder + key, label)
            more[0].extend(itertools.repeat(number, len(listed.keys)))
            for column, found in zip(more[1:], itertools.chain.from_iterable(listed.places), strict=True):
                column.extend(found)
        for (named, there), offsets in zip(self.columns.items(), more[1::2], strict=True):
            if all(offset == MISSING for offset in offsets):
                raise SourceError(f"{self.spec.location} holds no samples with {named} = {there!r}")
        if not more[0]:
            raise SourceError(f"{self.spec.location} holds no samples with label = {self.spec.name_of('label')!r}")
        meta, sections = table.contents(self.classes(), more=more)
        if label_of(self.spec.columns, "") in self.columns:  # it is read with each sample
            meta["num_classes"] = 0
        return meta, sections
