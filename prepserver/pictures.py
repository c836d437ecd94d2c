"""Pillow's images as 8-bit pixels: those that a Dataset plug-in gives, and those of files.

`source` and `transform` use this module; it knows neither, and opens no file.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image

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


def classes(image: Image.Image) -> Pixels:
    """Return a mask as (H, W) palette indices, grey values, or 0 and 1.

    Raises:
        OddPicture: It has colours, or more than 8 bits.
    """
    mode = image.mode
    if mode in ("L", "P", "1"):
        return np.array(image, np.uint8)
    more = f": {_remedy(image)}" if mode.startswith(("I", "F")) else ""
    raise OddPicture(f"a mask has one number of 8 bits for each pixel (mode L, P or 1), and this is {mode}{more}")


def _remedy(image: Image.Image) -> str:
    dtype = np.asarray(image).dtype.name
    return f'read it as kinds.Array(({image.height}, {image.width}), "{dtype}"), in a Dataset plug-in'
