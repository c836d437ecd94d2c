"""How `Parquet` is read: row group by row group; a worker keeps some of them decoded.

pyarrow reads through our file objects, in this thread: workers are forked, sandboxed, and share the machine's cores.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any

import numpy as np
import numpy.typing as npt

from prepserver.pipeline.kinds import Bytes, Image, Kind, Mask, Text, Tokens
from prepserver.pipeline.record import label_of
from prepserver.pipeline.sources.parquet import Parquet
from prepserver.protocol.work import MAX_ROW_GROUPS
from prepserver.source.arrow_values import Joined, Values, values_of
from prepserver.source.container import Container
from prepserver.source.errors import SampleError, SourceError
from prepserver.source.parquet import classes_of, decoded_bytes, leaves_of, path_to, places_of, pyarrow_for, repeated
from prepserver.source.reader import FilesReader, Sections
from prepserver.source.roots import Roots
from prepserver.source.samples import Indices, Record, Source
from prepserver.source.shards import open_shards
from prepserver.source.storage import File, Stream

log = logging.getLogger(__name__)

KEPT_BYTES = 256 << 20
"""Of decoded row groups that a worker keeps for each source; it always keeps the latest one."""

MOST_GROUP_BYTES = 2 << 30
_OPEN_AT_MOST = 32
_WANTED_AT_MOST = 256
_TAIL_BYTES = 64 << 10  # which pyarrow reads first, to find the footer

_WAY_OUT = (
    "shuffle whole batches (order='batch-shuffle-repeat'), or read in order (shuffle=False), or rewrite the files with "
    "fewer rows in a group (row_group_size=1000)"
)


@dataclass(slots=True)
class Groups:
    """The row groups of a file."""

    classes: list[str]  # names of the classes, if the file has them
    rows: list[int] = field(default_factory=list)  # rows of each row group
    nbytes: list[int] = field(default_factory=list)  # bytes of the wanted columns of each row group, not compressed
    decoded: list[int] = field(default_factory=list)  # the same, decoded
    # for each row group, (offset, length) of each wanted column in the file
    ranges: list[list[tuple[int, int]]] = field(default_factory=list)


class _Rows(Source):
    """A `Source` over row groups."""

    def __init__(self, container: Container, spec: Parquet, roots: Roots) -> None:
        meta = container.meta
        self._container, self._spec, self._label = container, spec, label_of(spec.columns)
        self._files: list[str] = meta["files"]
        self._sizes: list[int] = meta["sizes"]
        self._classes: list[str] = meta["classes"]
        self._nbytes: int = meta["decoded"]
        self._shards = open_shards(self._files, self._sizes, roots, meta["mtimes_ns"])
        self._stamp = self._shards.stamp
        self._ranges = container.rows("ranges", "Q" * 2 * meta["most"], 16 * meta["most"])
        self._ends = np.cumsum(np.frombuffer(container.section("rows"), np.uint64)).tolist()  # of the groups
        self._firsts = [0, *accumulate(meta["groups"])]  # group of each file
        self._open: OrderedDict[int, tuple[Any, dict[str, list[str]]]] = OrderedDict()
        self._wanted: OrderedDict[int, None] = OrderedDict()  # groups that have begun to be read
        self._kept: OrderedDict[int, tuple[int, dict[str, Values]]] = OrderedDict()
        self._too_large: dict[int, str] = {}  # by group, the reason that its samples get

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, index: int) -> Record:
        values, row = self._at(index)
        return {column: each.value(row) for column, each in values.items()}

    def read_columns(self, index: int, columns: Sequence[str]) -> Record:
        values, row = self._at(index)
        return {column: values[column].value(row) for column in columns}

    def read_block(self, indices: Indices, into: Mapping[str, npt.NDArray[Any]]) -> bool:
        """As `Source.read_block`: columns of numbers of one size."""
        if any(isinstance(self._spec.columns[name], Text | Bytes | Image | Mask | Tokens) for name in into):
            return False
        asked = np.asarray(indices)
        groups = np.searchsorted(self._ends, asked, "right")
        if self.reads_ahead and len(set(groups.tolist()) - self._kept.keys()) > 1:
            return False  # each group may be waited for; one by one, each sample has a deadline of its own
        # Kept groups come first: decoding the others would drop them, each just before its turn.
        for group in sorted(np.unique(groups).tolist(), key=lambda each: each not in self._kept):
            (here,) = np.nonzero(groups == group)
            values, rows = self._group(group), asked[here] - (self._ends[group - 1] if group else 0)
            for column, target in into.items():
                if not values[column].put(rows, target, here):
                    raise SampleError("reading the samples one by one finds which, and why")
        return True

    @property
    def reads_ahead(self) -> bool:
        return self._shards.wants

    def prefetch(self, indices: Sequence[int]) -> None:
        """As `Source.prefetch`: the row groups that are not decoded yet, and the ends of their files."""
        for group in dict.fromkeys(bisect_right(self._ends, index) for index in indices):
            if group not in self._kept:
                self._want(group)

    def _want(self, group: int) -> None:
        if group not in self._wanted:
            self._shards.want(self._parts(group))
            self._wanted[group] = None
            if len(self._wanted) > _WANTED_AT_MOST:  # the oldest may be of chunks that another worker got
                self._wanted.popitem(last=False)

    def _parts(self, group: int) -> Iterator[tuple[int, int, int]]:
        """Yield the ranges that pyarrow will read to decode a group, exactly as it asks for them."""
        file = self._file(group)
        if file not in self._open and file not in map(self._file, self._wanted):
            tail = min(_TAIL_BYTES, self._sizes[file])
            yield file, self._sizes[file] - tail, tail
        places = self._ranges[group]
        yield from ((file, *place) for place in zip(places[::2], places[1::2], strict=True))

    def group(self, index: int) -> int | None:
        """As `Source.group`: its row group, but None if a worker keeps all of them."""
        return bisect_right(self._ends, index) if self._nbytes > KEPT_BYTES else None

    def label(self, index: int) -> int:
        values, row = self._at(index)
        return int(values[self._label].value(row)) if self._label in values else 0

    def name(self, index: int) -> str:
        file = self._file(bisect_right(self._ends, index))
        first = self._firsts[file]
        return f"{self._files[file]}, row {index - (self._ends[first - 1] if first else 0)}"

    def _file(self, group: int) -> int:
        return bisect_right(self._firsts, group) - 1

    def _at(self, index: int) -> tuple[dict[str, Values], int]:
        if not 0 <= index < self._ends[-1]:
            raise IndexError(f"index {index} of {self._ends[-1]} rows")
        group = bisect_right(self._ends, index)
        return self._group(group), index - (self._ends[group - 1] if group else 0)

    def _group(self, group: int) -> dict[str, Values]:
        if group in self._too_large:
            raise SampleError(self._too_large[group])
        if (kept := self._kept.get(group)) is None:
            kept = self._kept[group] = self._decoded(group)
            while len(self._kept) > 1 and sum(nbytes for nbytes, _ in self._kept.values()) > KEPT_BYTES:
                self._kept.popitem(last=False)
        self._kept.move_to_end(group)
        return kept[1]

    def _decoded(self, group: int) -> tuple[int, dict[str, Values]]:
        file = self._file(group)
        arrow, _ = pyarrow_for(self._files[file])
        columns = self._spec.columns
        try:
            self._want(group)  # all columns at once, if that has not been done
            del self._wanted[group]
            if file not in self._open:
                self._open[file] = self._opened(file)
                if len(self._open) > _OPEN_AT_MOST:
                    self._open.popitem(last=False)
            opened, names = self._open[file]
            table = opened.read_row_group(
                group - self._firsts[file], columns=list(dict.fromkeys(chain(*names.values()))), use_threads=False
            )
            if len(table) != (rows := self._ends[group] - (self._ends[group - 1] if group else 0)):
                raise SourceError(f"it has {len(table)} rows, and the metadata of its file say {rows}")
            found = {column: self._values(column, kind, table, names[column]) for column, kind in columns.items()}
        except SampleError:
            raise
        except MemoryError as error:
            arrow.default_memory_pool().release_unused()
            if self._kept:  # drop them and try again: the verdict must not depend on what was read before
                self._kept.clear()
                return self._decoded(group)
            self._too_large[group] = (
                f"row group {group - self._firsts[file]} of {self._shards.name(file)} takes more memory than a worker "
                "may have (worker_memory in the configuration): rewrite the file with fewer rows in a group"
            )
            raise SampleError(self._too_large[group]) from error
        except (arrow.ArrowException, OSError, SourceError) as error:
            shown = f"row group {group - self._firsts[file]} of {self._shards.name(file)}"
            raise SampleError(f"{shown} cannot be decoded: {' '.join(str(error).split())[:200]}") from error
        return sum(each.nbytes for each in found.values()), found

    def _values(self, column: str, kind: Kind, table: Any, names: list[str]) -> Values:
        each = self._spec.kind_of(column)
        if each is kind:
            return values_of(column, kind, _column(table, names[0]))
        return Joined([values_of(f"{column}[{k}]", each, _column(table, name)) for k, name in enumerate(names)])

    def _opened(self, file: int) -> tuple[Any, dict[str, list[str]]]:
        """Return an open file, and the names in it of our columns; those that `repeated` returns stay dictionaries."""
        arrow, parquet = pyarrow_for(self._files[file])
        # A local name, not `self`: workers collect garbage rarely, and a cycle would keep the files open.
        shards = self._shards
        read = Stream(lambda length, offset: shards.read(file, offset, length), self._sizes[file])
        handle = arrow.PythonFile(read, mode="r")
        opened = parquet.ParquetFile(handle, pre_buffer=False)
        names = leaves_of(self._files[file], opened.schema_arrow, self._spec)
        if shared := repeated(opened.metadata, [*chain(*names.values())], KEPT_BYTES):
            opened = parquet.ParquetFile(handle, pre_buffer=False, metadata=opened.metadata, read_dictionary=shared)
        return opened, names


class ParquetReader(FilesReader[Groups]):
    spec: Parquet
    source = _Rows
    edition = ".3"  # before, indexes did not tell what groups take when decoded

    def list_file(self, path: str, file: File, found: Callable[..., None]) -> Groups:
        arrow, parquet = pyarrow_for(path)
        try:
            opened = parquet.ParquetFile(arrow.PythonFile(Stream(file.read, file.size), mode="r"), pre_buffer=False)
            schema, meta = opened.schema_arrow, opened.metadata
        except SampleError:
            raise
        except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise SourceError(f"{path} is damaged, or not a Parquet file: {error}") from error
        groups = Groups(classes_of(schema, self.spec))
        places = places_of(meta, [*chain(*leaves_of(path, schema, self.spec).values())])
        for number in range(meta.num_row_groups):
            group = meta.row_group(number)
            wanted = [group.column(place) for place in places]
            nbytes = sum(each.total_uncompressed_size for each in wanted)
            most = sum(decoded_bytes(meta, number, place) for place in places)
            if most > MOST_GROUP_BYTES:
                raise SourceError(
                    f"{path}: row group {number} has {most} bytes, more than the limit of {MOST_GROUP_BYTES}, and "
                    "no part of it can be read alone: rewrite the file with fewer rows in a group"
                )
            groups.rows.append(group.num_rows)
            groups.nbytes.append(nbytes)
            groups.decoded.append(most)
            ranges = [
                (min(filter(None, (each.dictionary_page_offset, each.data_page_offset)), default=0),
                 each.total_compressed_size) for each in wanted
            ]  # fmt: skip
            if min(group.num_rows, nbytes) < 0 or not all(0 <= at <= at + size <= file.size for at, size in ranges):
                raise SourceError(f"{path} is damaged: row group {number} does not lie in its {file.size} bytes")
            groups.ranges.append(ranges)
            found(group.num_rows)
        return groups

    def row_groups(self, container: Container) -> tuple[tuple[int, ...], int, int]:
        ends = np.cumsum(np.frombuffer(container.section("rows"), np.uint64)).tolist()
        nbytes = container.meta["decoded"]
        step = -(-len(ends) // MAX_ROW_GROUPS)
        kept_rows = KEPT_BYTES * ends[-1] // max(1, nbytes)
        return (*ends[step - 1 : -1 : step], ends[-1]), kept_rows, _coarse_bytes(nbytes, len(ends))

    def table(self, paths: list[str], files: list[Groups]) -> tuple[dict[str, Any], Sections]:
        rows = np.array([rows for each in files for rows in each.rows], np.uint64)
        decoded = [count for each in files for count in each.decoded]
        if not rows.sum():
            raise SourceError(f"{self.spec.location} holds no rows")
        if _coarse_bytes(sum(decoded), len(decoded)):
            log.warning(
                "%s has row groups of up to %d MiB, together %d MiB, of which a worker keeps %d MiB decoded: without a "
                "cache, most samples of a shuffled order decode a whole group. The daemon makes a cache in memory for "
                "such jobs if most samples fit in it. If not, or with inline=True, %s",
                self.spec.location, -(-max(decoded) >> 20), sum(decoded) >> 20, KEPT_BYTES >> 20, _WAY_OUT,
            )  # fmt: skip
        content = [[os.path.basename(path), each.rows, each.nbytes] for path, each in zip(paths, files, strict=True)]
        classes = files[0].classes
        meta = {
            "n": int(rows.sum()), "classes": classes, "num_classes": len(classes),
            "content_digest": hashlib.sha256(json.dumps([content, classes]).encode()).hexdigest(),
            "groups": [len(each.rows) for each in files], "decoded": sum(decoded),
        }  # fmt: skip
        most = max(len(each) for groups in files for each in groups.ranges)
        ranges = np.zeros((len(rows), most, 2), np.uint64)
        for place, each in zip(ranges, (each for groups in files for each in groups.ranges), strict=True):
            place[: len(each)] = each
        return meta | {"most": most}, {"rows": rows.view(np.uint8).data, "ranges": ranges.view(np.uint8).data}


def _coarse_bytes(nbytes: int, groups: int) -> int:
    """Return `Listing.coarse_bytes` of row groups that take `nbytes` when decoded."""
    return nbytes if nbytes > KEPT_BYTES and nbytes // groups > KEPT_BYTES // 256 else 0


def _column(table: Any, name: str) -> Any:
    """Return a column of a table as one array; dots lead into structs."""
    import pyarrow.compute

    parts, _, _ = path_to(table.schema, name)
    column = table.column(parts[0])
    if len(parts) > 1:
        column = pyarrow.compute.struct_field(column, parts[1:])
    # Dictionaries stay dictionaries: otherwise each row would have its own copy of a long text that all share.
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
