"""How `Csv` is read: the lines of its files are parsed when they are read."""

from __future__ import annotations

import csv
from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from prepserver.pipeline.kinds import Array, Kind
from prepserver.pipeline.sources.csv import Csv
from prepserver.source.container import Container
from prepserver.source.errors import SampleError, SourceError
from prepserver.source.lines import Lines, LinesReader, list_lines
from prepserver.source.roots import Roots
from prepserver.source.samples import MAX_ENCODED_BYTES
from prepserver.source.storage import File
from prepserver.source.tables import TableSource
from prepserver.source.values import parsed

csv.field_size_limit(MAX_ENCODED_BYTES)  # its own limit, of 128 KiB, is less than that of a line


_QUOTING = (
    "a cell that holds a quote or a line end must be enclosed in quotes, and quotes inside it be doubled; lines end in "
    "LF or CR LF"
)


class _Records(TableSource):
    convert = staticmethod(parsed)

    def __init__(self, container: Container, spec: Csv, roots: Roots) -> None:
        super().__init__(container, spec, roots)
        ends = [0, *accumulate(len(spec.names_of(column)) for column in spec.columns)]
        # of each column, where its cells are among those that are read; empty if each has one
        self._parts = [
            slice(*span) if isinstance(spec.names.get(column), list) else span[0]
            for column, span in zip(spec.columns, pairwise(ends), strict=True)
        ]
        if any(isinstance(each, slice) for each in self._parts):
            self.convert = _converted
        else:
            self._parts = []

    def values(self, file: int, line: str) -> list[Any]:
        try:
            cells = _cells(line, self._spec.delimiter)
        except csv.Error:
            raise SampleError(f"the line is not CSV: {_QUOTING}") from None
        count, *places = self._cells[file]
        if len(cells) != count:
            raise SampleError(f"the line has {len(cells)} cells and the header {count}")
        found = [cells[place] for place in places]
        return [found[part] for part in self._parts] or found


def _converted(column: str, kind: Kind, cell: str | list[str]) -> Any:
    """Return the value of a cell, or of those that a column joins."""
    if isinstance(cell, str):
        return parsed(column, kind, cell)
    assert isinstance(kind, Array)
    return np.array([parsed(f"{column}[{place}]", kind.number, each) for place, each in enumerate(cell)])


class CsvReader(LinesReader):
    spec: Csv
    source = _Records

    def list_file(self, path: str, file: File, found: Callable[..., None]) -> Lines:
        spec, header = self.spec, self.spec.header
        listed = list_lines(path, file, found, quotes=True, header=header is None)
        if header is None and not listed.header:
            raise SourceError(f"{path} is empty: it has no header line that names the columns")
        if header is None:
            try:
                header = tuple(_cells(listed.header.decode().rstrip("\r\n"), spec.delimiter))
            except (UnicodeDecodeError, csv.Error) as error:
                why = "it is not UTF-8: convert the file with iconv" if isinstance(error, UnicodeError) else _QUOTING
                raise SourceError(f"{path}: the first record names the columns and cannot be read: {why}") from error
        wanted = [name for column in spec.columns for name in spec.names_of(column)]
        wrong = [name for name in wanted if header.count(name) != 1]
        if wrong:
            count = "several columns" if wrong[0] in header else "no column"
            split = " Where another character separates cells, pass delimiter=." * (len(header) == 1)
            raise SourceError(
                f"{path} has {count} {', '.join(map(repr, wrong))}; it has: {', '.join(map(repr, header[:64]))}. "
                f"For files without a header line pass header=[...].{split}"
            )
        listed.cells = [len(header), *map(header.index, wanted)]
        return listed


def _cells(line: str, delimiter: str) -> list[str]:
    return next(csv.reader([line], delimiter=delimiter, strict=True))
