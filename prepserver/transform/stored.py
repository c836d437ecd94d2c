"""Images that a packed dataset stores as pixels: RGB, or YUV 4:2:0, which takes half the bytes.

YUV is JFIF's, in integers, so that rows have the same bytes on every machine. A sample of chroma is the mean of two by
two pixels and stands for all four of them again: so a part of an image needs nothing from around it.

Compiled code does the same, with the same bytes (`prepserver.transform.native`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from prepserver.protocol.packed import PIXEL_UNITS, StoredPixels
from prepserver.transform.decode import Pixels, scratch
from prepserver.transform.native import kernels
from prepserver.transform.orientation import UPRIGHT
from prepserver.transform.stage import Box

Bytes = npt.NDArray[np.uint8]

# Times 2**16, by row: what red, green and blue add to brightness, blue chroma and red chroma. Each chroma adds up to 0.
_LUMA = np.array([19595, 38470, 7471], np.int32)
_CHROMA = np.array([[-11059, -21709, 32768], [32768, -27439, -5329]], np.int32)


class StoredImage(Pixels):
    """Stored pixels as an `Encoded`."""

    __slots__ = ("_stored",)

    def __init__(self, stored: StoredPixels) -> None:
        self._stored = stored
        self.height, self.width = stored.head.height, stored.head.width
        self.is_usual = True
        self._orientation = UPRIGHT

    def clean(self, part: Box, scale: int = 1) -> Bytes:
        shape = (part.bottom - part.top, part.right - part.left, 3)
        nbytes = shape[0] * shape[1] * 3
        image = scratch(nbytes)[:nbytes].reshape(shape)
        if self._stored.head.unit == PIXEL_UNITS["rgb"]:
            image[...] = part.of(np.frombuffer(self._stored.pixels, np.uint8).reshape(self.height, self.width, 3))
        elif (compiled := kernels()) is None or not compiled.yuv(self._stored, part, image):
            image[...] = _rgb(self._stored, part)
        return image


def stored_bytes(image: Bytes, form: str) -> bytes:
    """Return an image, (H, W, 3) RGB, in one of the forms of `PIXEL_UNITS`."""
    if form == "rgb":
        return image.tobytes()
    height, width, _ = image.shape
    luma = (image @ _LUMA + (1 << 15)) >> 16
    even = np.pad(image, ((0, height % 2), (0, width % 2), (0, 0)), "edge").astype(np.int32)
    sums = even[::2, ::2] + even[1::2, ::2] + even[::2, 1::2] + even[1::2, 1::2]
    chroma = [((sums @ factors + (1 << 17)) >> 18) + 128 for factors in _CHROMA]
    return b"".join(plane.clip(0, 255).astype(np.uint8).tobytes() for plane in (luma, *chroma))


def _rgb(stored: StoredPixels, part: Box) -> Bytes:
    height, width = stored.head.height, stored.head.width
    top, left, bottom, right = part
    half = (height + 1) // 2, (width + 1) // 2
    whole = np.frombuffer(stored.pixels, np.uint8)
    luma = whole[: height * width].reshape(height, width)[top:bottom, left:right].astype(np.int32)
    planes = whole[height * width :].reshape(2, *half)[:, top // 2 : (bottom + 1) // 2, left // 2 : (right + 1) // 2]
    blue, red = planes.astype(np.int32) - 128
    added = np.stack((91881 * red, -22554 * blue - 46802 * red, 116130 * blue), 2) + (1 << 15) >> 16
    spread = added.repeat(2, 0).repeat(2, 1)[top % 2 :, left % 2 :][: bottom - top, : right - left]
    return (luma[:, :, None] + spread).clip(0, 255).astype(np.uint8)
