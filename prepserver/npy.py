"""The array in the bytes of an .npy file, which `source` and `transform` read."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt

from prepserver.pipeline.arrayfile import BadArrayError, npy_header

NPY = b"\x93NUMPY"  # begins each .npy file


def npy_array(data: bytes) -> npt.NDArray[Any]:
    """Return the array, of numbers; raises `BadArrayError` if the file is damaged or holds none."""
    file = io.BytesIO(data)
    descr, is_fortran, shape = npy_header(file)
    try:
        dtype = np.dtype(descr)
        if not all(type(side) is int and side >= 0 for side in shape):
            raise ValueError
        if dtype.kind not in "biuf":
            raise BadArrayError(f"has the dtype {descr}, and must hold numbers")
        return np.frombuffer(data, dtype, offset=file.tell()).reshape(shape, order="F" if is_fortran else "C")
    except (ValueError, TypeError, OverflowError, SyntaxError):
        raise BadArrayError("is damaged: the .npy file does not hold what its header says") from None
