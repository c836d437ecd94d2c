"""How `HuggingFace` is read: ranges of the Arrow files that Hugging Face's ``datasets`` wrote.

pyarrow is needed only to list them. Uncompressed values lie in the file as they are, texts and lists of numbers too, so
samples are read as ranges.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from prepserver.pipeline.kinds import Array, Kind, Label, Scalar, Text, Tokens
from prepserver.pipeline.sources.hugging_face import HuggingFace
from prepserver.pipeline.urls import is_url
from prepserver.source.container import Container
from prepserver.source.errors import SampleError, SourceError, library
from prepserver.source.ranges import MISSING, Listed, RangesReader, RangesSource
from prepserver.source.reader import Sections
from prepserver.source.roots import Roots
from prepserver.source.samples import is_path
from prepserver.source.storage import File, open_file
from prepserver.source.values import file_value, value_of

_INTEGERS = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"})
_DTYPES = {name: name for name in (*_INTEGERS, "uint64")} | {
    "halffloat": "float16", "float": "float32", "double": "float64",
}  # fmt: skip
"""Numbers, by Arrow's names."""
_LISTS = ("list<", "large_list<", "fixed_size_list<")

_WHOLE = threading.Lock()  # a whole object is in memory while it is listed, so objects are listed one at a time


class HuggingFaceSource(RangesSource):
    absent = "its {column} is null, or holds a null"

    def __init__(self, container: Container, spec: HuggingFace, roots: Roots) -> None:
        super().__init__(container, spec, roots)
        self._dtypes = container.meta["dtypes"]

    def value(self, column: str, data: bytes) -> Any:
        kind = self._kinds[column]
        if isinstance(kind, Text):
            return file_value(column, kind, data)
        if column not in self._dtypes:
            return data
        numbers = np.frombuffer(data, self._dtypes[column])
        return value_of(column, kind, numbers[0] if isinstance(kind, Label | Scalar) else numbers)


class HuggingFaceReader(RangesReader):
    spec: HuggingFace
    source = HuggingFaceSource
    edition = ".2"  # before, only images could be read; the digest of 0.2 depended on the folder

    def files(self) -> list[str]:
        folder = self.spec.path
        try:
            state = _json(f"{folder}/state.json", self.roots)
        except SourceError as error:
            if splits := _splits(folder, self.roots):
                named = ", ".join(f"{folder}/{each}" for each in splits)
                raise SourceError(f"{folder} holds several splits; name one: {named}") from error
            if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
                reason = "is no folder that save_to_disk() wrote: it has no state.json. Nothing is downloaded"
                remedy = f'load_dataset(...).save_to_disk("{folder}") writes it once; Parquet reads .parquet files'
                raise SourceError(f"{folder} {reason}. {remedy}") from error
            raise
        files = state.get("_data_files")
        names = [each.get("filename") for each in files if isinstance(each, dict)] if isinstance(files, list) else []
        if state.get("_indices_files"):
            raise SourceError(f"{folder} is a selection of rows: call flatten_indices() before save_to_disk()")
        if not names or not all(isinstance(name, str) and "/" not in name and is_path(name) for name in names):
            raise SourceError(f"{folder}/state.json names no files of this folder")
        return [f"{folder}/{name}" for name in names]

    def classes(self) -> list[str]:
        """Return the names of a ClassLabel; none for another feature."""
        if not self.spec.has_listed_label:
            return []
        features = _json(f"{self.spec.path}/dataset_info.json", self.roots).get("features")
        feature = features.get(self.spec.name_of("label")) if isinstance(features, dict) else None
        names = feature.get("names") if isinstance(feature, dict) else None
        return [str(name) for name in names] if isinstance(names, list) else []

    def is_current(self, container: Container) -> bool:
        return super().is_current(container) and container.meta["classes"] == self.classes()

    def list_file(self, path: str, file: File, found: Callable[..., None]) -> Listed:
        pyarrow = library("pyarrow", f"{path}: listing it needs pyarrow", "arrow")
        if file.size == 0:
            raise SourceError(f"{path} is empty: write the dataset again")
        listed = Listed.empty(len(self.columns))
        with _WHOLE if is_url(path) else contextlib.nullcontext():
            try:
                # A mapping is closed with the last array that lies in it.
                whole = pyarrow.py_buffer(file.whole())
                with pyarrow.ipc.open_stream(whole) as stream:
                    for batch in stream:
                        if batch.num_rows:  # an empty one has no bytes in the file
                            self._add(path, listed, batch, whole)
                            found(batch.num_rows)
            except SampleError:
                raise
            except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
                raise SourceError(
                    f"{path} is damaged, or not an Arrow stream: {error}. Write the dataset again"
                ) from error
        return listed

    def table(self, paths: list[str], files: list[Listed]) -> tuple[dict[str, Any], Sections]:
        meta, sections = super().table(paths, files)
        found: dict[str, set[str]] = {}
        for column, dtype in itertools.chain.from_iterable(each.dtypes.items() for each in files):
            found.setdefault(column, set()).add(dtype)
        for column, dtypes in found.items():
            if len(dtypes) > 1:
                both = " and ".join(sorted(dtypes))
                raise SourceError(f"{self.spec.location}: column {self.columns[column]!r} is {both}: write it anew")
        return meta | {"dtypes": {column: min(dtypes) for column, dtypes in found.items()}}, sections

    def _add(self, path: str, listed: Listed, batch: Any, whole: Any) -> None:
        columns, label = self.columns, self.spec.name_of("label") if self.spec.has_listed_label else ""
        for name in (*columns.values(), *filter(None, [label])):
            if name not in batch.schema.names:
                raise SourceError(f"{path} has no column {name!r}; it has: {', '.join(batch.schema.names)}")
            batch.column(name).validate(full=True)  # of a damaged file, offsets may lead into other samples
        first = len(listed.keys)
        listed.keys += [b"%d" % number for number in range(first, first + batch.num_rows)]
        if label:
            numbers = batch.column(label)
            if numbers.null_count or str(numbers.type) not in _INTEGERS or min(numbers.to_pylist(), default=0) < 0:
                found = f"{numbers.type}{f' with {numbers.null_count} nulls' * bool(numbers.null_count)}"
                raise SourceError(
                    f"{path}: column {label!r} is {found}; labels must be integers from 0, without nulls. "
                    + (
                        "label=None leaves them out"
                        if self.spec.declared is None
                        else "Declare it as a Scalar('int64')"
                    )
                )
            listed.labels.extend(numbers.to_pylist())
        else:
            listed.labels.extend([0] * batch.num_rows)
        for (column, name), (offsets, lengths) in zip(columns.items(), listed.places, strict=True):
            where, sizes, dtype = _ranges(path, name, self.spec.columns[column], batch.column(name), whole)
            if dtype:
                listed.dtypes[column] = dtype
            offsets.extend(array("Q", where.tobytes()))
            lengths.extend(array("Q", sizes.tobytes()))


def _ranges(
    path: str, name: str, kind: Kind, column: Any, whole: Any
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64], str]:
    """Return the offsets and the lengths of a column's values in the file, and the element type of numbers."""
    values, dtype = _stored(path, name, kind, column)
    data = values.buffers()[-1]
    begins = 0
    if data is not None and data.size:  # an empty one lies nowhere
        begins = data.address - whole.address
        if not 0 <= begins <= begins + data.size <= whole.size:
            raise SourceError(f"{path} is compressed, so no sample can be read alone: write it with save_to_disk()")
    is_list = str(column.type).startswith(_LISTS)
    bounds = _bounds(column if dtype else values)
    if is_list:
        bounds += np.uint64(values.offset)
    bounds *= np.uint64(np.dtype(dtype).itemsize if dtype else 1)
    where, sizes = bounds[:-1] + np.uint64(begins), np.diff(bounds)
    for each in (column,) if dtype else (column, values):
        where[each.is_null().to_numpy(zero_copy_only=False)] = MISSING
    if is_list and values.null_count:  # perhaps only in place of lists that are null
        where[[number for number, each in enumerate(column) if each.is_valid and each.values.null_count]] = MISSING
    return where, sizes, dtype


def _stored(path: str, name: str, kind: Kind, column: Any) -> tuple[Any, str]:
    """Return the array whose last buffer holds a column's values, and the element type of numbers.

    Raises:
        SourceError: The column is of another type than its kind needs.
    """
    values, dtype = column, ""
    if isinstance(kind, Label | Scalar):
        wanted, dtype = "numbers", _DTYPES.get(str(column.type), "")
        fits = bool(dtype)
    elif isinstance(kind, Array | Tokens):
        wanted, values = "lists of numbers", getattr(column, "values", column)
        dtype = _DTYPES.get(str(values.type), "")
        fits = bool(dtype) and str(column.type).startswith(_LISTS)
    elif isinstance(kind, Text):
        wanted, fits = "texts", str(column.type) in ("string", "large_string")
    else:
        if hasattr(column.type, "get_field_index") and column.type.get_field_index("bytes") >= 0:
            values = column.field("bytes")  # the feature Image of ``datasets`` holds the encoded file and its path
        wanted, fits = "encoded images or bytes", str(values.type) in ("binary", "large_binary")
    if not fits:
        remedy = ". Dataset.to_parquet() writes other lists so that Parquet reads them" * isinstance(kind, Array)
        raise SourceError(f"{path}: column {name!r} is {column.type}; it must hold {wanted}{remedy}")
    return values, dtype


def _bounds(array: Any) -> npt.NDArray[np.uint64]:
    """Return where the values of an array begin and end, in items of its last buffer."""
    kind = str(array.type)
    span = np.arange(array.offset, array.offset + len(array) + 1, dtype=np.uint64)
    if kind.startswith("fixed_size_list"):
        return span * np.uint64(array.type.list_size)
    if kind in _DTYPES:
        return span
    return np.frombuffer(array.buffers()[1], np.int64 if kind.startswith("large_") else np.int32)[span].astype(
        np.uint64
    )


def _splits(folder: str, roots: Roots) -> list[str]:
    """Return the names of the splits in a folder; none if it does not hold several splits."""
    try:
        splits = _json(f"{folder}/dataset_dict.json", roots).get("splits")
    except SourceError:
        return []
    return splits if isinstance(splits, list) else []


def _json(path: str, roots: Roots) -> dict[str, Any]:
    """Return the content of a JSON file; empty if it holds no object."""
    try:
        with open_file(roots, "the dataset's file", path) as file:
            found = json.loads(file.read(file.size, 0))
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path} is not JSON: {error}") from error
    return found if isinstance(found, dict) else {}
