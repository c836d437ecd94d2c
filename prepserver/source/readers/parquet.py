"""How `Parquet` is read: row group by row group, of which some stay decoded.

pyarrow reads through our files, in this thread: workers are forked, sandboxed, and share the machine's cores.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import stat
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from prepserver.pipeline.kinds import Array, Bytes, Image, Kind, Label, Mask, Text, Tokens
from prepserver.pipeline.record import label_of
from prepserver.pipeline.sources.parquet import Parquet
from prepserver.source.container import Container
from prepserver.source.errors import SampleError, SourceError, unusable
from prepserver.source.parquet import class_names, decoded_bytes, leaf, places_of, pyarrow_for, repeated
from prepserver.source.patterns import files_of
from prepserver.source.ranges import FilesReader, Sections
from prepserver.source.roots import Roots, open_below
from prepserver.source.samples import MAX_ENCODED_BYTES, Record, Source
from prepserver.source.shards import Shards
from prepserver.source.values import value_of

log = logging.getLogger(__name__)

KEPT_BYTES = 256 << 20
"""Of decoded row groups that a worker keeps for each source; the latest one in any case."""

MOST_GROUP_BYTES = 2 << 30
_OPEN_AT_MOST = 32

_WAY_OUT = (
    "write them anew with fewer rows in a group (row_group_size=1000), or shuffle whole batches "
    "(order='batch-shuffle-repeat'), or read in order (shuffle=False)"
)


@dataclass(slots=True)
class Groups:
    """The content of a file.

    Attributes:
        size: Bytes of the file.
        mtime_ns: Time of the file, taken before it was listed.
        rows: Of each row group.
        nbytes: Of the wanted columns of each row group, not compressed.
        classes: Names of the classes, if the file has them.
    """

    size: int
    mtime_ns: int
    rows: list[int] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)


class ParquetReader(FilesReader[Groups]):
    kind = Parquet
    spec: Parquet

    def files(self, roots: Roots | None = None) -> list[str]:
        return files_of(self.spec.path, roots)

    def list_file(self, path: str, roots: Roots | None, found: Callable[..., None]) -> Groups:
        arrow, parquet = pyarrow_for(path)
        try:
            descriptor = open_below(roots, "the file", path)
        except OSError as error:
            raise unusable("the file", path, error) from error
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise SourceError(f"{path} is not a file; name its files, such as {path}/*.parquet")
        with os.fdopen(descriptor, "rb") as file:
            try:
                opened = parquet.ParquetFile(arrow.PythonFile(file, mode="r"), pre_buffer=False)
                schema, meta = opened.schema_arrow, opened.metadata
            except (arrow.ArrowException, OSError) as error:
                raise SourceError(f"{path} is damaged, or no Parquet file: {error}") from error
        groups = Groups(status.st_size, status.st_mtime_ns, classes=class_names(schema, self.spec))
        leaves = tuple(leaf(path, schema, self.spec, column, kind) for column, kind in self.spec.columns.items())
        places = places_of(meta, leaves)
        for number in range(meta.num_row_groups):
            group = meta.row_group(number)
            nbytes = sum(group.column(place).total_uncompressed_size for place in places)
            most = sum(decoded_bytes(meta, number, place) for place in places)
            if most > MOST_GROUP_BYTES:
                raise SourceError(
                    f"{path}: row group {number} has {most} bytes, more than the limit of {MOST_GROUP_BYTES}, and "
                    "no part of it can be read alone: write the file anew with fewer rows in a group"
                )
            groups.rows.append(group.num_rows)
            groups.nbytes.append(nbytes)
            found(group.num_rows)
        return groups

    def table(self, paths: list[str], files: list[Groups], roots: Roots | None) -> tuple[dict[str, Any], Sections]:
        rows = np.array([rows for each in files for rows in each.rows], np.uint64)
        nbytes = [count for each in files for count in each.nbytes]
        if not rows.sum():
            raise SourceError(f"{self.spec.place} holds no rows")
        if sum(nbytes) > KEPT_BYTES and max(nbytes) > KEPT_BYTES // 64:
            log.warning(
                "%s has row groups of up to %d MiB, together %d MiB, of which a worker keeps %d MiB decoded: in a "
                "shuffled order most samples decode a whole group. To be faster, %s",
                self.spec.place, max(nbytes) >> 20, sum(nbytes) >> 20, KEPT_BYTES >> 20, _WAY_OUT,
            )  # fmt: skip
        content = [[os.path.basename(path), each.rows, each.nbytes] for path, each in zip(paths, files, strict=True)]
        classes = files[0].classes
        meta = {
            "n": int(rows.sum()), "classes": classes, "num_classes": len(classes),
            "content_digest": hashlib.sha256(json.dumps([content, classes]).encode()).hexdigest(),
            "groups": [len(each.rows) for each in files],
        }  # fmt: skip
        return meta, {"rows": rows.view(np.uint8).data}

    def read_by(self, container: Container, roots: Roots | None) -> Source:
        return _Rows(container, self.spec, roots)


class _Rows(Source):
    """A `Source` over row groups."""

    def __init__(self, container: Container, spec: Parquet, roots: Roots | None) -> None:
        meta = container.meta
        self._container = container
        self._spec = spec
        self._files: list[str] = meta["files"]
        self._sizes: list[int] = meta["sizes"]
        self._classes: list[str] = meta["classes"]
        self._shards = Shards(self._files, self._sizes, roots, meta["mtimes_ns"])
        self._stamp = self._shards.stamp
        self._ends = np.cumsum(np.frombuffer(container.section("rows"), np.uint64)).tolist()  # of the groups
        self._firsts = [0, *accumulate(meta["groups"])]  # group of each file
        self._open: OrderedDict[int, tuple[Any, dict[str, str]]] = OrderedDict()
        self._kept: OrderedDict[int, tuple[int, dict[str, _Values]]] = OrderedDict()
        self._too_large: dict[int, str] = {}  # groups, and what is said of them

    def __len__(self) -> int:
        return int(self._ends[-1])

    def stamp(self, index: int) -> int:
        return self._stamp

    def read(self, index: int) -> Record:
        values, row = self._at(index)
        return {column: each.value(row) for column, each in values.items()}

    def read_block(self, indices: Sequence[int], into: Mapping[str, npt.NDArray[Any]]) -> bool:
        """As `Source.read_block`: columns of numbers of one size."""
        if any(isinstance(kind, Text | Bytes | Image | Mask | Tokens) for kind in self._spec.columns.values()):
            return False
        asked = np.asarray(indices)
        groups = np.searchsorted(self._ends, asked, "right")
        for group in dict.fromkeys(groups.tolist()):
            (here,) = np.nonzero(groups == group)
            values, rows = self._group(group), asked[here] - (self._ends[group - 1] if group else 0)
            for column, target in into.items():
                if not values[column].put(rows, target, here):
                    raise SampleError("one by one it is found which, and why")
        return True

    def label(self, index: int) -> int:
        values, row = self._at(index)
        label = label_of(self._spec.columns)
        return int(values[label].value(row)) if label in values else 0

    def name(self, index: int) -> str:
        file = self._file(bisect_right(self._ends, index))
        first = self._firsts[file]
        return f"{self._files[file]}, row {index - (self._ends[first - 1] if first else 0)}"

    def classes(self) -> list[str]:
        return list(self._classes)

    def _file(self, group: int) -> int:
        return bisect_right(self._firsts, group) - 1

    def _at(self, index: int) -> tuple[dict[str, _Values], int]:
        if not 0 <= index < self._ends[-1]:
            raise IndexError(f"index {index} of {self._ends[-1]} rows")
        group = bisect_right(self._ends, index)
        return self._group(group), index - (self._ends[group - 1] if group else 0)

    def _group(self, group: int) -> dict[str, _Values]:
        if group in self._too_large:
            raise SampleError(self._too_large[group])
        if (kept := self._kept.get(group)) is None:
            kept = self._kept[group] = self._decoded(group)
            while len(self._kept) > 1 and sum(nbytes for nbytes, _ in self._kept.values()) > KEPT_BYTES:
                self._kept.popitem(last=False)
        self._kept.move_to_end(group)
        return kept[1]

    def _decoded(self, group: int) -> tuple[int, dict[str, _Values]]:
        file = self._file(group)
        arrow, _ = pyarrow_for(self._files[file])
        columns = self._spec.columns
        try:
            if file not in self._open:
                self._open[file] = self._opened(file)
                if len(self._open) > _OPEN_AT_MOST:
                    self._open.popitem(last=False)
            opened, names = self._open[file]
            table = opened.read_row_group(
                group - self._firsts[file], columns=list(dict.fromkeys(names.values())), use_threads=False
            )
            found = {column: _values(column, kind, _column(table, names[column])) for column, kind in columns.items()}
        except SampleError:
            raise
        except MemoryError as error:
            arrow.default_memory_pool().release_unused()
            if self._kept:  # which are dropped for it: the verdict must not depend on what was read before
                self._kept.clear()
                return self._decoded(group)
            self._too_large[group] = (
                f"row group {group - self._firsts[file]} of {self._shards.name(file)} takes more memory than a worker "
                "may have (worker_memory in the configuration): write the file anew with fewer rows in a group"
            )
            raise SampleError(self._too_large[group]) from error
        except (arrow.ArrowException, OSError, SourceError) as error:
            shown = f"row group {group - self._firsts[file]} of {self._shards.name(file)}"
            raise SampleError(f"{shown} cannot be decoded: {' '.join(str(error).split())[:200]}") from error
        return sum(each.nbytes for each in found.values()), found

    def _opened(self, file: int) -> tuple[Any, dict[str, str]]:
        """Return a file and its names of our columns; those stay dictionaries that would else take too much memory."""
        arrow, parquet = pyarrow_for(self._files[file])
        handle = arrow.PythonFile(_Bytes(self._shards, file, self._sizes[file]), mode="r")
        opened = parquet.ParquetFile(handle, pre_buffer=False)
        names = {
            column: leaf(self._files[file], opened.schema_arrow, self._spec, column, kind)
            for column, kind in self._spec.columns.items()
        }
        if shared := repeated(opened.metadata, [*names.values()], KEPT_BYTES):
            opened = parquet.ParquetFile(handle, pre_buffer=False, metadata=opened.metadata, read_dictionary=shared)
        return opened, names


class _Bytes(io.RawIOBase):
    """A shard as a file."""

    def __init__(self, shards: Shards, shard: int, size: int) -> None:
        self._shards, self._shard, self._size = shards, shard, size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._size - self._at)
        data = self._shards.read(self._shard, self._at, left if size is None or size < 0 else min(size, left))
        self._at += len(data)
        return data


class _Values:
    """The values of a column in a row group, as Arrow has them.

    Attributes:
        nbytes: Bytes that they take.
    """

    def __init__(self, column: str, kind: Kind, array: Any) -> None:
        self._column, self._kind, self._array = column, kind, array
        self.nbytes = int(array.nbytes)

    def value(self, row: int) -> Any:
        """Return the value of a row.

        Raises:
            SampleError: It has none, or it is not of the kind.
        """
        found = self._array[row]
        if not found.is_valid:
            raise SampleError(f"its {self._column} is null")
        if isinstance(self._kind, Image | Mask | Bytes):
            found = getattr(found, "value", found)  # of a dictionary
            if len(data := found.as_buffer()) > MAX_ENCODED_BYTES:
                raise SampleError(
                    f"its {self._column} has {len(data)} bytes, more than the limit of {MAX_ENCODED_BYTES}"
                )
            if not len(data) and not isinstance(self._kind, Bytes):
                raise SampleError(f"its {self._column} is empty")
            return data.to_pybytes()
        if self._is_flat and found.values.null_count:
            raise SampleError(f"its {self._column} holds a null")
        try:
            given = found.values.to_numpy(zero_copy_only=False) if self._is_flat else found.as_py()
        except UnicodeDecodeError as error:
            raise SampleError(f"byte {error.start} of its {self._column} is no UTF-8") from None
        return value_of(self._column, self._kind, given)

    @property
    def _is_flat(self) -> bool:
        return isinstance(self._kind, Array | Tokens) and not hasattr(self._array.type.value_type, "value_type")

    def put(self, rows: npt.NDArray[Any], target: npt.NDArray[Any], here: npt.NDArray[Any]) -> bool:
        """Write the values of `rows` to the places `here` of an array; return False where `value` must say why not."""
        for place, row in zip(here.tolist(), rows.tolist(), strict=True):
            target[place] = self.value(row)
        return True


class _Numbers(_Values):
    """Values of one shape, as numpy has them."""

    def __init__(
        self, column: str, kind: Kind, array: Any, values: npt.NDArray[Any], good: npt.NDArray[np.bool_]
    ) -> None:
        super().__init__(column, kind, array)
        self._values, self._good = values, good
        self._all_good = bool(good.all())
        self.nbytes += values.nbytes if values.flags.owndata or values.flags.writeable else 0  # else they are Arrow's

    def value(self, row: int) -> Any:
        return np.array(self._values[row]) if self._good[row] else super().value(row)  # a copy: an op may write to it

    def put(self, rows: npt.NDArray[Any], target: npt.NDArray[Any], here: npt.NDArray[Any]) -> bool:
        if not (self._all_good or self._good[rows].all()):
            return False
        begin, count = int(rows[0]), len(rows)
        if here[-1] - here[0] == count - 1 and rows[-1] - begin == count - 1 and bool((np.diff(rows) == 1).all()):
            target[here[0] : here[0] + count] = self._values[begin : begin + count]  # in order: one copy
        else:
            target[here] = self._values[rows]
        return True


def _values(column: str, kind: Kind, array: Any) -> _Values:
    """Return the values of a column, as numbers of one shape if they are such."""
    shape: tuple[int, ...] | None = ()
    if isinstance(kind, Array):
        shape = kind.shape
    if isinstance(kind, Text | Image | Mask | Bytes | Tokens) or shape is None:
        return _Values(column, kind, array)
    flat = array
    for side in shape:
        lengths = flat.value_lengths().to_numpy(zero_copy_only=False)
        if flat.null_count or not hasattr(flat.type, "value_type") or not bool((lengths == side).all()):
            return _Values(column, kind, array)  # which finds out which rows are bad
        flat = flat.flatten()
    if hasattr(flat.type, "value_type") or (shape and flat.null_count):
        return _Values(column, kind, array)
    good = np.ones(len(flat), np.bool_)
    if flat.null_count:
        good = flat.is_valid().to_numpy(zero_copy_only=False)
        flat = flat.fill_null(False if str(flat.type) == "bool" else 0)
    numbers = flat.to_numpy(zero_copy_only=False)
    dtype = np.dtype("int64" if isinstance(kind, Label) else kind.dtype)  # type: ignore[attr-defined]
    with np.errstate(over="ignore"):
        values = numbers.astype(dtype, copy=False)
    if values.dtype != numbers.dtype:
        good &= (values == numbers) if dtype.kind in "iu" else np.isfinite(values) | ~np.isfinite(numbers)
    if isinstance(kind, Label):
        good &= values >= 0
    values = values.reshape(len(array), *shape)
    return _Numbers(column, kind, array, values, np.asarray(good.reshape(len(array), -1).all(axis=1)))


def _column(table: Any, name: str) -> Any:
    """Return a column of a table as one array; dots lead into structs."""
    import pyarrow.compute

    parts = [name] if name in table.column_names else name.split(".")
    column = table.column(parts[0])
    if len(parts) > 1:
        column = pyarrow.compute.struct_field(column, parts[1:])
    # ORDER: dictionaries stay: a long text that all rows share would be one in each of them.
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
