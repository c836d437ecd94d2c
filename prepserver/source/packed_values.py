"""The bytes of one column of a packed sample: encoded images and bytes as they are, text, and numbers."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
from PIL import Image as Picture

from prepserver.pipeline import kinds
from prepserver.protocol.packed import BrokenRecordError

# Element type as numpy spells it, such as "<f4", and number of dimensions; then the length of each dimension.
_ARRAY = struct.Struct("<4sI")
_MOST_DIMENSIONS = 8
_DTYPES = {dtype.str.encode(): dtype for dtype in (np.dtype(name).newbyteorder("<") for name in kinds.ITEM_BYTES)}


def to_bytes(value: Any, kind: kinds.Kind) -> bytes:
    """Return the bytes of a value of a record: pixels become a PNG or .npy, and the size of their plane follows boxes.

    Raises:
        UnicodeEncodeError: A text holds half of a surrogate pair, as JSON may.
    """
    value, *size = value if isinstance(value, tuple) else (value,)
    if isinstance(value, bytes):
        return value
    if isinstance(kind, kinds.Text):
        return str(value).encode()
    array = np.asarray(value)
    if isinstance(kind, kinds.Image) and not kind.is_photo:
        file = io.BytesIO()
        np.save(file, array)
        return file.getvalue()
    if isinstance(kind, kinds.Image | kinds.Mask):
        png = io.BytesIO()
        Picture.fromarray(array).save(png, "PNG")
        return png.getvalue()
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(array.shape)
    shape = struct.pack(f"<{array.ndim}Q", *array.shape)
    plane = b"".join(struct.pack("<2Q", *each) for each in size)
    return _ARRAY.pack(array.dtype.str.encode(), array.ndim) + shape + array.tobytes() + plane


def from_bytes(data: memoryview, kind: kinds.Kind) -> Any:
    """Return the value of these bytes; raises `BrokenRecordError` if they hold none of this kind."""
    if isinstance(kind, kinds.Image | kinds.Mask | kinds.Bytes):
        return bytes(data)
    try:
        if isinstance(kind, kinds.Text):
            return str(data, "utf-8")
        name, dimensions = _ARRAY.unpack_from(data)
        dtype = _DTYPES.get(name.rstrip(b"\0"))
        if dtype is None or dimensions > _MOST_DIMENSIONS:
            raise ValueError(f"not an array of numbers: {name!r}, {dimensions} dimensions")
        shape = struct.unpack_from(f"<{dimensions}Q", data, _ARRAY.size)
        array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, data, at := _ARRAY.size + 8 * dimensions)
        rest = data[at + array.nbytes :]
        if rest and isinstance(kind, kinds.Boxes | kinds.Keypoints):
            return array, struct.unpack("<2Q", rest)
        if rest:
            raise ValueError(f"{len(rest)} bytes more than its array needs")
        if not _is_of(array, kind):
            raise ValueError(f"an array of {array.dtype} in the shape {array.shape}")
    except (ValueError, TypeError, struct.error) as error:
        raise BrokenRecordError(f"it holds no {type(kind).__name__}: {error}") from error
    return array if dimensions else array[()]


def _is_of(array: np.ndarray[Any, Any], kind: kinds.Kind) -> bool:
    """Say whether rows can take an array as it is; boxes and the columns beside them are checked later."""
    match kind:
        case kinds.Label():
            return array.dtype == np.int64 and not array.ndim
        case kinds.Tokens():
            return array.dtype == np.int64 and array.ndim == 1
        case kinds.Scalar(dtype):
            return array.dtype == dtype and not array.ndim
        case kinds.Array(shape, dtype):
            return array.dtype == dtype and shape in (None, array.shape)
        case _:
            return True
