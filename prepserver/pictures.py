"""Images as arrays of pixels, (H, W, C): Pillow's, and arrays in another order of axes.

`source` and `transform` use this module; it knows neither, and opens no file.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from prepserver.pipeline import kinds

Pixels = npt.NDArray[np.uint8]


class OddPicture(Exception):
    """An image has no meaning in 8 bits; the text says why, and what to do."""


def rgb(image: Image.Image) -> Pixels:
    """Return an image as (H, W, 3) RGB; 16-bit grey keeps its high byte, as 16-bit colour does in Pillow.

    Raises:
        OddPicture: Its pixels are floats, or integers outside 0 to 65535.
    """
    mode = image.mode
    if mode == "F":
        raise OddPicture(f"its pixels are floats (mode F), which have no meaning in 8 bits: {_remedy(image)}")
    if mode == "I" or mode.startswith("I;16"):
        grey = np.asarray(image)
        low, high = (int(grey.min()), int(grey.max())) if grey.size else (0, 0)
        if low < 0 or high > 0xFFFF:
            raise OddPicture(f"its pixels (mode I) go from {low} to {high}, beyond 0 to 65535: {_remedy(image)}")
        return np.repeat((grey >> 8).astype(np.uint8)[:, :, None], 3, axis=2)
    return np.array(image if mode == "RGB" else image.convert("RGB"))


def numbers(image: Image.Image, dtype: str) -> npt.NDArray[np.uint8] | npt.NDArray[np.uint16]:
    """Return a mask as (H, W) palette indices, grey values, or 0 and 1, of the type uint8 or uint16.

    Raises:
        OddPicture: It has colours, or numbers that the type cannot hold.
    """
    mode = image.mode
    if mode in ("L", "P", "1"):
        return np.array(image, np.uint8).astype(dtype, copy=False)
    is_grey = mode == "I" or mode.startswith("I;16")
    if is_grey and dtype == "uint16":
        grey = np.asarray(image)
        if not grey.size or (grey.min() >= 0 and grey.max() <= 0xFFFF):
            return grey.astype(np.uint16)
        raise OddPicture(f"its pixels (mode I) go from {grey.min()} to {grey.max()}, beyond 0 to 65535")
    wanted = "one number of 8 bits for each pixel (mode L, P or 1)"
    if dtype == "uint16":
        wanted = "one number of 8 or 16 bits for each pixel (mode L, P, 1 or I;16)"
    more = ': declare dtype="uint16"' if is_grey else f": {_remedy(image)}" if mode == "F" else ""
    raise OddPicture(f"it must have {wanted}, and this is {mode}{more}")


def grey(image: Image.Image, dtype: str) -> npt.NDArray[np.uint8] | npt.NDArray[np.uint16]:
    """Return a grey image as `numbers` does a mask, but black and white as 0 and 255, as `rgb` does.

    Raises:
        OddPicture: It has a palette, colours, or numbers that the type cannot hold.
    """
    if image.mode == "P":
        raise OddPicture("it must be grey, and its pixels are places in a palette (mode P)")
    return numbers(image.convert("L") if image.mode == "1" else image, dtype)


def channels_last(array: npt.NDArray[Any], kind: kinds.Image) -> npt.NDArray[Any] | None:
    """Return an image of this kind as (H, W, C), a view; None if it is none.

    It may come so, as (H, W) of one channel, or as planes: (C, H, W), or (T, C, H, W) of T * C channels.
    """
    if array.ndim < 2 or not array.size or array.dtype != kind.dtype:
        return None
    if array.shape[2:] == (kind.channels,) and kind.size in (None, array.shape[:2]):
        return array
    size = kind.size or array.shape[-2:]
    if array.shape[-2:] != size or prod(array.shape[:-2]) != kind.channels:
        return None
    return np.moveaxis(array.reshape(-1, *size), 0, -1)


def _remedy(image: Image.Image) -> str:
    dtype = np.asarray(image).dtype.name
    return f'read it as kinds.Array(({image.height}, {image.width}), "{dtype}"), in a Dataset plug-in'
