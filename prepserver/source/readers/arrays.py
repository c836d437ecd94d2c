"""How `Arrays` are read: rows at fixed places of files, many at once from a mapping, or one by one.

Before each block and each row, the file is compared with its listing, so a change is noticed. Only a file that is cut
within the microseconds of a copy, or a failing disk, kills a worker; after two such deaths the first sample of the
block is quarantined, and the others are read one by one. A crop of a large image is copied from the mapping, too.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from prepserver.pictures import channels_last
from prepserver.pipeline.arrayfile import BadArrayError, headless_array, is_headless, stored_arrays
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Image, Kind, Label, Tokens
from prepserver.pipeline.record import label_of
from prepserver.pipeline.sources.arrays import Arrays, array_of
from prepserver.pipeline.spec import digest_of
from prepserver.source.container import Container
from prepserver.source.errors import SampleError, SourceError
from prepserver.source.places import Places
from prepserver.source.progress import Progress
from prepserver.source.reader import Scan, ScanningReader
from prepserver.source.roots import Roots
from prepserver.source.samples import Indices, Record, Source
from prepserver.source.shards import open_shards
from prepserver.source.storage import File, open_file, stream

_LOOKS = 64
_LOOK_BYTES = 4096  # the digest of the content covers this many pieces of each array, of `_LOOK_BYTES` each

_STEP_BYTES = 1 << 24

_MAPPED_BYTES = 1 << 20
"""Of larger images and masks only what a crop shows is copied, from the mapping."""


@dataclass
class _Column:
    """Where the rows of a column lie."""

    name: str
    file: int
    offset: int
    shape: Sequence[int]
    dtype: str

    @property
    def row_bytes(self) -> int:
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape[1:], dtype=object))

    def check(self, kind: Kind) -> None:
        """Raise `BadArrayError` if the array does not have the shape and dtype of its column's `kind`."""
        shape, dtype = kind.stored()
        is_label = "int" in self.dtype and (
            isinstance(kind, Label) or (isinstance(kind, Tokens) and self.dtype != "uint64")
        )
        inner = tuple(self.shape[1:])
        is_planes = isinstance(kind, Image) and inner[-2:] == kind.size and math.prod(inner[:-2]) == kind.channels
        if not (inner == shape or is_planes) or not (self.dtype == dtype or is_label):
            raise BadArrayError(
                f"holds rows of shape {tuple(self.shape[1:])} and dtype {self.dtype}, and column {self.name!r} is "
                f"declared as {kind}: shape {shape}, dtype {dtype}"
            )

    def top_label(self, file: File) -> int:
        """Return the greatest value of a column of labels; raise `BadArrayError` if one cannot be a label."""
        end, top = self.offset + self.shape[0] * self.row_bytes, 0
        for at in range(self.offset, end, _STEP_BYTES):
            data = file.read(min(_STEP_BYTES, end - at), at)
            if len(data) < min(_STEP_BYTES, end - at):
                raise BadArrayError("was cut while it was listed")
            values = np.frombuffer(data, self.dtype)
            for value in (int(values.min()), int(values.max())):
                if not 0 <= value < 1 << 63:
                    raise BadArrayError(
                        f"holds {value}, and the labels of column {self.name!r} must be int64 numbers from 0; declare "
                        f"it as kinds.Scalar({self.dtype!r})"
                    )
                top = max(top, value)
        return top


class ArraySource(Source):
    """A `Source` over arrays in files."""

    def __init__(self, container: Container, spec: Arrays, roots: Roots) -> None:
        meta, kinds = container.meta, spec.columns
        self._samples: int = meta["n"]
        self._columns = [_Column(**each) for each in meta["columns"]]
        self._kinds = kinds
        self._stored = {name: kind.stored() for name, kind in kinds.items()}
        self._label = label_of(kinds, "")
        self._shards = open_shards(meta["files"], meta["sizes"], roots, meta["mtimes_ns"])
        self._stamp = self._shards.stamp

    def __len__(self) -> int:
        return self._samples

    @property
    def reads_ahead(self) -> bool:
        return self._shards.wants

    def prefetch(self, indices: Sequence[int]) -> None:
        self._shards.want(
            (column.file, column.offset + index * column.row_bytes, column.row_bytes)
            for index, column in itertools.product(indices, self._columns)
        )

    def read(self, index: int) -> Record:
        if not 0 <= index < self._samples:
            raise IndexError(f"index {index} of a source of {self._samples} samples")
        record: Record = {}
        for column in self._columns:
            shape, dtype = self._stored[column.name]
            kind, at = self._kinds[column.name], column.offset + index * column.row_bytes
            if kind.is_spatial and column.row_bytes > _MAPPED_BYTES and not self.reads_ahead:
                mapped = self._shards.mapped(column.file)
                values = np.frombuffer(mapped, dtype, column.row_bytes // np.dtype(dtype).itemsize, at)
            else:
                self._shards.check(column.file)
                data = self._shards.read(column.file, at, column.row_bytes)
                if len(data) != column.row_bytes:
                    raise SampleError(f"{self._shards.name(column.file)} is cut off")
                # Writable, or torch warns of what it might do to it.
                values = np.frombuffer(bytearray(data), column.dtype).astype(dtype, copy=False)
            record[column.name] = (
                channels_last(values.reshape(column.shape[1:]), kind)
                if isinstance(kind, Image)
                else values.reshape(shape)
            )
        return record

    def read_block(self, indices: Indices, into: Mapping[str, npt.NDArray[Any]]) -> bool:
        if self.reads_ahead:
            return False
        places = np.asarray(indices)
        if not 0 <= places.min() <= places.max() < self._samples:
            raise IndexError(f"indices {places.min()} to {places.max()} of a source of {self._samples} samples")
        for column in self._columns:
            if column.name not in into:
                continue
            rows, size = into[column.name], column.row_bytes
            whole = np.frombuffer(self._shards.mapped(column.file), np.uint8, self._samples * size, column.offset)
            stored = rows if rows.dtype == column.dtype else np.empty(rows.shape, column.dtype)
            # As bytes: numpy would copy an unaligned array whole. Without "clip" it copies twice.
            out = stored.reshape(len(places), -1).view(np.uint8)
            np.take(whole.reshape(-1, size), places, axis=0, out=out, mode="clip")
            if stored is not rows:
                rows[...] = stored
        return True

    def name(self, index: int) -> str:
        return f"{self._shards.name(self._columns[0].file)}[{index}]"


class ArraysReader(ScanningReader):
    spec: Arrays
    source = ArraySource

    def scan(self, progress: Progress) -> Scan:
        places, files = Places(), list(dict.fromkeys(self.spec.files.values()))
        columns: list[dict[str, Any]] = []
        opened: dict[str, File] = {}
        digest = hashlib.sha256()
        num_classes = 0
        for name, path in self.spec.files.items():
            places.add_file(path)
            try:
                with open_file(self.roots, "the file", path) as file:
                    opened.setdefault(path, file)
                    kind = self.spec.columns[name]
                    if is_headless(path):
                        array = headless_array(file.size, kind)
                    else:
                        array = array_of(stored_arrays(path, stream(file), name), name)
                    column = _Column(name, files.index(path), array.offset, array.shape, array.dtype)
                    column.check(kind)
                    digest.update(json.dumps([name, column.shape, column.dtype]).encode())
                    for at in range(0, array.nbytes, max(1, array.nbytes // _LOOKS)):
                        digest.update(file.read(min(_LOOK_BYTES, array.nbytes - at), array.offset + at))
                    if isinstance(kind, Label):
                        num_classes = max(num_classes, column.top_label(file) + 1)
            except BadArrayError as error:
                raise SourceError(f"{path} {error}") from error
            except SpecError as error:
                raise SourceError(f"{path}: column {name!r} {error.reason}") from error
            columns.append(column.__dict__)
        lengths = {each["name"]: each["shape"][0] for each in columns}
        if not any(lengths.values()):
            raise SourceError(f"{self.spec.location} has no samples")
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"{name} {length}" for name, length in lengths.items())
            longest = max(lengths, key=lambda name: lengths[name])
            remedy = f". Arrays({longest}={self.spec.files[longest]!r}, ...) reads only those that it names"
            remedy *= len(files) < len(lengths)
            raise SourceError(f"{self.spec.location}: columns must have the same number of samples: {shown}{remedy}")
        # The digest of the content covers only pieces of it.
        state = digest_of([[opened[path].size for path in files], [opened[path].version for path in files]])
        meta = {
            "n": columns[0]["shape"][0], "num_classes": num_classes, "content_digest": digest.hexdigest(),
            "state": state, "columns": columns,
        }  # fmt: skip
        return Scan(meta, {}, places, list(opened.items()))
