"""What plug-ins give, held to the kinds that they declare."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from prepserver.pipeline.kinds import Array, Boxes, Bytes, Keypoints, Kind, Label, PerBox, Scalar, Text, Tokens
from prepserver.plugins import PluginError


def conform(what: str, value: Any, kind: Kind) -> Any:
    """Returns a plug-in's value, no image or mask, as rows hold it; raises `PluginError` if it is not of its kind."""
    shown: Any = None
    if value is None and isinstance(kind, Scalar | Text):
        value = kind.missing
    match kind:
        case Text():
            shown = value if isinstance(value, str) else None
        case Bytes():
            shown = bytes(value) if isinstance(value, bytes | bytearray | memoryview) else None
        case Label() | Scalar():
            number, wanted = as_array(value), kind.stored()[1]
            if number.size == 1:  # of the dtype, it needs no check
                shown = number.reshape(()).astype(wanted) if number.dtype == wanted else _number(number, wanted)
        case Array(shape, dtype):
            shown = _array(value, shape, dtype)
        case Boxes(count=count) | PerBox(count=count) | Keypoints(count=count):
            (_, *inner), dtype = dataclasses.replace(kind, count=1).stored()
            shown = _listed(value, count, tuple(inner), dtype)
        case Tokens(count):
            shown = _array(value, None if count is None else (count,), "int64")
            shown = None if shown is None or shown.ndim != 1 else shown
        case _:
            pass
    if shown is None:
        raise PluginError(f"{what} declares {kind} and gives {described(value)}{_remedy(value, kind)}")
    return shown


def _remedy(value: Any, kind: Kind) -> str:
    """Say how an array or a tensor of another dtype becomes the declared one; empty where numbers would be cut."""
    if not isinstance(kind, Array | Tokens) or not hasattr(value, "dtype"):
        return ""
    given, wanted = as_array(value).dtype, "int64" if isinstance(kind, Tokens) else kind.dtype
    is_of_shape = isinstance(kind, Tokens) or kind.shape in (None, tuple(value.shape))
    fits = given.kind in "iuf" if wanted.startswith("float") else given.kind in "iu" and np.can_cast(given, wanted)
    if given == wanted or not (is_of_shape and fits):
        return ""
    cast = f".to(torch.{wanted})" if hasattr(value, "detach") else f'.astype("{wanted}")'
    other = isinstance(kind, Array) and given.name != wanted and given.itemsize <= 8
    return f": add {cast}" + (f", or declare {given.name}" if other else "")


def _number(number: np.ndarray[Any, Any], wanted: str) -> np.ndarray[Any, Any] | None:
    whole = number.dtype.kind in "biu"
    if not (whole or (wanted.startswith("float") and number.dtype.kind == "f")):
        return None
    with np.errstate(over="ignore"):
        shown: np.ndarray[Any, Any] = number.reshape(()).astype(wanted)
    return shown if not whole or (np.isfinite(shown) and int(shown) == int(number.reshape(()))) else None


def _array(value: Any, shape: tuple[int, ...] | None, dtype: str) -> np.ndarray[Any, Any] | None:
    array = as_array(value)
    floats = dtype.startswith("float") or not array.size
    if isinstance(value, list | tuple) and array.dtype.kind in ("biuf" if floats else "biu"):
        with np.errstate(over="ignore"):
            cast = array.astype(dtype)  # the numbers of a list have no dtype of their own
        fit = np.isfinite(cast) == np.isfinite(array) if floats else cast == array
        array = cast if fit.all() else array
    fits = array.dtype == dtype and shape in (None, array.shape)
    if not fits:
        return None
    return array if array.flags.c_contiguous and array.flags.writeable else array.copy("C")


def _listed(value: Any, count: int | None, inner: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any] | None:
    """Any number of values as an array of shape (count, *inner)."""
    array = as_array(value)
    if array.shape == (0,) and array.dtype != object:
        array = array.reshape(0, *inner)  # an empty list has no inner shape
    fits = array.dtype.kind in ("iuf" if dtype == "float32" or not array.size else "iu")
    if not fits or array.shape[1:] != inner or array.ndim == 0 or count not in (None, len(array)):
        return None
    return array.astype(dtype)


def as_array(value: Any) -> np.ndarray[Any, Any]:
    """A tensor, array, number or list of them as an array; an empty object array for any other value."""
    try:
        return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    except (TypeError, ValueError):
        return np.empty(0, object)


def described(value: Any) -> str:
    """Describes a value for an error: its type, and shape and dtype if it has them."""
    kind = type(value).__name__
    like = as_array(value) if isinstance(value, list | tuple) else value
    if like is not value and like.dtype == object:  # such as a ragged list, which has no shape
        return kind
    shape, dtype = getattr(like, "shape", None), getattr(like, "dtype", None)
    return kind if shape is None else f"{kind} of shape {tuple(shape)} and dtype {dtype}"
