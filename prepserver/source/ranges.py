"""Samples that are ranges of bytes in large files: listed file by file, read without knowledge of the format.

For each sample the index holds its file, its label, and the place of each other column's bytes.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, Self, TypeVar

from prepserver.pipeline.kinds import Label
from prepserver.pipeline.urls import is_url
from prepserver.source.container import Container
from prepserver.source.errors import SampleError, SourceError
from prepserver.source.files import FileTable, Listing, table_meta
from prepserver.source.places import Places
from prepserver.source.progress import Progress
from prepserver.source.reader import Scan, ScanningReader
from prepserver.source.roots import Roots
from prepserver.source.samples import MAX_ENCODED_BYTES, Record, Source
from prepserver.source.shards import open_shards
from prepserver.source.storage import File, statuses

MISSING = (1 << 64) - 1
"""Instead of an offset: the sample has no such column."""

_AT_ONCE = 8
"""Files that are listed in parallel."""

Sections = dict[str, memoryview]


@dataclass(slots=True)
class Listed:
    """The content of a file.

    Attributes:
        size: Bytes of the file.
        mtime_ns: `File.version`, taken before it was listed.
        keys: Names of the samples.
        labels: Class numbers of the samples; 0 without labels.
        places: For each column that is read from the file, (offsets, lengths) by sample; see `MISSING`.
    """

    size: int
    mtime_ns: int
    keys: list[bytes] = field(default_factory=list)
    labels: array[int] = field(default_factory=lambda: array("q"))
    places: list[tuple[array[int], array[int]]] = field(default_factory=list)

    @classmethod
    def of(cls, file: File, columns: int) -> Self:
        """Return an empty listing of a file."""
        return cls(file.size, file.version, places=[(array("Q"), array("Q")) for _ in range(columns)])


T = TypeVar("T", bound="HasStatus")


class HasStatus(Protocol):
    """The content of a file.

    Attributes:
        size: Bytes of the file.
        mtime_ns: Time of the file, taken before it was listed.
    """

    size: int
    mtime_ns: int


class FilesReader(ScanningReader, Generic[T]):
    """A reader of files that hold many samples; it lists them in parallel."""

    @abstractmethod
    def files(self, roots: Roots | None = None) -> list[str]:
        """Return the absolute paths of the files, in order.

        Raises:
            SourceError: The spec names no files.
        """

    @abstractmethod
    def list_file(self, path: str, roots: Roots | None, found: Callable[..., None]) -> T:
        """List one file, in a thread.

        Args:
            path: One of `files`.
            roots: Where the file must lie.
            found: Called for each sample, or with the number of some.

        Raises:
            SourceError: The file cannot be used; the text names it and says what to do.
        """

    @abstractmethod
    def table(self, paths: list[str], files: list[T], roots: Roots | None) -> tuple[dict[str, Any], Sections]:
        """Return metadata and sections of the index, from the content of all files.

        Raises:
            SourceError: There are no samples.
        """

    def scan(self, progress: Progress, roots: Roots | None) -> Scan:
        """As `ScanningReader.scan`."""
        paths, places = self.files(roots), Places()
        files = self._listed(paths, progress, roots)
        for path in paths:
            places.add_file(os.fsencode(path))
        for path in self.folders:
            if roots is not None:
                roots.check_path("the folder", path)
            places.add_folder(os.fsencode(path))
        meta, sections = self.table(paths, files, roots)
        progress.finished(meta["n"])
        sizes, times = [listed.size for listed in files], [listed.mtime_ns for listed in files]
        # A file may be written anew with the same names and sizes inside.
        state = hashlib.sha256(json.dumps([sizes, times]).encode()).hexdigest()
        meta |= {"files": paths, "sizes": sizes, "mtimes_ns": times, "state": state}
        remotely = bool(paths) and is_url(paths[0])
        return Scan(meta, sections, [] if remotely else times, places.found())

    @property
    def folders(self) -> list[str]:
        """Folders whose files samples name."""
        return []

    def _listed(self, paths: list[str], progress: Progress, roots: Roots | None) -> list[T]:
        samples = 0

        def found(count: int = 1) -> None:
            nonlocal samples
            samples += count  # only for people: threads may lose a count

        return progress.over(lambda path: self.list_file(path, roots, found), paths, _AT_ONCE, lambda: samples)

    def is_current(self, container: Container) -> bool:
        """As `ScanningReader.is_current`."""
        meta = container.meta
        if meta["files"] != self.files():
            return False
        return statuses(meta["files"]) == list(zip(meta["sizes"], meta["mtimes_ns"], strict=True))

    def check_roots(self, sections: Callable[[str], memoryview], roots: Roots) -> None:
        """As `ScanningReader.check_roots`."""
        for path in self.files(roots):
            roots.check_path("the file", path)
        for path in self.folders:
            roots.check_path("the folder", path)


class RangesReader(FilesReader[Listed]):
    """A reader of files in which each sample has a name, a label, and a range of bytes for each other column."""

    def classes(self, roots: Roots | None) -> list[str]:
        """Return the names of the classes by label; empty if labels are only numbers."""
        return []

    @property
    def columns(self) -> list[str]:
        """Columns that are read from the files; the label is in the index."""
        return [name for name, kind in self.spec.columns.items() if not isinstance(kind, Label)]

    def table(self, paths: list[str], files: list[Listed], roots: Roots | None) -> tuple[dict[str, Any], Sections]:
        """As `FilesReader.table`."""
        table = FileTable()
        more = [array("I"), *(array("Q") for _ in self.columns for _ in range(2))]
        for number, (path, listed) in enumerate(zip(paths, files, strict=True)):
            folder = os.fsencode(path.partition("://")[2] or path) + b"/"
            for key, label in zip(listed.keys, listed.labels, strict=True):
                below, slash, name = key.rpartition(b"/")
                table.add(folder + below + slash, name, label)
            more[0].extend(itertools.repeat(number, len(listed.keys)))
            for column, found in zip(more[1:], itertools.chain.from_iterable(listed.places), strict=True):
                column.extend(found)
        if not len(table):
            wanted = " or ".join(f"{column} = {getattr(self.spec, column)!r}" for column in self.columns)
            raise SourceError(f"{self.spec.place} holds no samples with {wanted}")
        return table_meta(table, self.classes(roots), None), table.sections(*more)

    def read_by(self, container: Container, roots: Roots | None) -> Source:
        """As `ScanningReader.read_by`."""
        has_label = len(self.columns) < len(self.spec.columns)
        return RangesSource(container, self.columns, has_label, roots)


class RangesSource(Listing):
    """A `Source` over listed files.

    In its `Listing` a file is a folder and a key a name; the further numbers of each sample are the number of the file
    (uint32), then (offset, length) of each column (both uint64).

    Args:
        container: The index.
        columns: Columns that are read from files.
        has_label: Whether samples have a label.
        roots: Where files must lie.
    """

    def __init__(self, container: Container, columns: Sequence[str], has_label: bool, roots: Roots | None) -> None:
        super().__init__(container, more="I" + "QQ" * len(columns))
        self._columns, self._has_label = columns, has_label
        meta = container.meta
        self._stamps = list(zip(meta["sizes"], meta["mtimes_ns"], strict=True))
        self._shards = open_shards(meta["files"], meta["sizes"], roots, meta["mtimes_ns"])
        self.reads_ahead = self._shards.wants

    def prefetch(self, indices: Sequence[int]) -> None:
        """As `Source.prefetch`."""
        self._shards.want(itertools.chain.from_iterable(map(self._ranges, indices)))

    def _ranges(self, index: int) -> Iterator[tuple[int, int, int]]:
        _, _, file, *places = self.entry(index)
        for offset, length in zip(places[::2], places[1::2], strict=True):
            if offset != MISSING and 0 < length <= MAX_ENCODED_BYTES:
                yield file, offset, length

    def read(self, index: int) -> Record:
        """As `Source.read`."""
        label, _, file, *places = self.entry(index)
        record: dict[str, Any] = {}
        for column, offset, length in zip(self._columns, places[::2], places[1::2], strict=True):
            if offset == MISSING:
                raise SampleError(f"{self._shards.name(file)} has no {column} for it")
            if length > MAX_ENCODED_BYTES:
                raise SampleError(f"its {column} has {length} bytes, more than the limit of {MAX_ENCODED_BYTES}")
            record[column] = self._shards.read(file, offset, length)
            if len(record[column]) != length or not length:
                raise SampleError(f"its {column} is {'cut off' if length else 'empty'} in {self._shards.name(file)}")
        if self._has_label:
            record["label"] = label
        return record

    def stamp(self, index: int) -> int:
        """As `Source.stamp`: of the file as it was listed, because `read` refuses one that has changed since."""
        entry = self.entry(index)
        return hash((self._stamps[entry[2]], entry[3:]))
