"""How `LinearTransformation` is done: row by row of the matrix, because BLAS rounds differently on every CPU."""

import io
from weakref import WeakValueDictionary

import numpy as np

from prepserver.opfile import BadFile, contents
from prepserver.pipeline.arrayfile import BadArrayError, stored_arrays
from prepserver.pipeline.ops.linear_transformation import LinearTransformation
from prepserver.transform.stage import Array, ValueStage, delivered


def _array(data: bytes, path: str) -> Array:
    try:
        ((_, stored),) = stored_arrays(path, io.BytesIO(data)).items()
    except BadArrayError as error:
        raise BadFile(f"the file {path} of LinearTransformation {error}") from error
    if stored.dtype not in ("float32", "float64"):
        raise BadFile(f"the file {path} of LinearTransformation holds {stored.dtype}: save float32 or float64")
    flat: Array = np.frombuffer(data, stored.dtype, stored.nbytes // np.dtype(stored.dtype).itemsize, stored.offset)
    return flat.reshape(stored.shape)


class _Linear:
    """The arrays in the files of an op, read once per process while they are in use."""

    def __init__(self, op: LinearTransformation) -> None:
        self._named = op.files
        held = [_array(data, path) for data, path in zip(contents(op, "file"), op.files, strict=True)]
        self._matrix = held[0]
        self._mean = held[1] if len(held) > 1 else np.array(op.mean_vector, self._matrix.dtype)

    def product(self, image: Array) -> Array:
        """Return a new image of the same shape and type."""
        count = image.size
        self._check(self._named[0], self._matrix, (count, count), image)
        if len(self._named) > 1:
            self._check(self._named[1], self._mean, (count,), image)
        planes = image.transpose(2, 0, 1)
        values = planes.reshape(-1).astype(self._matrix.dtype) - self._mean.astype(self._matrix.dtype, copy=False)
        total, term = np.zeros_like(values), np.empty_like(values)
        # In this order, with a rounding after each product and each sum: the same bytes on every CPU.
        for value, row in zip(values, self._matrix, strict=True):
            np.multiply(row, value, out=term)
            np.add(total, term, out=total)
        result: Array = total.reshape(planes.shape).transpose(1, 2, 0).astype(image.dtype)
        return result

    @staticmethod
    def _check(path: str, found: Array, wanted: tuple[int, ...], image: Array) -> None:
        if found.shape != wanted:
            height, width, channels = image.shape
            raise BadFile(
                f"the file {path} of LinearTransformation holds an array of {found.shape}; images of {height} x "
                f"{width} pixels in {channels} channels have {image.size} values and need {wanted}"
            )


_in_use: WeakValueDictionary[LinearTransformation, _Linear] = WeakValueDictionary()


class LinearTransformationStage(ValueStage[LinearTransformation]):
    def __init__(self, op: LinearTransformation, place: int) -> None:
        super().__init__(op, place)
        self._linear: _Linear | None = None

    def step(self, image: Array, into: Array | None) -> Array:
        # ORDER: not before the first row, when a worker is sealed: the files may be a stranger's.
        if self._linear is None:
            self._linear = _in_use.get(self._op) or _Linear(self._op)
            _in_use[self._op] = self._linear
        return delivered(self._linear.product(image), into)
