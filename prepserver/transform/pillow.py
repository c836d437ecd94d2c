"""Decoding by Pillow: everything that is no plain JPEG, and every JPEG that libjpeg complains about.

Formats are a short list, because Pillow starts other programs for some.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import re
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.PpmImagePlugin import PpmImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from prepserver.pictures import OddPicture, grey, numbers, rgb
from prepserver.pipeline.checks import MAX_SIDE_PX
from prepserver.pipeline.ops.decode import DEFAULT_MAX_PIXELS
from prepserver.transform.errors import BadSample
from prepserver.transform.orientation import UPRIGHT

# Importing them by name registers them; for a format that it has not loaded, Pillow loads all of its dozens.
_READERS = (
    JpegImageFile,  # also MPO, of which it takes the first picture
    PngImageFile,
    WebPImageFile,
    BmpImageFile,
    GifImageFile,
    TiffImageFile,
    PpmImageFile,
)
FORMATS = tuple(str(reader.format) for reader in _READERS)
_ORIENTATION_TAG = 0x0112
_TILE_WIDTH, _TILE_LENGTH = 322, 323
_USUAL_TILE_PIXELS = 1 << 20
"""Tiles of a TIFF up to this size are allowed in an image of any size; most are 256 x 256."""
_WEBP_PIXEL_BYTES = 12  # memory that libwebp takes to decode: two canvases with alpha, and a frame

_LIBTIFF = re.compile(r"/\S*libtiff[^/\s]*\.so[^/\s]*$", re.MULTILINE)

_FAULTS = (
    OSError,
    SyntaxError,  # Pillow's word for a broken PNG
    ValueError,
    EOFError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    RuntimeError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)
"""Errors that Pillow's parsers raise on bad data. MemoryError is not among them: that is the machine's fault."""


class PillowImage:
    """An image that Pillow has opened: its size is known, its pixels are not decoded yet.

    It is decoded at most once, because a failed load must not be repeated: Pillow raises the first time, and returns
    the pixels that it had by then the second time.

    Raises:
        BadSample: It is not an image of a known format.
    """

    height: int  # rows, before any orientation
    width: int  # columns

    def __init__(self, data: bytes) -> None:
        if not data:
            raise BadSample("empty file")
        try:
            with _our_limit():
                self._needs_bytes = _webp_pixels(data) * _WEBP_PIXEL_BYTES
                self._image = Image.open(io.BytesIO(data), formats=FORMATS)
        except UnidentifiedImageError:  # its text holds an address
            raise BadSample(f"not an image in one of the formats {', '.join(FORMATS)}") from None
        except _FAULTS as error:
            self._check_memory()
            raise BadSample(f"broken header: {_text(error)}") from error
        self.width, self.height = self._image.size
        self._pixels: npt.NDArray[np.uint8] | None = None
        self._orientation = UPRIGHT
        self._failure = ""  # not the error, whose traceback would keep objects alive

    def orientation(self) -> int:
        """Return the EXIF orientation, 1 to 8; 1 if it cannot be read. Decodes: a PNG may have it after its pixels.

        Always 1 for TIFF: Pillow always turns those itself, size and pixels.

        Raises:
            BadSample: The image is broken or truncated.
        """
        self.decode()
        return self._orientation

    def decode(self) -> npt.NDArray[np.uint8]:
        """Return the first frame as (H, W, 3) RGB, the same array at every call.

        Alpha is dropped; palettes and CMYK are converted as by `convert("RGB")`; grey of more bits as by `rgb`.

        Raises:
            BadSample: The image is broken or truncated, or has no meaning in 8 bits.
        """
        return self._loaded(lambda: rgb(self._image), "cannot be decoded")

    def numbers(self, dtype: str) -> npt.NDArray[Any]:
        """Return the first frame as (H, W) palette indices or grey values, uint8 or uint16: this or `decode`, not both.

        Raises:
            BadSample: The image is broken or truncated, has colours, or numbers that the type cannot hold.
        """
        return self._loaded(lambda: numbers(self._image, dtype), "cannot be decoded")

    def grey(self, dtype: str) -> npt.NDArray[Any]:
        """As `numbers`, of a grey image instead of a mask: see `pictures.grey`."""
        return self._loaded(lambda: grey(self._image, dtype), "cannot be decoded")

    def _loaded(self, pixels_of: Callable[[], npt.NDArray[Any]], what: str) -> npt.NDArray[Any]:
        if self._pixels is None and not self._failure:
            try:
                with _our_limit():
                    self._refuse_huge_tiles()
                    self._image.load()
                    self._orientation = _orientation(self._image)
                    self._pixels = pixels_of()
            except BadSample as error:
                self._failure = error.reason
            except OddPicture as error:
                self._failure = str(error)
            except _FAULTS as error:
                self._check_memory()
                self._failure = f"{what}: {_text(error)}"
            self._image.close()  # frees Pillow's pixels, 4 bytes each
        if self._pixels is None:
            raise BadSample(self._failure)
        return self._pixels

    def _check_memory(self) -> None:
        """Raise MemoryError if that may be why a WebP failed: libwebp says of both only that it failed."""
        np.empty(self._needs_bytes, np.uint8)

    def _refuse_huge_tiles(self) -> None:
        """Refuse a TIFF with huge tiles: a tile is decoded whole, in memory that the image's size does not bound."""
        if not isinstance(self._image, TiffImageFile):
            return
        tags = self._image.tag_v2
        width, height = int(tags.get(_TILE_WIDTH, 0)), int(tags.get(_TILE_LENGTH, 0))
        if width * height > max(self.width * self.height, _USUAL_TILE_PIXELS):
            raise BadSample(
                f"its tiles of {height}x{width} pixels are larger than the image, {self.height}x{self.width}"
            )


def _webp_pixels(data: bytes) -> int:
    """Return how many pixels a WebP says that it has; 0 for another format, and for more than are usual."""
    if data[8:12] != b"WEBP":
        return 0
    kind, word = data[12:16], int.from_bytes(data[21:25], "little")
    if kind == b"VP8X":
        pixels = (1 + int.from_bytes(data[24:27], "little")) * (1 + int.from_bytes(data[27:30], "little"))
    elif kind == b"VP8L":
        pixels = (1 + (word & 0x3FFF)) * (1 + (word >> 14 & 0x3FFF))
    else:
        pixels = (int.from_bytes(data[26:28], "little") & 0x3FFF) * (int.from_bytes(data[28:30], "little") & 0x3FFF)
    return pixels if pixels <= DEFAULT_MAX_PIXELS else 0


def _orientation(image: Image.Image) -> int:
    if image.format == "TIFF":
        return UPRIGHT
    try:
        value = image.getexif().get(_ORIENTATION_TAG, UPRIGHT)
    except _FAULTS:
        return UPRIGHT
    return value if isinstance(value, int) and 1 <= value <= 8 else UPRIGHT


@contextlib.contextmanager
def _our_limit() -> Iterator[None]:
    """Silence warnings, and raise Pillow's limit from 179 million pixels to the largest `max_pixels`."""
    limit = Image.MAX_IMAGE_PIXELS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Image.MAX_IMAGE_PIXELS = MAX_SIDE_PX**2 // 2  # an error at twice that
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS = limit


def _text(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__


def hush_libtiff() -> None:
    """Keep libtiff, in this process and its forks, from printing to stderr for each damaged file in each pass.

    Nothing is lost: Pillow raises an error for a file that cannot be decoded, which becomes the sample's verdict.
    """
    found = _LIBTIFF.search(Path("/proc/self/maps").read_text())
    if found is None:
        return  # linked into Pillow, or missing
    library = ctypes.CDLL(found[0])
    for name in ("TIFFSetErrorHandler", "TIFFSetWarningHandler"):
        setter = getattr(library, name)
        setter.restype, setter.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        setter(None)
