"""Arrow columns as the values of samples: numbers of one shape are converted in blocks, other values one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from prepserver.pipeline.kinds import Array, Bytes, Image, Json, Kind, Label, Mask, Scalar, Text, Tokens
from prepserver.source.errors import SampleError
from prepserver.source.samples import MAX_ENCODED_BYTES
from prepserver.source.values import EXACT, REPLACES, value_of


class Values:
    """The values of a column in a row group, kept in Arrow's form; they take `nbytes`."""

    def __init__(self, column: str, kind: Kind, array: Any) -> None:
        self._column, self._kind, self._array = column, kind, array
        self.nbytes = int(array.nbytes)
        self._is_flat = isinstance(kind, Array | Tokens) and not hasattr(array.type.value_type, "value_type")

    def value(self, row: int) -> Any:
        """Return the value of a row; raises `SampleError` if it has none, or it is not of the kind."""
        found = self._array[row]
        if not found.is_valid and not (isinstance(self._kind, Json) or self._kind.may_be_missing):
            remedy = REPLACES * isinstance(self._kind, Scalar | Text)
            if isinstance(self._kind, Image | Mask):
                remedy = ": the file may hold paths of images, whose bytes must be in it"
            raise SampleError(f"its {self._column} is null{remedy}")
        if isinstance(self._kind, Image | Mask | Bytes):
            found = getattr(found, "value", found)  # a dictionary's scalar holds it
            if len(data := found.as_buffer()) > MAX_ENCODED_BYTES:
                raise SampleError(
                    f"its {self._column} has {len(data)} bytes, more than the limit of {MAX_ENCODED_BYTES}"
                )
            if not len(data) and not isinstance(self._kind, Bytes):
                raise SampleError(f"its {self._column} is empty")
            return data.to_pybytes()
        has_null = self._is_flat and found.values.null_count
        if has_null and getattr(self._kind, "missing", None) is None:
            raise SampleError(f"its {self._column} holds a null{REPLACES * isinstance(self._kind, Array)}")
        try:
            given = found.as_py() if has_null or not self._is_flat else found.values.to_numpy(zero_copy_only=False)
        except UnicodeDecodeError as error:
            raise SampleError(f"byte {error.start} of its {self._column} is not UTF-8") from None
        return value_of(self._column, self._kind, given)

    def put(self, rows: npt.NDArray[Any], target: npt.NDArray[Any], here: npt.NDArray[Any]) -> bool:
        """Write the values of `rows` to the places `here` of `target`; False if one is bad (`value` then says why)."""
        for place, row in zip(here.tolist(), rows.tolist(), strict=True):
            target[place] = self.value(row)
        return True


class _Numbers(Values):
    """Numbers of one shape, in an array of numpy."""

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


class _Lists(Values):
    """Lists of numbers, of any length and without nulls, whose numbers surely are of the kind's type."""

    def __init__(self, column: str, kind: Kind, array: Any, numbers: npt.NDArray[Any], dtype: np.dtype[Any]) -> None:
        super().__init__(column, kind, array)
        self._numbers, self._dtype, self._offsets = numbers, dtype, array.offsets.to_numpy()

    def value(self, row: int) -> Any:
        return self._numbers[self._offsets[row] : self._offsets[row + 1]].astype(self._dtype)


class _Named(Values):
    """Names of classes, or their numbers."""

    def __init__(self, column: str, kind: Label, array: Any) -> None:
        super().__init__(column, kind, array)
        # Names repeat, so each is made a number once.
        self._found: dict[Any, Any] = {}

    def value(self, row: int) -> Any:
        name = self._array[row].as_py()
        if name not in self._found:
            self._found[name] = super().value(row)
        return self._found[name]


class Joined(Values):
    """Numbers of several columns, which are one array in each row."""

    def __init__(self, parts: list[Values]) -> None:
        self._parts = parts
        self.nbytes = sum(each.nbytes for each in parts)

    def value(self, row: int) -> Any:
        return np.array([each.value(row) for each in self._parts])

    def put(self, rows: npt.NDArray[Any], target: npt.NDArray[Any], here: npt.NDArray[Any]) -> bool:
        return all(each.put(rows, target[:, place], here) for place, each in enumerate(self._parts))


def is_time(found: Any) -> bool:
    """Return whether a type of Arrow's is a date, a time, a timestamp or a duration."""
    return str(found).startswith(("date", "time", "duration"))


def values_of(column: str, kind: Kind, array: Any) -> Values:
    """Return the values of a column, in an array of numpy if all are numbers of one shape."""
    array = _plain(array)
    if isinstance(kind, Label) and kind.classes:
        return _Named(column, kind, array)
    shape = kind.shape if isinstance(kind, Array) else ()
    if isinstance(kind, Text | Image | Mask | Bytes | Tokens) or shape is None:
        return _of_any_size(column, kind, array)
    flat = array
    for side in shape:
        is_list = hasattr(flat, "value_lengths") and not flat.null_count
        if not (is_list and bool((flat.value_lengths().to_numpy(zero_copy_only=False) == side).all())):
            return Values(column, kind, array)  # which finds the bad rows
        flat = flat.flatten()
    if hasattr(flat.type, "value_type") or str(flat.type) == "null" or (shape and flat.null_count):
        return Values(column, kind, array)
    is_valid = np.ones(len(flat), np.bool_)
    if flat.null_count:
        is_valid = flat.is_valid().to_numpy(zero_copy_only=False)
        flat = flat.fill_null(False if str(flat.type) == "bool" else 0)
    numbers = flat.to_numpy(zero_copy_only=False)
    dtype = np.dtype("int64" if isinstance(kind, Label) else kind.dtype)  # type: ignore[attr-defined]
    with np.errstate(over="ignore", invalid="ignore"):
        values = numbers.astype(dtype, copy=False)
    good = np.ones(len(flat), np.bool_)
    if values.dtype != numbers.dtype:
        good &= _fit(numbers, values)
    if isinstance(kind, Label):
        good &= values >= 0
    if isinstance(kind, Scalar) and kind.missing is not None and not is_valid.all():
        values = np.where(is_valid, values, dtype.type(kind.missing))
        good |= ~is_valid
    else:
        good &= is_valid
    values = values.reshape(len(array), *shape)
    return _Numbers(column, kind, array, values, np.asarray(good.reshape(len(array), -1).all(axis=1)))


def _of_any_size(column: str, kind: Kind, array: Any) -> Values:
    is_list = isinstance(kind, Array | Tokens) and str(array.type).startswith(("list<", "large_list<"))
    if is_list and str(array.type.value_type).startswith(("int", "uint", "float", "double")):
        flat, dtype = array.values, np.dtype("int64" if isinstance(kind, Tokens) else kind.dtype)  # type: ignore[attr-defined]
        if not (array.null_count or flat.null_count) and np.can_cast((numbers := flat.to_numpy()).dtype, dtype):
            return _Lists(column, kind, array, numbers, dtype)
    return Values(column, kind, array)


def _fit(numbers: npt.NDArray[Any], values: npt.NDArray[Any]) -> Any:
    """Say which numbers a row may hold as these values of another dtype; as `value_of` does of each."""
    if values.dtype.kind == "f":
        return np.isfinite(values) | ~np.isfinite(numbers)
    same = values == numbers
    return same & (np.abs(numbers, dtype=np.float64) < EXACT) if numbers.dtype.kind == "f" else same


def _plain(array: Any) -> Any:
    """Return a column in the form of all others: tensors as lists, times as the integers that are stored."""
    if is_time(array.type):
        return array.view("int32" if array.type.bit_width == 32 else "int64")
    if str(array.type).startswith("extension<arrow.fixed_shape_tensor"):
        return _lists(array)
    return getattr(array, "storage", array)  # such as the Array2D of ``datasets``, where a plug-in has imported it


def _lists(tensors: Any) -> Any:
    """Return a column of Arrow's fixed-shape tensors as nested lists, the form of all other columns."""
    stored, (first, *inner) = tensors.storage, tensors.type.shape
    size, make = stored.type.list_size, type(stored).from_arrays
    values = stored.values.slice(stored.offset * size, len(stored) * size)
    for side in reversed(inner):
        values = make(values, side)
    return make(values, first, mask=stored.is_null())
