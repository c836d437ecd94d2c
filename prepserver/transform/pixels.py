"""Images that no photo decoder gives: arrays in .npy files, and grey files of 8 or 16 bits as one channel."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from prepserver.npy import NPY, npy_array
from prepserver.pictures import channels_last
from prepserver.pipeline.arrayfile import BadArrayError
from prepserver.pipeline.kinds import Image
from prepserver.transform.decode import Encoded, Pixels
from prepserver.transform.errors import BadSample
from prepserver.transform.pillow import PillowImage
from prepserver.transform.stage import Box


class GreyFile(Encoded):
    """A grey image in a file that Pillow reads, of one channel, uint8 or uint16; `tolerant` decodes it."""

    __slots__ = ("_dtype", "_file")

    def __init__(self, data: bytes, dtype: str) -> None:
        self._file, self._dtype = PillowImage(data), dtype
        self.height, self.width = self._file.height, self._file.width
        self.is_usual = False

    @property
    def orientation(self) -> int:
        self.tolerant()  # only then is it known
        return self._file.orientation()

    def scale(self, wanted: int) -> int:
        return 1

    def clean(self, part: Box, scale: int = 1) -> None:
        return None

    def tolerant(self) -> npt.NDArray[Any]:
        image = self._file.grey(self._dtype)[:, :, None]
        self._refuse_other_size(*image.shape[:2])
        return image


def raw_image(data: bytes, kind: Image) -> Encoded:
    """Return the image in a file, of the channels and dtype of its kind.

    An .npy file holds it in any order of axes that `channels_last` takes. Any other file must be grey.

    Raises:
        BadSample: It holds another array, or no image.
    """
    due = f"it is declared as an image (H, W, {kind.channels}) of dtype {kind.dtype}"
    if not data.startswith(NPY):
        if kind.channels != 1 or kind.dtype not in ("uint8", "uint16"):
            raise BadSample(f"{due}, which only an .npy file can hold, and this is none")
        return GreyFile(data, kind.dtype)
    return Pixels(npy_pixels(data, kind, due))


def npy_pixels(data: bytes, kind: Image, due: str) -> npt.NDArray[Any]:
    """Return the image in an .npy file, which the error calls `due`; raises `BadSample` if it holds another array."""
    try:
        array = npy_array(data)
    except BadArrayError as error:
        raise BadSample(f"the file {error}") from None
    pixels = channels_last(array, kind)
    if pixels is None:
        raise BadSample(f"{due}, and the .npy file has the shape {array.shape} and dtype {array.dtype}")
    return np.require(pixels, requirements=("C", "W"))
