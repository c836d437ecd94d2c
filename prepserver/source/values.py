"""Makes the values of columns from the cells of tables and from small files: text, numbers, lists of numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt

from prepserver.npy import NPY, npy_array
from prepserver.pipeline.arrayfile import BadArrayError
from prepserver.pipeline.kinds import ITEM_BYTES, Array, Json, Kind, Label, Scalar, Text, Tokens
from prepserver.source.errors import SampleError

_SHOWN_CHARS = 60
_SHOWN_KEYS = 64
_SHOWN_CLASSES = 8
_LABELS = 1 << 63
_MOST_DIMENSIONS = 8
EXACT = 1 << 53  # floats below it are the integers that they stand for
_IN_JSON = Array, Tokens, Json  # kinds whose cells are JSON; in each call, `|` would take 0.3 us
_MISSING = frozenset(
    {"", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA",
     "NULL", "NaN", "None", "n/a", "nan", "null"}
)  # fmt: skip
"""Cells that mean no value: those of ``pandas.read_csv``."""
REPLACES = "; missing=, of kinds.Scalar, kinds.Array and kinds.Text, replaces missing values"


def value_of(column: str, kind: Kind, given: Any) -> Any:
    """Return a given value as rows hold it: a str for `Text` and `Json`, else an array of the kind's type.

    None is a missing value, which some kinds replace: `Kind.may_be_missing`. Lists are taken as arrays. Floats may lose
    precision, and may be nan or inf. Integers must fit exactly; a float may be one, such as 1.0.

    Raises:
        SampleError: The value is not of that kind.
    """
    if given is None and isinstance(kind, Text) and kind.missing is not None:
        return kind.missing
    if isinstance(kind, Json):
        try:
            return json.dumps(given)
        except (TypeError, ValueError, RecursionError) as error:
            raise SampleError(f"its {column} cannot be written as JSON: {error}") from None
    if isinstance(kind, Text):
        if isinstance(given, str):
            return given
        raise _wrong(column, kind, given)
    if given is None and isinstance(kind, Scalar) and kind.missing is not None:
        return np.array(kind.missing, kind.dtype)
    if isinstance(kind, Label) and kind.classes:
        return _class_number(column, kind, given)
    if isinstance(kind, Array) and kind.missing is not None:
        given = _replaced(given, kind.missing, _MOST_DIMENSIONS)
    found = _number_of(kind, given)
    return _numbers(column, kind, given) if found is None else found


def _class_number(column: str, kind: Label, given: Any) -> Any:
    """Return the number of a class; its name or the number may be given."""
    try:
        number = kind.classes.index(given) if isinstance(given, str) else int(_numbers(column, Label(), given))
        kind.classes[number]
    except (SampleError, ValueError, IndexError):
        raise _wrong(column, kind, given) from None
    return np.int64(number)


def _replaced(given: Any, missing: float, depth: int) -> Any:
    """Return lists with `missing` in the place of each None in them; anything else as it is."""
    if not (depth and isinstance(given, list)):
        return given
    return [missing if each is None else _replaced(each, missing, depth - 1) for each in given]


def _number_of(kind: Kind, given: Any) -> Any:
    """Return what `_numbers` would, which takes 10 us for each; None if only that can tell."""
    if isinstance(kind, Scalar) and (sure := _SURE.get((kind.dtype, type(given)))) is not None:
        dtype, low, high = sure
        if low <= given <= high and (dtype.kind == "f" or not given % 1):
            return np.array(given, dtype)
    elif type(given) is int and isinstance(kind, Label) and 0 <= given < _LABELS:
        return np.int64(given)
    return None


def _numbers(column: str, kind: Kind, given: Any) -> Any:
    dtype = np.dtype("int64" if isinstance(kind, Label | Tokens) else kind.dtype)  # type: ignore[attr-defined]
    try:
        array = np.asarray(given)
        if not array.size:
            array = array.astype(dtype)
        if array.dtype.kind not in "biuf":
            raise ValueError
        is_safe = np.can_cast(array.dtype, dtype)  # as of most, so that nothing is left to check, which takes 10 us
        # What is no integer is found below.
        with nullcontext() if is_safe else np.errstate(over="raise", invalid="ignore"):
            value = array.astype(dtype)
    except (ValueError, OverflowError, FloatingPointError):
        raise _wrong(column, kind, given) from None
    match kind:
        case Label() | Scalar():
            fits = value.ndim == 0
        case Array(shape):
            fits = shape in (None, value.shape)
        case _:
            fits = value.ndim == 1
    same = is_safe or dtype.kind == "f" or bool(np.all(value == array))
    if dtype.kind != "f" and array.dtype.kind == "f":
        # A float of 2**53 or more may stand for another integer, perhaps of the same list.
        same = same and bool(np.all(np.abs(array.astype(np.float64)) < EXACT))
    if not (fits and same) or (isinstance(kind, Label) and value < 0):
        raise _wrong(column, kind, given)
    return value


def _sure(dtype: np.dtype[Any], given: type) -> tuple[np.dtype[Any], float, float]:
    low: float = 0
    high: float = 1
    if dtype.kind == "f":
        low, high = float(np.finfo(dtype).min), float(np.finfo(dtype).max)
    elif dtype.kind != "b":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    if (given is float) is not (dtype.kind == "f"):
        low, high = max(low, 1 - EXACT), min(high, EXACT - 1)
    return dtype, low, high


_SURE = {(name, given): _sure(np.dtype(name), given) for name in ITEM_BYTES for given in (int, float, bool)}
"""By the dtype of a `Scalar` and the type of a number: the range whose whole numbers, or floats, surely fit."""


def parsed(column: str, kind: Kind, cell: str) -> Any:
    """Return the value of a cell: text, a number, or JSON; raises `SampleError` if it is not of the kind."""
    if isinstance(kind, Text) and not isinstance(kind, Json):
        return cell
    given: Any
    try:
        if kind.may_be_missing and cell.strip() in _MISSING:
            given = None
        elif isinstance(kind, _IN_JSON):
            given = json.loads(cell)
        elif isinstance(kind, Label) and kind.classes:
            given = cell
        elif "_" in cell or not cell.isascii():  # Python would take 1_0 for 10
            raise ValueError
        else:
            given = _number(cell, isinstance(kind, Label) or not kind.dtype.startswith("float"))  # type: ignore[attr-defined]
    except (ValueError, RecursionError):
        raise _wrong(column, kind, cell) from None
    return value_of(column, kind, given)


def _number(cell: str, is_whole: bool) -> int | float | bool:
    """Return the number in a cell; pandas writes bools as words, and integers as floats if one of them is missing."""
    try:
        return int(cell) if is_whole else float(cell)
    except ValueError:
        word = cell.strip().lower()
        return word == "true" if word in ("true", "false") else float(cell)


def file_value(column: str, kind: Kind, data: bytes) -> Any:
    """Return the value that a small file holds: text, a number, JSON, or an array as ``numpy.save`` writes it.

    A byte order mark belongs to no number.

    Raises:
        SampleError: It holds no value of the kind.
    """
    if isinstance(kind, Text) and not isinstance(kind, Json):
        return _text(column, data, "")
    if data.startswith(NPY):
        return value_of(column, kind, _npy(column, data))
    return parsed(column, kind, _text(column, data, ", and the file is no .npy file").removeprefix("\ufeff"))


def json_of_file(column: str, data: bytes) -> dict[str, Any]:
    """Return the JSON object that a small file holds; raises `SampleError` if it holds none."""
    return json_object(_text(column, data, "").removeprefix("\ufeff"), f"the file of its {column}")


def _text(column: str, data: bytes, more: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise SampleError(f"byte {error.start} of its {column} is not UTF-8{more}") from None


def _npy(column: str, data: bytes) -> npt.NDArray[Any]:
    try:
        return npy_array(data)
    except BadArrayError as error:
        raise SampleError(f"its {column} {error}") from None


def json_object(text: str, what: str) -> dict[str, Any]:
    """Return the JSON object that a text holds; raises `SampleError`, which calls the text `what`, if it holds none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SampleError(f"{what} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise SampleError(f'{what} holds no JSON object, such as {{"x": 1}}')
    return found


def at_key(found: Any, name: str, kind: Kind, what: str, asked: str = "") -> Any:
    """Return the value of a key, or of keys separated by dots; None if it is absent and its kind may be missing.

    A key may have dots, too: of several ways to a value, the one whose first key is shortest counts. `asked` is the
    whole name, of which `name` is the rest.

    Raises:
        SampleError: As `json_object`.
    """
    asked = asked or name
    if isinstance(found, dict) and name in found:
        return found[name]
    failure = None
    for first, rest in splits(name) if isinstance(found, dict) else ():
        if first in found:
            try:
                value = at_key(found[first], rest, kind, what, asked)
            except SampleError as error:
                failure = failure or error
            else:
                if value is not None or not kind.may_be_missing:
                    return value
    if failure is not None:
        raise failure
    if kind.may_be_missing and (found is None or isinstance(found, dict)):
        return None
    more = f": {name!r} would lie in a list, and dots lead into objects only" if isinstance(found, list) else ""
    if isinstance(found, dict):
        place = asked.removesuffix(name).rstrip(".")
        keys = ", ".join(f"{each!r:.{_SHOWN_CHARS}}" for each in list(found)[:_SHOWN_KEYS])
        more = f"; {repr(place) if place else 'it'} has: {keys or 'nothing'}"
    raise SampleError(f"{what} has no {asked!r}{more}")


def splits(name: str) -> Iterator[tuple[str, str]]:
    """Yield the ways to cut a name in two at a dot, the shortest beginning first."""
    parts = name.split(".")
    for count in range(1, len(parts)):
        yield ".".join(parts[:count]), ".".join(parts[count:])


def _wrong(column: str, kind: Kind, given: Any) -> SampleError:
    match kind:
        case Json():
            wanted = "JSON"
        case Text():
            wanted = "text" + REPLACES * (given is None)
        case Label():
            wanted = "the number of a class, an integer from 0"
            if kind.classes:
                known = ", ".join(map(repr, kind.classes[:_SHOWN_CLASSES]))
                wanted = f"one of {len(kind.classes)} classes: {known}{', ...' * (len(kind.classes) > _SHOWN_CLASSES)}"
            elif isinstance(given, str) and given.strip() not in _MISSING:
                wanted += "; kinds.Label(classes=[...]) makes numbers of names"
        case Scalar(dtype):
            is_missing = given is None or (isinstance(given, str) and given.strip() in _MISSING)
            wanted = f"a number of type {dtype}{REPLACES * is_missing}"
        case Array(shape, dtype):
            wanted = f"numbers of type {dtype}" + (f" in the shape {list(shape)}" if shape else "")
            wanted += REPLACES * (isinstance(given, list) and None in given)
        case _:
            wanted = "a list of integers"
    shown = repr(given)
    shown = shown if len(shown) <= _SHOWN_CHARS else f"{shown[: _SHOWN_CHARS - 3]}..."
    return SampleError(f"its {column} is {shown}, and must be {wanted}")
