"""Encoded bytes to pixels: libjpeg-turbo at its strictest for as little as is needed, Pillow for the rest.

There are two ways to the same pixels (`prepserver.transform.native.path` names the one in use): compiled code that
decodes a rectangle, or simplejpeg on a file that claims fewer rows. The former gives up whenever it has a doubt, and
then the latter decides.

Pillow alone decides whether a damaged JPEG is a bad sample. A strict decode counts only if libjpeg had no complaint
about the rows that are used; otherwise Pillow decodes the whole file and decides: truncated files are bad, bit errors
inside a complete scan are not (libjpeg cannot see most of them anyway). So whether a sample is bad does not depend on
the crop that was drawn, and the few odd files of every large dataset are served as a Pillow loader serves them, by the
same libjpeg-turbo.
"""

from __future__ import annotations

import re
import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg

from prepserver.transform.errors import BadSample
from prepserver.transform.header import extent, read_header, samplings, trimmed
from prepserver.transform.native import kernels
from prepserver.transform.native.compiled import pitch_of
from prepserver.transform.orientation import UPRIGHT, swaps_sides, turned
from prepserver.transform.pillow import PillowImage
from prepserver.transform.scale import scale_of, scaled
from prepserver.transform.stage import Box

_KEPT_BYTES = 32 << 20
"""Largest decode buffer kept for the next sample (11 megapixels), so that workers stay small."""

_LEFT_OVER = re.compile(r"extraneous bytes before marker 0xd9")


class _Scratch(threading.local):
    """One grow-only decode buffer for each thread: fresh pages cost more than the kernel that fills them."""

    def __init__(self) -> None:
        self.kept = np.empty(0, np.uint8)

    def get(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return at least `nbytes` bytes with any content."""
        if nbytes > _KEPT_BYTES:
            return np.empty(nbytes, np.uint8)
        if nbytes > self.kept.size:
            self.kept = np.empty(min(_KEPT_BYTES, max(nbytes, 2 * self.kept.size)), np.uint8)
        return self.kept


_scratch = _Scratch()


def scratch(nbytes: int) -> npt.NDArray[np.uint8]:
    """Return this thread's decode buffer, of at least `nbytes`; the next call returns the same buffer."""
    return _scratch.get(nbytes)


class Encoded:
    """One encoded image on its way to pixels. Opening it reads only the header.

    Arrays from `clean` lie in a buffer that the next call, for any sample, overwrites.

    Raises:
        BadSample: It is no image.
    """

    __slots__ = ("_data", "_header", "_orientation", "_pillow", "_whole_odd", "height", "is_usual", "width")
    height: int  # rows as stored
    width: int  # columns as stored

    def __init__(self, data: bytes) -> None:
        self._data = data
        compiled = kernels()
        header = read_header(data) if compiled is None else compiled.header(data)
        self._pillow: PillowImage | None = None
        self._orientation: int | None = None
        if header is not None:
            self.height, self.width = header.height, header.width
            self._orientation = header.orientation
        else:
            self._pillow = PillowImage(data)
            self.height, self.width = self._pillow.height, self._pillow.width
        self._header = header if header is not None and header.components in (1, 3) else None
        self.is_usual = self._header is not None  # whether `clean` decodes it unless it is damaged
        self._whole_odd = 0

    def scale(self, wanted: int) -> int:
        """Return the scale for `clean` of a part whose size allows 1/`wanted`."""
        if wanted == 1 or self._header is None:
            return 1
        return scale_of(wanted, samplings(self._data, self._header.height_at))

    @property
    def orientation(self) -> int:
        """EXIF orientation, 1 to 8. Check the pixel limit first: a PNG is decoded for it."""
        if self._orientation is None:
            assert self._pillow is not None
            self._orientation = self._pillow.orientation()
        return self._orientation

    def size(self, upright: bool) -> tuple[int, int]:
        """Return (height, width) in pixels, as stored or `upright`."""
        if upright and swaps_sides(self.orientation):
            return self.width, self.height
        return self.height, self.width

    def clean(self, part: Box, scale: int = 1) -> npt.NDArray[np.uint8] | None:
        """Return the `part` of the stored image, (rows, columns, 3) RGB, by libjpeg at its strictest.

        `part` is in pixels of the full size. `scale` is 1, 2, 4 or 8: the part is decoded at 1/scale, of which all its
        numbers are multiples, and beyond 1 has at least `LEAST` rows and columns. Returns None if it is no usual JPEG
        or libjpeg complained: then `tolerant` decides.
        """
        data, header = self._data, self._header
        if header is None:
            return None
        compiled = kernels()
        needed = extent(data, header, part.bottom, scale, None if compiled is None else compiled.cut)
        part = part.over(scale)
        if compiled is not None:
            rows, columns = part.bottom - part.top, part.right - part.left
            buffer = scratch((rows + 1) * pitch_of(columns) * 3)
            image = compiled.region(data, header, needed, part, buffer, scale)
            if image is not None:
                return image
        if needed.left_over:
            image = self._strict(trimmed(data, header, needed), needed.height, scale, left_over=True)
            if image is not None:
                return part.of(image)
        if self._whole_odd & scale:
            return None
        image = self._strict(data, self.height, scale, left_over=False)
        if image is None:
            self._whole_odd |= scale
            return None
        return part.of(image)

    def tolerant(self) -> npt.NDArray[np.uint8]:
        """Return the whole stored image, (H, W, 3) RGB, by tolerant Pillow; raises `BadSample` if that fails."""
        if self._pillow is None:
            self._pillow = PillowImage(self._data)
        # Before decoding, which takes the memory that the file claims, not what was checked against the limit.
        self._refuse_other_size(self._pillow.height, self._pillow.width)
        image = self._pillow.decode()
        self._refuse_other_size(*image.shape[:2])
        return image

    def _refuse_other_size(self, height: int, width: int) -> None:
        if (height, width) != (self.height, self.width):
            raise BadSample(f"decodes to {(height, width)} where its header says {(self.height, self.width)}")

    def upright(self, image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return a part of the stored image turned as the EXIF orientation says."""
        compiled = kernels()
        made = None if compiled is None else compiled.turn(image, self.orientation)
        return turned(image, self.orientation) if made is None else made

    def _strict(
        self, data: bytes | bytearray, height: int, scale: int, left_over: bool
    ) -> npt.NDArray[np.uint8] | None:
        """Decode by simplejpeg with accurate DCT and fancy upsampling; return None if libjpeg complained.

        libjpeg reports its *first* warning. With `left_over`, data after the last row are expected; the warning about
        them comes after all pixels are done, so if it is the first one, the pixels are good.
        """
        rows, columns = scaled(height, scale), scaled(self.width, scale)
        nbytes = rows * columns * 3
        buffer = scratch(nbytes)
        try:
            if scale == 1:
                simplejpeg.decode_jpeg(data, buffer=buffer)
            else:  # the least of its scales, n/8, that has at least this size
                made = simplejpeg.decode_jpeg(data, min_height=rows, min_width=columns, buffer=buffer)
                if made.shape[:2] != (rows, columns):
                    return None
        except ValueError as error:
            if not left_over or _LEFT_OVER.search(str(error)) is None:
                return None
        return buffer[:nbytes].reshape(rows, columns, 3)


class Pixels(Encoded):
    """As `Encoded`, of an image that its source gives as pixels, (H, W, C)."""

    __slots__ = ("_pixels",)

    def __init__(self, pixels: npt.NDArray[Any]) -> None:
        self._pixels = pixels
        self.height, self.width = pixels.shape[:2]
        self.is_usual = True
        self._orientation = UPRIGHT

    def scale(self, wanted: int) -> int:
        return 1

    def clean(self, part: Box, scale: int = 1) -> npt.NDArray[Any]:
        pixels = part.of(self._pixels)
        return pixels if pixels.flags.writeable else pixels.copy()  # of the mapping of a file
